"""Files that are either not there or complete."""

import contextlib
import fcntl
import os
import socket
from collections.abc import Iterable, Iterator
from pathlib import Path

SUFFIX = ".part"


@contextlib.contextmanager
def writing(path: Path) -> Iterator[int]:
    """A file descriptor to write ``path`` through; the name appears when the block ends well.

    Until then the bytes stand beside it under a hidden name that ends in ``.part``, locked, and are removed
    when the block raises. A killed process leaves its ``.part``; ``sweep`` takes those away. The rename is
    atomic for other processes; nothing is forced to disk, so a power cut may still lose the file.

    Raises OSError as the file system does.
    """
    part = path.with_name(f".{path.name}.{socket.gethostname()}.{os.getpid()}{SUFFIX}")
    fd = os.open(part, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        with contextlib.suppress(OSError):  # some parallel file systems are mounted without locks
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield fd
        # Every close flushes where writes are buffered (NFS), and says whether that went well; through a
        # duplicate, so that the file stays locked until it has its name.
        os.close(os.dup(fd))
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    finally:
        os.close(fd)


def write_bytes(path: Path, data: bytes) -> None:
    """Write a small file atomically."""
    with writing(path) as fd:
        write_all(fd, memoryview(data))


def write_all(fd: int, data: memoryview) -> None:
    """Write every byte: a plain ``os.write`` may stop short, at 2 GiB at the latest (write(2))."""
    while data:
        data = data[os.write(fd, data) :]


def sweep(folders: Iterable[Path]) -> int:
    """Remove the ``.part`` files of processes that no longer live, directly in ``folders``; how many.

    The kernel drops the lock with the process, so a lock that can be had belongs to nobody. Where the file
    system has no locks nothing is removed.
    """
    removed = 0
    for folder in folders:
        for part in folder.glob(f".*{SUFFIX}"):
            with contextlib.suppress(OSError):
                fd = os.open(part, os.O_RDWR)
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    part.unlink()
                    removed += 1
                finally:
                    os.close(fd)
    return removed
