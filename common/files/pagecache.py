"""Drops files from the page cache of this node, without root, and checks the result.

This affects only the node's memory: clients cannot empty the caches in a disk or in the servers of a parallel
file system.
"""

import ctypes
import mmap
import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]


def evict(paths: Iterable[Path]) -> None:
    """Drop the files' pages. Dirty pages are written to disk first, since the kernel would not drop them
    (posix_fadvise(2)).

    This is a request to the kernel; ``resident_fraction`` shows whether it was honoured. Raises OSError.
    """
    for path in paths:
        with path.open("rb", buffering=0) as file:
            evict_fd(file.fileno())


def drop(path: Path) -> tuple[int, float]:
    """Drop the pages of a file that is usually only read, opening it once. Returns its size in bytes, and its
    ``resident_fraction`` afterwards. If pages remain in the cache and this user owns the file, it may be newly
    written, so it is synced to disk and its pages are dropped again. Raises OSError."""
    with path.open("rb", buffering=0) as file:
        fd = file.fileno()
        status = os.fstat(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        left = resident_fraction_fd(fd)
        if left and status.st_uid == os.geteuid():
            evict_fd(fd)
            left = resident_fraction_fd(fd)
        return status.st_size, left


def evict_fd(fd: int) -> None:
    """Like ``evict``, for an open file."""
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)


def resident_fraction(path: Path) -> float:
    """The fraction, 0 to 1, of a file's pages that are in memory, from mincore(2); 0 for an empty file.

    For a file that the caller neither owns nor may write, Linux (since 5.2) reports that everything is
    resident, so 1.0 may also mean "unknown". Raises OSError.
    """
    with path.open("rb", buffering=0) as file:
        return resident_fraction_fd(file.fileno())


def resident_fraction_fd(fd: int) -> float:
    """Like ``resident_fraction``, for an open file."""
    size = os.fstat(fd).st_size
    if size == 0:
        return 0.0
    pages = np.empty(-(-size // mmap.PAGESIZE), np.uint8)
    with mmap.mmap(fd, size, mmap.MAP_SHARED, mmap.PROT_READ) as mapped:
        address = np.frombuffer(mapped, np.uint8).ctypes.data
        if _libc.mincore(address, size, pages.ctypes.data):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return float(np.mean(pages & 1))  # only the lowest bit of each byte is defined
