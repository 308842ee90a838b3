"""The loader's batches as tensors: whole volumes, or this rank's slabs of its group's volumes."""

from collections.abc import Generator, Iterator
from typing import Any

import torch

from mlhpc.common.pytorch.devices import mover
from mlhpc.common.pytorch.loading import as_tensor, dtype_of, pinned
from mlhpc.common.pytorch.slab_batches import Batch, slab_batches
from mlhpc.common.pytorch.spatial import SpatialGroup, Traffic
from mlhpc.cosmoflow.data.encoded import Encoded
from mlhpc.cosmoflow.data.loader import Loader
from mlhpc.cosmoflow.pytorch.decode import decode


class Batches:
    """Training and evaluation batches: on the host, or on the device if decoded there. ``traffic``: bytes
    sent by this rank to its group to share samples."""

    def __init__(self, loader: Loader, group: SpatialGroup | None, device: torch.device) -> None:
        self._loader, self._group, self._device = loader, group, device
        self._move = mover(device)
        self.traffic = Traffic()

    def training(self, epoch: int) -> Iterator[Batch]:
        """The batches of ``epoch``, counted from 0."""
        loader, group = self._loader, self._group
        if group is None:
            return self._tensors(loader.train_epoch(epoch))
        read = loader.train_epoch(epoch, first=group.rank, every=group.plan.size)
        return self._slabs(self._tensors(read), [loader.local_batch_size] * loader.steps, group)

    def evaluation(self) -> Iterator[Batch]:
        """All evaluation batches."""
        loader, group = self._loader, self._group
        if group is None:
            return self._tensors(loader.evaluation())
        read = loader.evaluation(first=group.rank, every=group.plan.size)
        return self._slabs(self._tensors(read), loader.eval_batch_sizes(), group)

    def _tensors(self, batches: Generator[Any, None, None]) -> Iterator[Batch]:
        sample_dtype, device = self._loader.loading.sample_dtype, self._device
        for x, y in batches:
            targets = pinned(torch.from_numpy(y), device)
            if isinstance(x, Encoded):
                yield decode(x, sample_dtype, lambda part: self._move(pinned(part, device))), targets
            else:
                yield pinned(as_tensor(x, sample_dtype), device), targets

    def _slabs(self, read: Iterator[Batch], sizes: list[int], group: SpatialGroup) -> Iterator[Batch]:
        loader = self._loader
        return slab_batches(
            read, sizes, group, self.traffic,
            channels=loader.sample_shape[-1], targets=loader.targets, dtype=dtype_of(loader.loading.sample_dtype),
        )  # fmt: skip
