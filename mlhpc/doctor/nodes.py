"""The nodes of a launch: what each has to say, told to rank 0 over TCP, and how far its clock is off."""

import socket
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from mlhpc.common.ranks import environment, launch
from mlhpc.common.ranks.connection import Connection as Wire
from mlhpc.common.ranks.environment import RankInfo
from mlhpc.doctor.node import EXAMINED_S
from mlhpc.errors import UserError


def place_of(env: Mapping[str, str]) -> RankInfo:
    """This rank's place, with where to meet rank 0 as far as that can be known (of mpirun from Slurm's
    variables or MLHPC_LEADER, or because all ranks are on this node). Raises UserError as ``identify``."""
    place = environment.identify(env)
    if place.size == 1 or place.leader:
        return place
    try:
        return environment.with_leader(place, env)
    except UserError:
        return place


def of_all_nodes(
    place: RankInfo, look: Callable[[], dict[str, Any]], env: Mapping[str, str]
) -> list[dict[str, Any]]:
    """On rank 0 what ``look`` finds on every node, by its first rank, and ``offset_s``: how far that node's
    clock is ahead of rank 0's. Of this node alone where the ranks cannot meet (``place_of``). An empty
    list on other ranks. Raises UserError on every rank when one does not come, and names it."""
    if place.size == 1 or not place.leader:
        return [look() | {"offset_s": 0.0}] if place.rank == 0 else []
    ranks = launch.call_roll(place, env)
    ranks.enter("doctor")
    heard = []
    if place.rank == 0:
        with socket.create_server(("", 0), backlog=1024) as door:
            ranks.broadcast({"host": ranks.my_address(), "port": door.getsockname()[1]})
            heard = [
                (0, look() | {"offset_s": 0.0}),
                *_hear(door, sum(c.local_rank == 0 for c in ranks.roll) - 1),
            ]
    else:
        where = ranks.broadcast({})
        if place.local_rank == 0:
            _tell(
                Wire(socket.create_connection((where["host"], where["port"]), timeout=60)), place.rank, look()
            )
    ranks.close()
    return [facts for _, facts in sorted(heard, key=lambda one: one[0])]


def _tell(wire: Wire, rank: int, facts: dict[str, Any]) -> None:
    wire.send(rank=rank, facts=facts)
    while "ping" in wire.answer(EXAMINED_S):
        wire.send(time=time.time())
    wire.close()


def _hear(door: socket.socket, nodes: int) -> Iterator[tuple[int, dict[str, Any]]]:
    door.settimeout(EXAMINED_S)
    for _ in range(nodes):
        try:
            wire = Wire(door.accept()[0])
            told = wire.answer(EXAMINED_S)
            yield told["rank"], told["facts"] | {"offset_s": _offset(wire)}
        except (TimeoutError, EOFError, ValueError, KeyError) as error:
            why = str(error) or "time is up"
            raise UserError(f"a rank that had come did not say what it found ({why})") from None
        wire.send(done=True)
        wire.close()


def _offset(wire: Wire, rounds: int = 9) -> float:
    """Seconds by which the clock at the other end is ahead: its reading against the middle of the round trip
    (Cristian 1989), from the quickest of the ``rounds``."""
    trips = []
    for _ in range(rounds):
        sent = time.time()
        wire.send(ping=True)
        theirs = float(wire.answer(10.0)["time"])
        back = time.time()
        trips.append((back - sent, theirs - (sent + back) / 2))
    return min(trips)[1]
