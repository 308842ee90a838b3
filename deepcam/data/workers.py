"""Batches read by worker processes."""

from collections.abc import Generator, Sequence
from pathlib import Path

import torch

from mlhpc.common.pytorch import workers as processes
from mlhpc.deepcam.data.sample import Reader
from mlhpc.deepcam.data.threads import Item


def batches(
    reader: Reader,
    batches: Sequence[Sequence[Path]],
    workers: int,
    ahead: int,
    device: str,
    ranks_on_node: int,
) -> Generator[Item, None, None]:
    """``batches`` in order, read by ``workers`` processes; ``ahead`` of them, or one each, before they are
    asked for.

    Raises UserError naming the file when one cannot be read, and when the shared memory of the node cannot
    hold what the workers of all its ranks read ahead.
    """
    batch_bytes = max(map(len, batches), default=0) * reader.nbytes
    return processes.batches(_read, reader, batches, batch_bytes, workers, ahead, device, ranks_on_node)


def _read(reader: Reader, paths: Sequence[Path]) -> Item:
    x = processes.in_shared_memory((len(paths), *reader.shape))
    y = processes.in_shared_memory((len(paths), *reader.shape[:2]), torch.uint8)
    return x, y, sum(reader.read(path, x[k].numpy(), y[k].numpy()) for k, path in enumerate(paths))
