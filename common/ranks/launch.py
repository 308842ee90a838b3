"""Connects the ranks of a run: first the roll call, then the framework for their collectives."""

import atexit
import hashlib
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from multiprocessing.util import get_temp_dir
from pathlib import Path
from typing import Literal

from mlhpc.common.files.filesystem import SHARED_TYPES, filesystem_of
from mlhpc.common.ranks.connection import LOOPBACK, Munge, Proof, Secret, SecretFile
from mlhpc.common.ranks.environment import RankInfo, identify, number, ports_of, with_leader
from mlhpc.common.ranks.links import require_descriptors
from mlhpc.common.ranks.rendezvous import Rendezvous, is_loopback
from mlhpc.common.ranks.rollcall import RollCall
from mlhpc.common.ranks.socket_world import (
    COLLECTIVES,
    SYMPTOM_S,
    Mpi,
    SocketWorld,
    Tree,
    interface_of,
    open_listener,
    this_peer,
)
from mlhpc.common.ranks.world import Solo, World
from mlhpc.errors import QUIET, AlreadyReported, Terminated, UserError, reason_of, say_at_once

Framework = Literal["horovod", "torch", "sockets", "none"]
"""What performs the collectives of several ranks. ``sockets``: no framework; ``none``: only one rank is
possible."""


START_S = "MLHPC_START_TIMEOUT"
"""Variable with the seconds that ranks wait for one another at the start. The default is 60, or, above 6,000
ranks, one second per 100 ranks, since the first rank may have loaded its programs from a shared file system long
before the last."""
_OPEN_BESIDES = 64
"""File descriptors that a rank needs in addition to its roll-call connections."""


def connect(
    framework: Framework, env: Mapping[str, str] = os.environ, timeout_s: float | None = None
) -> World:
    """The world of this rank once all ranks are present; ``Solo`` for a single rank.

    Raises ``UserError`` on every rank if a rank does not connect within ``timeout_s`` seconds (None: as set by
    ``START_S``), if the framework's ranks differ from the launcher's, or if the limit on open files is too low.
    """
    info = identify(env)
    if info.size == 1:
        return Solo(info.launcher)
    if framework == "none":
        raise UserError(
            f"{info.launcher} started {info.size} ranks of a command that runs as a single process; start it "
            f"only once"
        )
    timeout_s = timeout_s or start_timeout(env, info.size)
    _require_descriptors(framework, info)
    if framework in ("torch", "sockets") and not info.leader:
        info = with_leader(info, env)
    # The roll call comes before loading the framework, so that a missing rank is reported sooner.
    listener = open_listener(info)
    roll_call = call_roll(info, env, timeout_s, listener.getsockname()[1]) if info.leader else None
    try:
        # Connect before loading a framework, which can take one rank minutes longer than another.
        if framework == "horovod":
            grown = Tree.grow(info.rank, roll_call, listener) if roll_call else None
            from mlhpc.common.ranks.horovod_world import HorovodWorld

            return HorovodWorld.start(info, roll_call, grown, listener, timeout_s)
        assert roll_call is not None
        tree = _tree(framework, info, env, roll_call, listener)
        if framework == "sockets":
            return SocketWorld.of(info, roll_call, tree)
        from mlhpc.common.ranks.torch_world import TorchWorld

        return TorchWorld.start(info, roll_call, tree)
    except BaseException as error:
        if roll_call:
            if isinstance(error, ConnectionError | EOFError):
                roll_call.wait_for_loss(SYMPTOM_S)  # the roll call identifies the lost rank
            roll_call.fail(reason_of(error))
            if isinstance(error, UserError) and roll_call.reported_elsewhere():
                raise AlreadyReported(str(error)) from error
        raise


def _tree(
    framework: Framework, info: RankInfo, env: Mapping[str, str], roll_call: RollCall, listener: socket.socket
) -> Tree:
    """The tree for the ranks' host collectives. Raises ``UserError``."""
    engine = env.get(COLLECTIVES, "")
    if engine not in ("", "mpi"):
        raise UserError(f"{COLLECTIVES}={engine} is not supported; set it to mpi, or unset it")
    if not engine:
        return Tree.grow(info.rank, roll_call, listener)
    listener.close()
    return Mpi.start(info, ["mlhpc.common.pytorch.workers"] if framework == "torch" else [])


@contextmanager
def joined(framework: Framework) -> Iterator[World]:
    """Context manager: ``connect``, and disconnect cleanly at the end of the block. If the block raises, tell the
    other ranks the reason.

    A ``UserError`` that another rank prints, either because rank 0 raises the same error or because a rank reports
    this rank as lost, is raised as ``AlreadyReported``, so that a run prints it only once.
    """
    world = connect(framework)
    try:
        yield world
        world.close()
    except BaseException as error:
        world.fail(reason_of(error))
        if world.size > 1:
            end_with(_status(error))
        if isinstance(error, UserError) and world.reported_elsewhere():
            raise AlreadyReported(str(error)) from error
        raise


def _status(error: BaseException) -> int:
    if isinstance(error, Terminated):
        return error.status
    return 130 if isinstance(error, KeyboardInterrupt) else 2 if isinstance(error, UserError) else 1


def end_with(status: int) -> None:
    """Make this process end with ``status`` before the interpreter shuts down: if the process group is still
    referenced, gloo's threads outlive it and may release Python objects during shutdown, which aborts the process.
    This exit handler is registered last, so it runs first, and other exit handlers do not run: the temporary
    folder of multiprocessing, whose fork server starts the loaders' workers, is removed here."""
    atexit.register(_end, status)


def _end(status: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    with suppress(OSError):
        shutil.rmtree(get_temp_dir())
    os._exit(status)


def start_timeout(env: Mapping[str, str], ranks: int) -> float:
    """Seconds that the ``ranks`` ranks of a run wait for one another at its start (``START_S``). Raises
    ``UserError``."""
    seconds = number(env, START_S) if START_S in env else max(60, ranks // 100)
    if seconds <= 0:
        raise UserError(f"{START_S}={env[START_S]}: set a number of seconds above 0")
    return float(seconds)


def _require_descriptors(framework: Framework, info: RankInfo) -> None:
    """Raise ``UserError`` (``AlreadyReported`` except on one rank per node) if this node's limit on open files
    would be too low for rank 0's connections."""
    needed = (info.nodes or info.size) + info.local_size + _OPEN_BESIDES
    try:
        # PyTorch's store on rank 0 has a connection to each rank; gloo connects only ranks that exchange tensors.
        require_descriptors(needed + (info.size if framework == "torch" else 0))
    except UserError as error:
        if info.local_rank == 0:
            raise
        raise AlreadyReported(str(error)) from error


def call_roll(info: RankInfo, env: Mapping[str, str], timeout_s: float = 60.0, port: int = 0) -> RollCall:
    """Meet the other ranks at the leader that the launcher reported. ``port``: the port on which this rank listens
    for others. Raises ``UserError``."""
    assert info.leader is not None
    local = info.local_size == info.size
    hosts = (LOOPBACK,) if local else _addresses(info.leader, env)
    proof = _proof(info, env, local)
    if proof.kind == "nothing" and info.rank == 0:
        say_at_once(
            "the start of the ranks is unauthenticated: other users of the network could take part; set a random "
            'MLHPC_TOKEN before the launcher, such as export MLHPC_TOKEN="$(openssl rand -hex 16)"'
        )
    try:
        me = this_peer(info, port)
        apart = not local and info.local_size > 1
        node = me.hostname if info.node is None else info.node
        node_ports = ports_of(f"{info.token} {node}") if apart else ()
        rendezvous = Rendezvous(hosts, info.ports, proof, info.size, node_ports, info.hosts, timeout_s)
        roll_call = RollCall.call(me, rendezvous)
        address = "" if local else roll_call.address
        if info.rank == 0 and not is_loopback(address) and not env.get(QUIET):
            with suppress(UserError):  # no interface has the address, as behind network address translation
                say_at_once(f"{info.size:,} ranks meet at {address} ({interface_of(address)})")
        return roll_call
    finally:
        if isinstance(proof, SecretFile) and info.rank == 0:
            with suppress(OSError):
                proof.path.unlink()


def _proof(info: RankInfo, env: Mapping[str, str], local: bool) -> Proof | SecretFile:
    """The proof by which the ranks recognise one another: MLHPC_TOKEN in the launcher's environment, MUNGE if it
    is running, a file in a folder that all nodes see, or nothing. It is the same on all ranks of a launch."""
    if token := env.get("MLHPC_TOKEN"):
        return Secret(info.token, token.encode())
    if munge := Munge.running(info.token):
        return munge
    name = f".mlhpc-{hashlib.sha256(info.token.encode()).hexdigest()[:16]}"
    for folder in (env.get("HOME"), os.getcwd()):
        with suppress(OSError):
            seen = local or (folder and filesystem_of(Path(folder)).type in SHARED_TYPES)
            if folder and seen and os.access(folder, os.W_OK):
                return SecretFile(info.token, Path(folder, name))
    return Secret(info.token, b"", "nothing")


def _addresses(leader: str, env: Mapping[str, str]) -> tuple[str, ...]:
    """Addresses at which to look for ``leader``: MLHPC_LEADER if a site sets it, with ``{}`` replaced by the
    leader's name (``{}-ib0`` for another network); its name; and, if the name does not resolve, as on many cloud
    clusters, the address in Slurm's configuration."""
    if address := env.get("MLHPC_LEADER"):
        return (address.replace("{}", leader),)
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
