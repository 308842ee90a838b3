"""Who is here, and who is lost: one TCP connection from every rank to rank 0.

Collectives of Horovod or NCCL wait for a dead rank for minutes, some for ever, and do not say whom they
wait for. So the ranks keep a line of their own beside the framework's. Over it they answer a roll call at
the start, say which phase they are in, and learn at once when one of them is gone.

What goes over the line is one JSON object a line, never a pickle: the token that opens a line keeps two
jobs apart, it is no secret. The messages: ``phase``, ``beat``, ``fail`` (this rank is about to end, and
why), ``bye`` (it ends in good order), and from rank 0 ``facts`` and ``loss``.
"""

import json
import os
import queue
import selectors
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any, NoReturn, Self

from mlhpc.common.ranks.world import Loss
from mlhpc.errors import UserError, count

BEAT_S = 5.0
"""Every rank sends a beat this often once its backend stands."""
MISSED_BEATS = 8
"""A rank silent for this many beats (40 s) is given up: stopped, swapping, or its host is gone."""
GREETING_S = 3.0
"""How long to wait for the other end of a new connection to show that it is one of ours."""
LAST_WORDS_S = 20.0
"""How long the callback of a loss may take: it writes to a file system that may hang."""
PRINTED_S = 1.0
"""srun loses what a rank printed if it ends at once while another was killed (Slurm 22.05: half the times;
none of 12 when it stayed for 0.5 s)."""

GOODBYE_S = 10.0
"""How long a rank that is done waits for the others to have read its goodbye."""

ALIKE_S = 0.5
"""How long a rank whose neighbour failed may take to fail too: what all ranks raise alike is no loss."""

GONE = "killed or crashed (connection closed)"


@dataclass(frozen=True)
class Rendezvous:
    """Where rank 0 can be met: at one of ``ports`` on one of ``hosts``, by those who know ``token``."""

    hosts: tuple[str, ...]
    ports: tuple[int, ...]
    token: str


@dataclass(frozen=True)
class Peer:
    """One rank as it presented itself at the roll call."""

    rank: int
    hostname: str
    local_rank: int
    pid: int


class Connection:
    """A connected socket that carries one JSON object a line. Sending is safe from several threads."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._rest = b""  # the beginning of a message
        self._waiting: list[dict[str, Any]] = []
        self._lock = threading.Lock()
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # A host that lost its power closes no connection. The kernel asks after 10 s of silence, for 20 s.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 4)):
            if hasattr(socket, name):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    def send(self, **message: Any) -> None:
        """Send ``message``. A broken connection is not an error here: the reading side reports it."""
        with self._lock, suppress(OSError):
            self.sock.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> list[dict[str, Any]]:
        """The messages completed by one read, and those that came with an ``answer``. Raises ``EOFError``
        when the other end is gone, ``TimeoutError`` when nothing came in the socket's time, ``ValueError``
        for what is not ours."""
        waiting, self._waiting = self._waiting, []
        if waiting:
            return waiting
        try:
            data = self.sock.recv(1 << 16)
        except TimeoutError:
            raise
        except OSError as error:
            raise EOFError from error
        if not data:
            raise EOFError
        *whole, self._rest = (self._rest + data).split(b"\n")
        messages = [json.loads(text) for text in whole]
        if not all(isinstance(message, dict) for message in messages):
            raise ValueError("not a message of ours")
        return messages

    def answer(self, seconds: float) -> dict[str, Any]:
        """The next message, within ``seconds``. Raises as ``receive``."""
        deadline = time.monotonic() + seconds
        while True:
            self.sock.settimeout(max(0.01, deadline - time.monotonic()))
            if messages := self.receive():
                self._waiting = messages[1:]
                return messages[0]

    def has_waiting(self) -> bool:
        """Whether ``receive`` has messages that the socket no longer shows."""
        return bool(self._waiting)

    def close(self) -> None:
        self.sock.close()


class RollCall:
    """The lines of one rank: rank 0 has one to every other rank, the others have one to rank 0.

    Made by ``call``. From then on a thread watches the lines. When a rank is lost, the process ends
    with status 1, from that thread: the main thread may hang in a collective that never returns.
    """

    def __init__(self, me: Peer, roll: Sequence[Peer], lines: dict[int, Connection]) -> None:
        self.me = me
        self.roll = tuple(roll)
        self._lines = lines
        self._phases = dict.fromkeys(range(len(roll)), "start")
        self._missed: dict[int, int] = {}  # beats missed in a row, by rank
        self._beating = False
        self._leaving = threading.Event()
        self._facts: queue.Queue[dict[str, Any]] = queue.Queue()
        self._callback: Callable[[Loss], None] = lambda loss: None
        for line in lines.values():
            line.sock.settimeout(10.0)  # a full buffer must not hold up the thread for ever
        self._thread = threading.Thread(target=self._watch, name="roll call", daemon=True)
        self._thread.start()

    @classmethod
    def call(
        cls,
        me: Peer,
        size: int,
        meeting: Rendezvous,
        *,
        listener: socket.socket | None = None,
        hosts: Sequence[str] = (),
        timeout_s: float = 60.0,
    ) -> Self:
        """Meet the other ranks: return when all ``size`` are here, the same on every rank.

        ``listener`` is rank 0's, when it is bound already. ``hosts`` are the names of the nodes, as far
        as they are known, for the message. Raises ``UserError`` on every rank that came when one did not
        within ``timeout_s`` seconds, with the missing ranks; when two say that they are the same; and
        when no rank 0 is found.
        """
        if me.rank == 0:
            with listener or listen(meeting) as door:
                return cls(me, *_receive_callers(me, size, meeting, door, hosts, timeout_s))
        return cls(me, *_call_in(me, size, meeting, timeout_s))

    def share(self, facts: dict[str, Any]) -> dict[str, Any]:
        """Rank 0's ``facts`` (what JSON can carry), on every rank. All ranks call it."""
        if self.me.rank != 0:
            return self._facts.get()
        self._tell_all(facts=facts)
        return facts

    def my_address(self) -> str:
        """The IP address by which this rank's node reaches the others; loopback when all are on one."""
        other = [c.rank for c in self.roll if c.hostname != self.me.hostname and c.rank in self._lines]
        lines = [self._lines[rank] for rank in other[:1]] or list(self._lines.values())[:1]
        return str(lines[0].sock.getsockname()[0])

    def enter(self, phase: str) -> None:
        """Say what this rank is doing now."""
        self._phases[self.me.rank] = phase
        self._tell_all(phase=phase)

    def start_beating(self) -> None:
        """From now on silence counts as loss. For when the backend of every rank stands: to load a framework
        from a slow file system can hold the interpreter's lock for a minute."""
        self._missed = dict.fromkeys(self._lines, 0)
        self._beating = True

    def on_loss(self, callback: Callable[[Loss], None]) -> None:
        """Have ``callback`` run, in the watching thread, on the rank that acts when one is lost."""
        self._callback = callback

    def wait_for_loss(self, seconds: float) -> None:
        """Give the thread time to see whom this rank has lost. Does not return if it has lost any."""
        self._thread.join(seconds)

    def fail(self, reason: str) -> None:
        """Tell the others that this rank is about to end, and why; the first reason counts."""
        if not self._leaving.is_set():
            self._leaving.set()
            self._tell_all(fail=reason)

    def close(self) -> None:
        """Leave in good order: after this no loss is reported here, and this rank is not one.

        The connections end when the other side has read the goodbye. A socket closed with something unread in
        it is reset, and a reset takes the goodbye away from the other side, which then sees a loss.
        """
        self._leaving.set()
        self._tell_all(bye=True)
        for line in list(self._lines.values()):
            with suppress(OSError):
                line.sock.shutdown(socket.SHUT_WR)
        self._thread.join(GOODBYE_S)

    def _tell_all(self, **message: Any) -> None:
        for line in list(self._lines.values()):
            line.send(**message)

    def _watch(self) -> None:
        next_beat = time.monotonic()
        with selectors.DefaultSelector() as selector:
            for rank, line in list(self._lines.items()):
                selector.register(line.sock, selectors.EVENT_READ, rank)
                if line.has_waiting():
                    self._read(rank)
            while self._lines:
                for key, _ in selector.select(max(0.0, next_beat - time.monotonic())):
                    self._read(key.data)
                    if key.data not in self._lines:
                        selector.unregister(key.fileobj)
                if time.monotonic() >= next_beat:
                    # Beats are counted, not timed: a job that was suspended and goes on has missed none.
                    self._beat()
                    next_beat = time.monotonic() + BEAT_S
        for line in self._lines.values():
            line.close()

    def _read(self, rank: int) -> None:
        try:
            for message in self._lines[rank].receive():
                self._heed(rank, message)
        except (EOFError, TimeoutError, ValueError):
            if self._leaving.is_set():
                self._lines.pop(rank).close()
            else:
                self._lose(rank, GONE)

    def _beat(self) -> None:
        if not self._beating or self._leaving.is_set():
            return
        self._tell_all(beat=True)
        for rank in self._missed:
            self._missed[rank] += 1
            if self._missed[rank] > MISSED_BEATS:
                self._lose(rank, f"silent for {MISSED_BEATS * BEAT_S:.0f} s (stopped, or its host is gone)")

    def _heed(self, rank: int, message: dict[str, Any]) -> None:
        match message:
            case {"phase": str(phase)}:
                self._phases[rank] = phase
            case {"beat": _}:
                self._missed[rank] = 0
            case {"facts": dict(facts)}:
                self._facts.put(facts)
            case {"fail": str(reason)}:
                # This rank may be about to fail for the same reason: then it says so itself, if need be.
                self._leaving.wait(ALIKE_S)
                self._lose(rank, reason)
            case {"loss": dict(loss)} if not self._leaving.is_set():
                self._end(Loss(**loss))
            case {"bye": _}:
                self._missed.pop(rank, None)
                self._lines.pop(rank).close()

    def _lose(self, rank: int, reason: str) -> None:
        if self._leaving.is_set():
            return
        caller = self.roll[rank]
        loss = Loss(rank, caller.hostname, self._phases[rank], reason)
        if self.me.rank == 0:
            for other, line in self._lines.items():
                if other != rank:
                    line.send(loss=asdict(loss))
        self._end(loss)

    def _end(self, loss: Loss) -> NoReturn:
        """Say who was lost, let the acting rank write it down, and end the process at once."""
        acts = self.me.rank == (1 if loss.rank == 0 else 0)
        # The whole node of rank 0 may be gone, rank 1 with it: then the other nodes say it too.
        if acts or (loss.rank == 0 and self.me.local_rank == 0):
            os.write(2, f"mlhpc: {loss}\n".encode())  # the main thread may hold the lock of sys.stderr
        last_words = threading.Thread(target=self._last_words, args=(loss, acts), daemon=True)
        last_words.start()
        last_words.join(LAST_WORDS_S)
        if acts:
            time.sleep(PRINTED_S)
        os._exit(1)

    def _last_words(self, loss: Loss, acts: bool) -> None:
        try:
            if acts:
                self._callback(loss)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()


def listen(meeting: Rendezvous) -> socket.socket:
    """A listening socket on the first port of ``meeting`` that is free. Raises ``UserError``."""
    for port in meeting.ports:
        try:
            return socket.create_server(("", port), backlog=1024)
        except OSError as error:
            last = error
    raise UserError(f"rank 0 can listen on none of the ports {_some(meeting.ports)}: {last}")


def _receive_callers(
    me: Peer, size: int, meeting: Rendezvous, door: socket.socket, hosts: Sequence[str], timeout_s: float
) -> tuple[list[Peer], dict[int, Connection]]:
    """Rank 0's part of the roll call."""
    callers, lines = {me.rank: me}, dict[int, Connection]()
    deadline = time.monotonic() + timeout_s

    def refuse(why: str) -> NoReturn:
        for line in lines.values():
            line.send(refused=why)
        raise UserError(why)

    while len(callers) < size:
        door.settimeout(max(0.01, deadline - time.monotonic()))
        try:
            line = Connection(door.accept()[0])
        except TimeoutError:
            refuse(_who_is_missing(callers, size, hosts, timeout_s))
        try:
            hello = line.answer(GREETING_S)
            if hello["token"] != meeting.token:
                raise ValueError("a rank of another job")
            caller = Peer(**hello["caller"])
        except (EOFError, TimeoutError, ValueError, KeyError, TypeError):
            line.close()
            continue
        line.send(welcome=meeting.token)
        twin = callers.get(caller.rank)
        lines[caller.rank if not twin else -1] = line
        if twin:
            refuse(
                f"two processes say they are rank {caller.rank}: pid {twin.pid} on {twin.hostname} and "
                f"pid {caller.pid} on {caller.hostname}; start every rank once"
            )
        if hello["size"] != size or not 0 < caller.rank < size:
            refuse(
                f"rank {caller.rank} on {caller.hostname} believes in {count(hello['size'], 'rank')}, rank 0 on "
                f"{me.hostname} in {size}; give all ranks the same launcher variables"
            )
        callers[caller.rank] = caller

    roll = [callers[rank] for rank in range(size)]
    for line in lines.values():
        line.send(roll=[asdict(caller) for caller in roll])
    return roll, lines


def _who_is_missing(callers: dict[int, Peer], size: int, hosts: Sequence[str], timeout_s: float) -> str:
    missing = [rank for rank in range(size) if rank not in callers]
    heard = {caller.hostname for caller in callers.values()}
    silent = [host for host in hosts if host not in heard]
    return (
        f"rank{'s' * (len(missing) > 1)} {_some(missing)} of {size} did not come within {timeout_s:g} s"
        + (f"; nobody came from {_some(silent)}" if silent else "")
        + "; see what they printed"
        + (f", and whether {callers[0].hostname} can be reached from their node" if hosts else "")
    )


def _call_in(
    me: Peer, size: int, meeting: Rendezvous, timeout_s: float
) -> tuple[list[Peer], dict[int, Connection]]:
    """The part of every other rank in the roll call."""
    deadline = time.monotonic() + timeout_s
    hello = {"token": meeting.token, "size": size, "caller": asdict(me)}
    last: Exception = TimeoutError("no answer")
    for host, port in _round_and_round(meeting):
        try:
            line = _reach(host, port, hello, meeting.token)
            break
        except (OSError, EOFError, ValueError) as error:
            last = error
        if time.monotonic() > deadline:
            raise UserError(
                f"rank {me.rank} on {me.hostname} found no rank 0 on {' or '.join(meeting.hosts)} at ports "
                f"{_some(meeting.ports)} within {timeout_s:g} s ({last or type(last).__name__}); see what "
                "rank 0 printed, or set MLHPC_LEADER to an address of its node"
            )
    try:
        # Rank 0 may have come last and wait its own time for others.
        verdict = line.answer(2 * timeout_s + GREETING_S)
    except (EOFError, TimeoutError, ValueError) as error:
        raise UserError(f"rank {me.rank} on {me.hostname} lost rank 0 during the roll call") from error
    if "refused" in verdict:
        raise UserError(verdict["refused"])
    return [Peer(**caller) for caller in verdict["roll"]], {0: line}


def _round_and_round(meeting: Rendezvous) -> Iterator[tuple[str, int]]:
    while True:
        yield from product(meeting.hosts, meeting.ports)
        time.sleep(0.2)


def _reach(host: str, port: int, hello: dict[str, Any], token: str) -> Connection:
    """A line to the rank 0 that knows ``token``. Raises ``OSError``, ``EOFError`` or ``ValueError``."""
    line = Connection(socket.create_connection((host, port), timeout=GREETING_S))
    try:
        line.send(**hello)
        if line.answer(GREETING_S).get("welcome") != token:
            raise ValueError(f"port {port} on {host} belongs to another program")
    except BaseException:
        line.close()
        raise
    return line


def _some(things: Iterable[object]) -> str:
    """A list for a message: the first few, and how many there are."""
    words = [str(thing) for thing in things]
    return ", ".join(words) if len(words) <= 8 else f"{', '.join(words[:6])}, … ({len(words)} in all)"
