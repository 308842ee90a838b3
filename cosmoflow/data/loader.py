"""Batches from the official layout: one sample a TFRecord file, plain or GZIP, ``x`` int16 and ``y`` float32.

Reader threads read, inflate, check and decode files into the arrays that the training step takes, a few
batches ahead of it. Counts stay int16 here; the step takes their logarithm on the device
(``step.log_counts``), so that half the bytes travel.
"""

import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mlhpc.common.data.sharding import Pool, eval_batches, train_batches
from mlhpc.common.formats.tfrecord import read_examples
from mlhpc.cosmoflow.data.augment import apply_symmetry, draw
from mlhpc.errors import UserError

Batch = tuple[npt.NDArray[np.int16], npt.NDArray[np.float32]]


def list_samples(directory: Path, expected: int | None = None) -> list[Path]:
    """The sample files of ``directory`` in order of name, which is what sample indices count.

    Raises ``UserError`` when there are none, or fewer than ``expected``; files beyond ``expected`` are left
    out, as the reference does.
    """
    if not directory.is_dir():
        raise UserError(f"{directory}: no such directory; give the data set's directory with train/ in it")
    with os.scandir(directory) as entries:
        names = sorted(entry.name for entry in entries if entry.name.endswith(".tfrecord"))
    if len(names) < (1 if expected is None else expected):
        raise UserError(f"{directory}: {expected or 'some'} *.tfrecord files are needed, it has {len(names)}")
    return [directory / name for name in names[:expected]]


def read_sample(path: Path, x: npt.NDArray[np.int16], y: npt.NDArray[np.float32], symmetry: int = 0) -> int:
    """Read ``path`` into ``x [n, n, n, channels]`` and ``y [targets]``; return its size on disk in bytes.

    ``symmetry`` turns the voxels (``augment.turned``). Raises ``UserError`` naming the file when it is
    missing, truncated or corrupt, or holds anything but one sample of this shape.
    """
    samples = list(read_examples(path))
    if len(samples) != 1:
        raise UserError(f"{path}: it has {len(samples)} records, and a sample file has one")
    ((voxels, targets),) = samples
    if len(voxels) != x.nbytes:
        raise UserError(
            f"{path}: x has {len(voxels)} bytes, but int16 voxels of shape {list(x.shape)} are {x.nbytes}; "
            f"the preset's data.sample_shape is not that of this data set"
        )
    if targets.size != y.size:
        raise UserError(f"{path}: y has {targets.size} values, and the network has {y.size} targets")
    # A voxel with all its channels is one item: turning then moves 8 bytes at a time, not 2.
    voxel = np.dtype((np.void, x.itemsize * x.shape[-1]))
    x.view(voxel)[...] = apply_symmetry(np.frombuffer(voxels, voxel).reshape(*x.shape[:-1], 1), symmetry)
    y[...] = targets
    return path.stat().st_size


@dataclass
class Loader:
    """What one rank reads: ``x`` int16 ``[b, n, n, n, channels]``, ``y`` float32 ``[b, targets]``, by batch.

    ``place`` is the rank's place in its pools, ``steps`` the number that ``sharding.steps_per_epoch`` gave
    all ranks. The arrays handed out are the caller's to keep. An iterator that is closed or dropped stops
    its readers. An error in a file is raised from the iterator, as ``read_sample`` raises it.
    """

    train_files: Sequence[Path]
    eval_files: Sequence[Path]
    train_pool: Pool
    eval_pool: Pool
    place: int
    sample_shape: tuple[int, ...]
    targets: int
    local_batch: int
    eval_batch: int
    steps: int
    seed: int
    augment: bool = False
    readers: int = 2
    batches_ahead: int = 2
    bytes_read: int = 0  # on disk, of the batches handed out so far, training and evaluation

    def train_epoch(self, epoch: int) -> Iterator[Batch]:
        """The ``steps`` training batches of ``epoch`` (from 0), shuffled by ``(seed, epoch)``."""
        batches = train_batches(self.train_pool, self.place, self.local_batch, self.steps, self.seed, epoch)
        turns = draw(self.train_pool.samples, self.seed, epoch) if self.augment else None
        return self._read(self.train_files, batches, turns)

    def evaluation(self) -> Iterator[Batch]:
        """Every evaluation sample of this rank once, in order; the last batch may be smaller."""
        return self._read(self.eval_files, eval_batches(self.eval_pool, self.place, self.eval_batch))

    def _read(
        self,
        files: Sequence[Path],
        batches: Iterable[Sequence[int] | npt.NDArray[np.int64]],
        turns: npt.NDArray[np.int8] | None = None,
    ) -> Iterator[Batch]:
        pool = ThreadPoolExecutor(self.readers, thread_name_prefix="reader")
        waiting: deque[tuple[Batch, list[Future[int]]]] = deque()

        def hand_out() -> Batch:
            batch, samples = waiting.popleft()
            self.bytes_read += sum(sample.result() for sample in samples)
            return batch

        try:
            for indices in batches:
                x = np.empty((len(indices), *self.sample_shape), np.int16)
                y = np.empty((len(indices), self.targets), np.float32)
                samples = [
                    pool.submit(read_sample, files[i], x[k], y[k], 0 if turns is None else int(turns[i]))
                    for k, i in enumerate(indices)
                ]
                waiting.append(((x, y), samples))
                if len(waiting) > self.batches_ahead:
                    yield hand_out()
            while waiting:
                yield hand_out()
        finally:
            pool.shutdown(cancel_futures=True)
