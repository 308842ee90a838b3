"""The ranks of a run that uses torch.distributed for tensors: gloo for tensors in host memory, and the vendor's
library between accelerators (NCCL; on AMD, RCCL under the same name; on Intel, XCCL)."""

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import ClassVar, Self

import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from mlhpc.common.ranks import wire
from mlhpc.common.ranks.environment import RankInfo
from mlhpc.common.ranks.rollcall import RollCall
from mlhpc.common.ranks.socket_world import SocketWorld, Tree, interface_of
from mlhpc.errors import UserError

PATIENCE = timedelta(days=1)
"""Timeout of collectives, which may wait for hours while one rank stages; the roll call detects lost ranks."""


@dataclass(frozen=True)
class TorchWorld(SocketWorld):
    """A ``World`` that uses process groups of torch.distributed for tensors."""

    SYMPTOMS: ClassVar = ("gloo", "NCCL", "XCCL", "CCL_")

    @classmethod
    def start(cls, info: RankInfo, roll_call: RollCall, tree: Tree) -> Self:
        """Start torch.distributed on the ranks that answered the roll call. Rank 0 serves the store on a free
        port of the address at which the other ranks reach it, announced over the tree. Raises
        ``UserError``."""
        os.environ.setdefault("TORCH_GLOO_LAZY_INIT", "1")  # connections only between ranks that use them
        store = _serve_store(roll_call.address) if info.rank == 0 else None
        port = wire.decode(tree.broadcast(wire.encode(0 if store is None else store.port)))
        if "GLOO_SOCKET_IFNAME" not in os.environ:
            os.environ["GLOO_SOCKET_IFNAME"] = interface_of(roll_call.address)
        if store is None:
            store = TCPStore(roll_call.roll[0].address, port, is_master=False, timeout=PATIENCE)
        # If a device failed, NCCL's watchdog would abort its process before the error is reported.
        os.environ.setdefault("TORCH_NCCL_RETHROW_CUDA_ERRORS", "0")
        if devices := torch.accelerator.device_count():
            # If the launcher makes only one device visible to each rank, that device has number 0.
            torch.accelerator.set_device_index(info.local_rank % devices)
        backend = backend_for(_accelerator_type())
        dist.init_process_group(backend, store=store, rank=info.rank, world_size=info.size, timeout=PATIENCE)
        if backend == "gloo":
            dist.all_reduce(torch.zeros(1))  # so that a failure to connect is reported now
        world = cls.of(info, roll_call, tree)
        world._require_own_gpus()
        return world

    def _require_own_gpus(self) -> None:
        """Raise UserError, on all ranks, if two ranks share a GPU, since the library's own error is less clear."""
        gpu = None
        if kind := _accelerator_type():
            current = torch.accelerator.current_device_index()
            properties = torch.get_device_module(kind).get_device_properties(current)
            if hasattr(properties, "uuid"):
                gpu = (self.roll_call.me.hostname, str(properties.uuid))
        gpus = [gpu for gpu in self.gather(gpu) if gpu]
        if shared := {gpu for gpu in gpus if gpus.count(gpu) > 1}:
            raise UserError(
                f"{self.local_size} ranks share a GPU on {min(shared)[0]}; start one rank per GPU, or hide the "
                f"GPUs with {visible_variable()}="
            )

    def group(self, ranks: Sequence[int]) -> dist.ProcessGroup | None:
        """A process group of some of the ranks, for tensors on hosts and on devices; None if this rank is not
        among them. Called by all ranks of the world, in the same order."""
        group = dist.new_group(list(ranks), timeout=PATIENCE)
        return group if self.rank in ranks else None

    def neighbours(self, size: int) -> dist.ProcessGroup:
        """This rank's process group, if every ``size`` neighbouring ranks form a group. Called by all ranks of the
        world; their number must be a multiple of ``size``."""
        groups = [self.group(range(first, first + size)) for first in range(0, self.size, size)]
        own = groups[self.rank // size]
        assert own is not None
        return own

    def close(self) -> None:
        """As in ``World``; waits for all ranks."""
        super().close()
        dist.destroy_process_group()


def backend_for(kind: str | None) -> str:
    """The backends for ranks with an accelerator of PyTorch's type ``kind`` (None: without one): gloo for tensors
    on hosts, and, for tensors on devices, PyTorch's default if it was built in."""
    if kind is None:
        return "gloo"
    own = dist.get_default_backend_for_device(kind)
    return f"cpu:gloo,{kind}:{own}" if dist.is_backend_available(own) else "gloo"


def visible_variable() -> str:
    """The variable that hides accelerators from PyTorch."""
    return "ZE_AFFINITY_MASK" if _accelerator_type() == "xpu" else "CUDA_VISIBLE_DEVICES"


def _accelerator_type() -> str | None:
    device = torch.accelerator.current_accelerator(check_available=True)
    return None if device is None else device.type


def _serve_store(address: str) -> TCPStore:
    """A store that listens only on a free port of ``address``, since it does not authenticate its clients."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.create_server((address, 0), family=family, backlog=1024)
    return TCPStore(
        address,
        listener.getsockname()[1],
        is_master=True,
        wait_for_workers=False,
        timeout=PATIENCE,
        master_listen_fd=listener.detach(),
    )
