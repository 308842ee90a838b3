"""The loader's batches as tensors: whole volumes, or this rank's slabs of its group's volumes."""

from collections.abc import Generator, Iterator

import torch

from mlhpc.common.pytorch.devices import mover
from mlhpc.common.pytorch.loading import as_tensor, dtype_of, pinned
from mlhpc.common.pytorch.slab_batches import Batch, slab_batches
from mlhpc.common.pytorch.spatial import SpatialGroup, Traffic
from mlhpc.cosmoflow.data.encoded import Encoded
from mlhpc.cosmoflow.data.loader import AnyBatch, Loader
from mlhpc.cosmoflow.pytorch.decode import decode


class Batches:
    """Training and evaluation batches: on the host, or on the device if decoded there. ``traffic``: bytes
    sent by this rank to its group to share samples."""

    def __init__(self, loader: Loader, group: SpatialGroup | None, device: torch.device) -> None:
        self._loader, self._group, self._device = loader, group, device
        self._move = mover(device)
        self.traffic = Traffic()

    def training(self, epoch: int) -> Generator[Batch, None, None]:
        """The batches of ``epoch``, counted from 0."""
        loader, group = self._loader, self._group
        if group is None:
            yield from map(self._as_tensors, loader.train_epoch(epoch))
        else:
            read = loader.train_epoch(epoch, first=group.rank, every=group.plan.size)
            yield from self._slabs(
                map(self._as_tensors, read), [loader.local_batch_size] * loader.steps, group
            )

    def evaluation(self) -> Generator[Batch, None, None]:
        """All evaluation batches."""
        loader, group = self._loader, self._group
        if group is None:
            yield from map(self._as_tensors, loader.evaluation())
        else:
            read = loader.evaluation(first=group.rank, every=group.plan.size)
            yield from self._slabs(map(self._as_tensors, read), loader.eval_batch_sizes(), group)

    def _as_tensors(self, batch: AnyBatch) -> Batch:
        sample_dtype, device = self._loader.loading.sample_dtype, self._device
        x, y = batch
        targets = pinned(torch.from_numpy(y), device)
        if isinstance(x, Encoded):
            return decode(x, sample_dtype, lambda part: self._move(pinned(part, device))), targets
        return pinned(as_tensor(x, sample_dtype), device), targets

    def _slabs(self, read: Iterator[Batch], sizes: list[int], group: SpatialGroup) -> Iterator[Batch]:
        loader = self._loader
        return slab_batches(
            read, sizes, group, self.traffic,
            channels=loader.sample_shape[-1], targets=loader.targets, dtype=dtype_of(loader.loading.sample_dtype),
        )  # fmt: skip
