"""Batches read by threads of this process. All that takes long releases the interpreter's lock."""

from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from threading import Barrier
from typing import TypeVar

import torch

from mlhpc.resnet50.data.reader import Reader, Sample

Item = tuple[torch.Tensor, torch.Tensor, int, tuple[str, ...]]
"""A batch as it lies in memory, ``x`` [b, size, size, 3] and ``y`` [b]; the bytes read; what was passed
over."""
T = TypeVar("T")


def batches(
    reader: Reader, batches: Sequence[Sequence[int]], readers: int, ahead: int, device: str
) -> Generator[Item, None, None]:
    """``batches`` of image numbers in order, up to ``ahead`` of them before they are asked for.

    Raises UserError naming the image when one cannot be read.
    """
    pinned = device != "cpu"

    def begin(indices: Sequence[int]) -> tuple[torch.Tensor, list[Future[Sample]]]:
        x = torch.empty((len(indices), reader.size, reader.size, 3), pin_memory=pinned)
        rows = x.numpy()
        return x, [pool.submit(reader.read, index, rows[k]) for k, index in enumerate(indices)]

    with reading(readers) as pool:
        for x, samples in ahead_of(batches, begin, ahead):
            yield finish(x, [sample.result() for sample in samples], pinned)


def finish(x: torch.Tensor, samples: Sequence[Sample], pinned: bool = False) -> Item:
    """The item of a batch whose rows are read; its labels are in page-locked memory if ``pinned``."""
    y = torch.tensor([sample.label for sample in samples], dtype=torch.int64, pin_memory=pinned)
    return x, y, sum(sample.size for sample in samples), tuple(b for sample in samples for b in sample.broken)


def ahead_of(
    items: Sequence[Sequence[int]], begin: Callable[[Sequence[int]], T], ahead: int
) -> Generator[T, None, None]:
    """``begin`` of every item, in order; begun up to ``ahead`` of them before they are asked for."""
    waiting: deque[T] = deque()
    for item in items:
        waiting.append(begin(item))
        if len(waiting) > ahead:
            yield waiting.popleft()
    while waiting:
        yield waiting.popleft()


@contextmanager
def reading(readers: int) -> Iterator[ThreadPoolExecutor]:
    """A pool of ``readers`` threads in each of which PyTorch uses one thread: an image at a time is too
    little work to share. When it is closed, it forgets what it has not begun."""
    pool = ThreadPoolExecutor(readers, thread_name_prefix="reader")
    # The number is each thread's own, but the last that was set is also that of threads to come and of MKL:
    # set here once more, after all have.
    before, barrier = torch.get_num_threads(), Barrier(readers)

    def alone() -> None:
        torch.set_num_threads(1)
        barrier.wait()

    try:
        wait([pool.submit(alone) for _ in range(readers)])
        torch.set_num_threads(before)
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)
