"""Batches for the training step: the field normalised, channels last in memory, and the mask.

Three ways to read them give the same samples in the same order: threads of this process (``threads``),
PyTorch worker processes (``workers``), NVIDIA DALI (``dali``).
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Any

import torch

from mlhpc.benchmarks.deepcam import Loading
from mlhpc.common.data.assign import RankSamples
from mlhpc.common.data.prefetch import read_batches
from mlhpc.common.data.sharding import eval_batches, train_batches
from mlhpc.common.files.filesystem import memory_left
from mlhpc.common.formats.archive import Sample
from mlhpc.common.pytorch.buffers import Buffers
from mlhpc.common.pytorch.devices import mover
from mlhpc.common.pytorch.loading import as_array, dtype_of
from mlhpc.deepcam.data.delta import Lines
from mlhpc.deepcam.data.hdf5 import Statistics
from mlhpc.deepcam.data.sample import Batch, CachedReader, Reader, sample_bytes
from mlhpc.errors import UserError
from mlhpc.quantities import bytes_text, count

TensorPair = tuple[torch.Tensor, torch.Tensor]
Source = Callable[[Sequence[Sequence[Sample]]], Generator[Batch, None, None]]
"""Maps the samples of each batch to the batches, in order."""


@dataclass
class Loader:
    """The batches of one rank: ``x`` ``[b, channels, rows, columns]`` of ``loading.sample_dtype``, channels last
    in memory, normalised by ``statistics``; ``y`` uint8 ``[b, rows, columns]``, classes 0 to 2.

    ``sample_shape`` is [rows, columns, channels], ``steps`` comes from ``sharding.steps_per_epoch``, the same for
    all ranks. The caller may keep the tensors. For a ``device`` other than "cpu" they are in page-locked memory,
    with DALI on the GPU. An iterator that is closed or dropped stops its threads or processes. Errors in files are
    raised from the iterator, as by ``Reader.read``.

    ``loading.cache`` keeps every sample in memory once read; it needs the loader "threads". Where ranks share a
    pool, each eventually reads all of it; with a pool of its own, a rank keeps only its part. ``ranks_on_node``
    is the number of ranks that need memory at the same time. ``codec`` is the one in the manifest. With
    ``loading.decode`` "device", ``x`` is decoded on ``device`` when its batch is requested (``delta_triton``).
    """

    samples: RankSamples
    loading: Loading
    _: KW_ONLY
    sample_shape: Sequence[int]
    statistics: Statistics
    local_batch_size: int
    eval_batch_size: int
    steps: int
    seed: int
    ranks_on_node: int = 1
    device: str = "cpu"
    codec: str | None = None
    bytes_read: int = 0  # on disk, of the batches handed out so far, training and evaluation
    _source: Source = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if self.loading.cache:
            self._require_memory()
        self._source = self._open_source()

    def train_epoch(self, epoch: int) -> Generator[TensorPair, None, None]:
        """The ``steps`` training batches of ``epoch`` (from 0), shuffled by ``(seed, epoch)``."""
        with closing(self._source(self._train_files(epoch))) as batches:
            yield from map(self._deliver, batches)

    def evaluation(self) -> Generator[TensorPair, None, None]:
        """Every evaluation sample of this rank once, in order; the last batch may be smaller."""
        batches = eval_batches(self.samples.eval_pool, self.samples.pool_rank, self.eval_batch_size)
        files = [[self.samples.eval_files[i] for i in batch] for batch in batches]
        with closing(self._source(files)) as read:
            yield from map(self._deliver, read)

    def files_of(self, epoch: int, step: int) -> list[Sample]:
        """The samples of one training batch of this rank; both count from 0."""
        return self._train_files(epoch)[step]

    def _train_files(self, epoch: int) -> list[list[Sample]]:
        samples = self.samples
        batches = train_batches(
            samples.train_pool, samples.pool_rank, self.local_batch_size, self.steps, self.seed, epoch
        )
        return [[samples.train_files[i] for i in batch] for batch in batches]

    def _open_source(self) -> Source:
        """The way to read that ``loading.loader`` names."""
        loading = self.loading
        reader = Reader(self.sample_shape, self.statistics, self.codec, loading.sample_dtype)
        if loading.decode == "device":
            return self._decoded_on_device(reader)
        if loading.loader == "workers":
            from mlhpc.deepcam.data import workers

            return partial(
                workers.batches,
                reader=reader,
                workers=loading.workers,
                prefetch=loading.prefetch,
                device=self.device,
                ranks_on_node=self.ranks_on_node,
            )
        if loading.loader == "dali":
            from mlhpc.deepcam.data import dali

            as_stored = Reader(self.sample_shape, None, self.codec)
            return partial(
                dali.batches,
                read=self._read_by_threads(as_stored, torch.float32),
                shape=reader.shape,
                statistics=self.statistics,
                workers=loading.workers,
                device=self.device,
            )
        return self._read_by_threads(
            CachedReader(reader) if loading.cache else reader, dtype_of(loading.sample_dtype)
        )

    def _read_by_threads(self, reader: Reader | CachedReader, dtype: torch.dtype) -> Source:
        memory, (rows, columns, channels) = Buffers(pinned=self.device != "cpu"), self.sample_shape

        def allocate(samples: int) -> tuple[TensorPair, Iterator[tuple[Any, ...]]]:
            x = memory.take((samples, rows, columns, channels), dtype)
            y = memory.take((samples, rows, columns), torch.uint8)
            return (x, y), zip(as_array(x), y.numpy(), strict=True)

        def finish(arrays: TensorPair, sizes: list[int]) -> Batch:
            return *arrays, sum(sizes)

        return partial(
            read_batches,
            allocate=allocate,
            read=reader.read,
            finish=finish,
            workers=self.loading.workers,
            prefetch=self.loading.prefetch,
        )

    def _decoded_on_device(self, reader: Reader) -> Source:
        from mlhpc.deepcam.data import delta_triton

        memory, (rows, columns, channels) = Buffers(pinned=self.device != "cpu"), self.sample_shape
        dtype, move = dtype_of(reader.sample_dtype), mover(torch.device(self.device))

        def allocate(samples: int) -> tuple[torch.Tensor, Iterator[tuple[Any, ...]]]:
            y = memory.take((samples, rows, columns), torch.uint8)
            return y, zip(y.numpy())

        def finish(y: torch.Tensor, samples: list[tuple[Lines, int]]) -> Batch:
            x = torch.empty((len(samples), rows, columns, channels), dtype=dtype, device=self.device)
            for row, (lines, _) in zip(x, samples, strict=True):
                delta_triton.decode(lines, row, reader.normalisation, move)
            return x, y, sum(size for _, size in samples)

        return partial(
            read_batches,
            allocate=allocate,
            read=reader.read_lines,
            finish=finish,
            workers=self.loading.workers,
            prefetch=self.loading.prefetch,
        )

    def _deliver(self, batch: Batch) -> TensorPair:
        """A batch for the network: channels second, of ``sample_dtype``; its bytes are counted."""
        x, y, size = batch
        self.bytes_read += size
        # DALI's are float32; others have the type already.
        return x.permute(0, 3, 1, 2).to(dtype_of(self.loading.sample_dtype)), y

    def _require_memory(self) -> None:
        """Raise UserError if not all samples fit into memory."""
        pool = self.samples.eval_pool
        samples = self.samples.train_pool.samples + len(
            range(self.samples.pool_rank, pool.samples, pool.ranks)
        )
        need = samples * self.ranks_on_node * sample_bytes(self.sample_shape, self.loading.sample_dtype)
        if need > (left := memory_left()):
            raise UserError(
                f"loading.cache needs {bytes_text(need)} for {count(samples, 'sample')} of "
                f"{count(self.ranks_on_node, 'rank')} on this node, but {bytes_text(left)} are left; "
                "set loading.cache=false, or stage with staging.mode=shard on more nodes"
            )


def zeros_batch(samples: int, sample_shape: Sequence[int]) -> TensorPair:
    """A batch of zeros for the warm-up."""
    rows, columns, channels = sample_shape
    x = torch.zeros((samples, rows, columns, channels)).permute(0, 3, 1, 2)
    return x, torch.zeros((samples, rows, columns), dtype=torch.uint8)
