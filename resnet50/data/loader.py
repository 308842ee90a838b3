"""Batches for the training step: images as the network sees them, normalised, channels last in memory.

Three ways to read them give the same images in the same order, and the same views of them: threads of this
process (``threads``), PyTorch worker processes (``workers``), both with torchvision, which agree bit for bit;
and NVIDIA DALI (``dali``), whose decoder and resampling differ by a few grey levels.
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch

from mlhpc.common.data.sharding import Pool, eval_batches, train_batches
from mlhpc.errors import UserError
from mlhpc.resnet50.data import threads
from mlhpc.resnet50.data.formats import Images
from mlhpc.resnet50.data.reader import Reader

Batch = tuple[torch.Tensor, torch.Tensor]


@dataclass
class Loader:
    """What one rank reads: ``x`` float32 ``[b, 3, size, size]``, channels last in memory; ``y`` int64 ``[b]``.

    With ``preprocessing`` "torchvision", ``x`` is normalised with ImageNet's mean and standard deviation; with
    "mlperf" it is the bytes less the reference's means. Crops and resizing differ too (``mlperf.py``).

    ``place`` is the rank's place in its pools, ``steps`` the number that ``sharding.steps_per_epoch`` gave
    all ranks. The tensors handed out are the caller's to keep. For ``device`` "cuda" they are in page-locked
    memory, from DALI on the GPU. An iterator that is closed or dropped stops its threads or processes. What
    is wrong with a file is raised from the iterator as UserError.

    An image that cannot be decoded stops the run, or with ``broken_images`` "skip" is told of on standard
    error, once, and kept in ``skipped``, its name and what is wrong with it: in training the next image takes
    its place, in evaluation the batch is smaller by it.
    """

    train: Images
    validation: Images
    train_pool: Pool
    eval_pool: Pool
    place: int
    size: int
    local_batch: int
    eval_batch: int
    steps: int
    seed: int
    readers: int = 2
    batches_ahead: int = 2
    loader: Literal["threads", "workers", "dali"] = "threads"
    broken_images: Literal["stop", "skip"] = "stop"
    preprocessing: Literal["mlperf", "torchvision"] = "torchvision"
    ranks_on_node: int = 1
    device: str = "cpu"
    bytes_read: int = 0  # as stored, of the batches handed out so far, training and evaluation
    skipped: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        if self.broken_images == "skip" and self.loader == "dali":
            raise UserError(
                "loading.broken_images=skip: DALI stops at an image that it cannot decode; set "
                "loading.loader=threads or workers"
            )

    def train_epoch(self, epoch: int) -> Iterator[Batch]:
        """The ``steps`` training batches of ``epoch`` (from 0), shuffled by ``(seed, epoch)``."""
        reader = self._reader(self.train, (self.seed, self.train_pool.number, epoch))
        return self._read(reader, self._batches(epoch).tolist())

    def files_of(self, epoch: int, step: int) -> list[str]:
        """The names of the images of one training batch of this rank; both count from 0."""
        return [self.train.name(int(i)) for i in self._batches(epoch)[step]]

    def evaluation(self) -> Iterator[Batch]:
        """Every evaluation image of this rank once, in order; the last batch may be smaller."""
        reader = self._reader(self.validation, None)
        return self._read(reader, eval_batches(self.eval_pool, self.place, self.eval_batch))

    def _reader(self, images: Images, draw: tuple[int, int, int] | None) -> Reader:
        return Reader(images, self.size, draw, self.broken_images, self.preprocessing)

    def _batches(self, epoch: int) -> npt.NDArray[np.int64]:
        return train_batches(self.train_pool, self.place, self.local_batch, self.steps, self.seed, epoch)

    def _read(self, reader: Reader, batches: Sequence[Sequence[int]]) -> Iterator[Batch]:
        how = (self.readers, self.batches_ahead, self.device)
        if self.loader == "workers":
            from mlhpc.resnet50.data import workers

            source = workers.batches(reader, batches, *how, self.ranks_on_node)
        elif self.loader == "dali":
            from mlhpc.resnet50.data import dali

            source = dali.batches(reader, batches, *how)
        else:
            source = threads.batches(reader, batches, *how)
        with closing(source):
            for x, y, size, broken in source:
                self.bytes_read += size
                for message in broken:
                    if message not in self.skipped:
                        sys.stderr.write(f"mlhpc: left out: {message}\n")
                        self.skipped.add(message)
                if self.broken_images == "skip" and (y < 0).any():  # left out of an evaluation
                    x, y = x[y >= 0], y[y >= 0]
                if len(y):
                    yield x.permute(0, 3, 1, 2), y


def zeros_batch(images: int, sample_shape: Sequence[int]) -> Batch:
    """A batch of zeros, to warm up with."""
    return torch.zeros((images, *sample_shape)).permute(0, 3, 1, 2), torch.zeros(images, dtype=torch.int64)
