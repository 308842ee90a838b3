"""Batches of samples: ``x`` and ``y`` float32.

Reader threads read, check and decode files into the arrays of the training step, a few batches ahead of it.
As int16, ``x`` contains counts, and the step computes their logarithm on the device (``step.log_counts``),
which halves the bytes transferred; as another type it contains log(1 + counts). Samples of the lookup-table
codec may be decoded on the device, which reduces the bytes by another factor of four.
"""

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from mlhpc.benchmarks.cosmoflow import Loading
from mlhpc.common.data.assign import RankSamples
from mlhpc.common.data.buffers import Buffers
from mlhpc.common.data.codecs import dtypes
from mlhpc.common.data.prefetch import read_batches
from mlhpc.common.data.sharding import eval_batches, train_batches
from mlhpc.common.formats.archive import Sample
from mlhpc.cosmoflow.data.augment import draw
from mlhpc.cosmoflow.data.encoded import Encoded, EncodedSample, assemble
from mlhpc.cosmoflow.data.sample import Reader

Batch = tuple[npt.NDArray[Any], npt.NDArray[np.float32]]
EncodedBatch = tuple[Encoded, npt.NDArray[np.float32]]
AnyBatch = Batch | EncodedBatch


@dataclass
class Loader:
    """The batches of one rank: ``x`` ``[b, n, n, n, channels]`` of ``loading.sample_dtype``, ``y`` float32
    ``[b, targets]``, by batch. With ``loading.decode`` "device", ``x`` is ``Encoded``.

    ``steps`` is the number that ``sharding.steps_per_epoch`` gave all ranks; ``augment`` applies a random
    symmetry to each training sample. The caller may keep the arrays; the memory of dropped ones is reused. An
    iterator that is closed or dropped stops its readers. An error in a file is raised from the iterator, as
    in ``Reader.read``. ``codec`` is that of the manifest.
    """

    samples: RankSamples
    loading: Loading
    _: KW_ONLY
    sample_shape: Sequence[int]
    targets: int
    local_batch_size: int
    eval_batch_size: int
    steps: int
    seed: int
    augment: bool = False
    codec: str | None = None
    bytes_read: int = 0  # on disk, of the batches handed out so far, training and evaluation
    _memory: Buffers = field(default_factory=Buffers, repr=False)

    def train_epoch(self, epoch: int, *, first: int = 0, every: int = 1) -> Generator[AnyBatch, None, None]:
        """The ``steps`` training batches of ``epoch`` (from 0), shuffled by ``(seed, epoch)``; of these every
        ``every``-th from ``first`` on, if the ranks of a spatial group divide the reading."""
        count = self.samples.train_pool.samples
        symmetries = draw(count, self.seed, epoch) if self.augment else np.zeros(count, np.int8)
        samples = (
            [(self.samples.train_files[i], symmetries[i]) for i in batch]
            for batch in self._train_batches(epoch)[first::every]
        )
        with closing(self._source(samples)) as batches:
            yield from map(self._deliver, batches)

    def evaluation(self, *, first: int = 0, every: int = 1) -> Generator[AnyBatch, None, None]:
        """Every evaluation sample of this rank once, in order; the last batch may be smaller. ``first`` and
        ``every`` as in ``train_epoch``."""
        samples = (
            [(self.samples.eval_files[i], 0) for i in batch] for batch in self._eval_batches()[first::every]
        )
        with closing(self._source(samples)) as batches:
            yield from map(self._deliver, batches)

    def eval_batch_sizes(self) -> list[int]:
        """The samples of every evaluation batch of this rank."""
        return [len(batch) for batch in self._eval_batches()]

    def files_of(self, epoch: int, step: int) -> list[Sample]:
        """The samples of one training batch of this rank; both count from 0."""
        return [self.samples.train_files[i] for i in self._train_batches(epoch)[step]]

    def _eval_batches(self) -> list[range]:
        return eval_batches(self.samples.eval_pool, self.samples.pool_rank, self.eval_batch_size)

    def _train_batches(self, epoch: int) -> npt.NDArray[np.int64]:
        samples = self.samples
        return train_batches(
            samples.train_pool, samples.pool_rank, self.local_batch_size, self.steps, self.seed, epoch
        )

    def _source(
        self, batches: Iterable[list[tuple[Sample, int]]]
    ) -> Generator[tuple[AnyBatch, int], None, None]:
        """The batches of these samples, with the bytes of their files."""
        reader = Reader(self.codec, self.loading.sample_dtype)
        return (self._encoded if self.loading.decode == "device" else self._decoded)(batches, reader)

    def _deliver(self, read: tuple[AnyBatch, int]) -> AnyBatch:
        """The batch of ``read``, whose bytes are counted."""
        batch, size = read
        self.bytes_read += size
        return batch

    def _decoded(
        self, batches: Iterable[list[tuple[Sample, int]]], reader: Reader
    ) -> Generator[tuple[Batch, int], None, None]:
        dtype = dtypes.NUMPY[reader.sample_dtype]

        def allocate(samples: int) -> tuple[Batch, Iterator[tuple[Any, ...]]]:
            x = self._memory.take((samples, *self.sample_shape), dtype)
            y = np.empty((samples, self.targets), np.float32)
            return (x, y), zip(x, y, strict=True)

        def finish(batch: Batch, sizes: list[int]) -> tuple[Batch, int]:
            return batch, sum(sizes)

        workers, prefetch = self.loading.workers, self.loading.prefetch
        return read_batches(batches, allocate, reader.read, finish, workers=workers, prefetch=prefetch)

    def _encoded(
        self, batches: Iterable[list[tuple[Sample, int]]], reader: Reader
    ) -> Generator[tuple[EncodedBatch, int], None, None]:
        shape = tuple(self.sample_shape)

        def allocate(samples: int) -> tuple[Batch, Iterator[tuple[Any, ...]]]:
            keys = self._memory.take((samples, prod(shape[:-1])), np.uint16)
            y = np.empty((samples, self.targets), np.float32)
            return (keys, y), zip(keys, y, strict=True)

        def finish(arrays: Batch, samples: list[EncodedSample]) -> tuple[EncodedBatch, int]:
            keys, y = arrays
            return (assemble(shape, keys, samples), y), sum(sample.size for sample in samples)

        read = partial(reader.read_encoded, shape=shape)
        workers, prefetch = self.loading.workers, self.loading.prefetch
        return read_batches(batches, allocate, read, finish, workers=workers, prefetch=prefetch)
