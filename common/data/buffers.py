"""Host memory for batches, reused once a batch is no longer referenced."""

import mmap
import weakref
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt


class Buffers:
    """Memory for the arrays of batches, reused once no array or tensor refers to it, because page faults in newly
    allocated memory take at least half as long as reading a sample. Thread-safe."""

    def __init__(self) -> None:
        self._free: dict[int, list[mmap.mmap]] = {}

    def take(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """An uninitialised array of the given shape, in page-aligned memory unless it is smaller than a page."""
        kind = np.dtype(dtype)
        size = prod(shape) * kind.itemsize
        if size < mmap.PAGESIZE:
            return np.empty(shape, kind)
        free = self._free.setdefault(size, [])
        try:
            block = free.pop()
        except IndexError:
            block = mmap.mmap(-1, size)
        # NumPy makes this array, and not the block, the base of all its views: when it is freed, no view is left.
        root = np.frombuffer(block, np.uint8)
        weakref.finalize(root, free.append, block).atexit = False
        return root.view(kind).reshape(shape)
