"""The loader's batches as tensors: whole volumes, or this rank's slabs of its group's volumes."""

from collections.abc import Iterator

import torch

from mlhpc.common.pytorch.loading import as_tensors
from mlhpc.common.pytorch.slab_batches import Batch, slab_batches
from mlhpc.common.pytorch.spatial import SpatialGroup, Traffic
from mlhpc.cosmoflow.data.loader import Loader


class Batches:
    """Training and evaluation batches on the host. ``traffic``: what this rank sent to its group to share the
    reading."""

    def __init__(self, loader: Loader, group: SpatialGroup | None, device: torch.device) -> None:
        self._loader, self._group, self._device = loader, group, device
        self.traffic = Traffic()

    def training(self, epoch: int) -> Iterator[Batch]:
        """The batches of ``epoch``, counted from 0."""
        loader, group = self._loader, self._group
        if group is None:
            return as_tensors(loader.train_epoch(epoch), self._device)
        read = loader.train_epoch(epoch, first=group.rank, every=group.plan.size)
        return self._slabs(as_tensors(read, self._device), [loader.local_batch_size] * loader.steps, group)

    def evaluation(self) -> Iterator[Batch]:
        """All evaluation batches."""
        loader, group = self._loader, self._group
        if group is None:
            return as_tensors(loader.evaluation(), self._device)
        read = loader.evaluation(first=group.rank, every=group.plan.size)
        return self._slabs(as_tensors(read, self._device), loader.eval_batch_sizes(), group)

    def _slabs(self, read: Iterator[Batch], sizes: list[int], group: SpatialGroup) -> Iterator[Batch]:
        channels, targets = self._loader.sample_shape[-1], self._loader.targets
        return slab_batches(read, sizes, group, self.traffic, channels=channels, targets=targets)
