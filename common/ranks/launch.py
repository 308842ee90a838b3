"""Connect the ranks of a run: the roll call first, then the framework that carries their collectives."""

import atexit
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Literal

from mlhpc.common.ranks.base_world import myself
from mlhpc.common.ranks.environment import RankInfo, identify, with_leader
from mlhpc.common.ranks.rollcall import Rendezvous, RollCall
from mlhpc.common.ranks.world import Solo, World
from mlhpc.errors import Terminated, UserError

Framework = Literal["horovod", "torch", "none"]
"""What carries the collectives of several ranks; ``none``: there can be only one."""


def connect(framework: Framework, env: Mapping[str, str] = os.environ, timeout_s: float = 60.0) -> World:
    """The world of this rank, with all ranks present: ``Solo`` where there is one.

    Raises ``UserError`` on every rank when one did not come within ``timeout_s`` seconds, or when the
    framework counts other ranks than the launcher.
    """
    place = identify(env)
    if place.size == 1:
        return Solo(place.launcher)
    if framework == "none":
        raise UserError(f"{place.launcher} started {place.size} ranks of what runs as one; start it once")
    if framework == "torch" and not place.leader:
        place = with_leader(place, env)
    # The roll call comes before the framework is loaded: a missing rank is named sooner.
    ranks = call_roll(place, env, timeout_s) if place.leader else None
    try:
        if framework == "torch":
            from mlhpc.common.ranks.torch_world import TorchWorld

            assert ranks is not None
            return TorchWorld.start(place, ranks)
        from mlhpc.common.ranks.horovod_world import HorovodWorld

        return HorovodWorld.start(place, ranks, timeout_s)
    except BaseException as error:
        if ranks:
            ranks.fail(f"{type(error).__name__}: {error}")
        raise


@contextmanager
def joined(framework: Framework) -> Iterator[World]:
    """``connect``, and leave in good order at the end; or tell the other ranks why not."""
    world = connect(framework)
    try:
        yield world
        world.close()
    except BaseException as error:
        plain = isinstance(error, UserError | Terminated)
        world.fail(str(error) if plain else f"{type(error).__name__}: {error}")
        if world.size > 1:
            end_with(_status(error))
        raise


def _status(error: BaseException) -> int:
    if isinstance(error, Terminated):
        return error.status
    return 130 if isinstance(error, KeyboardInterrupt) else 2 if isinstance(error, UserError) else 1


def end_with(status: int) -> None:
    """Have this process end with ``status`` before the interpreter takes itself apart: threads of gloo, which
    outlive the process group where anything still holds it, may yet let go of objects of Python's, and would
    abort it. Registered last, this is done first: what else is to be done at exit is not."""
    atexit.register(_end, status)


def _end(status: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def call_roll(place: RankInfo, env: Mapping[str, str], timeout_s: float = 60.0) -> RollCall:
    """Meet the other ranks at the leader that the launcher named. Raises ``UserError``."""
    assert place.leader is not None
    meeting = Rendezvous(_addresses(place.leader, env), place.ports, place.token)
    return RollCall.call(myself(place), place.size, meeting, hosts=place.hosts, timeout_s=timeout_s)


def _addresses(leader: str, env: Mapping[str, str]) -> tuple[str, ...]:
    """Where to look for ``leader``: MLHPC_LEADER where a site sets it; its name; where no name service
    knows the name, as on many cloud clusters, the address in Slurm's books."""
    if address := env.get("MLHPC_LEADER"):
        return (address,)
    try:
        socket.getaddrinfo(leader, None)
    except OSError:
        if address := _slurm_address(leader):
            return (address,)
    return (leader,)


def _slurm_address(node: str) -> str | None:
    try:
        answer = subprocess.run(
            ["scontrol", "show", "node", "--oneliner", node],
            capture_output=True,
            text=True,
            timeout=20,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(r"\bNodeAddr=(\S+)", answer.stdout)
    return match[1] if match else None
