"""Connects the ranks of a run: all connect to rank 0, which authenticates them and sends the list of ranks.

A peer is untrusted until its first message contains the token of this launch. Untrusted peers are handled by
one selector, so that they cannot delay a rank: each has ``GREETING_S`` seconds and ``MAX_HELLO`` bytes.
"""

import hmac
import selectors
import socket
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any, NoReturn

from mlhpc.common.ranks.connection import MAX_MESSAGE, Connection
from mlhpc.errors import AlreadyReported, UserError

GREETING_S = 3.0
"""Time in which a new connection must send the token."""
MAX_HELLO = 4096
"""Maximum bytes of the first message."""
MAX_STRANGERS = 256
"""Maximum number of unauthenticated connections, beyond the number of ranks."""

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Rendezvous:
    """The address of rank 0: one of ``ports`` on one of ``hosts``, for peers that know ``token``.

    If all ``hosts`` are loopback (the ranks of one machine) it listens there only.
    """

    hosts: tuple[str, ...]
    ports: tuple[int, ...]
    token: str


@dataclass(frozen=True)
class Peer:
    """A rank's entry in the roll call."""

    rank: int
    hostname: str
    local_rank: int
    pid: int


def listen(rendezvous: Rendezvous) -> socket.socket:
    """A listening socket on the first port of ``rendezvous`` that is free. Raises ``UserError``."""
    address = LOOPBACK if set(rendezvous.hosts) == {LOOPBACK} else ""
    for port in rendezvous.ports:
        try:
            return socket.create_server((address, port), backlog=1024)
        except OSError as error:
            last = error
    raise UserError(f"rank 0 cannot listen on any of the ports {_some(rendezvous.ports)}: {last}")


def gather_peers(
    me: Peer,
    size: int,
    rendezvous: Rendezvous,
    listener: socket.socket,
    hosts: Sequence[str],
    timeout_s: float,
) -> tuple[list[Peer], dict[int, Connection]]:
    """Rank 0's part of the roll call: every rank, and the connection to each other one.

    Raises ``UserError``, also on the ranks that connected, when a rank does not connect within ``timeout_s``
    seconds, two processes have the same rank, or one was launched with another world size.
    """
    peers, connections = {me.rank: me}, dict[int, Connection]()
    deadline = time.monotonic() + timeout_s

    def refuse(why: str) -> NoReturn:
        for connection in connections.values():
            connection.send(refused=why)
        raise UserError(why)

    for connection, hello in _hellos(listener, rendezvous.token, deadline, size + MAX_STRANGERS):
        peer = Peer(**hello["peer"])
        connection.send(welcome=rendezvous.token)
        twin = peers.get(peer.rank)
        connections[-1 if twin else peer.rank] = connection
        if twin:
            refuse(
                f"two processes were launched as rank {peer.rank}: pid {twin.pid} on {twin.hostname} and "
                f"pid {peer.pid} on {peer.hostname}; start each rank once"
            )
        if hello["size"] != size or not 0 < peer.rank < size:
            refuse(
                f"rank {peer.rank} on {peer.hostname} was launched with world size {hello['size']}, rank 0 "
                f"on "
                f"{me.hostname} with {size}; use the same launcher variables for all ranks"
            )
        peers[peer.rank] = peer
        if len(peers) == size:
            break
    else:
        refuse(_who_is_missing(peers, size, hosts, timeout_s))

    roll = [peers[rank] for rank in range(size)]
    for connection in connections.values():
        connection.sock.settimeout(GREETING_S)
        connection.send(roll=[asdict(peer) for peer in roll])
    return roll, connections


def _hellos(
    listener: socket.socket, token: str, deadline: float, max_pending: int
) -> Iterator[tuple[Connection, dict[str, Any]]]:
    """Authenticated connections with their first messages, until ``deadline``; others are closed."""
    pending: dict[Connection, float] = {}  # each with its deadline for sending the token
    listener.setblocking(False)
    with selectors.DefaultSelector() as selector:

        def drop(connection: Connection, close: bool = True) -> None:
            del pending[connection]
            selector.unregister(connection.sock)
            if close:
                connection.close()

        selector.register(listener, selectors.EVENT_READ)
        try:
            while (now := time.monotonic()) < deadline:
                for connection in [late for late, limit in pending.items() if limit <= now]:
                    drop(connection)
                for key, _ in selector.select(min([deadline, *pending.values()]) - now):
                    if key.fileobj is listener:
                        if len(pending) >= max_pending:
                            drop(next(iter(pending)))
                        if stranger := _accept(listener):
                            pending[stranger] = time.monotonic() + GREETING_S
                            selector.register(stranger.sock, selectors.EVENT_READ, stranger)
                    elif key.data in pending:
                        try:
                            hello = _hello(key.data, token)
                        except TimeoutError:
                            continue  # the message is not complete
                        except (EOFError, ValueError, KeyError, TypeError):
                            drop(key.data)
                            continue
                        drop(key.data, close=False)
                        key.data.max_message = MAX_MESSAGE
                        yield key.data, hello
        finally:
            for connection in list(pending):
                connection.close()


def _accept(listener: socket.socket) -> Connection | None:
    try:
        sock, _ = listener.accept()
        sock.setblocking(False)
        return Connection(sock, MAX_HELLO)
    except OSError:  # the peer has disconnected
        return None


def _hello(connection: Connection, token: str) -> dict[str, Any]:
    """The first message of a rank of this launch. Raises TimeoutError while it is incomplete, and EOFError,
    ValueError, KeyError or TypeError for anything else."""
    messages = connection.receive()
    if not messages:
        raise TimeoutError
    hello = messages[0]
    if not hmac.compare_digest(str(hello["token"]).encode(), token.encode()):
        raise ValueError("a rank of another job")
    peer = dict(hello["peer"])
    kinds = {"rank": int, "hostname": str, "local_rank": int, "pid": int}
    if {name: type(value) for name, value in peer.items()} != kinds or type(hello["size"]) is not int:
        raise ValueError("not a rank")
    return hello


def _who_is_missing(peers: dict[int, Peer], size: int, hosts: Sequence[str], timeout_s: float) -> str:
    missing = [rank for rank in range(size) if rank not in peers]
    present = {peer.hostname for peer in peers.values()}
    absent = [host for host in hosts if host not in present]
    return (
        f"rank{'s' * (len(missing) > 1)} {_some(missing)} of {size} did not connect within {timeout_s:g} s"
        + (f"; no rank on {_some(absent)} connected" if absent else "")
        + "; see their output"
        + (f", and check that {peers[0].hostname} can be reached from their nodes" if hosts else "")
    )


def join(
    me: Peer, size: int, rendezvous: Rendezvous, timeout_s: float
) -> tuple[list[Peer], dict[int, Connection]]:
    """The part of every other rank in the roll call: every rank, and the connection to rank 0.

    Raises ``UserError`` if rank 0 is not found, is lost, or refuses.
    """
    connection = _find_rank0(me, size, rendezvous, timeout_s)
    try:
        # Rank 0 may have started last, and then waits its full timeout for others.
        verdict = connection.answer(2 * timeout_s + GREETING_S)
    except (EOFError, TimeoutError, ValueError) as error:
        raise UserError(f"rank {me.rank} on {me.hostname} lost rank 0 during the roll call") from error
    if "refused" in verdict:
        raise AlreadyReported(verdict["refused"])  # by rank 0
    return [Peer(**peer) for peer in verdict["roll"]], {0: connection}


def _find_rank0(me: Peer, size: int, rendezvous: Rendezvous, timeout_s: float) -> Connection:
    deadline = time.monotonic() + timeout_s
    hello = {"token": rendezvous.token, "size": size, "peer": asdict(me)}
    for host, port in _addresses_repeatedly(rendezvous):
        try:
            return _greet(host, port, hello, rendezvous.token)
        except (OSError, EOFError, ValueError) as error:
            last = str(error) or type(error).__name__
        if time.monotonic() > deadline:
            break
    raise UserError(
        f"rank {me.rank} on {me.hostname} could not find rank 0 on {' or '.join(rendezvous.hosts)}, ports "
        f"{_some(rendezvous.ports)}, within {timeout_s:g} s ({last}); see the output of rank 0, or set "
        "MLHPC_LEADER to an address of its node"
    )


def _addresses_repeatedly(rendezvous: Rendezvous) -> Iterator[tuple[str, int]]:
    while True:
        yield from product(rendezvous.hosts, rendezvous.ports)
        time.sleep(0.2)


def _greet(host: str, port: int, hello: dict[str, Any], token: str) -> Connection:
    """A connection to rank 0, if it knows ``token``. Raises ``OSError``, ``EOFError`` or ``ValueError``."""
    connection = Connection(socket.create_connection((host, port), timeout=GREETING_S))
    try:
        connection.send(**hello)
        if connection.answer(GREETING_S).get("welcome") != token:
            raise ValueError(f"port {port} on {host} belongs to another program")
    except BaseException:
        connection.close()
        raise
    return connection


def _some(things: Iterable[object]) -> str:
    """A list for a message: the first few, and their number."""
    words = [str(thing) for thing in things]
    return ", ".join(words) if len(words) <= 8 else f"{', '.join(words[:6])}, … ({len(words)} in total)"
