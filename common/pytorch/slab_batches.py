"""Batches as tensors. In a spatial group, one rank reads each sample, and every rank of the group gets its slab of
that sample."""

from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from mlhpc.common.data.loader import Loader, Parts
from mlhpc.common.pytorch.loading import TensorPair, dtype_of
from mlhpc.common.pytorch.spatial import SpatialGroup, Traffic


class Batches:
    """The batches of ``loader``, converted by ``as_tensors``: whole samples, or, with a ``group``, this rank's
    slabs of its group's samples. ``traffic``: bytes that this rank has sent to its group to share samples."""

    def __init__(
        self, loader: Loader[Any], as_tensors: Callable[[Any], TensorPair], group: SpatialGroup | None = None
    ) -> None:
        self._loader, self._as_tensors, self._group = loader, as_tensors, group
        self.traffic = Traffic()

    def training(self, epoch: int) -> Generator[TensorPair, None, None]:
        """The batches of ``epoch``, counted from 0."""
        loader = self._loader
        return self._batches(
            partial(loader.train_epoch, epoch), lambda: [loader.local_batch_size] * loader.steps
        )

    def evaluation(self) -> Generator[TensorPair, None, None]:
        """All evaluation batches."""
        return self._batches(self._loader.evaluation, self._loader.eval_batch_sizes)

    def _batches(
        self, read: Callable[..., Iterator[Any]], sizes: Callable[[], Sequence[int]]
    ) -> Generator[TensorPair, None, None]:
        if (group := self._group) is None:
            yield from map(self._as_tensors, read())
        else:
            own = map(self._as_tensors, read(first=group.rank, every=group.plan.size))
            yield from slab_batches(own, sizes(), group, self.traffic, self._loader.source.parts)


def slab_batches(
    batches: Iterator[TensorPair], sizes: Sequence[int], group: SpatialGroup, traffic: Traffic, parts: Parts
) -> Iterator[TensorPair]:
    """This rank's slabs of all batches of its group, in order.

    ``batches``: the batches that this rank reads, as pairs of tensors [b, *shape] with the shapes of ``parts``.
    ``sizes``: number of samples in each of the group's batches; rank r of the group reads batches r, r +
    ``plan.size``, and so on. Arrays whose first three axes match the plan are split into slabs; other arrays are
    sent whole to every rank. The ranks of a group thus read different files concurrently, and exchange slabs once
    per ``plan.size`` batches. ``traffic`` counts the bytes sent.
    """
    plan, rank = group.plan, group.rank
    sides = tuple(ends[-1] for ends in plan.bounds)

    def slab(x: Tensor, peer: int) -> Tensor:
        return x[(slice(None), *plan.slab(peer))].contiguous() if x.shape[1:4] == sides else x

    shapes = [(*plan.shape(rank), *shape[3:]) if shape[:3] == sides else shape for shape, _ in parts]
    dtypes = [dtype_of(dtype) for _, dtype in parts]
    for start in range(0, len(sizes), plan.size):
        slabs = {
            reader: [torch.empty((n, *shape), dtype=d) for shape, d in zip(shapes, dtypes, strict=True)]
            for reader, n in enumerate(sizes[start : start + plan.size])
        }
        sends: list[tuple[int, Tensor]] = []
        if rank in slabs:
            read = next(batches)
            slabs[rank] = [slab(x, rank) for x in read]
            peers = [peer for peer in range(plan.size) if peer != rank]
            sends = [(peer, slab(x, peer).view(torch.uint8)) for peer in peers for x in read]
        others = [(reader, arrays) for reader, arrays in slabs.items() if reader != rank]
        receives = [(reader, x.view(torch.uint8)) for reader, arrays in others for x in arrays]
        group.exchange(sends, receives, traffic)
        yield from ((x, y) for x, y in slabs.values())
