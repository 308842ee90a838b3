"""Files that every node holds, read from the shared file system once: nodes pass them on to each other.

Ranks form rings, one rank of each node in a ring; the files are divided among the rings, and those of a ring among
its ranks. A rank sends a file to its successor as soon as it is complete and verified in its own target, whether
it read it from the source or received it, until it has reached every node. So every byte is read from the source
once, and crosses each link at most once: the ring algorithm for all-gather (Thakur, Rabenseifner and Gropp, IJHPCA
19(1), 2005, "Allgather"). TCP, over the network interface on which the ranks answered the roll call.
"""

import mmap
import os
import queue
import secrets
import socket
import struct
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np

from mlhpc.common.data.manifest import File
from mlhpc.common.files.regular import open_regular
from mlhpc.common.ranks.collectives import attempt, gather_or_raise, on_each_rank
from mlhpc.common.ranks.links import Place, accept, connect, receive_exactly
from mlhpc.common.ranks.world import World
from mlhpc.common.staging.copier import BLOCK, Copied, write_verified
from mlhpc.common.staging.target import as_user_error, make_folders
from mlhpc.errors import UserError

T = TypeVar("T")
_HEADER = struct.Struct("<Iq")  # the file's number in the ring's list, and its modification time in ns
_REMEDY = "start the run again: complete files are kept"


class LinkBroken(UserError):
    """The neighbour in the ring is gone. A symptom: the cause is another rank's error, or its loss."""


@dataclass(frozen=True)
class Share:
    """What a rank is to copy. ``alone``: the files that it reads from the source by itself. ``passed``: the files
    of its ring, and ``readers`` the position in the ring that reads each. ``ring``: the ranks of the ring in
    order; empty for a rank in none."""

    alone: list[File]
    passed: Sequence[File] = ()
    readers: Sequence[int] = ()
    ring: Sequence[int] = ()


class Todo(NamedTuple):
    """Files that the target lacks, and files that are present there and have to be verified."""

    missing: list[File]
    present: list[File]


@dataclass(frozen=True)
class Ring:
    """A ring of ``ranks``, this rank's ``position`` in it, and its connections to the neighbours."""

    position: int
    ranks: Sequence[int]
    predecessor: socket.socket
    successor: socket.socket

    @property
    def size(self) -> int:
        return len(self.ranks)

    @property
    def before(self) -> int:
        """The rank that sends to this one."""
        return self.ranks[self.position - 1]

    @property
    def after(self) -> int:
        """The rank that this one sends to."""
        return self.ranks[(self.position + 1) % self.size]


@contextmanager
def open_ring(world: World, ranks: Sequence[int]) -> Iterator[Ring | None]:
    """Connect the ring of ``ranks``, of which this rank is one; None where ``ranks`` is empty.

    Called by all ranks. Raises UserError, the same on all ranks, when neighbours cannot connect.
    """
    secret = world.broadcast(secrets.token_hex(16)).encode()
    homes = world.gather((world.node, world.address))
    # Ranks on rank 0's node may know only its loopback address: then another rank of the node knows a better one.
    address_of = dict(sorted(homes, key=lambda home: not home[1].startswith("127.")))
    local = all(address.startswith("127.") for address in address_of.values())
    with ExitStack() as connections, socket.create_server(("127.0.0.1" if local else "", 0)) as listener:
        places: list[Place] = world.gather((address_of[world.node], listener.getsockname()[1]))

        def neighbours() -> Ring | None:
            if not ranks:
                return None
            at = ranks.index(world.rank)
            before, after = ranks[at - 1], ranks[(at + 1) % len(ranks)]
            successor = connections.enter_context(connect(places[after], secret, world.rank))
            predecessor = connections.enter_context(accept(listener, secret, [before])[0])
            return Ring(at, tuple(ranks), predecessor, successor)

        yield on_each_rank(world, neighbours)


class Exchange:
    """One rank's part in passing ``files`` around ``ring``. ``readers``: the position in the ring that reads each
    file from the source. ``files`` and ``readers`` are the same on all ranks of the ring."""

    def __init__(self, ring: Ring, files: Sequence[File], readers: Sequence[int], target: Path) -> None:
        self._ring = ring
        self._files = files
        self._readers = readers
        self._target = target
        self._number = {file: number for number, file in enumerate(files)}
        self._to_send: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._failures: list[BaseException] = []  # of this rank's threads: at the first, all of them stop

    def send(self, file: File) -> None:
        """``file`` is complete in the target: pass it on, unless it is none of the ring's files or the successor
        is the one who read it. Safe to call from any thread."""
        number = self._number.get(file)
        if number is not None and self._readers[number] != (self._ring.position + 1) % self._ring.size:
            self._to_send.put(number)

    def run(self, copy: Callable[[list[BaseException]], Copied], received: Callable[[File], None]) -> Copied:
        """Run ``copy``, which calls ``send`` for the files that this rank reads, while files are sent and received
        beside it. ``copy`` gets a list, and stops when there is a failure in it. ``received`` is called with each
        received file, from another thread.

        Returns what ``copy`` does, when every file has been passed on. Raises what ``copy`` raises, UserError, or
        LinkBroken when a neighbour ends; the neighbours then get LinkBroken.
        """
        copied = None
        with ThreadPoolExecutor(2, thread_name_prefix="ring") as pool:
            try:
                make_folders(self._target, {os.path.dirname(file.path) for file in self._files})
                pool.submit(self._or_abort, self._send_all)
                pool.submit(self._or_abort, lambda: self._receive_all(received))
                copied = copy(self._failures)
            except BaseException as error:
                self._fail(error)
        if copied is None or self._failures:
            raise min(
                self._failures, key=lambda error: isinstance(error, LinkBroken)
            )  # a cause before its symptom
        return copied

    def _or_abort(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        self._failures.append(error)
        self._abort()

    def _abort(self) -> None:
        """End both threads, and let the neighbours know: their connections break, and they stop too."""
        self._to_send.put(None)
        for connection in (self._ring.predecessor, self._ring.successor):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _send_all(self) -> None:
        successor, after = self._ring.successor, (self._ring.position + 1) % self._ring.size
        next_rank = f"rank {self._ring.after}, the next in the ring,"
        for _ in range(sum(reader != after for reader in self._readers)):
            number = self._to_send.get()
            if number is None:
                return
            file = self._files[number]
            path = self._target / file.path
            with as_user_error(path, "cannot be read", "choose another --stage"):
                reader = os.fdopen(open_regular(path, os.O_NOFOLLOW), "rb", buffering=0)
            with reader:
                status = os.fstat(reader.fileno())
                if status.st_size != file.size:
                    raise UserError(f"{path}: changed while it was staged; {_REMEDY}")
                with _neighbour(next_rank):
                    successor.sendall(_HEADER.pack(number, status.st_mtime_ns))
                    if file.size and successor.sendfile(reader, count=file.size) != file.size:
                        raise EOFError

    def _receive_all(self, received: Callable[[File], None]) -> None:
        block = memoryview(mmap.mmap(-1, BLOCK))
        before = f"rank {self._ring.before}, the one before in the ring,"
        expected = {n for n, reader in enumerate(self._readers) if reader != self._ring.position}
        while expected:
            with _neighbour(before):
                number, mtime_ns = _HEADER.unpack(receive_exactly(self._ring.predecessor, _HEADER.size))
            if number not in expected:
                raise LinkBroken(f"{self._target}: file {number} arrived unexpectedly; {_REMEDY}")
            expected.remove(number)
            file = self._files[number]
            pieces = _pieces(self._ring.predecessor, file.size, block, before)
            origin = f"{self._target / file.path} from rank {self._ring.before}"
            write_verified(file, self._target, pieces, mtime_ns, origin, _REMEDY)
            received(file)
            self.send(file)


def _pieces(connection: socket.socket, size: int, block: memoryview, sender: str) -> Iterator[memoryview]:
    """``size`` bytes from ``connection`` to ``sender``, through ``block``."""
    while size:
        with _neighbour(sender):
            count = connection.recv_into(block, min(size, len(block)))
            if not count:
                raise EOFError
        yield block[:count]
        size -= count


@contextmanager
def _neighbour(which: str) -> Iterator[None]:
    try:
        yield
    except (OSError, EOFError) as error:
        raise LinkBroken(
            f"staging: the connection to {which} broke ({str(error) or 'closed'}); {_REMEDY}"
        ) from error


def copy_and_pass_on(
    world: World,
    share: Share,
    todo: Todo,
    target: Path,
    copy: Callable[[Todo, Callable[[File], None], list[BaseException]], Copied],
    report: Callable[[Copied, Sequence[File]], T],
    advance: Callable[[int], None],
) -> list[T]:
    """Copy what this rank reads from the source by ``copy``, and pass the rest of ``share`` around its ring. What
    ``report`` makes of the copied and the received files, of every rank.

    Called by all ranks. Raises UserError, the same on all ranks, with the cause where one rank's error ended
    others.
    """
    files, readers = _lacking_somewhere(world, share, todo)
    received: list[File] = []

    def note(file: File) -> None:
        received.append(file)
        advance(1)

    with open_ring(world, share.ring) as ring:
        position = ring.position if ring else 0
        from_ring = {file for file, reader in zip(files, readers, strict=True) if reader != position}
        own = Todo(*([file for file in of if file not in from_ring] for of in todo))
        exchange = Exchange(ring, files, readers, target) if ring else None

        def in_place(file: File) -> None:
            if exchange:
                exchange.send(file)
            advance(1)

        def work() -> T:
            if exchange is None:
                return report(copy(own, in_place, []), received)
            copied = exchange.run(lambda failures: copy(own, in_place, failures), note)
            return report(copied, received)

        done, error = attempt(work)
        # A broken link is a symptom where another rank knows the cause.
        is_symptom = isinstance(error, LinkBroken)
        known = any(world.gather(error is not None and not is_symptom))
        return gather_or_raise(world, done, None if is_symptom and known else error)


def _lacking_somewhere(world: World, share: Share, todo: Todo) -> tuple[list[File], list[int]]:
    """The files of this rank's ring that some node of it lacks, and who reads them. Called by all ranks."""
    missing = set(todo.missing)
    bits = np.packbits(np.array([file in missing for file in share.passed], dtype=bool))
    of_rank = world.gather(bits)
    lacking = np.zeros_like(bits)
    for rank in share.ring:
        lacking |= of_rank[rank]
    chosen = np.flatnonzero(np.unpackbits(lacking, count=len(share.passed)))
    return [share.passed[i] for i in chosen], [share.readers[i] for i in chosen]
