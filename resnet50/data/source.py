"""The images of a run as batches for the training step: cropped and normalised, channels last in memory.

Every feed (``loading.loader``) delivers the same views of the same images in the same order. "threads" and
"workers" use torchvision and agree bit for bit; with the decoder and resampling of "dali", pixels differ by a few
grey levels.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

import torch

from mlhpc.benchmarks import rules
from mlhpc.benchmarks.resnet50 import Loading, ResNet50
from mlhpc.common.data import loader
from mlhpc.common.data.assign import RankSamples
from mlhpc.common.data.loader import Draw, Source
from mlhpc.common.data.manifest import Manifest
from mlhpc.common.data.partition import Mode
from mlhpc.common.pytorch.buffers import single_threaded_readers
from mlhpc.common.pytorch.feeds import feed_of
from mlhpc.common.pytorch.loading import TensorPair
from mlhpc.common.ranks.world import World
from mlhpc.common.training.dataset import cores_per_rank, open_dataset
from mlhpc.resnet50.data.dali import DecodedByDali
from mlhpc.resnet50.data.dataset import assign_samples, select
from mlhpc.resnet50.data.formats import Images
from mlhpc.resnet50.data.reader import Batch, Reader


@dataclass
class ResNet50Source(Source[TensorPair]):
    """Batches of ``x``, float32 ``[b, 3, side, side]``, channels last in memory, and ``y``, int64 ``[b]``.

    If ``preprocessing`` is "torchvision", ``x`` is normalised with ImageNet's mean and standard deviation; if it
    is "mlperf", ``x`` is the bytes minus the reference's means. Crops and resizing also differ (``mlperf.py``).
    For a ``device`` other than "cpu", batches are in page-locked memory, or, with DALI, on the GPU.
    ``ranks_on_node``: number of ranks that need memory at the same time.

    An image that cannot be decoded stops the run. If ``loading.broken_images`` is "skip", it is reported once on
    standard error instead, and recorded in ``skipped`` with its name and error. In training the next image takes
    its place; in evaluation the batch is smaller.
    """

    loading: Loading
    side: int
    preprocessing: Literal["mlperf", "torchvision"] = "torchvision"
    device: str = "cpu"
    ranks_on_node: int = 1
    classes: int | None = None
    skipped: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.feed = feed_of(self.loading, self.device, self.ranks_on_node, single_threaded_readers)

    @classmethod
    def of(cls, run: ResNet50, device: str, ranks_on_node: int) -> Self:
        """Create the source for ``run``. ``device``: type of the device."""
        loading = run.loading.resolved(gpu=device != "cpu", cores=cores_per_rank())
        side, preprocessing = run.data.sample_shape[0], run.training.preprocessing
        return cls(loading, side, preprocessing, device, ranks_on_node, run.network.classes)

    def assign(
        self, dataset: Manifest, staged: Path | None, mode: Mode, world: World, **sizes: Any
    ) -> RankSamples:
        """This rank's images, from ``dataset.assign_samples``."""
        assert self.classes
        train, evaluation = sizes["train_samples"], sizes["eval_samples"]
        return assign_samples(
            dataset, staged, mode, world, classes=self.classes, train_samples=train, eval_samples=evaluation
        )

    def for_epoch(self, samples: Images, draw: Draw | None) -> tuple[loader.Reader, Callable[[int], int]]:
        """Like ``loader.Source.for_epoch``; with DALI, the reader leaves decoding to DALI."""
        gpu, loading = self.device != "cpu", self.loading
        pinned = gpu and loading.loader != "workers"
        reader = Reader(samples, self.side, draw, loading.broken_images, self.preprocessing, pinned)
        return DecodedByDali(reader, gpu) if loading.loader == "dali" else reader, int

    def deliver(self, finished: Batch) -> tuple[TensorPair, int]:
        """The batch with channels as the second axis and without skipped images, and the number of bytes that it
        has in storage."""
        x, y, size, broken = finished
        for message in broken:
            if message not in self.skipped:
                sys.stderr.write(f"mlhpc: skipped: {message}\n")
                self.skipped.add(message)
        if self.loading.broken_images == "skip" and (y < 0).any():  # left out of an evaluation
            x, y = x[y >= 0], y[y >= 0]
        return (x.permute(0, 3, 1, 2), y), size

    def name(self, samples: Images, index: int) -> str:
        """The name of an image, for messages."""
        return samples.name(index)


def open_data(run: ResNet50, data: Path, world: World) -> Manifest:
    """Check the data set in ``data``, and return the part of it that the run needs."""
    return open_dataset(run, data, world, rules.enforce_on_data, select)


def zeros_batch(images: int, sample_shape: Sequence[int]) -> TensorPair:
    """A batch of zeros for the warm-up: ``x`` [images, 3, side, side] and ``y`` [images]."""
    return torch.zeros((images, *sample_shape)).permute(0, 3, 1, 2), torch.zeros(images, dtype=torch.int64)
