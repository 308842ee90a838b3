"""Host memory for batches, and the threads that fill it."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from math import prod
from threading import Barrier

import numpy as np
import torch

from mlhpc.common.data import buffers
from mlhpc.common.data.prefetch import reader_threads


class Buffers:
    """Memory for the tensors of batches, page-locked if ``pinned``, and reused once no tensor refers to that
    memory."""

    def __init__(self, pinned: bool) -> None:
        self._pinned = pinned
        self._memory = buffers.Buffers()

    def take(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """An uninitialised tensor of the given shape on the host."""
        if self._pinned:  # PyTorch caches pinned memory itself, and tracks copies from it
            return torch.empty(shape, dtype=dtype, pin_memory=True)
        size = prod(shape) * dtype.itemsize
        return torch.from_numpy(self._memory.take((size,), np.uint8)).view(dtype).view(shape)


def page_lock(largest: int, each: int, more: Sequence[int] = ()) -> None:
    """Page-lock memory in advance: ``each`` pieces of every power of two up to ``largest`` bytes, and one piece of
    each size in ``more``. PyTorch keeps freed pieces, whose sizes are powers of two; page-locking a new piece
    takes milliseconds."""
    powers = [1 << bits for bits in range((largest - 1).bit_length() + 1)]
    held = [torch.empty(size, dtype=torch.uint8, pin_memory=True) for size in (*each * powers, *more)]
    del held  # only now, so that no piece reuses an earlier one


@contextmanager
def single_threaded_readers(threads: int) -> Iterator[ThreadPoolExecutor]:
    """A pool of threads in each of which PyTorch uses only that thread, since a single image is too little work to
    divide."""
    # The setting is per thread, but the last value set also applies to new threads and to MKL, so it is reset here
    # once all threads have set theirs.
    before, barrier = torch.get_num_threads(), Barrier(threads)

    def use_one_thread() -> None:
        torch.set_num_threads(1)
        barrier.wait()

    with reader_threads(threads) as pool:
        wait([pool.submit(use_one_thread) for _ in range(threads)])
        torch.set_num_threads(before)
        yield pool
