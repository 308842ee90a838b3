"""Upper limits of the rate at which samples can be read on this machine: the rate of copying memory, and that of
reading the same files without processing them."""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mlhpc.common.files.pagecache import evict
from mlhpc.common.files.regular import open_regular

_COPIED = 64 << 20  # bytes per thread: far larger than the caches
_CHUNK = 4 << 20
_MOST_READ = 2 << 30
_ROUNDS = 3


@dataclass(frozen=True)
class Ceilings:
    """Rates of all ``threads`` together, in bytes per second: ``copy`` for copying memory (with at most one thread
    per core), ``cold`` and ``warm`` for reading files that are not, or are, in the page cache. ``read_cpu_s``:
    seconds of processor time per byte read from the page cache."""

    threads: int
    copy: float
    cold: float
    warm: float
    read_cpu_s: float


def measure(files: Sequence[Path], threads: int) -> Ceilings:
    """The ceilings for ``threads`` threads and ``files``, of which about the first 2 GiB are read; each is the
    best of three rounds. Raises OSError."""
    taken: list[Path] = []
    total = 0
    for path in files:
        if total < _MOST_READ:
            taken.append(path)
            total += path.stat().st_size
    # More threads than cores copy no faster, and their arrays may exceed the memory of the node.
    copiers = min(threads, len(os.sched_getaffinity(0)))
    cold = []
    with ThreadPoolExecutor(threads) as pool:
        source = [np.ones(_COPIED, np.uint8) for _ in range(copiers)]
        target = [np.ones(_COPIED, np.uint8) for _ in range(copiers)]
        copies = [_seconds(pool, np.copyto, zip(target, source, strict=True)) for _ in range(_ROUNDS)]
        for _ in range(_ROUNDS):
            evict(taken)
            cold.append(_read(pool, threads, taken))
        cpu = time.process_time()
        warm = [_read(pool, threads, taken) for _ in range(_ROUNDS)]
        cpu = (time.process_time() - cpu) / _ROUNDS
    size = max(total, 1)
    return Ceilings(threads, copiers * _COPIED / min(copies), size / min(cold), size / min(warm), cpu / size)


def _seconds(
    pool: ThreadPoolExecutor, work: Callable[..., object], items: Iterable[tuple[object, ...]]
) -> float:
    start = time.perf_counter()
    for done in [pool.submit(work, *item) for item in items]:
        done.result()
    return time.perf_counter() - start


def _read(pool: ThreadPoolExecutor, threads: int, files: Sequence[Path]) -> float:
    """Seconds that the threads take to read all files; each thread takes the next file that none has taken, as a
    loader's threads do."""
    left = iter(files)
    return _seconds(pool, _read_next, [(left,)] * threads)


def _read_next(left: Iterator[Path]) -> None:
    # One buffer for all files: allocating one per file would take longer than reading a file of a few kilobytes.
    buffer = None
    for path in left:
        buffer = buffer or bytearray(_CHUNK)
        with open(open_regular(path), "rb", buffering=0) as file:
            while file.readinto(buffer):
                pass
