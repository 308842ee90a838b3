"""Batches read by worker processes."""

from collections.abc import Generator, Sequence

from mlhpc.common.pytorch import workers as processes
from mlhpc.resnet50.data.reader import Batch, Reader, finish


def batches(
    batches: Sequence[Sequence[int]],
    reader: Reader,
    *,
    workers: int,
    prefetch: int,
    device: str,
    ranks_on_node: int,
) -> Generator[Batch, None, None]:
    """``batches`` of image numbers in order, read by ``workers`` processes, with ``prefetch`` of them, or one per
    worker, finished or in progress before they are requested.

    Raises UserError naming the image when one cannot be read, and when the shared memory of the node cannot
    hold what the workers of all its ranks read ahead.
    """
    batch_bytes = max(map(len, batches), default=0) * reader.size**2 * 3 * 4
    return processes.batches(_read, reader, batches, batch_bytes, workers, prefetch, device, ranks_on_node)


def _read(reader: Reader, indices: Sequence[int]) -> Batch:
    x = processes.in_shared_memory((len(indices), reader.size, reader.size, 3))
    rows = x.numpy()
    return finish(x, [reader.read(index, rows[k]) for k, index in enumerate(indices)])
