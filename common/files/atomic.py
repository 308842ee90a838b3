"""Writes files that are either complete or do not exist."""

import contextlib
import fcntl
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

SUFFIX = ".part"


@contextlib.contextmanager
def writing(path: Path, mode: int = 0o644) -> Iterator[int]:
    """A file descriptor for writing ``path``, which appears under its name when the block ends without an error.

    Until then the bytes are in a new, locked, hidden file next to it whose name ends in ``.part``, which is
    removed when the block raises. A killed process leaves its ``.part``; ``sweep`` removes those. The rename is
    atomic for other processes; nothing is synced to disk, so a power cut may still lose the file.

    Raises OSError.
    """
    name = f".{path.name}.{os.uname().nodename}.{os.getpid()}.{os.urandom(4).hex()}{SUFFIX}"
    part = path.with_name(name)
    fd = -1
    try:  # also around os.open: an interrupt may come after the file is created, but before os.open returns
        # A new file, never a link: others who may write to the folder must not be able to redirect the bytes.
        fd = os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
        with contextlib.suppress(OSError):  # some parallel file systems are mounted without locks
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield fd
        # On file systems that buffer writes (NFS), close flushes them and reports errors. A duplicate is closed so
        # that the file stays locked until it has its name.
        os.close(os.dup(fd))
        os.replace(part, path)
    except BaseException:
        with contextlib.suppress(OSError):
            part.unlink()
        raise
    finally:
        if fd >= 0:
            os.close(fd)


def write_bytes(path: Path, data: bytes) -> None:
    """Write a small file atomically."""
    with writing(path) as fd:
        write_all(fd, memoryview(data))


def write_all(fd: int, data: memoryview) -> None:
    """Write all of ``data``: a single ``os.write`` may write less, and at most 2 GiB (write(2))."""
    while data:
        data = data[os.write(fd, data) :]


def sweep(folders: Iterable[Path]) -> int:
    """Remove the ``.part`` files of dead processes directly in ``folders``; returns how many.

    The kernel releases a lock when its process ends, so a file that is not locked has no living owner. On a file
    system without locks, nothing is removed.
    """
    removed = 0
    for folder in folders:
        for part in folder.glob(f".*{SUFFIX}"):
            with contextlib.suppress(OSError):
                fd = os.open(part, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    part.unlink()
                    removed += 1
                finally:
                    os.close(fd)
    return removed
