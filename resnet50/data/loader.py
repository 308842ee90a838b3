"""Batches for the training step: cropped and normalised images, channels last in memory.

Three ways to read them give the same images in the same order, and the same views of them: threads of this
process (``threads``), PyTorch worker processes (``workers``), both with torchvision, which agree bit for bit;
and NVIDIA DALI (``dali``), whose decoder and resampling differ by a few grey levels.
"""

import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from mlhpc.benchmarks.resnet50 import Loading
from mlhpc.common.data.prefetch import read_batches
from mlhpc.common.data.sharding import eval_batches, train_batches
from mlhpc.common.pytorch.buffers import single_threaded_readers
from mlhpc.resnet50.data.dataset import RankSamples
from mlhpc.resnet50.data.formats import Images
from mlhpc.resnet50.data.reader import Batch, Reader, finish

TensorPair = tuple[torch.Tensor, torch.Tensor]
Source = Callable[[Sequence[Sequence[int]]], Generator[Batch, None, None]]
"""Maps the image numbers of each batch to the batches, in order."""


@dataclass
class Loader:
    """The batches of one rank: ``x`` float32 ``[b, 3, side, side]``, channels last in memory; ``y`` int64 ``[b]``.

    With ``preprocessing`` "torchvision", ``x`` is normalised with ImageNet's mean and standard deviation; with
    "mlperf" it is the bytes minus the reference's means. Crops and resizing differ too (``mlperf.py``).

    ``sample_shape`` is [side, side, 3], ``steps`` comes from ``sharding.steps_per_epoch``, the same for all ranks.
    The caller may keep the tensors. For a ``device`` other than "cpu" they are in page-locked memory, with DALI on
    the GPU. An iterator that is closed or dropped stops its threads or processes. Errors in files are raised from
    the iterator as UserError.

    An image that cannot be decoded stops the run. With ``loading.broken_images`` "skip" it is reported on standard
    error, once, and recorded in ``skipped`` with its name and error: in training the next image takes its
    place, in evaluation the batch is smaller.
    """

    samples: RankSamples
    loading: Loading
    _: KW_ONLY
    sample_shape: Sequence[int]
    local_batch_size: int
    eval_batch_size: int
    steps: int
    seed: int
    preprocessing: Literal["mlperf", "torchvision"] = "torchvision"
    ranks_on_node: int = 1
    device: str = "cpu"
    bytes_read: int = 0  # as stored, of all batches so far, training and evaluation
    skipped: set[str] = field(default_factory=set)

    def train_epoch(self, epoch: int) -> Generator[TensorPair, None, None]:
        """The ``steps`` training batches of ``epoch`` (from 0), shuffled by ``(seed, epoch)``."""
        view_seed = (self.seed, self.samples.train_pool.number, epoch)
        reader = self._reader(self.samples.train, view_seed)
        with closing(self._source(reader)(self._train_batches(epoch).tolist())) as batches:
            yield from map(self._deliver, batches)

    def evaluation(self) -> Generator[TensorPair, None, None]:
        """Every evaluation image of this rank once, in order; the last batch may be smaller."""
        reader = self._reader(self.samples.evaluation, None)
        batches = eval_batches(self.samples.eval_pool, self.samples.pool_rank, self.eval_batch_size)
        with closing(self._source(reader)(batches)) as read:
            yield from filter(
                lambda batch: len(batch[1]), map(self._deliver, read)
            )  # all may have been skipped

    def _reader(self, images: Images, draw: tuple[int, int, int] | None) -> Reader:
        return Reader(images, self.sample_shape[0], draw, self.loading.broken_images, self.preprocessing)

    def files_of(self, epoch: int, step: int) -> list[str]:
        """The names of the images of one training batch of this rank; both count from 0."""
        return [self.samples.train.name(int(i)) for i in self._train_batches(epoch)[step]]

    def _train_batches(self, epoch: int) -> npt.NDArray[np.int64]:
        samples = self.samples
        return train_batches(
            samples.train_pool, samples.pool_rank, self.local_batch_size, self.steps, self.seed, epoch
        )

    def _source(self, reader: Reader) -> Source:
        """The source that ``loading.loader`` selects."""
        loading = self.loading
        threads: dict[str, Any] = {"workers": loading.workers, "prefetch": loading.prefetch}
        if loading.loader == "workers":
            from mlhpc.resnet50.data import workers

            where: dict[str, Any] = {"device": self.device, "ranks_on_node": self.ranks_on_node}
            return partial(workers.batches, reader=reader, **threads, **where)
        if loading.loader == "dali":
            from mlhpc.resnet50.data import dali

            return partial(dali.batches, reader=reader, **threads, device=self.device)
        pinned = self.device != "cpu"

        def allocate(samples: int) -> tuple[torch.Tensor, Iterator[tuple[Any, ...]]]:
            x = torch.empty((samples, *self.sample_shape), pin_memory=pinned)
            return x, zip(x.numpy(), strict=True)

        return partial(
            read_batches,
            allocate=allocate,
            read=reader.read,
            finish=partial(finish, pinned=pinned),
            threads=single_threaded_readers,
            **threads,
        )

    def _deliver(self, batch: Batch) -> TensorPair:
        """A batch for the network: channels second, without skipped images; its bytes are counted."""
        x, y, size, broken = batch
        self.bytes_read += size
        for message in broken:
            if message not in self.skipped:
                sys.stderr.write(f"mlhpc: skipped: {message}\n")
                self.skipped.add(message)
        if self.loading.broken_images == "skip" and (y < 0).any():  # left out of an evaluation
            x, y = x[y >= 0], y[y >= 0]
        return x.permute(0, 3, 1, 2), y


def zeros_batch(images: int, sample_shape: Sequence[int]) -> TensorPair:
    """A batch of zeros for the warm-up."""
    return torch.zeros((images, *sample_shape)).permute(0, 3, 1, 2), torch.zeros(images, dtype=torch.int64)
