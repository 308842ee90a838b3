"""Host memory for batches, and threads that fill it."""

import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from threading import Barrier
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from mlhpc.common.data.prefetch import reader_threads


class Buffers:
    """Memory for batches, page-locked if ``pinned``, reused once no tensor refers to it: the page faults of
    fresh memory take at least half as long as reading a sample."""

    def __init__(self, pinned: bool) -> None:
        self._pinned = pinned
        self._free: dict[Any, list[npt.NDArray[np.uint8]]] = {}

    def take(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """An uninitialised tensor on the host."""
        if self._pinned:  # PyTorch caches pinned memory itself, and knows when a copy from it is done
            return torch.empty(shape, dtype=dtype, pin_memory=True)
        size = int(np.prod(shape)) * dtype.itemsize
        free = self._free.setdefault(size, [])
        block = free.pop() if free else np.empty(size, np.uint8)
        # The tensor, and all that share its memory, refer to this view: when it is freed, they are gone.
        view = block[...]
        weakref.finalize(view, free.append, block).atexit = False
        return torch.from_numpy(view).view(dtype).view(shape)


@contextmanager
def single_threaded_readers(threads: int) -> Iterator[ThreadPoolExecutor]:
    """A pool of threads in each of which PyTorch uses one thread: a single image is too little work to divide."""
    # The setting is per thread, but the last one set also applies to new threads and to MKL: it is reset here once
    # all threads have theirs.
    before, barrier = torch.get_num_threads(), Barrier(threads)

    def use_one_thread() -> None:
        torch.set_num_threads(1)
        barrier.wait()

    with reader_threads(threads) as pool:
        wait([pool.submit(use_one_thread) for _ in range(threads)])
        torch.set_num_threads(before)
        yield pool
