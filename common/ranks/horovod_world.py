"""The ranks of a run that uses Horovod for the tensors of TensorFlow."""

import json
import os
import socket
import socketserver
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import horovod.tensorflow as hvd
import numpy as np
import psutil  # Horovod requires it
import tensorflow as tf

from mlhpc.common.ranks import wire
from mlhpc.common.ranks.connection import LOOPBACK, Secret
from mlhpc.common.ranks.environment import RankInfo
from mlhpc.common.ranks.rendezvous import Peer, Rendezvous
from mlhpc.common.ranks.rollcall import RollCall
from mlhpc.common.ranks.socket_world import SocketWorld, Tree, interface_of, this_peer
from mlhpc.errors import UserError


@dataclass(frozen=True)
class HorovodWorld(SocketWorld):
    """A ``World`` that uses Horovod for tensors."""

    # Horovod raises the first for an operation that had not begun (horovod/common/common.h), the others for
    # operations in progress (horovod/tensorflow/elastic.py).
    SYMPTOMS: ClassVar = ("Horovod has been shut down", "HorovodAll", "HorovodBroadcast", "HorovodGrouped")

    @classmethod
    def start(
        cls,
        info: RankInfo,
        roll_call: RollCall | None,
        tree: Tree | None,
        listener: socket.socket,
        timeout_s: float = 60.0,
    ) -> Self:
        """Start Horovod on the ranks that answered the roll call. If ``roll_call`` and ``tree`` are None because
        the launcher does not report the host of rank 0 (horovodrun, mpirun), start Horovod first, call the roll
        over it, and grow the tree from ``listener``.

        Raises ``UserError`` if Horovod's ranks differ from the launcher's.
        """
        _take_one_gpu(info.local_rank)
        if roll_call and tree and not _uses_mpi():
            _set_up_gloo(info, roll_call, tree)
        if info.launcher == "mpirun" and not hvd.mpi_built():
            raise UserError(
                "mpirun requires Horovod built with MPI (HOROVOD_WITH_MPI=1), but this one was not; start "
                "with srun, torchrun, horovodrun --gloo or mlhpc run --ranks"
            )
        hvd.init()
        if (hvd.rank(), hvd.size()) != (info.rank, info.size):
            raise UserError(
                f"{info.launcher} started this as rank {info.rank} of {info.size}, but Horovod reports rank "
                f"{hvd.rank()} of {hvd.size()}: it was built for a different MPI, or cannot see the launcher "
                "from inside a container; horovodrun --check-build shows its build"
            )
        roll_call = roll_call or _call_roll_over_horovod(info, listener.getsockname()[1], timeout_s)
        world = cls.of(info, roll_call, tree or Tree.grow(info.rank, roll_call, listener))
        _broadcast_bytes(b"all ranks")  # reports a failure to connect now; the first use takes 70 ms
        return world

    def close(self) -> None:
        """As in ``World``; waits for all ranks."""
        super().close()
        hvd.shutdown()


def average_gradients(gradients: Sequence[Any]) -> list[Any]:
    """The mean over ranks of each tensor, in the order given. For use inside ``tf.function``."""
    return list(hvd.grouped_allreduce(list(gradients), op=hvd.Average))


def require_host_name() -> None:
    """Raise UserError if this host's name has no address: Horovod's Gloo resolves the name, whatever interface is
    used, and would abort the process."""
    name = socket.gethostname()
    try:
        socket.getaddrinfo(name, None)
    except OSError:
        raise UserError(
            f"this node's host name, {name}, has no IP address, which Horovod needs; add a line "
            f"'127.0.1.1 {name}' to /etc/hosts, or train in PyTorch (training.framework=pytorch)"
        ) from None


def require_nccl() -> None:
    """Raise UserError if Horovod would ignore a request for hierarchical reduction (horovod/common/operations.cc,
    0.28.1)."""
    if not hvd.nccl_built():
        raise UserError(
            "training.hierarchical_allreduce requires Horovod built with NCCL "
            "(HOROVOD_GPU_OPERATIONS=NCCL), but this one was not; omit the setting, which would have no "
            "effect"
        )


@contextmanager
def timeline(path: Path) -> Iterator[None]:
    """Record Horovod's timeline on rank 0, in ``path``, while the block runs (``horovod_timeline.enable`` must
    have been called). Called by all ranks."""
    hvd.start_timeline(str(path))
    try:
        yield
    finally:
        hvd.stop_timeline()


def broadcast_variables(variables: Sequence[Any]) -> None:
    """Set ``variables``, ``tf.Variable`` s (in Keras 3: the ``.value`` of each), on every rank to their values on
    rank 0."""
    hvd.broadcast_variables(list(variables), root_rank=0)


def _broadcast_bytes(data: bytes) -> bytes:
    with tf.device("CPU:0"):
        length = int(hvd.broadcast(tf.constant(len(data), tf.int64), root_rank=0).numpy())
        content = np.frombuffer(data, np.uint8) if hvd.rank() == 0 else np.zeros(length, np.uint8)
        result: bytes = hvd.broadcast(tf.constant(content), root_rank=0).numpy().tobytes()
    return result


def _take_one_gpu(local_rank: int) -> None:
    """Make only the rank's own GPU visible, with memory growth; TensorFlow would otherwise take all memory of all
    GPUs."""
    if gpus := tf.config.list_physical_devices("GPU"):
        gpu = gpus[local_rank % len(gpus)]
        tf.config.set_visible_devices(gpu, "GPU")
        tf.config.experimental.set_memory_growth(gpu, True)


def _uses_mpi() -> bool:
    """Return whether srun --mpi=pmix started this rank, Horovod can use MPI, and the site did not choose Gloo."""
    return "PMIX_RANK" in os.environ and hvd.mpi_built() and os.environ.get("HOROVOD_CONTROLLER") != "gloo"


def _set_up_gloo(info: RankInfo, roll_call: RollCall, tree: Tree) -> None:
    """Do what horovodrun does, but without ssh: rank 0 serves Gloo's rendezvous, and each rank sets its variables.

    The variables: https://horovod.readthedocs.io/en/stable/mpirun.html and horovod/runner/gloo_run.py, 0.28.1.
    """
    from horovod.runner.gloo_run import create_slot_env_vars

    if not hvd.gloo_built():
        raise UserError("this Horovod was built without Gloo (HOROVOD_WITH_GLOO=1); start with mpirun")
    require_host_name()
    slots, address = _slots(roll_call.roll), roll_call.roll[0].address
    if ":" in address and info.rank == 0:
        raise UserError(
            f"Horovod needs IPv4, but rank 0 is at {address}; set MLHPC_LEADER to an IPv4 address"
        )
    port = _serve_rendezvous(address, slots) if info.rank == 0 else 0
    port = wire.decode(tree.broadcast(wire.encode(port)))
    # Gloo's own timeout of 30 s would expire before the roll call has identified the silent rank.
    os.environ.setdefault("HOROVOD_GLOO_TIMEOUT_SECONDS", "120")
    os.environ |= {
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        **create_slot_env_vars(slots[info.rank]),
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": address,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
        "HOROVOD_GLOO_IFACE": os.environ.get("HOROVOD_GLOO_IFACE") or interface_of(roll_call.address),
    }


def _serve_rendezvous(address: str, slots: Sequence[Any]) -> int:
    """Serve Gloo's rendezvous on ``address`` until this process ends; returns the port. Horovod's own
    ``RendezvousServer`` would listen on all interfaces and accept data from anyone."""
    from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer

    class Server(RendezvousHTTPServer):  # type: ignore[misc]
        def server_bind(self) -> None:
            # Not HTTPServer's server_bind, which takes seconds to resolve the name of the address.
            socketserver.TCPServer.server_bind(self)
            self.server_name, self.server_port = self.server_address[:2]

    server = Server((address, 0), RendezvousHandler, 0)
    server.init(slots)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    port: int = server.server_port
    return port


def _slots(roll: Sequence[Peer]) -> list[Any]:
    """Horovod's description of the ranks. A rank's cross rank is the index of its host among the hosts of ranks
    with the same local rank."""
    from horovod.runner.common.util.hosts import SlotInfo

    local: dict[str, list[int]] = {}
    across: dict[int, list[int]] = {}
    for peer in roll:
        local.setdefault(peer.hostname, []).append(peer.rank)
        across.setdefault(peer.local_rank, []).append(peer.rank)
    slots = []
    for peer in roll:
        here, there = local[peer.hostname], across[peer.local_rank]
        ranks = peer.rank, here.index(peer.rank), there.index(peer.rank)
        slots.append(SlotInfo(peer.hostname, *ranks, len(roll), len(here), len(there)))
    return slots


def _call_roll_over_horovod(info: RankInfo, port: int, timeout_s: float) -> RollCall:
    """Call the roll when only Horovod can reach rank 0: Horovod broadcasts rank 0's address."""
    listener = None
    rendezvous: dict[str, Any] = {}
    if info.rank == 0:
        local = info.local_size == info.size
        listener = socket.create_server((LOOPBACK if local else "", 0), backlog=1024)
        addresses = [a for of_interface in psutil.net_if_addrs().values() for a in of_interface]
        ipv4 = [a.address for a in addresses if a.family == socket.AF_INET]
        ipv4.sort(key=lambda address: address.startswith("127."))
        rendezvous = {
            "hosts": [LOOPBACK] if local else ipv4,
            "port": listener.getsockname()[1],
            "token": os.urandom(16).hex(),
        }
    rendezvous = json.loads(_broadcast_bytes(json.dumps(rendezvous).encode()))
    proof = Secret("horovod", rendezvous["token"].encode(), "a broadcast")
    hosts, ports = tuple(rendezvous["hosts"]), (rendezvous["port"],)
    meeting = Rendezvous(hosts, ports, proof, info.size, timeout_s=timeout_s)
    return RollCall.call(this_peer(info, port), meeting, listener)
