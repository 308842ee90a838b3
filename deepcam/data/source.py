"""The samples of a run as batches for the training step: the normalised field, channels last in memory, and the
mask.

Every feed (``loading.loader``) delivers the same samples in the same order.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy.typing as npt
import torch

from mlhpc.benchmarks import rules
from mlhpc.benchmarks.deepcam import DeepCam, Loading
from mlhpc.common.data.assign import RankSamples
from mlhpc.common.data.loader import Draw, Source
from mlhpc.common.data.loader import Reader as AnyReader
from mlhpc.common.data.manifest import Manifest
from mlhpc.common.data.partition import Mode
from mlhpc.common.files.filesystem import memory_left
from mlhpc.common.formats.archive import Sample
from mlhpc.common.pytorch.devices import mover, oom_as_user_error
from mlhpc.common.pytorch.feeds import feed_of
from mlhpc.common.pytorch.loading import TensorPair, dtype_of
from mlhpc.common.ranks.collectives import on_rank0
from mlhpc.common.ranks.world import World
from mlhpc.common.training.dataset import cores_per_rank, open_dataset, require_codec
from mlhpc.deepcam.data.codec import LINES
from mlhpc.deepcam.data.dali import NormalisedByDali
from mlhpc.deepcam.data.delta import Lines
from mlhpc.deepcam.data.hdf5 import Statistics, read_statistics
from mlhpc.deepcam.data.sample import CachedReader, Reader, is_sample, require_layout, sample_bytes
from mlhpc.errors import UserError
from mlhpc.quantities import bytes_text, count


@dataclass
class DeepCamSource(Source[TensorPair]):
    """Batches of ``x`` ``[b, channels, rows, columns]`` in the type ``loading.sample_dtype``, channels last in
    memory, normalised by ``statistics``, and ``y``, uint8 ``[b, rows, columns]``, with classes 0 to 2.

    ``sample_shape``: rows, columns, channels. ``codec``: the codec in the manifest. For a ``device`` other than
    "cpu", batches are in page-locked memory, or, with DALI, on the GPU. ``ranks_on_node``: number of ranks that
    need memory at the same time. ``loading.cache`` keeps every sample in memory once it has been read. If ranks
    share a pool, each rank eventually reads and keeps all of it; with a pool of its own, a rank keeps only its
    part. If ``loading.decode`` is "device", ``x`` is decoded on ``device`` when its batch is requested
    (``delta_triton``).
    """

    loading: Loading
    sample_shape: tuple[int, int, int]
    statistics: Statistics
    codec: str | None = None
    device: str = "cpu"
    ranks_on_node: int = 1

    def __post_init__(self) -> None:
        loading = self.loading
        self.feed = feed_of(loading, self.device, self.ranks_on_node)
        reader = Reader(self.sample_shape, self.statistics, self.codec, loading.sample_dtype)
        self._reader: AnyReader = CachedReader(reader) if loading.cache else reader
        if loading.decode == "device":
            self._reader = _DecodedOnDevice(reader, self.device)
        elif loading.loader == "dali":
            as_stored = Reader(self.sample_shape, None, self.codec)
            self._reader = NormalisedByDali(as_stored, self.statistics, self.device)

    @classmethod
    def of(cls, run: DeepCam, dataset: Manifest, statistics: Statistics, device: str, world: World) -> Self:
        """Create the source for a run on ``dataset``. ``device``: type of the device."""
        loading = run.loading.resolved(gpu=device != "cpu", cores=cores_per_rank())
        codec = dataset.facts.get("codec")
        return cls(loading, run.data.sample_shape, statistics, codec, device, world.local_size)

    def assign(
        self, dataset: Manifest, staged: Path | None, mode: Mode, world: World, **sizes: Any
    ) -> RankSamples:
        """Like ``Source.assign``, but also raises UserError if there is too little memory for
        ``loading.cache``."""
        samples = super().assign(dataset, staged, mode, world, **sizes, is_sample=is_sample)
        self.require_memory(samples)
        return samples

    def for_epoch(
        self, samples: Sequence[Sample], draw: Draw | None
    ) -> tuple[AnyReader, Callable[[int], Sample]]:
        """Like ``loader.Source.for_epoch``; no random numbers are drawn."""
        return self._reader, samples.__getitem__

    def deliver(self, finished: tuple[TensorPair, int]) -> tuple[TensorPair, int]:
        """The batch with channels as the second axis, in the type ``sample_dtype`` (only DALI's batches, which are
        float32, are converted), and the number of bytes that it has in storage."""
        (x, y), size = finished
        return (x.permute(0, 3, 1, 2).to(dtype_of(self.loading.sample_dtype)), y), size

    def require_memory(self, samples: RankSamples) -> None:
        """Raise UserError if there is too little memory for ``loading.cache`` to keep all ``samples``."""
        pool = samples.eval_pool
        kept = samples.train_pool.samples + len(range(samples.pool_rank, pool.samples, pool.ranks))
        need = kept * self.ranks_on_node * sample_bytes(self.sample_shape, self.loading.sample_dtype)
        if self.loading.cache and need > (left := memory_left()):
            raise UserError(
                f"loading.cache needs {bytes_text(need)} for {count(kept, 'sample')} of "
                f"{count(self.ranks_on_node, 'rank')} on this node, which has only "
                f"{bytes_text(left)} free; set loading.cache=false, or use more nodes"
            )


class _DecodedOnDevice:
    """Reads samples of the differential codec that are decoded on ``device`` when their batch is requested."""

    def __init__(self, reader: Reader, device: str) -> None:
        from mlhpc.deepcam.data import delta_triton

        self._reader, self._device, self._move = reader, device, mover(torch.device(device))
        self._decode, self.parts = delta_triton.decode, reader.parts[1:]

    def read(self, path: Sample, y: npt.NDArray[Any]) -> tuple[Lines, int]:
        return self._reader.read_lines(path, y)

    def finish(
        self, arrays: Sequence[torch.Tensor], results: list[tuple[Lines, int]]
    ) -> tuple[TensorPair, int]:
        shape, dtype = self._reader.parts[0]
        with oom_as_user_error("decoding a batch", "loading.decode=host"):
            x = torch.empty((len(results), *shape), dtype=dtype_of(dtype), device=self._device)
            self._decode([lines for lines, _ in results], x, self._reader.normalisation, self._move)
        return (x, arrays[0]), sum(size for _, size in results)


def open_data(run: DeepCam, data: Path, world: World) -> tuple[Manifest, Statistics]:
    """Check the data set in ``data`` and its statistics; return the part of it that the run needs, and the
    statistics."""
    dataset = open_dataset(run, data, world, rules.enforce_on_data)
    require_layout(dataset)
    if run.loading.decode == "device":
        require_codec(dataset, LINES, without="hdf5")
    return dataset, on_rank0(world, lambda: read_statistics(data, run.data.sample_shape[-1]))


def zeros_batch(samples: int, sample_shape: Sequence[int], dtype: torch.dtype = torch.float32) -> TensorPair:
    """A batch of zeros for the warm-up: ``x`` [samples, channels, rows, columns] and ``y`` [samples, rows,
    columns]."""
    rows, columns, channels = sample_shape
    x = torch.zeros((samples, rows, columns, channels), dtype=dtype).permute(0, 3, 1, 2)
    return x, torch.zeros((samples, rows, columns), dtype=torch.uint8)
