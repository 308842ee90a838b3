"""Tracks the processes that use a folder, so that runs sharing a folder neither fill it twice nor delete each
other's files.

Two kinds of hidden files in the folder record this, with locks that the kernel releases when their process ends:
``.lock`` for the process that changes the folder's content, and ``.use.HOST.PID.TOKEN`` for each process that uses
it. If locks do not reach other nodes (``flock_reaches_other_nodes``), a use file of another node always means that
the folder is in use. No run ever loses its files, but the files of a killed run must be removed by hand.
"""

import contextlib
import fcntl
import os
import secrets
import socket
from pathlib import Path

from mlhpc.common.files.filesystem import flock_reaches_other_nodes

_TOKEN = secrets.token_hex(4)  # process ids are reused
_held: dict[Path, int] = {}  # the locks of this process; not shared by forks
_OPEN = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


def try_lock(folder: Path) -> int | None:
    """Acquire the lock that permits changing the content of ``folder``; ``unlock`` releases it. Returns a file
    descriptor, or None if another process has the lock. Raises OSError: FileNotFoundError if ``folder`` does not
    exist."""
    path = folder / ".lock"
    while True:
        fd = os.open(path, _OPEN | os.O_CREAT, 0o644)
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
        os.close(fd)  # the previous holder unlinked it between our open and our lock


def unlock(folder: Path, fd: int) -> None:
    """Release the lock acquired by ``try_lock``."""
    (folder / ".lock").unlink(missing_ok=True)
    os.close(fd)


def _own() -> str:
    """The name of this process's use files; a forked process has different ones."""
    return f".use.{socket.gethostname()}.{os.getpid()}.{_TOKEN}"


def register(folder: Path) -> None:
    """Record that this process uses ``folder``, until ``unregister`` or its end."""
    if folder not in _held:
        _held[folder] = fd = os.open(folder / _own(), _OPEN | os.O_CREAT, 0o644)
        with contextlib.suppress(OSError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


def unregister(folder: Path) -> None:
    """Record that this process no longer uses ``folder``."""
    if folder in _held:
        (folder / _own()).unlink(missing_ok=True)
        os.close(_held.pop(folder))


def in_use(folder: Path) -> bool:
    """Return whether another process uses ``folder``. Removes the use files of dead processes."""
    used = False
    for path in folder.glob(".use.*"):
        if path.name == _own():
            continue
        with contextlib.suppress(FileNotFoundError):
            try:
                fd = os.open(path, _OPEN)
            except OSError as error:  # another user's file, which only that user can check, or not a use file
                if isinstance(error, FileNotFoundError):
                    raise
                used = True
                continue
            try:
                if _is_dead(path, fd):
                    path.unlink()
                else:
                    used = True
            finally:
                os.close(fd)
    return used


def _is_dead(path: Path, fd: int) -> bool:
    """Return whether the process that created the use file ``path``, open as ``fd``, has definitely ended."""
    host, _, pid = path.name.removeprefix(".use.").rpartition(".")[0].rpartition(".")
    is_local = host == socket.gethostname()
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return is_local and pid.isdecimal() and not Path("/proc", pid).exists()
    return is_local or flock_reaches_other_nodes(path)


def is_locked(path: Path, against: int = fcntl.LOCK_EX) -> bool:
    """Return whether a living process holds a lock on the file, as far as its file system reveals it; with
    ``against`` set to LOCK_SH, only an exclusive lock counts. False if the file cannot be opened."""
    try:
        # NFS grants an exclusive lock only on a file that is open for writing.
        mode = os.O_RDWR if os.access(path, os.W_OK) else os.O_RDONLY
        fd = os.open(path, mode | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        fcntl.flock(fd, against | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # a file system without locks
        return False
    finally:
        os.close(fd)
    return False
