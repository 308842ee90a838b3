"""Sends files from one node's target to another's over TCP. Files are verified on arrival, before they get their
final names."""

import errno
import mmap
import os
import socket
import struct
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, TypeVar

from mlhpc.common.data.manifest import File
from mlhpc.common.files.filesystem import as_user_error
from mlhpc.common.files.regular import open_regular
from mlhpc.common.ranks.links import receive_exactly
from mlhpc.common.ranks.world import World
from mlhpc.common.staging.copier import BLOCK, write_verified
from mlhpc.errors import UserError

T = TypeVar("T")
_HEADER = struct.Struct("<Iq")  # the file's number and its modification time in ns
_LINK_ERRNOS = frozenset(
    {errno.ENETDOWN, errno.ENETUNREACH, errno.ENETRESET, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENOTCONN}
)


class Activity(NamedTuple):
    """The purpose of a transfer, and the remedy if it fails, for messages."""

    name: str
    remedy: str


STAGING = Activity("staging", "start the run again: complete files are kept")


class LinkBroken(UserError):
    """The peer has disconnected. That is only a symptom; the cause is another rank's error or loss."""


def send_file(
    connection: socket.socket, number: int, file: File, target: Path, to: str, activity: Activity = STAGING
) -> None:
    """Send ``file`` in ``target``, identified by ``number``, to the rank called ``to`` in messages. Raises
    UserError, or LinkBroken."""
    path = target / file.path
    changed = f"{path}: changed during {activity.name}; {activity.remedy}"
    with as_user_error(path, "cannot be read", "choose another --stage"):
        reader = os.fdopen(open_regular(path, os.O_NOFOLLOW), "rb", buffering=0)
    with reader:
        status = os.fstat(reader.fileno())
        if status.st_size != file.size:
            raise UserError(changed)
        with _other_end(to, activity):
            connection.sendall(_HEADER.pack(number, status.st_mtime_ns))
        # sendfile reads and sends; an error that is not the connection's comes from the disk.
        with (
            as_user_error(path, "cannot be read", "choose another --stage"),
            _other_end(to, activity, _is_of_link),
        ):
            if file.size and connection.sendfile(reader, count=file.size) != file.size:
                raise UserError(changed)


class Links:
    """The ``connections`` of a rank's threads, all of which stop as soon as one of them has failed. ``failures``:
    their errors; a list to which other threads may add."""

    def __init__(self, connections: Iterable[socket.socket]) -> None:
        self.failures: list[BaseException] = []
        self._connections = tuple(connections)

    def attempt(self, work: Callable[[], T]) -> T | None:
        """The result of ``work``; None if it fails, which ends the other threads, or if one of them has failed."""
        try:
            return None if self.failures else work()
        except BaseException as error:
            self.failures.append(error)
            for connection in self._connections:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
            return None

    def raise_failure(self) -> None:
        """Raise the error of a thread, if there is one: a cause rather than its symptom, a broken link."""
        if self.failures:
            # A rank that only sends would not notice an end of file, but closing with unread bytes resets the
            # connection, so that its sending fails.
            for connection in self._connections:
                connection.close()
            raise min(self.failures, key=lambda error: isinstance(error, LinkBroken))


class Receiver:
    """Receives files from ``rank`` into ``target``. ``sender``: the rank's name in messages."""

    def __init__(
        self, connection: socket.socket, target: Path, rank: int, sender: str, activity: Activity = STAGING
    ) -> None:
        self._connection, self._target = connection, target
        self._rank, self._sender, self._activity = rank, sender, activity
        self._block = memoryview(mmap.mmap(-1, BLOCK))

    def next(self, expected: dict[int, File]) -> File:
        """Receive, verify and put in place the next file, which must be one of ``expected`` (files by number), and
        remove it from ``expected``. Raises UserError, or LinkBroken."""
        with _other_end(self._sender, self._activity):
            number, mtime_ns = _HEADER.unpack(receive_exactly(self._connection, _HEADER.size))
        if number not in expected:
            raise LinkBroken(f"{self._target}: file {number} arrived unexpectedly; {self._activity.remedy}")
        file = expected.pop(number)
        pieces = _pieces(self._connection, file.size, self._block, self._sender, self._activity)
        origin = f"{self._target / file.path} from rank {self._rank}"
        write_verified(file, self._target, pieces, mtime_ns, origin, self._activity.remedy)
        return file


def cause_of(world: World, error: Exception | None) -> Exception | None:
    """This rank's ``error``, or None if it is a broken link and another rank knows the cause. Called by all
    ranks."""
    is_symptom = isinstance(error, LinkBroken)
    has_cause = any(world.gather(error is not None and not is_symptom))
    return None if is_symptom and has_cause else error


def _pieces(
    connection: socket.socket, size: int, block: memoryview, sender: str, activity: Activity
) -> Iterator[memoryview]:
    """``size`` bytes received from ``sender`` over ``connection``, in pieces that reuse the buffer ``block``."""
    while size:
        with _other_end(sender, activity):
            count = connection.recv_into(block, min(size, len(block)))
            if not count:
                raise EOFError
        yield block[:count]
        size -= count


def _is_of_link(error: OSError | EOFError) -> bool:
    return isinstance(error, (ConnectionError, TimeoutError)) or getattr(error, "errno", None) in _LINK_ERRNOS


@contextmanager
def _other_end(
    which: str, activity: Activity, is_of_link: Callable[[OSError | EOFError], bool] = lambda error: True
) -> Iterator[None]:
    try:
        yield
    except (OSError, EOFError) as error:
        if not is_of_link(error):
            raise
        raise LinkBroken(
            f"{activity.name}: the connection to {which} broke ({str(error) or 'closed'}); {activity.remedy}"
        ) from error
