"""Batches read by threads of this process."""

import weakref
from collections import deque
from collections.abc import Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from mlhpc.deepcam.data.sample import Reader

Item = tuple[torch.Tensor, torch.Tensor, int]
"""A batch as it lies in memory, ``x`` [b, rows, columns, channels] and ``y`` [b, rows, columns], and the size
of its files in bytes."""

Kept = dict[Path, tuple[npt.NDArray[np.float32], npt.NDArray[np.uint8]]]
"""Samples that were read, by the path of their file."""


def batches(
    reader: Reader,
    batches: Sequence[Sequence[Path]],
    readers: int,
    ahead: int,
    memory: "Memory",
    kept: Kept | None = None,
) -> Generator[Item, None, None]:
    """``batches`` in order, up to ``ahead`` of them before they are asked for. A sample in ``kept`` is copied
    from there; one that is not is added.

    Raises UserError naming the file when one cannot be read.
    """
    pool = ThreadPoolExecutor(readers, thread_name_prefix="reader")
    waiting: deque[tuple[torch.Tensor, torch.Tensor, list[Future[int]]]] = deque()

    def fill(path: Path, x: npt.NDArray[np.float32], y: npt.NDArray[np.uint8]) -> int:
        if kept is None:
            return reader.read(path, x, y)
        if path in kept:
            x[...], y[...] = kept[path]
            return 0
        size = reader.read(path, x, y)
        kept[path] = x.copy(), y.copy()
        return size

    def hand_out() -> Item:
        x, y, samples = waiting.popleft()
        return x, y, sum(sample.result() for sample in samples)

    try:
        for paths in batches:
            x = memory.take((len(paths), *reader.shape), torch.float32)
            y = memory.take((len(paths), *reader.shape[:2]), torch.uint8)
            samples = [pool.submit(fill, path, x[k].numpy(), y[k].numpy()) for k, path in enumerate(paths)]
            waiting.append((x, y, samples))
            del x, y  # who holds on to a batch is to be the caller alone
            if len(waiting) > ahead:
                yield hand_out()
        while waiting:
            yield hand_out()
    finally:
        pool.shutdown(cancel_futures=True)


class Memory:
    """Memory of batches, page-locked if ``pinned``, used again once no tensor shows it any more: new memory
    comes page fault by page fault, which takes at least half as long as reading a sample."""

    def __init__(self, pinned: bool) -> None:
        self._pinned = pinned
        self._free: dict[Any, list[npt.NDArray[np.uint8]]] = {}

    def take(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        if self._pinned:  # PyTorch keeps such memory itself, and knows when a copy from it is done
            return torch.empty(shape, dtype=dtype, pin_memory=True)
        count = int(np.prod(shape)) * dtype.itemsize
        free = self._free.setdefault(count, [])
        block = free.pop() if free else np.empty(count, np.uint8)
        # The tensor, and all that share its memory, hold on to this view: when it goes, they have gone.
        view = block[...]
        weakref.finalize(view, free.append, block).atexit = False
        return torch.from_numpy(view).view(dtype).view(shape)
