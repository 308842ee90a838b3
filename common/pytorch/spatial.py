"""Spatial parallelism: the ranks of a group hold slabs of one volume and exchange the halos of their convolutions.

A convolution with several taps needs planes of the neighbouring slabs, the halo; in the backward pass, the
gradients of these planes are sent back. Before slabs become too thin they are gathered, and every rank of the
group computes the rest of the network. PyTorch's own sharded convolution (DTensor) is not used because it treats a
slab as the whole volume.
"""

import time
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from mlhpc.common.data.slabs import SlabPlan
from mlhpc.common.ranks.mesh import mesh_of
from mlhpc.common.ranks.torch_world import TorchWorld
from mlhpc.common.ranks.world import World


@dataclass
class Traffic:
    """Exchanges of this rank with its group: bytes sent, and seconds that the host waited."""

    bytes: int = 0
    seconds: float = 0.0

    def take(self) -> tuple[int, float]:
        """Return the bytes sent and the seconds waited since the last call."""
        taken = self.bytes, self.seconds
        self.bytes, self.seconds = 0, 0.0
        return taken


@dataclass(frozen=True)
class SpatialGroup:
    """This rank's position in its group. ``process_group``: the group's ranks in the order of ``plan``; ``first``:
    the world rank of the group's first rank."""

    plan: SlabPlan
    rank: int
    first: int
    process_group: dist.ProcessGroup
    traffic: Traffic = field(default_factory=Traffic)

    def peers(self, axis: int) -> tuple[int | None, int | None]:
        """The ranks, numbered within the group, before and after this one along an axis of the volume."""
        return self.plan.neighbour(self.rank, axis, -1), self.plan.neighbour(self.rank, axis, 1)

    def exchange(
        self,
        sends: list[tuple[int, Tensor]],
        receives: list[tuple[int, Tensor]],
        traffic: Traffic | None = None,
    ) -> None:
        """Exchange tensors of any shape with other ranks, which are numbered within the group: send some and
        receive into others at the same time. Bytes and seconds are counted in ``traffic``, or else in the group's
        own counter."""
        begin = time.perf_counter()
        group = self.process_group
        operations = [dist.P2POp(dist.irecv, tensor, self.first + peer, group) for peer, tensor in receives]
        operations += [dist.P2POp(dist.isend, tensor, self.first + peer, group) for peer, tensor in sends]
        for request in dist.batch_isend_irecv(operations) if operations else ():
            request.wait()
        traffic = traffic or self.traffic
        traffic.seconds += time.perf_counter() - begin
        traffic.bytes += sum(tensor.nbytes for _, tensor in sends)


def with_halo(x: Tensor, kernel: int, group: SpatialGroup) -> Tensor:
    """The slab ``x`` [b, channels, d, h, w] with the planes around it that a convolution with ``kernel`` taps
    reads under "same" padding: the neighbours' planes, or zeros at the ends of the volume.

    Halos are exchanged along one axis after the other, each including the halos of the previous axes, so corners
    are transferred through neighbours.
    """
    before, after = (kernel - 1) // 2, kernel // 2
    if not before + after:
        return x
    padding: list[int] = []  # last axis first, as in F.pad
    for axis, parts in enumerate(group.plan.parts):
        if parts > 1:
            x = _Halo.apply(x, axis, before, after, group)
        padding = [*((before, after) if parts == 1 else (0, 0)), *padding]
    return F.pad(x, padding) if any(padding) else x


def gather(x: Tensor, level: int, group: SpatialGroup) -> Tensor:
    """The whole volume after ``level`` halvings, on every rank of the group, from the slabs ``x`` [b, channels, d,
    h, w].

    All ranks of the group must do the same computation with the volume: in the backward pass, each rank keeps the
    gradient of its own slab, multiplied by the size of the group. The mean of the gradients over all ranks then
    equals the gradient of the undivided network, both for weights before the gathering (whose gradients are parts
    of a sum) and for weights after it (whose gradients are equal).
    """
    whole: Tensor = _Gather.apply(x, level, group)
    return whole


class _Halo(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, axis: int, before: int, after: int, group: SpatialGroup) -> Tensor:
        ctx.axis, ctx.before, ctx.after, ctx.group = axis, before, after, group
        dim, planes = axis + 2, x.shape[axis + 2]
        previous, following = group.peers(axis)
        left, right = _planes_like(x, dim, before), _planes_like(x, dim, after)
        sends, receives = [], []
        if previous is not None:
            receives += [(previous, left)] * bool(before)
            sends += [(previous, x.narrow(dim, 0, after).contiguous())] * bool(after)
        if following is not None:
            receives += [(following, right)] * bool(after)
            sends += [(following, x.narrow(dim, planes - before, before).contiguous())] * bool(before)
        group.exchange(sends, receives)
        return torch.cat([left, x, right], dim)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None, None]:
        before, after, group, dim = ctx.before, ctx.after, ctx.group, ctx.axis + 2
        planes = gradient.shape[dim] - before - after
        own = gradient.narrow(dim, before, planes).clone()
        previous, following = group.peers(ctx.axis)
        first, last = own.narrow(dim, 0, after), own.narrow(dim, planes - before, before)
        of_first, of_last = torch.zeros_like(first).contiguous(), torch.zeros_like(last).contiguous()
        sends, receives = [], []
        if previous is not None:
            receives += [(previous, of_first)] * bool(after)
            sends += [(previous, gradient.narrow(dim, 0, before).contiguous())] * bool(before)
        if following is not None:
            receives += [(following, of_last)] * bool(before)
            sends += [(following, gradient.narrow(dim, before + planes, after).contiguous())] * bool(after)
        group.exchange(sends, receives)
        first += of_first
        last += of_last
        return own, None, None, None, None


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, level: int, group: SpatialGroup) -> Tensor:
        ctx.level, ctx.group = level, group
        plan, (samples, channels) = group.plan, x.shape[:2]
        sides = [ends[-1] >> level for ends in plan.bounds]
        mine = x.contiguous()
        others = [peer for peer in range(plan.size) if peer != group.rank]
        slabs = {peer: x.new_empty(samples, channels, *plan.shape(peer, level)) for peer in others}
        group.exchange([(peer, mine) for peer in others], list(slabs.items()))
        shape = (samples, channels, *sides)
        whole = torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=_layout_of(x))
        for peer, slab in {**slabs, group.rank: mine}.items():
            whole[(slice(None), slice(None), *plan.slab(peer, level))] = slab
        return whole

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        group = ctx.group
        own = gradient[(slice(None), slice(None), *group.plan.slab(group.rank, ctx.level))]
        return own * group.plan.size, None, None


def _planes_like(x: Tensor, dim: int, planes: int) -> Tensor:
    """Contiguous zeros of the shape of ``x``, but with ``planes`` planes along ``dim``."""
    shape = list(x.shape)
    shape[dim] = planes
    return x.new_zeros(shape)


def _layout_of(x: Tensor) -> torch.memory_format:
    last = x.is_contiguous(memory_format=torch.channels_last_3d)
    return torch.channels_last_3d if last else torch.contiguous_format


def _place(plan: SlabPlan, rank: int) -> str:
    group, member = divmod(rank, plan.size)
    return f"spatial group {group}, coordinates {list(plan.coordinates(member))}"


def spatial_group(plan: SlabPlan, world: World) -> SpatialGroup:
    """This rank's group, which consists of adjacent ranks (``common.ranks.mesh``). Called by all ranks.

    Raises UserError if the ranks cannot be divided into complete groups.
    """
    assert isinstance(world, TorchWorld), "a group of several ranks is connected by torch.distributed"
    mesh = mesh_of(world.rank, world.size, plan.size)
    process_group = world.neighbours(plan.size)
    world.name_places(partial(_place, plan))
    return SpatialGroup(plan, mesh.spatial_rank, mesh.data_rank * plan.size, process_group)
