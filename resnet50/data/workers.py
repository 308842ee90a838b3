"""Batches read by worker processes."""

from collections.abc import Generator, Sequence

from mlhpc.common.pytorch import workers as processes
from mlhpc.resnet50.data.reader import Reader
from mlhpc.resnet50.data.threads import Item, finish


def batches(
    reader: Reader,
    batches: Sequence[Sequence[int]],
    workers: int,
    ahead: int,
    device: str,
    ranks_on_node: int,
) -> Generator[Item, None, None]:
    """``batches`` of image numbers in order, read by ``workers`` processes; ``ahead`` of them, or one each,
    before they are asked for.

    Raises UserError naming the image when one cannot be read, and when the shared memory of the node cannot
    hold what the workers of all its ranks read ahead.
    """
    batch_bytes = max(map(len, batches), default=0) * reader.size**2 * 3 * 4
    return processes.batches(_read, reader, batches, batch_bytes, workers, ahead, device, ranks_on_node)


def _read(reader: Reader, indices: Sequence[int]) -> Item:
    x = processes.in_shared_memory((len(indices), reader.size, reader.size, 3))
    rows = x.numpy()
    return finish(x, [reader.read(index, rows[k]) for k, index in enumerate(indices)])
