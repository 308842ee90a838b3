"""The samples of a run, ``x`` and ``y`` (float32), read, checked and decoded into the arrays for the training
step.

If ``x`` is int16, it contains counts, and the step computes their logarithm on the device (``step.log_counts``),
which halves the bytes transferred; in other types, ``x`` contains log(1 + counts). Samples of the lookup-table
codec may be decoded on the device, which reduces the bytes transferred by another factor of four.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from mlhpc.benchmarks import rules
from mlhpc.benchmarks.cosmoflow import CosmoFlow, Loading
from mlhpc.common.data.loader import Draw, Parts, Source, by_threads
from mlhpc.common.data.manifest import Manifest
from mlhpc.common.formats.archive import Sample
from mlhpc.common.ranks.world import World
from mlhpc.common.training.dataset import cores_per_rank, open_dataset, require_codec
from mlhpc.cosmoflow.data import augment
from mlhpc.cosmoflow.data.codec import TABLES
from mlhpc.cosmoflow.data.encoded import Encoded, assemble
from mlhpc.cosmoflow.data.sample import Reader, require_facts

Batch = tuple[npt.NDArray[Any] | Encoded, npt.NDArray[np.float32]]


@dataclass
class CosmoFlowSource(Source[Batch]):
    """Batches of ``x`` ``[b, *sample_shape]`` in the type ``loading.sample_dtype`` (or an ``Encoded`` if
    ``loading.decode`` is "device"), and ``y``, float32 ``[b, targets]``. ``augment``: apply a random symmetry to
    each training sample. ``codec``: the codec in the manifest."""

    loading: Loading
    sample_shape: tuple[int, ...]
    targets: int
    augment: bool = False
    codec: str | None = None

    def __post_init__(self) -> None:
        self.feed = by_threads(self.loading)
        reader = Reader(self.codec, self.loading.sample_dtype)
        self._encoded = self.loading.decode == "device"
        self.read = partial(reader.read_encoded, shape=self.sample_shape) if self._encoded else reader.read
        keys = (prod(self.sample_shape[:-1]),), "uint16"
        x = keys if self._encoded else (self.sample_shape, self.loading.sample_dtype)
        self.parts: Parts = x, ((self.targets,), "float32")

    @classmethod
    def of(cls, run: CosmoFlow, dataset: Manifest, *, gpu: bool) -> Self:
        """Create the source for a run on ``dataset``. ``gpu``: whether the device is a GPU."""
        return cls(
            run.loading.resolved(gpu=gpu, cores=cores_per_rank()),
            run.data.sample_shape,
            run.network.targets,
            run.training.augment,
            dataset.facts.get("codec"),
        )

    def for_epoch(
        self, samples: Sequence[Sample], draw: Draw | None
    ) -> tuple[Self, Callable[[int], tuple[Sample, int]]]:
        """Like ``loader.Source.for_epoch``; each key includes the number of the sample's symmetry, 0 without
        augmentation."""
        if draw is None or not self.augment:
            return self, lambda index: (samples[index], 0)
        seed, _, epoch = draw
        symmetries = augment.draw(len(samples), seed, epoch)
        return self, lambda index: (samples[index], symmetries[index])

    def finish(self, arrays: Sequence[npt.NDArray[Any]], results: list[Any]) -> tuple[Batch, int]:
        """The batch of ``x`` [b, n, n, n, redshifts] and ``y`` [b, targets], and the total size of its files in
        bytes."""
        x, y = arrays
        if self._encoded:
            return (assemble(self.sample_shape, x, results), y), sum(sample.size for sample in results)
        return (x, y), sum(results)


def open_data(run: CosmoFlow, data: Path, world: World) -> Manifest:
    """Check the data set in ``data``, and return the part of it that the run needs."""
    dataset = open_dataset(run, data, world, rules.enforce_on_data)
    require_facts(dataset)
    if run.loading.decode == "device":
        require_codec(dataset, TABLES, without="TFRecord")
    return dataset
