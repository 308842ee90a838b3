"""Connects the ranks of a run: all connect to rank 0, which authenticates them and sends the list of ranks."""

import socket
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any, NoReturn

from mlhpc.common.ranks.connection import GREETING_S, Connection, Proof, SecretFile, admit, introduce
from mlhpc.errors import AlreadyReported, UserError
from mlhpc.quantities import seconds_text

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Rendezvous:
    """The address of rank 0: one of ``ports`` on one of ``hosts``, for peers with this launch's ``proof``.

    If all ``hosts`` are loopback (the ranks of one machine) it listens there only.
    """

    hosts: tuple[str, ...]
    ports: tuple[int, ...]
    proof: Proof | SecretFile


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
) -> tuple[list[Peer], dict[int, Connection], Proof]:
    """Rank 0's part of the roll call: every rank, the connection to each other one, and the launch's proof.

    Raises ``UserError``, also on the ranks that connected, when a rank does not connect within ``timeout_s``
    seconds, two processes have the same rank, or one was launched with another world size.
    """
    peers, connections = {me.rank: me}, dict[int, Connection]()
    deadline = time.monotonic() + timeout_s
    proof = rendezvous.proof.create() if isinstance(rendezvous.proof, SecretFile) else rendezvous.proof

    def refuse(why: str) -> NoReturn:
        for connection in connections.values():
            connection.send(refused=why)
        raise UserError(why)

    for sock, hello in admit(listener, proof, deadline, size):
        peer = _peer(hello)
        if peer is None:
            sock.close()
            continue
        sock.settimeout(GREETING_S)
        connection = Connection(sock)
        twin = peers.get(peer.rank)
        connections[-1 if twin else peer.rank] = connection
        if twin:
            refuse(
                f"two processes were launched as rank {peer.rank}: pid {twin.pid} on {twin.hostname} and "
                f"pid {peer.pid} on {peer.hostname}; start each rank once"
            )
        if hello["size"] != size or not 0 < peer.rank < size:
            here = f"rank {peer.rank} on {peer.hostname} was launched with world size {hello['size']}"
            at_0 = f"rank 0 on {me.hostname} with {size}"
            refuse(f"{here}, {at_0}; use the same launcher variables for all ranks")
        peers[peer.rank] = peer
        if len(peers) == size:
            break
    else:
        refuse(_who_is_missing(peers, size, hosts, timeout_s))

    roll = [peers[rank] for rank in range(size)]
    for connection in connections.values():
        connection.send(roll=[asdict(peer) for peer in roll])
    return roll, connections, proof


def _peer(hello: dict[str, Any]) -> Peer | None:
    """The rank that said ``hello``; None if the types are wrong."""
    said = hello.get("peer")
    kinds = {"rank": int, "hostname": str, "local_rank": int, "pid": int}
    if type(hello.get("size")) is not int or not isinstance(said, dict):
        return None
    return Peer(**said) if {name: type(value) for name, value in said.items()} == kinds else None


def _who_is_missing(peers: dict[int, Peer], size: int, hosts: Sequence[str], timeout_s: float) -> str:
    missing = [rank for rank in range(size) if rank not in peers]
    present = {peer.hostname for peer in peers.values()}
    absent = [host for host in hosts if host not in present]
    return (
        f"rank{'s' * (len(missing) > 1)} {_some(missing)} of {size} did not connect within "
        + seconds_text(timeout_s)
        + (f"; no rank on {_some(absent)} connected" if absent else "")
        + "; see their output"
        + (f", and check that {peers[0].hostname} can be reached from their nodes" if hosts else "")
    )


def join(
    me: Peer, size: int, rendezvous: Rendezvous, timeout_s: float
) -> tuple[list[Peer], dict[int, Connection], Proof]:
    """The part of every other rank in the roll call: every rank, the connection to rank 0, and the launch's proof.

    Raises ``UserError`` if rank 0 is not found, is lost, or refuses.
    """
    connection, proof = _find_rank0(me, size, rendezvous, timeout_s)
    try:
        # Rank 0 may have started last, and then waits its full timeout for others.
        verdict = connection.answer(2 * timeout_s + GREETING_S)
    except (EOFError, TimeoutError, ValueError) as error:
        raise UserError(f"rank {me.rank} on {me.hostname} lost rank 0 during the roll call") from error
    if "refused" in verdict:
        raise AlreadyReported(verdict["refused"])  # by rank 0
    return [Peer(**peer) for peer in verdict["roll"]], {0: connection}, proof


def _find_rank0(me: Peer, size: int, rendezvous: Rendezvous, timeout_s: float) -> tuple[Connection, Proof]:
    deadline = time.monotonic() + timeout_s
    hello = {"size": size, "peer": asdict(me)}
    for host, port in _addresses_repeatedly(rendezvous):
        try:
            proof = rendezvous.proof.fresh()
            return _greet(host, port, hello, proof), proof
        except (OSError, EOFError, ValueError, KeyError) as error:
            last = str(error) or type(error).__name__
        if time.monotonic() > deadline:
            break
    raise UserError(
        f"rank {me.rank} on {me.hostname} could not find rank 0 on {' or '.join(rendezvous.hosts)}, ports "
        f"{_some(rendezvous.ports)}, within {seconds_text(timeout_s)} ({last}); see the output of rank 0, or set "
        "MLHPC_LEADER to an address of its node"
    )


def _addresses_repeatedly(rendezvous: Rendezvous) -> Iterator[tuple[str, int]]:
    while True:
        yield from product(rendezvous.hosts, rendezvous.ports)
        time.sleep(0.2)


def _greet(host: str, port: int, hello: dict[str, Any], proof: Proof) -> Connection:
    """A connection to rank 0, if it has ``proof``. Raises like ``introduce``."""
    sock = socket.create_connection((host, port), timeout=GREETING_S)
    try:
        introduce(sock, proof, hello, GREETING_S)
    except BaseException:
        sock.close()
        raise
    return Connection(sock)


def _some(things: Iterable[object]) -> str:
    """A list for a message: the first few, and their number."""
    words = [str(thing) for thing in things]
    return ", ".join(words) if len(words) <= 8 else f"{', '.join(words[:6])}, … ({len(words)} in total)"
