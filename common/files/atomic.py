"""Files that either do not exist or are complete."""

import contextlib
import fcntl
import os
import secrets
import socket
from collections.abc import Iterable, Iterator
from pathlib import Path

SUFFIX = ".part"


@contextlib.contextmanager
def writing(path: Path, mode: int = 0o644) -> Iterator[int]:
    """A file descriptor to write ``path`` through; the name appears when the block ends without an error.

    Until then the bytes are in a new, locked, hidden file next to it whose name ends in ``.part``, which is
    removed when the block raises. A killed process leaves its ``.part``; ``sweep`` removes those. The rename is
    atomic for other processes; nothing is synced to disk, so a power cut may still lose the file.

    Raises OSError.
    """
    name = f".{path.name}.{socket.gethostname()}.{os.getpid()}.{secrets.token_hex(4)}{SUFFIX}"
    part = path.with_name(name)
    fd = -1
    try:  # around the call: an interrupt may come when the file exists and its descriptor is not returned yet
        # A new file, never a link: where others may write to the folder, they must not redirect the bytes.
        fd = os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
        with contextlib.suppress(OSError):  # some parallel file systems are mounted without locks
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield fd
        # On file systems that buffer writes (NFS), close flushes them and reports errors; a duplicate is closed,
        # so that the file stays locked until it has its name.
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
    """Write every byte: one ``os.write`` may write less, at most 2 GiB (write(2))."""
    while data:
        data = data[os.write(fd, data) :]


def sweep(folders: Iterable[Path]) -> int:
    """Remove the ``.part`` files of dead processes directly in ``folders``; returns how many.

    The kernel drops a lock when its process ends, so the owner of a free lock is dead. Where the file system has
    no locks nothing is removed.
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
