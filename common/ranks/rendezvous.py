"""Connects the ranks of a run in two levels: the first rank of each node gathers the node's other ranks, over
loopback, and connects to rank 0, which sends the list of ranks. A rank that cannot reach the first rank of its
node, as in a container with a separate network, connects to rank 0 directly. Every connection is authenticated."""

import socket
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, nullcontext
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Any, NoReturn

from mlhpc.common.ranks.connection import (
    GREETING_S,
    LOOPBACK,
    MAX_STRANGERS,
    Admission,
    Connection,
    Proof,
    SecretFile,
    encode,
    greet,
    listen_on,
)
from mlhpc.common.ranks.world import Loss
from mlhpc.errors import AlreadyReported, UserError
from mlhpc.quantities import seconds_text

GONE = "killed or crashed (connection closed)"
QUIET_S = 0.05
"""After this many seconds without a new connection, the first rank of a node reports the ranks it has gathered."""
NODE_SHARE = 0.25
"""Part of the time limit during which a rank looks only for the first rank of its node, and not for rank 0."""
IN_A_MESSAGE = 4096
"""Maximum number of ranks listed in one message of the roll: 200 kB if all have different host names of 40
characters."""


@dataclass(frozen=True)
class Rendezvous:
    """Where ``size`` ranks with this launch's ``proof`` find rank 0: on one of ``ports`` of one of ``hosts``. They
    wait ``timeout_s`` seconds for one another.

    If all ``hosts`` are loopback (all ranks are on one machine), rank 0 listens only there. The first rank of this
    node gathers the node's other ranks on one of ``node_ports``; if there are none, each rank connects to rank 0.
    ``nodes``: the names of the nodes, for messages, if the launcher reports them.
    """

    hosts: tuple[str, ...]
    ports: tuple[int, ...]
    proof: Proof | SecretFile
    size: int
    node_ports: tuple[int, ...] = ()
    nodes: tuple[str, ...] = ()
    timeout_s: float = 60.0


@dataclass(frozen=True)
class Peer:
    """A rank's entry in the roll call. ``port``: the port on which it listens for other ranks (0 if it does not).
    ``address``: the address of its node, which rank 0 fills in."""

    rank: int
    hostname: str
    local_rank: int
    pid: int
    port: int = 0
    address: str = ""


@dataclass(frozen=True)
class Meeting:
    """What a rank knows after the roll call: the ``roll`` of all ranks, its own ``connections`` by rank, the
    launch's proof, the rank through which it is connected to rank 0 (``above``; None on rank 0), and the address
    at which other nodes reach its node."""

    roll: tuple[Peer, ...]
    connections: dict[int, Connection]
    proof: Proof
    above: int | None
    address: str


def listen(rendezvous: Rendezvous) -> socket.socket:
    """A listening socket on the first free port of ``rendezvous``. Raises ``UserError``."""
    local = set(rendezvous.hosts) == {LOOPBACK}
    last: object = "none"
    for port in rendezvous.ports:
        try:
            return listen_on(port, local)
        except OSError as error:
            last = error
    raise UserError(f"rank 0 cannot listen on any of the ports {_some(rendezvous.ports)}: {last}")


def gather_peers(me: Peer, rendezvous: Rendezvous, listener: socket.socket) -> Meeting:
    """Do rank 0's part of the roll call.

    Raises ``UserError``, also on the ranks that have connected, if a rank does not connect in time or is lost, if
    two processes have the same rank, or if a rank was launched with a different world size.
    """
    size, peers, direct = rendezvous.size, {me.rank: me}, dict[socket.socket, tuple[Peer, Connection]]()
    deadline = time.monotonic() + rendezvous.timeout_s
    proof = rendezvous.proof.create() if isinstance(rendezvous.proof, SecretFile) else rendezvous.proof

    def refuse(why: str) -> NoReturn:
        for _, connection in direct.values():
            connection.send(refused=why)
        raise UserError(why)

    def add(hello: dict[str, Any], address: str) -> None:
        peer = Peer(**hello["peer"])
        if twin := peers.get(peer.rank):
            refuse(
                f"two processes were launched as rank {peer.rank}: pid {twin.pid} on {twin.hostname} and "
                f"pid {peer.pid} on {peer.hostname}; start each rank once"
            )
        if hello["size"] != size or not 0 < peer.rank < size:
            here = f"rank {peer.rank} on {peer.hostname} was launched with world size {hello['size']}"
            at_0 = f"rank 0 on {me.hostname} with {size}"
            refuse(f"{here}, {at_0}; use the same launcher variables for all ranks")
        peers[peer.rank] = replace(peer, address=address)

    own = _node_listener(rendezvous)
    listeners = (listener, own) if own else (listener,)
    with own or nullcontext(), closing(Admission(listeners, proof, size)) as admission:
        while len(peers) < size and time.monotonic() < deadline:
            for sock, hello in admission.wait(deadline):
                if hello is None:
                    first, connection = direct[sock]
                    try:
                        for each in _joined(connection.receive()):
                            add(each, connection.there)
                    except (EOFError, TimeoutError, ValueError):
                        del direct[sock]
                        refuse(str(Loss(first.rank, first.hostname, "start", GONE)))
                elif peer := _peer(hello):
                    sock.settimeout(GREETING_S)
                    direct[sock] = peer, Connection(sock)
                    admission.watch(sock)
                    add(hello, direct[sock][1].there)
                else:
                    sock.close()
    if len(peers) < size:
        refuse(_who_is_missing(peers, rendezvous))

    connections = {peer.rank: connection for peer, connection in direct.values()}
    others = (each.here for each in connections.values() if not is_loopback(each.there))
    address = next(others, LOOPBACK)
    in_order = (peers[rank] for rank in range(size))
    roll = tuple(replace(peer, address=address) if is_loopback(peer.address) else peer for peer in in_order)
    data = encode(*_parts(roll))
    for connection in connections.values():
        if is_loopback(connection.there):
            connection.send(above=0, address=address)
        connection.send_encoded(data)
    return Meeting(roll, connections, proof, None, address)


def _joined(messages: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The hellos of a node's ranks, from the ``messages`` in which the node's first rank reports them. Raises
    ValueError."""
    for message in messages:
        hellos = message.get("joined")
        if not isinstance(hellos, list) or not all(isinstance(each, dict) and _peer(each) for each in hellos):
            raise ValueError("not a node's report of its ranks")
        yield from hellos


def _parts(roll: Sequence[Peer]) -> Iterator[dict[str, Any]]:
    """The roll as messages of up to ``IN_A_MESSAGE`` ranks each, which name each host once."""
    for start in range(0, len(roll), IN_A_MESSAGE):
        part = roll[start : start + IN_A_MESSAGE]
        number = {node: i for i, node in enumerate(dict.fromkeys((p.hostname, p.address) for p in part))}
        rows = [(number[p.hostname, p.address], p.local_rank, p.pid, p.port) for p in part]
        yield {"roll": [list(number), rows]}


def is_loopback(address: str) -> bool:
    """Return whether an address is valid only on this machine, or is empty because it is unknown."""
    return address.startswith("127.") or address in ("::1", "")


def _peer(hello: dict[str, Any]) -> Peer | None:
    """The rank that sent ``hello``; None if the types in it are wrong."""
    said = hello.get("peer")
    kinds = {"rank": int, "hostname": str, "local_rank": int, "pid": int, "port": int, "address": str}
    if type(hello.get("size")) is not int or not isinstance(said, dict):
        return None
    return Peer(**said) if {name: type(value) for name, value in said.items()} == kinds else None


def _who_is_missing(peers: dict[int, Peer], rendezvous: Rendezvous) -> str:
    missing = [rank for rank in range(rendezvous.size) if rank not in peers]
    present = {peer.hostname for peer in peers.values()}
    absent = [node for node in rendezvous.nodes if node not in present]
    return (
        f"rank{'s' * (len(missing) > 1)} {_some(missing)} of {rendezvous.size} did not connect within "
        + seconds_text(rendezvous.timeout_s)
        + (f"; no rank on {_some(absent)} connected" if absent else "")
        + "; see their output"
        + (
            f", and check that {peers[0].hostname} can be reached from their nodes"
            if rendezvous.nodes
            else ""
        )
    )


def join(me: Peer, rendezvous: Rendezvous) -> Meeting:
    """Take part in the roll call on a rank other than 0. Raises ``UserError`` if rank 0 is not found or is lost,
    and ``AlreadyReported`` if rank 0 refuses or another rank reports the error."""
    # If rank 0 started last, it still waits its full timeout for other ranks.
    deadline = time.monotonic() + 2 * rendezvous.timeout_s + GREETING_S
    up, proof = _find_above(me, rendezvous)
    is_first = me.local_rank == 0 and bool(rendezvous.node_ports)
    below: list[tuple[Peer, Connection]] = []
    roll: list[Peer] = []
    above, address = 0, up.here
    try:
        if is_first:
            _gather_node(below, up, rendezvous, proof, deadline)
            _pass_on(below, {"above": me.rank, "address": address})
        while len(roll) < rendezvous.size:
            match message := up.answer(deadline - time.monotonic()):
                case {"above": int(above), "address": str(address)}:
                    continue
                case {"refused": str(why)}:
                    raise AlreadyReported(why)  # rank 0 reports it
                case {"roll": [list(nodes), list(rows)]}:
                    for node, local_rank, pid, port in rows:
                        hostname, at = nodes[node]
                        roll.append(Peer(len(roll), hostname, local_rank, pid, port, at))
            _pass_on(below, message)
    except (EOFError, TimeoutError, ValueError) as error:
        why = f"rank {me.rank} on {me.hostname} lost rank 0 during the roll call"
        _pass_on(below, {"refused": why})
        if above or (rendezvous.node_ports and not is_first):
            raise AlreadyReported(why) from error  # rank 0, or the first rank of this node, reports it
        raise UserError(why) from error
    except AlreadyReported as refusal:
        _pass_on(below, {"refused": str(refusal)})
        raise
    connections = {above: up} | {peer.rank: connection for peer, connection in below}
    return Meeting(tuple(roll), connections, proof, above, address)


def _gather_node(
    below: list[tuple[Peer, Connection]],
    up: Connection,
    rendezvous: Rendezvous,
    proof: Proof,
    deadline: float,
) -> None:
    """On the first rank of a node: accept the node's other ranks, add them to ``below`` and report them to rank 0,
    until rank 0 answers."""
    new: list[dict[str, Any]] = []
    if not (listener := _node_listener(rendezvous)):
        return
    with listener, closing(Admission((listener,), proof, MAX_STRANGERS)) as admission:
        admission.watch(up.sock)
        while (now := time.monotonic()) < deadline:
            before = len(new)
            for sock, hello in admission.wait(min(deadline, now + QUIET_S) if new else deadline):
                if hello is None:
                    return
                if peer := _peer(hello):
                    sock.settimeout(GREETING_S)
                    below.append((peer, Connection(sock)))
                    new.append(hello)
                else:
                    sock.close()
            if new and len(new) == before:
                up.send(joined=new)
                new = []


def _node_listener(rendezvous: Rendezvous) -> socket.socket | None:
    """The socket on which the first rank of a node gathers the others. None if other programs use the ports; the
    other ranks then connect to rank 0 directly."""
    try:
        return listen(replace(rendezvous, hosts=(LOOPBACK,), ports=rendezvous.node_ports))
    except UserError:
        return None


def _pass_on(below: Iterable[tuple[Peer, Connection]], message: dict[str, Any]) -> None:
    data = encode(message)
    for _, connection in below:
        connection.send_encoded(data)


def _find_above(me: Peer, rendezvous: Rendezvous) -> tuple[Connection, Proof]:
    """A connection to rank 0, or to the first rank of this node, and the launch's proof. Raises UserError."""
    started, timeout_s = time.monotonic(), rendezvous.timeout_s
    hello = {"size": rendezvous.size, "peer": asdict(me)}
    for host, port in _addresses_repeatedly(me, rendezvous, started + NODE_SHARE * timeout_s):
        try:
            shared = rendezvous.proof
            proof = shared.fresh() if isinstance(shared, SecretFile) else shared
            return Connection(greet(host, port, proof, hello, GREETING_S)), proof
        except (OSError, EOFError, ValueError, KeyError) as error:
            last = str(error) or type(error).__name__
        if time.monotonic() > started + timeout_s:
            break
    raise UserError(
        f"rank {me.rank} on {me.hostname} could not find rank 0 on {' or '.join(rendezvous.hosts)}, ports "
        f"{_some(rendezvous.ports)}, within {seconds_text(timeout_s)} ({last}); see the output of rank 0, or set "
        "MLHPC_LEADER to an address of its node"
    )


def _addresses_repeatedly(me: Peer, rendezvous: Rendezvous, until: float) -> Iterator[tuple[str, int]]:
    """Yield the addresses to try, again and again: until the time ``until``, only addresses of the node's first
    rank, and from then on also those of rank 0."""
    while True:
        below = me.local_rank > 0 and rendezvous.node_ports
        if below:
            yield from ((LOOPBACK, port) for port in rendezvous.node_ports)
        if not below or time.monotonic() > until:
            yield from product(rendezvous.hosts, rendezvous.ports)
        time.sleep(0.2)


def _some(things: Iterable[object]) -> str:
    """``things`` as a list for a message: all of them, or the first few and their total number."""
    words = [str(thing) for thing in things]
    return ", ".join(words) if len(words) <= 8 else f"{', '.join(words[:6])}, … ({len(words)} in total)"
