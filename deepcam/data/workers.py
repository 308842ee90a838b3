"""Batches read by worker processes."""

from collections.abc import Generator, Sequence

import torch

from mlhpc.common.formats.archive import Sample
from mlhpc.common.pytorch import workers as processes
from mlhpc.common.pytorch.loading import as_array, dtype_of
from mlhpc.deepcam.data.sample import Batch, Reader


def batches(
    batches: Sequence[Sequence[Sample]],
    reader: Reader,
    *,
    workers: int,
    prefetch: int,
    device: str,
    ranks_on_node: int,
) -> Generator[Batch, None, None]:
    """``batches`` in order, read by ``workers`` processes, with ``prefetch`` of them, or one per worker,
    finished or in progress before they are requested.

    Raises UserError naming the file when one cannot be read, and when the shared memory of the node cannot
    hold what the workers of all its ranks read ahead.
    """
    batch_bytes = max(map(len, batches), default=0) * reader.nbytes
    return processes.batches(_read, reader, batches, batch_bytes, workers, prefetch, device, ranks_on_node)


def _read(reader: Reader, paths: Sequence[Sample]) -> Batch:
    x = processes.in_shared_memory((len(paths), *reader.shape), dtype_of(reader.sample_dtype))
    y = processes.in_shared_memory((len(paths), *reader.shape[:2]), torch.uint8)
    return x, y, sum(reader.read(path, as_array(x[k]), y[k].numpy()) for k, path in enumerate(paths))
