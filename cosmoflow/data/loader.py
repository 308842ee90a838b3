"""Batches of samples, one a file: ``x`` int16 and ``y`` float32.

Reader threads read, check and decode files into the arrays that the training step takes, a few
batches ahead of it. Counts stay int16 here; the step takes their logarithm on the device
(``step.log_counts``), which halves the bytes transferred.
"""

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mlhpc.benchmarks.schema import Loading
from mlhpc.common.data.assign import RankSamples
from mlhpc.common.data.prefetch import read_batches
from mlhpc.common.data.sharding import eval_batches, train_batches
from mlhpc.cosmoflow.data.augment import draw
from mlhpc.cosmoflow.data.sample import Reader

Batch = tuple[npt.NDArray[np.int16], npt.NDArray[np.float32]]


@dataclass
class Loader:
    """The batches of one rank: ``x`` int16 ``[b, n, n, n, channels]``, ``y`` float32 ``[b, targets]``, by batch.

    ``steps`` is the number that ``sharding.steps_per_epoch`` gave all ranks; ``augment`` turns training samples by
    a random symmetry each. The arrays handed out are the caller's to keep. An iterator that is closed or dropped
    stops its readers. An error in a file is raised from the iterator, as ``Reader.read`` raises it. ``codec``
    is the one that the manifest names.
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

    def train_epoch(self, epoch: int, *, first: int = 0, every: int = 1) -> Generator[Batch, None, None]:
        """The ``steps`` training batches of ``epoch`` (from 0), shuffled by ``(seed, epoch)``; of these every
        ``every``-th from ``first`` on, where the ranks of a spatial group share the reading."""
        samples = self.samples.train_pool.samples
        symmetries = draw(samples, self.seed, epoch) if self.augment else np.zeros(samples, np.int8)
        return self._read(
            [(self.samples.train_files[i], symmetries[i]) for i in batch]
            for batch in self._train_batches(epoch)[first::every]
        )

    def evaluation(self, *, first: int = 0, every: int = 1) -> Generator[Batch, None, None]:
        """Every evaluation sample of this rank once, in order; the last batch may be smaller. ``first`` and
        ``every`` as in ``train_epoch``."""
        batches = self._eval_batches()[first::every]
        return self._read([(self.samples.eval_files[i], 0) for i in batch] for batch in batches)

    def eval_batch_sizes(self) -> list[int]:
        """The samples of every evaluation batch of this rank."""
        return [len(batch) for batch in self._eval_batches()]

    def files_of(self, epoch: int, step: int) -> list[Path]:
        """The files of one training batch of this rank; both count from 0."""
        return [self.samples.train_files[i] for i in self._train_batches(epoch)[step]]

    def _eval_batches(self) -> list[range]:
        return eval_batches(self.samples.eval_pool, self.samples.pool_rank, self.eval_batch_size)

    def _train_batches(self, epoch: int) -> npt.NDArray[np.int64]:
        samples = self.samples
        return train_batches(
            samples.train_pool, samples.pool_rank, self.local_batch_size, self.steps, self.seed, epoch
        )

    def _read(self, batches: Iterable[list[tuple[Path, int]]]) -> Generator[Batch, None, None]:
        def allocate(samples: int) -> tuple[Batch, Iterator[tuple[Any, ...]]]:
            x = np.empty((samples, *self.sample_shape), np.int16)
            y = np.empty((samples, self.targets), np.float32)
            return (x, y), zip(x, y, strict=True)

        def finish(batch: Batch, sizes: list[int]) -> tuple[Batch, int]:
            return batch, sum(sizes)

        workers, prefetch = self.loading.workers, self.loading.prefetch
        read_sample = Reader(self.codec).read
        with closing(
            read_batches(batches, allocate, read_sample, finish, workers=workers, prefetch=prefetch)
        ) as read:
            for batch, size in read:
                self.bytes_read += size
                yield batch
