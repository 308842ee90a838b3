"""Who uses a folder, so that runs which share one neither fill it at once nor empty it under each other.

Two kinds of hidden files in the folder tell, by locks that the kernel drops with the process that has them:
``.lock`` of the one that is changing what is in the folder, and ``.use.HOST.PID.TOKEN`` of each process that
uses it. Where a file system has no locks, no run knows of another.
"""

import contextlib
import fcntl
import os
import secrets
import socket
from pathlib import Path

_ME = f".use.{socket.gethostname()}.{os.getpid()}.{secrets.token_hex(4)}"
_held: dict[Path, int] = {}  # the locks of this process, which are its own as its memory is


def try_lock(folder: Path) -> int | None:
    """Take the right to change what is in ``folder``, and give it back with ``unlock``; None where another
    has it. Raises OSError as the file system does: FileNotFoundError where ``folder`` is not there."""
    path = folder / ".lock"
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return None
        except OSError:  # a file system without locks
            return fd
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(fd), path.stat()):
                return fd
        os.close(fd)  # the one before unlinked it between our open and our lock


def unlock(folder: Path, fd: int) -> None:
    """Give back what ``try_lock`` gave."""
    (folder / ".lock").unlink(missing_ok=True)
    os.close(fd)


def register(folder: Path) -> None:
    """From now on, until ``unregister`` or its end, this process uses ``folder``."""
    if folder not in _held:
        _held[folder] = fd = os.open(folder / _ME, os.O_RDWR | os.O_CREAT, 0o644)
        with contextlib.suppress(OSError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


def unregister(folder: Path) -> None:
    """This process uses ``folder`` no more."""
    if folder in _held:
        (folder / _ME).unlink(missing_ok=True)
        os.close(_held.pop(folder))


def in_use(folder: Path) -> bool:
    """Whether another process uses ``folder``. Takes away what dead ones left."""
    found = False
    for path in folder.glob(".use.*"):
        if path.name == _ME:
            continue
        with contextlib.suppress(FileNotFoundError):
            try:
                fd = os.open(path, os.O_RDWR)
            except PermissionError:  # another user's, who alone can tell, and take it away
                found = True
                continue
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
            except BlockingIOError:
                found = True
            except OSError:  # without locks nobody can tell the living from the dead
                path.unlink(missing_ok=True)
            finally:
                os.close(fd)
    return found


def is_locked(path: Path) -> bool:
    """Whether a living process holds a lock on the file, as far as its file system says. False where it cannot be
    opened."""
    try:
        # NFS gives an exclusive lock only on a file that is open for writing.
        fd = os.open(path, os.O_RDWR if os.access(path, os.W_OK) else os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # a file system without locks
        return False
    finally:
        os.close(fd)
    return False
