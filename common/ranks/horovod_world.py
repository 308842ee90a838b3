"""The ranks of a run over Horovod and TensorFlow."""

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeVar

import horovod.tensorflow as hvd
import numpy as np
import numpy.typing as npt
import psutil  # type: ignore[import-untyped]  # Horovod requires it
import tensorflow as tf

from mlhpc.common.ranks.base_world import (
    SYMPTOM_S,
    BaseWorld,
    interface_of,
    my_address,
    myself,
    with_node_index,
)
from mlhpc.common.ranks.environment import RankInfo
from mlhpc.common.ranks.rollcall import Peer, Rendezvous, RollCall
from mlhpc.errors import UserError

T = TypeVar("T")

HOROVOD_ENDED = "Horovod has been shut down"
"""In what Horovod raises on the survivors when a rank is gone (horovod/common/common.h): a symptom."""


@dataclass(frozen=True)
class HorovodWorld(BaseWorld):
    """A ``World`` whose collectives are Horovod's and whose losses are the roll call's."""

    @classmethod
    def start(cls, place: RankInfo, ranks: RollCall | None, timeout_s: float = 60.0) -> Self:
        """Start Horovod on the ranks that answered the roll call; where the launcher did not tell where
        rank 0 is (``ranks`` is None: horovodrun, mpirun), start Horovod first and call the roll over it.

        Raises ``UserError`` when Horovod counts other ranks than the launcher did.
        """
        _take_one_gpu(place.local_rank)
        if ranks and not _mpi_is_there():
            _set_up_gloo(place, ranks)
        if place.launcher == "mpirun" and not hvd.mpi_built():
            raise UserError(
                "mpirun needs a Horovod that was built with MPI (HOROVOD_WITH_MPI=1), and this one was not; "
                "start with srun, torchrun, horovodrun --gloo or mlhpc run --ranks"
            )
        hvd.init()
        if (hvd.rank(), hvd.size()) != (place.rank, place.size):
            raise UserError(
                f"{place.launcher} started this as rank {place.rank} of {place.size}, but Horovod says rank "
                f"{hvd.rank()} of {hvd.size()}: it was built for another MPI, or cannot see the launcher "
                "from inside a container; horovodrun --check-build shows its build"
            )
        ranks = ranks or _call_roll_over_horovod(place, timeout_s)
        world = cls(with_node_index(place, ranks.roll), ranks)
        world.barrier()
        ranks.start_beating()
        return world

    def barrier(self) -> None:
        self.sum(0.0)

    def sum(self, values: npt.ArrayLike) -> npt.NDArray[np.float64]:
        tensor = tf.constant(np.asarray(values, dtype=np.float64))
        with tf.device("CPU:0"):  # float64 counts and times; a GPU has nothing to add to them
            return np.asarray(hvd.allreduce(tensor, op=hvd.Sum).numpy(), dtype=np.float64)

    def broadcast(self, obj: T) -> T:
        result: T = hvd.broadcast_object(obj, root_rank=0)
        return result

    def gather(self, obj: T) -> list[T]:
        result: list[T] = hvd.allgather_object(obj)
        return result

    def fail(self, reason: str) -> None:
        if HOROVOD_ENDED in reason:
            self.ranks.wait_for_loss(SYMPTOM_S)
        self.ranks.fail(reason)

    def close(self) -> None:
        self.barrier()  # nobody leaves while another still needs it
        self.ranks.close()
        hvd.shutdown()


def average_gradients(gradients: Sequence[Any]) -> list[Any]:
    """The mean over ranks of each tensor, in the order given. For use inside ``tf.function``."""
    return list(hvd.grouped_allreduce(list(gradients), op=hvd.Average))


def broadcast_variables(variables: Sequence[Any]) -> None:
    """Give every rank rank 0's values of these ``tf.Variable`` s (of Keras 3: the ``.value`` of each)."""
    hvd.broadcast_variables(list(variables), root_rank=0)


def _take_one_gpu(local_rank: int) -> None:
    """TensorFlow takes all memory of every GPU that it sees: let a rank see its own, and take what it needs."""
    if gpus := tf.config.list_physical_devices("GPU"):
        gpu = gpus[local_rank % len(gpus)]
        tf.config.set_visible_devices(gpu, "GPU")
        tf.config.experimental.set_memory_growth(gpu, True)


def _mpi_is_there() -> bool:
    """srun --mpi=pmix started this, Horovod can use it, and the site did not ask for Gloo."""
    return "PMIX_RANK" in os.environ and hvd.mpi_built() and os.environ.get("HOROVOD_CONTROLLER") != "gloo"


def _set_up_gloo(place: RankInfo, ranks: RollCall) -> None:
    """Do what horovodrun does without ssh: rank 0 serves Gloo's rendezvous, each rank knows its place.

    Variables: https://horovod.readthedocs.io/en/stable/mpirun.html and horovod/runner/gloo_run.py, 0.28.1.
    """
    if not hvd.gloo_built():
        raise UserError("this Horovod was built without Gloo (HOROVOD_WITH_GLOO=1); start with mpirun")
    facts: dict[str, Any] = {}
    slots = _slots(ranks.roll)
    if place.rank == 0:
        from horovod.runner.http.http_server import RendezvousServer

        server = RendezvousServer()
        facts = {"address": ranks.my_address(), "port": server.start()}
        server.init(slots)
    facts = ranks.share(facts)
    address = my_address(ranks, facts["address"])
    slot = slots[place.rank]
    # Gloo's own patience of 30 s would end before the roll call has found out who is silent.
    os.environ.setdefault("HOROVOD_GLOO_TIMEOUT_SECONDS", "120")
    os.environ |= {
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_RANK": str(slot.rank),
        "HOROVOD_SIZE": str(slot.size),
        "HOROVOD_LOCAL_RANK": str(slot.local_rank),
        "HOROVOD_LOCAL_SIZE": str(slot.local_size),
        "HOROVOD_CROSS_RANK": str(slot.cross_rank),
        "HOROVOD_CROSS_SIZE": str(slot.cross_size),
        "HOROVOD_HOSTNAME": slot.hostname,
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": facts["address"],
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(facts["port"]),
        "HOROVOD_GLOO_IFACE": os.environ.get("HOROVOD_GLOO_IFACE") or interface_of(address),
    }


def _slots(roll: Sequence[Peer]) -> list[Any]:
    """Horovod's description of the ranks. A cross rank counts hosts among equal local ranks."""
    from horovod.runner.common.util.hosts import SlotInfo

    def among(ranks: list[int], rank: int) -> tuple[int, int]:
        return ranks.index(rank), len(ranks)

    slots = []
    for me in roll:
        local_rank, local_size = among([c.rank for c in roll if c.hostname == me.hostname], me.rank)
        cross_rank, cross_size = among([c.rank for c in roll if c.local_rank == me.local_rank], me.rank)
        slots.append(
            SlotInfo(me.hostname, me.rank, local_rank, cross_rank, len(roll), local_size, cross_size)
        )
    return slots


def _call_roll_over_horovod(place: RankInfo, timeout_s: float) -> RollCall:
    """The roll call where only Horovod knows the way to rank 0: its address goes out by broadcast."""
    door = socket.create_server(("", 0), backlog=1024) if place.rank == 0 else None
    meeting = None
    if door:
        addresses = [a.address for found in psutil.net_if_addrs().values() for a in found]
        ipv4 = sorted((a for a in addresses if _is_ipv4(a)), key=lambda a: a.startswith("127."))
        meeting = Rendezvous(tuple(ipv4), (door.getsockname()[1],), token=os.urandom(8).hex())
    meeting = hvd.broadcast_object(meeting, root_rank=0)
    return RollCall.call(myself(place), place.size, meeting, listener=door, timeout_s=timeout_s)


def _is_ipv4(address: str) -> bool:
    try:
        socket.inet_pton(socket.AF_INET, address)
    except OSError:
        return False
    return True
