"""Reads each file needed by every node only once from the shared file system; nodes forward files to each other.

Ranks form rings with one rank from each node. The files are divided among the rings, and the files of a ring among
its ranks. A rank sends a file to its successor as soon as the file is complete and verified in its own target,
whether it was read from the source or received, until the file has reached every node. So every byte is read from
the source once, and crosses each link at most once. This is the ring algorithm for all-gather (Thakur,
Rabenseifner and Gropp, IJHPCA 19(1), 2005, "Allgather"). Files are sent over TCP through the network interface
on which the ranks answered the roll call.
"""

import os
import queue
import socket
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np

from mlhpc.common.data.manifest import File
from mlhpc.common.ranks.collectives import attempt, gather_or_raise, on_each_rank
from mlhpc.common.ranks.links import listening
from mlhpc.common.ranks.world import World
from mlhpc.common.staging.copier import Copied
from mlhpc.common.staging.target import make_folders
from mlhpc.common.staging.transfer import LinkBroken, Receiver, cause_of, send_file

T = TypeVar("T")


@dataclass(frozen=True)
class Share:
    """A rank's share of the files. ``alone``: files that the rank reads from the source for its own node only.
    ``passed``: the files of its ring; ``readers``: for each of these files, the position in the ring of the rank
    that reads it from the source. ``ring``: the ranks of the ring in order; empty for a rank that is in no ring.
    """

    alone: Sequence[File]
    passed: Sequence[File] = ()
    readers: Sequence[int] = ()
    ring: Sequence[int] = ()


class Todo(NamedTuple):
    """Files missing in the target, and files present there that must be verified."""

    missing: list[File]
    present: list[File]


@dataclass(frozen=True)
class Ring:
    """A ring of ``ranks``, this rank's ``position`` in it, and its connections to its neighbours."""

    position: int
    ranks: Sequence[int]
    predecessor: socket.socket
    successor: socket.socket

    @property
    def size(self) -> int:
        """The number of ranks in the ring."""
        return len(self.ranks)

    @property
    def before(self) -> int:
        """The rank that sends to this one."""
        return self.ranks[self.position - 1]

    @property
    def after(self) -> int:
        """The rank to which this one sends."""
        return self.ranks[(self.position + 1) % self.size]


@contextmanager
def open_ring(world: World, ranks: Sequence[int]) -> Iterator[Ring | None]:
    """Context manager that connects the ring of ``ranks``, which includes this rank; yields None if ``ranks`` is
    empty.

    Called by all ranks. Raises UserError, the same on all ranks, if neighbours cannot connect.
    """
    with ExitStack() as connections, listening(world) as port:

        def neighbours() -> Ring | None:
            if not ranks:
                return None
            at = ranks.index(world.rank)
            before, after = ranks[at - 1], ranks[(at + 1) % len(ranks)]
            (successor,), (predecessor,) = port.meet([after], [before])
            for link in (successor, predecessor):
                connections.enter_context(link)
            return Ring(at, tuple(ranks), predecessor, successor)

        yield on_each_rank(world, neighbours)


class Exchange:
    """One rank's part in forwarding ``files`` around ``ring``. ``readers``: for each file, the position in the
    ring of the rank that reads it from the source. ``files`` and ``readers`` are the same on all ranks of the
    ring."""

    def __init__(self, ring: Ring, files: Sequence[File], readers: Sequence[int], target: Path) -> None:
        self._ring = ring
        self._files = files
        self._readers = readers
        self._target = target
        self._number = {file: number for number, file in enumerate(files)}
        self._to_send: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._failures: list[BaseException] = []  # of this rank's threads, all of which stop at the first one

    def send(self, file: File) -> None:
        """Forward ``file``, which is complete in the target, unless it does not belong to the ring or the
        successor reads it from the source. Thread-safe."""
        number = self._number.get(file)
        if number is not None and self._readers[number] != (self._ring.position + 1) % self._ring.size:
            self._to_send.put(number)

    def run(self, copy: Callable[[list[BaseException]], Copied], received: Callable[[File], None]) -> Copied:
        """Run ``copy``, which calls ``send`` for the files that this rank reads, while other threads send and
        receive files. ``copy`` gets a list of failures, and must stop once that list is not empty. ``received`` is
        called with each received file, from another thread.

        Returns the result of ``copy`` once every file has been forwarded. Raises what ``copy`` raises, UserError,
        or LinkBroken if a neighbour ends; this rank's neighbours then get LinkBroken.
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
            # The predecessor only sends, so it would not notice an end of file. Closing a connection with unread
            # bytes resets it, so that sending fails.
            for connection in (self._ring.predecessor, self._ring.successor):
                connection.close()
            # A cause, rather than its symptom.
            raise min(self._failures, key=lambda error: isinstance(error, LinkBroken))
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
        """Stop both threads."""
        self._to_send.put(None)
        for connection in (self._ring.predecessor, self._ring.successor):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _send_all(self) -> None:
        after = (self._ring.position + 1) % self._ring.size
        next_rank = f"rank {self._ring.after}, the next in the ring,"
        for _ in range(sum(reader != after for reader in self._readers)):
            number = self._to_send.get()
            if number is None:
                return
            send_file(self._ring.successor, number, self._files[number], self._target, next_rank)

    def _receive_all(self, received: Callable[[File], None]) -> None:
        before = f"rank {self._ring.before}, the previous in the ring,"
        receiver = Receiver(self._ring.predecessor, self._target, self._ring.before, before)
        expected = {n: self._files[n] for n, r in enumerate(self._readers) if r != self._ring.position}
        while expected:
            file = receiver.next(expected)
            received(file)
            self.send(file)


def copy_and_pass_on(
    world: World,
    share: Share,
    todo: Todo,
    target: Path,
    copy: Callable[[Todo, Callable[[File], None], list[BaseException]], Copied],
    report: Callable[[Copied, Sequence[File]], T],
    advance: Callable[[int], None],
) -> list[T]:
    """Copy the files that this rank reads from the source with ``copy``, and forward and receive those of its
    ring. Returns, for every rank, the result of its ``report`` on the files that it copied and received.

    Called by all ranks. Raises UserError, the same on all ranks; if one rank's error broke the connections of
    other ranks, that error is raised.
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
        return gather_or_raise(world, done, cause_of(world, error))


def _lacking_somewhere(world: World, share: Share, todo: Todo) -> tuple[list[File], list[int]]:
    """The files of this rank's ring that are missing on some of the ring's nodes, and their readers. Called by all
    ranks."""
    missing = set(todo.missing)
    bits = np.packbits(np.array([file in missing for file in share.passed], dtype=bool))
    of_rank = world.gather(bits)
    lacking = np.zeros_like(bits)
    for rank in share.ring:
        lacking |= of_rank[rank]
    chosen = np.flatnonzero(np.unpackbits(lacking, count=len(share.passed)))
    return [share.passed[i] for i in chosen], [share.readers[i] for i in chosen]
