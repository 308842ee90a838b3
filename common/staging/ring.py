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
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np

from mlhpc.common.data.manifest import File
from mlhpc.common.ranks.collectives import attempt, gather_or_raise
from mlhpc.common.ranks.links import linked
from mlhpc.common.ranks.world import World
from mlhpc.common.staging.copier import Copied
from mlhpc.common.staging.target import make_folders
from mlhpc.common.staging.transfer import Links, Receiver, cause_of, send_file

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


class Ring:
    """A ring of ``ranks`` that forward ``files`` to one another, as seen by ``rank``. ``readers``: for each file,
    the position in the ring of the rank that reads it from the source. ``files`` and ``readers`` are the same on
    all ranks of the ring."""

    def __init__(
        self, rank: int, ranks: Sequence[int], files: Sequence[File], readers: Sequence[int], target: Path
    ) -> None:
        self._position = ranks.index(rank)
        self._next = (self._position + 1) % len(ranks)
        self.before, self.after = ranks[self._position - 1], ranks[self._next]
        self._readers = dict(zip(files, readers, strict=True))
        self._number = {file: number for number, file in enumerate(files)}
        self._target = target
        self._to_send: queue.SimpleQueue[File | None] = queue.SimpleQueue()

    def reads(self, file: File) -> bool:
        """Return whether this rank, if it lacks ``file``, reads it from the source."""
        return self._readers.get(file, self._position) == self._position

    def send(self, file: File) -> None:
        """Forward ``file``, which is complete in the target, unless it does not belong to the ring or the next
        rank reads it from the source. Thread-safe."""
        if self._readers.get(file, self._next) != self._next:
            self._to_send.put(file)

    def run(
        self,
        connections: Sequence[socket.socket],
        copy: Callable[[list[BaseException]], Copied],
        received: Callable[[File], None],
    ) -> Copied:
        """Run ``copy``, which calls ``send`` for the files that this rank reads, while other threads send and
        receive files. ``connections``: to the rank after this one, and from the rank before it; none in a ring of
        one. ``copy`` gets a list of failures, and must stop once that list is not empty. ``received`` is called
        with each received file, from another thread.

        Returns the result of ``copy`` once every file has been forwarded. Raises what ``copy`` raises, UserError,
        or LinkBroken if a neighbour ends; this rank's neighbours then get LinkBroken.
        """
        links = Links(connections)

        def send_all() -> None:
            to = f"rank {self.after}, the next in the ring,"
            for file in iter(self._to_send.get, None):
                send_file(connections[0], self._number[file], file, self._target, to)

        def receive_all() -> None:
            sender = f"rank {self.before}, the previous in the ring,"
            expected = {number: file for file, number in self._number.items() if not self.reads(file)}
            if not expected:
                return
            receiver = Receiver(connections[1], self._target, self.before, sender)
            while expected:
                file = receiver.next(expected)
                received(file)
                self.send(file)

        def copy_and_receive() -> Copied:
            make_folders(self._target, {os.path.dirname(file.path) for file in self._number})
            pool.submit(links.attempt, send_all)
            receiving = pool.submit(links.attempt, receive_all)
            copied = copy(links.failures)
            receiving.result()
            return copied

        with ThreadPoolExecutor(2, thread_name_prefix="ring") as pool:
            copied = links.attempt(copy_and_receive)
            self._to_send.put(None)
        links.raise_failure()
        assert copied is not None
        return copied


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
    ring = Ring(world.rank, share.ring or [world.rank], *_lacking_somewhere(world, share, todo), target)
    own = Todo(*([file for file in of if ring.reads(file)] for of in todo))
    received: list[File] = []

    def in_place(file: File) -> None:
        ring.send(file)
        advance(1)

    def note(file: File) -> None:
        received.append(file)
        advance(1)

    after, before = ([ring.after], [ring.before]) if share.ring else ([], [])
    with linked(world, after, before) as links:

        def work() -> T:
            copied = ring.run([*chain(*links)], lambda failures: copy(own, in_place, failures), note)
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
