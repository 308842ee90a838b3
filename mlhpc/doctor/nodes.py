"""Gathers the facts about all nodes of a launch on rank 0 over TCP, and measures the offsets between the nodes'
clocks."""

import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from mlhpc.common.host.binding import describe_binding
from mlhpc.common.ranks import environment, launch
from mlhpc.common.ranks.connection import Connection, Proof
from mlhpc.common.ranks.environment import RankInfo
from mlhpc.common.ranks.links import accept, connect
from mlhpc.common.ranks.rendezvous import Peer
from mlhpc.common.ranks.socket_world import open_listener
from mlhpc.doctor.node import EXAMINE_S
from mlhpc.errors import UserError


def find_rank_info(env: Mapping[str, str]) -> RankInfo:
    """The facts about this rank, with the address of rank 0 if it can be determined (under mpirun from Slurm's
    variables or MLHPC_LEADER, or because all ranks are on this node). Raises the same UserErrors as
    ``identify``."""
    rank_info = environment.identify(env)
    if rank_info.size == 1 or rank_info.leader:
        return rank_info
    try:
        return environment.with_leader(rank_info, env)
    except UserError:
        return rank_info


def gather_nodes(
    rank_info: RankInfo, examine: Callable[[], dict[str, Any]], env: Mapping[str, str]
) -> list[dict[str, Any]]:
    """On rank 0, return the facts about every node, gathered by the node's first rank, with ``offset_s`` (the
    seconds by which the node's clock is ahead of rank 0's) and ``bindings`` (the core bindings of the node's
    ranks, in order). On other ranks, return an empty list. If rank 0's address is unknown (``find_rank_info``),
    rank 0 gets only the facts about its own node. Raises UserError on every rank, naming the missing rank, if a
    rank does not connect."""
    if rank_info.size == 1 or not rank_info.leader:
        alone = {"offset_s": 0.0, "bindings": [describe_binding()]}
        return [examine() | alone] if rank_info.rank == 0 else []

    def report() -> dict[str, Any]:
        own = {"binding": describe_binding()}
        return examine() | own if rank_info.local_rank == 0 else own

    facts: dict[int, dict[str, Any]] = {}
    with open_listener(rank_info) as listener:
        ranks = launch.call_roll(rank_info, env, port=listener.getsockname()[1])
        ranks.enter("doctor")
        if rank_info.rank == 0:
            facts[0] = report() | {"offset_s": 0.0}
            facts |= receive_facts(listener, ranks.proof, range(1, rank_info.size))
        else:
            first = ranks.roll[0]
            sock = connect((first.address, first.port), ranks.proof, rank_info.rank, EXAMINE_S)
            _send_facts(Connection(sock), report)
    ranks.close()
    return _by_node(facts, ranks.roll)


def _by_node(facts: Mapping[int, dict[str, Any]], roll: Iterable[Peer]) -> list[dict[str, Any]]:
    """The facts gathered by each node's first rank, with the bindings of all ranks of the node."""
    on_node: dict[str, list[Peer]] = {}
    for peer in sorted(roll, key=lambda peer: peer.rank) if facts else ():
        on_node.setdefault(peer.hostname, []).append(peer)
    return [
        facts[min(peers, key=lambda peer: peer.local_rank).rank]
        | {"bindings": [facts[peer.rank]["binding"] for peer in peers]}
        for peers in on_node.values()
    ]


def _send_facts(connection: Connection, examine: Callable[[], dict[str, Any]]) -> None:
    connection.send(facts=examine())
    while "ping" in connection.answer(EXAMINE_S):
        connection.send(time=time.time())
    connection.close()


def receive_facts(
    listener: socket.socket, proof: Proof, ranks: Sequence[int], seconds: float = EXAMINE_S
) -> dict[int, dict[str, Any]]:
    """The facts that the other ``ranks`` send, each with its node's ``offset_s``. Connections from outside this
    launch are closed. Raises UserError if a rank does not report in time."""
    deadline = time.monotonic() + seconds
    facts: dict[int, dict[str, Any]] = {}
    for rank, sock in zip(ranks, accept(listener, proof, ranks, seconds), strict=True):
        facts[rank] = _facts_of(rank, Connection(sock), deadline)
    return facts


def _facts_of(rank: int, connection: Connection, deadline: float) -> dict[str, Any]:
    try:
        reply = connection.answer(max(0.01, deadline - time.monotonic()))
        facts: dict[str, Any] = reply["facts"] | {"offset_s": _offset(connection)}
    except (TimeoutError, EOFError, ValueError, KeyError, TypeError, OverflowError) as error:
        why = str(error) or "timeout"
        raise UserError(f"rank {rank} connected, but did not report its node ({why})") from None
    connection.send(done=True)
    connection.close()
    return facts


def _offset(connection: Connection, rounds: int = 9) -> float:
    """Seconds by which the clock at the other end of the connection is ahead: that clock's reading minus the
    midpoint of the round trip (Cristian 1989), for the fastest of ``rounds`` round trips."""
    trips = []
    for _ in range(rounds):
        sent = time.time()
        connection.send(ping=True)
        remote = float(connection.answer(10.0)["time"])
        received = time.time()
        trips.append((received - sent, remote - (sent + received) / 2))
    return min(trips)[1]
