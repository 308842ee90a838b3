"""The ranks of a run over torch.distributed: gloo between hosts, NCCL between GPUs."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Self, TypeVar

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from mlhpc.common.ranks.base_world import SYMPTOM_S, BaseWorld, interface_of, my_address, with_node_index
from mlhpc.common.ranks.environment import RankInfo
from mlhpc.common.ranks.rollcall import RollCall
from mlhpc.errors import UserError

T = TypeVar("T")

PATIENCE = timedelta(days=1)
"""A collective may wait while one rank stages for hours; who is gone is the roll call's to say."""


@dataclass(frozen=True)
class TorchWorld(BaseWorld):
    """A ``World`` whose collectives are torch.distributed's and whose losses are the roll call's.

    ``host`` is the process group of what ranks tell each other from host memory, gloo's.
    """

    host: dist.ProcessGroup

    @classmethod
    def start(cls, place: RankInfo, ranks: RollCall) -> Self:
        """Start torch.distributed on the ranks that answered the roll call. Rank 0 serves the rendezvous at
        a port that is free, and the roll call tells it to the others. Raises ``UserError``."""
        facts: dict[str, str | int] = {}
        store = None
        if place.rank == 0:
            store = TCPStore("0.0.0.0", 0, is_master=True, wait_for_workers=False, timeout=PATIENCE)
            facts = {"address": ranks.my_address(), "port": store.port}
        facts = ranks.share(facts)
        address = str(facts["address"])
        if "GLOO_SOCKET_IFNAME" not in os.environ:
            os.environ["GLOO_SOCKET_IFNAME"] = interface_of(my_address(ranks, address))
        if store is None:
            store = TCPStore(address, int(facts["port"]), is_master=False, timeout=PATIENCE)
        gpus = torch.cuda.device_count()
        if gpus:
            # Where the launcher shows every rank a GPU of its own, that is number 0 for each.
            torch.cuda.set_device(place.local_rank % gpus)
        backend = "cpu:gloo,cuda:nccl" if gpus and dist.is_nccl_available() else "gloo"
        dist.init_process_group(
            backend, store=store, rank=place.rank, world_size=place.size, timeout=PATIENCE
        )
        host = dist.new_group(backend="gloo", timeout=PATIENCE)
        world = cls(with_node_index(place, ranks.roll), ranks, host)
        world.barrier()
        ranks.start_beating()
        world._require_own_gpus()
        return world

    def _require_own_gpus(self) -> None:
        """Raise UserError, on all ranks, when two have one GPU: NCCL would refuse it in other words."""
        mine = None
        if torch.cuda.is_available():
            properties = torch.cuda.get_device_properties(torch.cuda.current_device())
            mine = (self.ranks.me.hostname, str(properties.uuid))
        taken = [gpu for gpu in self.gather(mine) if gpu]
        if shared := {gpu for gpu in taken if taken.count(gpu) > 1}:
            raise UserError(
                f"{self.local_size} ranks share a GPU of {min(shared)[0]}: start one rank a GPU, or hide it "
                "with CUDA_VISIBLE_DEVICES="
            )

    def barrier(self) -> None:
        self.sum(0.0)

    def sum(self, values: npt.ArrayLike) -> npt.NDArray[np.float64]:
        tensor = torch.tensor(np.asarray(values, dtype=np.float64))
        dist.all_reduce(tensor, group=self.host)
        return np.asarray(tensor.numpy(), dtype=np.float64)

    def broadcast(self, obj: T) -> T:
        objects = [obj]
        dist.broadcast_object_list(objects, src=0, group=self.host, device=torch.device("cpu"))
        return objects[0]

    def gather(self, obj: T) -> list[T]:
        objects: list[T] = [obj] * self.size
        dist.all_gather_object(objects, obj, group=self.host)
        return objects

    def group(self, ranks: Sequence[int]) -> dist.ProcessGroup | None:
        """A process group of some of the ranks, for tensors on either device; None where this rank is none
        of them. Called by all ranks of the world, in the same order."""
        group = dist.new_group(list(ranks), timeout=PATIENCE)
        return group if self.rank in ranks else None

    def fail(self, reason: str) -> None:
        # What the survivors of a lost rank get from their collectives: a symptom.
        if "gloo" in reason or "NCCL" in reason:
            self.ranks.wait_for_loss(SYMPTOM_S)
        self.ranks.fail(reason)

    def close(self) -> None:
        self.barrier()  # nobody leaves while another still needs it
        self.ranks.close()
        dist.destroy_process_group()
