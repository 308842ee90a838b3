"""Detects missing and lost ranks over TCP connections from the ranks of a node to its first rank, and from there
to rank 0 (``rendezvous``).

Collectives of Horovod or NCCL wait minutes for a dead rank, or even forever, and do not say for which rank they
wait. The ranks therefore keep separate connections in addition to the framework's. Over these they answer a roll
call at the start, report their phase, and notice immediately if one of them is lost.

The messages on a connection are ``phase``, ``beat``, ``fail`` (this rank is about to end, with the reason) and
``bye`` (it ends normally). The first rank of a node passes on these messages: upwards, ``fail`` and ``lost`` about
a rank of its node (``of``); downwards, ``facts`` and ``fail`` from rank 0, and ``loss`` from the rank that has
reported a loss. A ``loss`` is also sent to the lost rank itself.
"""

import os
import queue
import re
import selectors
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any, NoReturn, Self

from mlhpc.common.ranks.connection import encode
from mlhpc.common.ranks.rendezvous import GONE, Meeting, Peer, Rendezvous, gather_peers, join, listen
from mlhpc.common.ranks.world import Loss
from mlhpc.errors import say_at_once
from mlhpc.quantities import seconds_text

BEAT_S = 5.0
"""Seconds between the heartbeats of every rank once its backend is up."""
MISSED_BEATS = 8
"""A rank that misses more than this many heartbeats (40 s) counts as lost: it has stopped or swaps, or its node is
down."""
FINAL_CALLBACK_S = 20.0
"""Time limit in seconds of the loss callback, which writes to a file system that may hang."""
PRINTED_S = 1.0
"""Seconds to wait after printing a loss: srun loses the output of a rank that ends immediately after another was
killed (Slurm 22.05: in half of the trials, but in none of 12 when the rank waited for 0.5 s)."""
GOODBYE_S = 10.0
"""Maximum seconds that a finished rank waits for the others to read its goodbye."""
OTHER_NODES = 8
"""Maximum number of nodes, far apart in the order of ranks, that report the loss of rank 0 in addition to rank 0's
own node."""
SAME_FAILURE_S = 0.5
"""Seconds within which a rank may fail after another for the same reason: an error that all ranks raise is not a
loss."""
ANSWER_S = 5.0
"""Seconds that a failed rank waits for the decision about which rank reports the error. The decision takes
SAME_FAILURE_S, or longer on a busy node."""


class RollCall:
    """The connections of one rank to the rank above it and to the ranks below it.

    The connections are created by ``call`` and then watched by a thread. When a rank is lost, that thread ends the
    process with status 1, because the main thread may hang in a collective that never returns.
    """

    def __init__(self, me: Peer, met: Meeting) -> None:
        self.me = me
        self.roll = met.roll
        self.proof = met.proof  # for other connections of this launch
        self._above = met.above
        self.address = met.address
        """The IP address at which other nodes reach this rank's node; loopback if all ranks are on one node."""
        self._connections = met.connections
        self._phases = dict.fromkeys((me.rank, *met.connections), "start")
        self._missed: dict[int, int] = {}  # consecutive missed beats, by rank
        self._beating = False
        self._leaving = threading.Event()
        self._reasons: dict[int, str] = {}  # why ranks fail, by rank
        self._printed: set[str] = set()  # reasons that other ranks print
        self._answered = threading.Event()  # the rank that would report this rank has decided
        self._facts: queue.Queue[dict[str, Any]] = queue.Queue()
        self.on_loss: Callable[[Loss], None] = lambda loss: None
        """Called on the rank that reports the loss of another."""
        self.before_exit: Callable[[], object] = lambda: None
        """Called on this rank when the loss of another rank ends it."""
        self.place_of: Callable[[int], str] = lambda rank: ""
        """The place of a rank, such as its coordinates in the mesh, with which its loss is reported."""
        for connection in met.connections.values():
            connection.sock.settimeout(10.0)  # a full buffer must not block the thread forever
        self._thread = threading.Thread(target=self._watch, name="roll call", daemon=True)
        self._thread.start()

    @classmethod
    def call(cls, me: Peer, rendezvous: Rendezvous, listener: socket.socket | None = None) -> Self:
        """Call the roll: returns on every rank when all ranks of ``rendezvous`` are connected.

        ``listener``: rank 0's listening socket, if it is already bound. Raises ``UserError`` on every rank that
        connected if others did not connect in time (the message names them), if two processes have the same rank,
        if a process was launched with a different world size, or if rank 0 is not found.
        """
        if me.rank == 0:
            with listener or listen(rendezvous) as accepting:
                return cls(me, gather_peers(me, rendezvous, accepting))
        return cls(me, join(me, rendezvous))

    def broadcast(self, facts: dict[str, Any]) -> dict[str, Any]:
        """Rank 0's ``facts`` (JSON types), on every rank. Called by all ranks."""
        if self.me.rank != 0:
            return self._facts.get()
        self._send_all(facts=facts)
        return facts

    def enter(self, phase: str) -> None:
        """Report what this rank is doing now."""
        self._phases[self.me.rank] = phase
        self._send_all(phase=phase)

    def start_beating(self) -> None:
        """Count silent ranks as lost from now on. Called once every rank's backend is up, since loading a
        framework from a slow file system can hold the interpreter lock for a minute."""
        self._missed = dict.fromkeys(self._connections, 0)
        self._beating = True

    def wait_for_loss(self, seconds: float) -> None:
        """Give the thread time to identify the lost rank. Does not return if a rank was lost."""
        self._thread.join(seconds)

    def fail(self, reason: str) -> None:
        """Report to the other ranks that this rank is about to end, and the reason; only the first reason
        counts."""
        if not self._leaving.is_set():
            self._reasons[self.me.rank] = reason
            self._leaving.set()
            self._send_all(fail=reason)

    def reported_elsewhere(self) -> bool:
        """Return, after ``fail``, whether another rank prints the reason instead: rank 0 if it fails for the same
        kind of reason, otherwise the rank that reports this one as lost. Waits until this is decided."""
        self._answered.wait(ANSWER_S)
        reason = self._reasons.get(self.me.rank)
        # Rank 0 may print the reason with a remedy appended.
        return reason is not None and any(_kind(each).startswith(_kind(reason)) for each in self._printed)

    def close(self) -> None:
        """Leave the roll call. From then on this rank reports no losses, and does not count as lost itself.

        The connections are closed once the other side has read the goodbye. Closing a socket with unread data
        would reset it; a reset discards the goodbye on the other side, which would then detect a loss.
        """
        self._leaving.set()
        self._send_all(bye=True)
        for connection in list(self._connections.values()):
            with suppress(OSError):
                connection.sock.shutdown(socket.SHUT_WR)
        self._thread.join(GOODBYE_S)

    def _send_all(self, **message: Any) -> None:
        self._send_to(list(self._connections), message)

    def _send_down(self, **message: Any) -> None:
        self._send_to([rank for rank in self._connections if rank != self._above], message)

    def _send_to(self, ranks: Sequence[int], message: dict[str, Any]) -> None:
        data = encode(message)
        for rank in ranks:
            if connection := self._connections.get(rank):
                connection.send_encoded(data)

    def _watch(self) -> None:
        next_beat = time.monotonic()
        with selectors.DefaultSelector() as selector:
            for rank, connection in list(self._connections.items()):
                selector.register(connection.sock, selectors.EVENT_READ, rank)
                if connection.has_queued():
                    self._read(rank)
            while self._connections:
                for key, _ in selector.select(max(0.0, next_beat - time.monotonic())):
                    self._read(key.data)
                    if key.data not in self._connections:
                        selector.unregister(key.fileobj)
                if time.monotonic() >= next_beat:
                    # Beats are counted rather than timed, so a job that was suspended and resumed has missed none.
                    self._beat()
                    next_beat = time.monotonic() + BEAT_S
        for connection in self._connections.values():
            connection.close()

    def _read(self, rank: int) -> None:
        try:
            for message in self._connections[rank].receive():
                self._handle(rank, message)
        except (EOFError, TimeoutError, ValueError):
            if self._leaving.is_set():
                self._connections.pop(rank).close()
                self._hear(rank)
            elif rank in self._reasons and rank != self._above and self._above is not None:
                self._connections.pop(rank).close()  # its failure was reported to rank 0, which decides
                self._missed.pop(rank, None)
            else:
                self._lose(rank, GONE)

    def _beat(self) -> None:
        if not self._beating or self._leaving.is_set():
            return
        self._send_all(beat=True)
        for rank in list(self._missed):
            self._missed[rank] += 1
            if self._missed[rank] > MISSED_BEATS:
                self._lose(
                    rank, f"silent for {seconds_text(MISSED_BEATS * BEAT_S)} (stopped, or its node is down)"
                )

    def _handle(self, rank: int, message: dict[str, Any]) -> None:
        match message:
            case {"beat": _}:
                self._missed[rank] = 0
            case {"facts": dict(facts)}:
                self._send_down(facts=facts)
                self._facts.put(facts)
            case {"fail": str(reason)}:
                self._failed(
                    int(message.get("of", rank)), str(message.get("phase", self._phases[rank])), reason
                )
            case {"lost": str(reason), "of": int(lost), "phase": str(phase)}:
                self._lose(lost, reason, phase)
            case {"phase": str(phase)}:  # also from the rank above
                self._phases[rank] = phase
            case {"loss": dict(loss)} if not self._leaving.is_set():
                self._end(Loss(**loss))
            case {"loss": dict(loss)}:
                self._send_down(loss=loss)
                self._printed.add(str(loss["reason"]))
                self._answered.set()
            case {"bye": _}:
                self._missed.pop(rank, None)
                self._connections.pop(rank).close()
                self._hear(rank)

    def _failed(self, rank: int, phase: str, reason: str) -> None:
        """Handle the news that ``rank`` is about to end in ``phase`` for this ``reason``."""
        self._reasons[rank] = reason
        if rank == 0:
            self._printed.add(reason)
            self._send_down(fail=reason, of=0, phase=phase)
        elif self._above is not None:
            if rank != self._above:
                self._send_to([self._above], {"fail": reason, "of": rank, "phase": phase})
            return  # rank 0 decides
        self._hear(rank)
        # If this rank is about to fail for the same reason, no rank is lost.
        self._leaving.wait(SAME_FAILURE_S)
        self._lose(rank, reason, phase)

    def _lose(self, rank: int, reason: str, phase: str = "") -> None:
        """Handle the loss of ``rank``. If that rank is below this one in the tree, rank 0 decides, since it can
        reach all ranks."""
        if self._leaving.is_set():
            return
        phase = phase or self._phases[rank]
        if self._above is None or rank in (0, self._above):
            peer = self.roll[rank]
            self._end(Loss(rank, peer.hostname, phase, reason, self.place_of(rank)))
        self._connections.pop(rank).close()
        self._missed.pop(rank, None)
        self._send_to([self._above], {"lost": reason, "of": rank, "phase": phase})

    def _hear(self, rank: int) -> None:
        """On a failing rank: stop waiting if ``rank``, which has left, is the rank that would decide who prints
        the reason."""
        if rank in (_acting(self.me.rank), self._above):
            self._answered.set()

    def _end(self, loss: Loss) -> NoReturn:
        """Report the lost rank, let the acting rank record it, and end the process immediately."""
        acts = self.me.rank == _acting(loss.rank)
        # Rank 0's whole node, including rank 1, or its rack may be lost, so other nodes report it too.
        gone = loss.rank == 0 and 0 not in self._reasons
        others = [peer.rank for peer in self.roll if peer.local_rank == 0] if gone else []
        if acts or self.me.rank in others[1 :: len(others) // OTHER_NODES + 1]:
            say_at_once(str(loss))
        # The loss has been printed, so the lost rank, if it still exists, need not print it.
        (self._send_all if acts else self._send_down)(loss=asdict(loss))
        callback = threading.Thread(target=self._run_callback, args=(loss, acts), daemon=True)
        callback.start()
        callback.join(FINAL_CALLBACK_S)
        if acts:
            time.sleep(PRINTED_S)
        os._exit(1)

    def _run_callback(self, loss: Loss, acts: bool) -> None:
        try:
            if acts:
                self.on_loss(loss)
            self.before_exit()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()


def _kind(reason: str) -> str:
    """``reason`` without paths and numbers, which may differ between ranks, for instance if a file system
    fails."""
    return re.sub(r"\S*/\S*|\d+", "", reason)


def _acting(lost: int) -> int:
    """The rank that reports the loss of rank ``lost`` if all other ranks are present."""
    return 1 if lost == 0 else 0
