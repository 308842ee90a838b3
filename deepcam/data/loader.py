"""Batches for the training step: the field normalised, float32, channels last in memory, and the mask.

Three ways to read them give the same samples in the same order: threads of this process (``threads``),
PyTorch worker processes (``workers``), NVIDIA DALI (``dali``).
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch

from mlhpc.common.data.sharding import Pool, eval_batches, train_batches
from mlhpc.common.files.filesystem import memory_left
from mlhpc.deepcam.data import threads
from mlhpc.deepcam.data.hdf5 import Statistics
from mlhpc.deepcam.data.sample import Reader
from mlhpc.errors import UserError, count

Batch = tuple[torch.Tensor, torch.Tensor]
Indices = Sequence[int] | npt.NDArray[np.int64]


@dataclass
class Loader:
    """What one rank reads: ``x`` float32 ``[b, channels, rows, columns]``, channels last in memory,
    normalised by ``statistics``; ``y`` uint8 ``[b, rows, columns]``, classes 0 to 2.

    ``sample_shape`` is [rows, columns, channels]; ``place`` is the rank's place in its pools, ``steps`` the
    number that ``sharding.steps_per_epoch`` gave all ranks. The tensors handed out are the caller's to keep.
    For ``device`` "cuda" they are in page-locked memory, from DALI on the GPU. An iterator that is closed or
    dropped stops its threads or processes. What is wrong with a file is raised from the iterator, as
    ``Reader.read`` raises it.

    ``cache`` keeps every sample that was read once in memory; it is for the loader "threads". Where ranks
    share a pool, each comes to read all of it: with a pool of its own, a rank keeps its part alone.
    ``ranks_on_node`` says how many ask for memory at once.
    """

    train_files: Sequence[Path]
    eval_files: Sequence[Path]
    train_pool: Pool
    eval_pool: Pool
    place: int
    sample_shape: tuple[int, ...]
    statistics: Statistics
    local_batch: int
    eval_batch: int
    steps: int
    seed: int
    readers: int = 2
    batches_ahead: int = 2
    loader: Literal["threads", "workers", "dali"] = "threads"
    cache: bool = False
    ranks_on_node: int = 1
    device: str = "cpu"
    bytes_read: int = 0  # on disk, of the batches handed out so far, training and evaluation
    _kept: threads.Kept = field(default_factory=dict, repr=False)
    _memory: threads.Memory = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._memory = threads.Memory(pinned=self.device != "cpu")
        if self.cache and self.loader != "threads":
            raise UserError(
                f"loading.cache keeps samples in the memory of the rank, and loading.loader={self.loader} "
                "reads them elsewhere; set loading.loader=threads"
            )

    def train_epoch(self, epoch: int) -> Iterator[Batch]:
        """The ``steps`` training batches of ``epoch`` (from 0), shuffled by ``(seed, epoch)``."""
        batches = train_batches(self.train_pool, self.place, self.local_batch, self.steps, self.seed, epoch)
        return self._read(self.train_files, batches)

    def files_of(self, epoch: int, step: int) -> list[Path]:
        """The files of one training batch of this rank; both count from 0."""
        batches = train_batches(self.train_pool, self.place, self.local_batch, self.steps, self.seed, epoch)
        return [self.train_files[i] for i in batches[step]]

    def evaluation(self) -> Iterator[Batch]:
        """Every evaluation sample of this rank once, in order; the last batch may be smaller."""
        return self._read(self.eval_files, eval_batches(self.eval_pool, self.place, self.eval_batch))

    def _read(self, files: Sequence[Path], batches: Iterable[Indices]) -> Iterator[Batch]:
        paths = [[files[i] for i in indices] for indices in batches]
        reader = Reader(self.sample_shape, None if self.loader == "dali" else self.statistics)
        if self.loader == "workers":
            from mlhpc.deepcam.data import workers

            source = workers.batches(
                reader, paths, self.readers, self.batches_ahead, self.device, self.ranks_on_node
            )
        elif self.loader == "dali":
            from mlhpc.deepcam.data import dali

            source = dali.batches(
                reader, self.statistics, paths, self.readers, self.batches_ahead, self.device, self._memory
            )
        else:
            if self.cache:
                self._require_memory()
            kept = self._kept if self.cache else None
            source = threads.batches(reader, paths, self.readers, self.batches_ahead, self._memory, kept)
        with closing(source):
            for x, y, size in source:
                self.bytes_read += size
                yield x.permute(0, 3, 1, 2), y

    def _require_memory(self) -> None:
        """Raise UserError when the samples that are not kept yet cannot all be."""
        own_eval = len(range(self.place, self.eval_pool.samples, self.eval_pool.ranks))
        samples = self.train_pool.samples + own_eval
        need = (samples - len(self._kept)) * self.ranks_on_node * sample_bytes(self.sample_shape)
        if need > (left := memory_left()):
            raise UserError(
                f"loading.cache needs {need / 2**30:.1f} GiB for {count(samples, 'sample')} of "
                f"{count(self.ranks_on_node, 'rank')} on this node, and {left / 2**30:.1f} GiB are left; "
                "set loading.cache=false, or stage with staging.mode=shard on more nodes"
            )


def zeros_batch(samples: int, sample_shape: Sequence[int]) -> Batch:
    """A batch of zeros, to warm up with."""
    rows, columns, channels = sample_shape
    x = torch.zeros((samples, rows, columns, channels)).permute(0, 3, 1, 2)
    return x, torch.zeros((samples, rows, columns), dtype=torch.uint8)


def sample_bytes(sample_shape: Sequence[int]) -> int:
    """Bytes of a sample in a batch."""
    rows, columns, channels = sample_shape
    return rows * columns * (4 * channels + 1)
