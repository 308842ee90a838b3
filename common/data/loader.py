"""Batches of a rank's samples, for training and evaluation.

A ``Loader`` decides which samples form a batch; a benchmark's ``Source`` defines how they are found, read and
prepared. Samples are read ahead by threads of this process (``by_threads``), worker processes
(``common.pytorch.workers``) or NVIDIA DALI (``common.pytorch.dali``).
"""

from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from mlhpc.common.data.assign import RankSamples, assign_samples
from mlhpc.common.data.buffers import Buffers
from mlhpc.common.data.codecs import dtypes
from mlhpc.common.data.manifest import Manifest
from mlhpc.common.data.partition import Mode
from mlhpc.common.data.prefetch import read_batches, reader_threads
from mlhpc.common.data.sharding import eval_batches, train_batches
from mlhpc.common.ranks.world import World

Batch = TypeVar("Batch")
Parts = Sequence[tuple[tuple[int, ...], str]]
"""Shape and type of each array of a sample. A type is the name of a NumPy type or a key of ``dtypes.NUMPY``."""
Draw = tuple[int, int, int]
"""What the random numbers of a training epoch depend on: the seed, the pool's number, and the epoch, counted
from 0."""


class Reader(Protocol):
    """Reads the samples of an epoch. Thread-safe, and picklable for worker processes."""

    @property
    def parts(self) -> Parts:
        """Shapes and types of the arrays of one sample. A batch stacks them, one row per sample."""

    @property
    def read(self) -> Callable[..., Any]:
        """A function ``read(key, *rows)`` that fills the rows of a sample and returns what ``finish`` needs to
        know about it. It raises UserError naming the file."""

    @property
    def finish(self) -> Callable[[Sequence[Any], list[Any]], Any]:
        """A function ``finish(arrays, results)`` that creates the batch from its arrays and what ``read`` returned
        for each sample."""


Feed = Callable[[Reader, Iterable[Sequence[Any]]], Generator[Any, None, None]]
"""Reads the batches with these keys, in order and ahead of the caller, with a reader. An iterator that is closed
or dropped stops its threads or processes."""


class Loading(Protocol):
    """How many threads or processes of a rank read samples, and how many batches they read ahead."""

    @property
    def workers(self) -> int:
        """Number of threads or processes."""

    @property
    def prefetch(self) -> int:
        """Number of batches read ahead."""


def by_threads(
    loading: Loading,
    take: Callable[[tuple[int, ...], str], Any] | None = None,
    as_array: Callable[[Any], npt.NDArray[Any]] = lambda array: array,
    threads: Callable[[int], AbstractContextManager[ThreadPoolExecutor]] = reader_threads,
) -> Feed:
    """A feed that reads samples with threads of this process, in the pool that ``threads`` opens.

    ``take(shape, dtype)`` supplies the arrays of a batch (None: NumPy arrays); ``as_array`` views one as a NumPy
    array. The caller may keep the arrays; the memory of arrays that the caller drops is reused.
    """
    memory = Buffers()
    take = take or (lambda shape, dtype: memory.take(shape, dtypes.NUMPY.get(dtype, dtype)))

    def feed(reader: Reader, batches: Iterable[Sequence[Any]]) -> Generator[Any, None, None]:
        def allocate(samples: int) -> tuple[list[Any], Iterable[tuple[Any, ...]]]:
            arrays = [take((samples, *shape), dtype) for shape, dtype in reader.parts]
            return arrays, zip(*map(as_array, arrays), strict=True) if arrays else [()] * samples

        return read_batches(
            batches,
            allocate,
            reader.read,
            reader.finish,
            workers=loading.workers,
            prefetch=loading.prefetch,
            threads=threads,
        )

    return feed


class Source(Generic[Batch]):
    """How the samples of a benchmark are found, read and made into batches: a ``Reader`` and the ``feed`` that
    uses it. A benchmark defines ``feed``, ``parts`` and ``read``, and other methods as needed.
    """

    feed: Feed
    parts: Parts
    read: Callable[..., Any]

    def assign(
        self, dataset: Manifest, staged: Path | None, mode: Mode, world: World, **sizes: Any
    ) -> RankSamples:
        """This rank's samples. By default, ``assign_samples`` selects them, with ``sizes`` as keyword
        arguments."""
        return assign_samples(dataset, staged, mode, world, **sizes)

    def for_epoch(self, samples: Any, draw: Draw | None) -> tuple[Reader, Callable[[int], Any]]:
        """The reader of ``samples`` (``train`` or ``evaluation`` of ``RankSamples``) for one epoch, and a function
        that returns the key of sample i. ``draw`` is None for an evaluation."""
        return self, samples.__getitem__

    def finish(self, arrays: Sequence[Any], results: list[Any]) -> Any:
        """Like ``Reader.finish``. By default, returns the arrays and the sum of the results, which are sizes in
        bytes."""
        return tuple(arrays), sum(results)

    def deliver(self, finished: Any) -> tuple[Batch, int]:
        """The batch for the training loop, made from what ``finish`` returned, and the number of bytes that its
        samples have in storage. Called in this process, in the order of the batches."""
        batch: tuple[Batch, int] = finished
        return batch

    def name(self, samples: Any, index: int) -> object:
        """The name of sample ``index``, for messages."""
        return samples[index]


@dataclass
class Loader(Generic[Batch]):
    """The batches of one rank from ``source``, in the order of ``sharding``.

    ``steps``: training batches per epoch, as ``sharding.steps_per_epoch`` returned on all ranks. If the ranks of a
    spatial group divide the reading, an iterator yields only every ``every``-th batch from ``first`` on. The
    caller may keep the batches. An iterator that is closed or dropped stops its threads or processes. Errors in
    files are raised from the iterator as UserError.
    """

    samples: RankSamples
    source: Source[Batch]
    _: KW_ONLY
    local_batch_size: int
    eval_batch_size: int
    steps: int
    seed: int
    bytes_read: int = 0  # as stored, of all batches yielded so far, for training and evaluation

    def train_epoch(self, epoch: int, *, first: int = 0, every: int = 1) -> Generator[Batch, None, None]:
        """The training batches of ``epoch`` (from 0), shuffled by ``(seed, epoch)``."""
        draw = self.seed, self.samples.train_pool.number, epoch
        yield from self._read(self.samples.train, self._train_batches(epoch)[first::every], draw)

    def evaluation(self, *, first: int = 0, every: int = 1) -> Generator[Batch, None, None]:
        """Every evaluation sample of this rank once, in order. The last batch may be smaller, and so may other
        batches if the source leaves out samples."""
        yield from self._read(self.samples.evaluation, self._eval_batches()[first::every], None)

    def eval_batch_sizes(self) -> list[int]:
        """The number of samples in every evaluation batch of this rank."""
        return [len(batch) for batch in self._eval_batches()]

    def files_of(self, epoch: int, step: int) -> list[object]:
        """The names of the samples in one training batch of this rank; ``epoch`` and ``step`` count from 0."""
        return [self.source.name(self.samples.train, int(i)) for i in self._train_batches(epoch)[step]]

    def _train_batches(self, epoch: int) -> npt.NDArray[np.int64]:
        samples = self.samples
        return train_batches(
            samples.train_pool, samples.pool_rank, self.local_batch_size, self.steps, self.seed, epoch
        )

    def _eval_batches(self) -> list[range]:
        return eval_batches(self.samples.eval_pool, self.samples.pool_rank, self.eval_batch_size)

    def _read(
        self, samples: Any, batches: Iterable[Iterable[int]], draw: Draw | None
    ) -> Generator[Batch, None, None]:
        reader, key = self.source.for_epoch(samples, draw)
        keys = ([key(int(i)) for i in batch] for batch in batches)
        with closing(self.source.feed(reader, keys)) as read:
            delivered = map(self._deliver, read)
            yield from delivered if draw else filter(_has_samples, delivered)

    def _deliver(self, finished: Any) -> Batch:
        batch, size = self.source.deliver(finished)
        self.bytes_read += size
        return batch


def _has_samples(batch: Any) -> bool:
    return len(batch[1]) > 0
