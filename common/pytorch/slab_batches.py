"""Batches for a spatial group: each sample is read by one rank of the group, and each rank gets its slab of it."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from mlhpc.common.pytorch.spatial import SpatialGroup, Traffic

Batch = tuple[Tensor, Tensor]


def slab_batches(
    batches: Iterator[Batch],
    sizes: Sequence[int],
    group: SpatialGroup,
    traffic: Traffic,
    *,
    channels: int,
    targets: int,
    dtype: torch.dtype,
) -> Iterator[Batch]:
    """This rank's slabs of all batches of its group, in order, with all their targets.

    ``batches``: those that this rank reads, ``x`` ``[b, d, h, w, channels]`` of ``dtype`` and ``y`` float32
    ``[b, targets]``: of the group's batches, whose numbers of samples are ``sizes``, every ``plan.size``-th from
    the rank's number on. So the ranks of a group read different files concurrently, and exchange slabs once
    per ``plan.size`` batches. ``traffic`` counts the bytes sent.
    """
    plan, rank = group.plan, group.rank
    for start in range(0, len(sizes), plan.size):
        slabs = {
            reader: (
                torch.empty((samples, *plan.shape(rank), channels), dtype=dtype),
                torch.empty((samples, targets)),
            )
            for reader, samples in enumerate(sizes[start : start + plan.size])
        }
        sends: list[tuple[int, Tensor]] = []
        if rank in slabs:
            x, y = next(batches)
            slabs[rank] = _slab(x, group, rank), y
            for peer in range(plan.size):
                if peer != rank:
                    sends += [(peer, _slab(x, group, peer).view(torch.uint8)), (peer, y)]
        receives = [
            (reader, part)
            for reader, (x, y) in slabs.items()
            if reader != rank
            for part in (x.view(torch.uint8), y)
        ]
        group.exchange(sends, receives, traffic)
        yield from slabs.values()


def _slab(x: Tensor, group: SpatialGroup, rank: int) -> Tensor:
    return x[(slice(None), *group.plan.slab(rank))].contiguous()
