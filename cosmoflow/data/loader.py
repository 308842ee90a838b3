"""Batches from the official layout: one sample per TFRecord file, plain or GZIP, ``x`` int16 and ``y`` float32.

Reader threads read, inflate, check and decode files into the arrays of the training step, a few
batches ahead of it. Counts stay int16 here; the step takes their logarithm on the device
(``step.log_counts``), which halves the bytes transferred.
"""

import os
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
from mlhpc.common.formats.tfrecord import read_examples
from mlhpc.cosmoflow.data.augment import apply_symmetry, draw
from mlhpc.errors import UserError

Batch = tuple[npt.NDArray[np.int16], npt.NDArray[np.float32]]


def list_samples(directory: Path, expected: int | None = None) -> list[Path]:
    """The sample files of ``directory`` sorted by name; sample indices refer to this list.

    Raises ``UserError`` when there are none, or fewer than ``expected``; files beyond ``expected`` are left
    out, as in the reference.
    """
    if not directory.is_dir():
        raise UserError(f"{directory}: no such directory; give the data set's directory with train/ in it")
    with os.scandir(directory) as entries:
        names = sorted(entry.name for entry in entries if entry.name.endswith(".tfrecord"))
    if len(names) < (1 if expected is None else expected):
        raise UserError(
            f"{directory}: {expected or 'some'} *.tfrecord files are needed, but it has {len(names)}"
        )
    return [directory / name for name in names[:expected]]


def read_sample(sample: tuple[Path, int], x: npt.NDArray[np.int16], y: npt.NDArray[np.float32]) -> int:
    """Read ``sample``, a file and the symmetry that is applied to its voxels (``augment.apply_symmetry``), into
    ``x [n, n, n, channels]`` and ``y [targets]``; return the size of the file in bytes.

    Raises ``UserError`` naming the file when it is missing, truncated or corrupt, or contains anything other than
    one sample of this shape.
    """
    path, symmetry = sample
    samples = list(read_examples(path))
    if len(samples) != 1:
        raise UserError(f"{path}: it has {len(samples)} records, but a sample file has one")
    ((voxels, targets),) = samples
    if len(voxels) != x.nbytes:
        raise UserError(
            f"{path}: x has {len(voxels)} bytes, but int16 voxels of shape {list(x.shape)} take {x.nbytes}; "
            f"the preset's data.sample_shape is not that of this data set"
        )
    if targets.size != y.size:
        raise UserError(f"{path}: y has {targets.size} values, but the network has {y.size} targets")
    # A voxel with all its channels is one item, so that a rotation moves 8 bytes at a time, not 2.
    voxel = np.dtype((np.void, x.itemsize * x.shape[-1]))
    x.view(voxel)[...] = apply_symmetry(np.frombuffer(voxels, voxel).reshape(*x.shape[:-1], 1), symmetry)
    y[...] = targets
    return path.stat().st_size


@dataclass
class Loader:
    """The batches of one rank: ``x`` int16 ``[b, n, n, n, channels]``, ``y`` float32 ``[b, targets]``, by batch.

    ``steps`` comes from ``sharding.steps_per_epoch``, the same for all ranks; ``augment`` applies a random
    symmetry to each training sample. The caller may keep the arrays. An iterator that is closed or dropped stops
    its readers. Errors in files are raised from the iterator, as by ``read_sample``.
    """

    samples: RankSamples
    loading: Loading
    _: KW_ONLY
    sample_shape: Sequence[int]
    targets: int
    local_batch: int
    eval_batch: int
    steps: int
    seed: int
    augment: bool = False
    bytes_read: int = 0  # on disk, of all batches so far, training and evaluation

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
        return eval_batches(self.samples.eval_pool, self.samples.pool_rank, self.eval_batch)

    def _train_batches(self, epoch: int) -> npt.NDArray[np.int64]:
        samples = self.samples
        return train_batches(
            samples.train_pool, samples.pool_rank, self.local_batch, self.steps, self.seed, epoch
        )

    def _read(self, batches: Iterable[list[tuple[Path, int]]]) -> Generator[Batch, None, None]:
        def allocate(samples: int) -> tuple[Batch, Iterator[tuple[Any, ...]]]:
            x = np.empty((samples, *self.sample_shape), np.int16)
            y = np.empty((samples, self.targets), np.float32)
            return (x, y), zip(x, y, strict=True)

        def finish(batch: Batch, sizes: list[int]) -> tuple[Batch, int]:
            return batch, sum(sizes)

        workers, prefetch = self.loading.workers, self.loading.prefetch
        with closing(
            read_batches(batches, allocate, read_sample, finish, workers=workers, prefetch=prefetch)
        ) as read:
            for batch, size in read:
                self.bytes_read += size
                yield batch
