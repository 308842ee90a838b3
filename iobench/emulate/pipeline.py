"""The reader threads of a rank and the batches they fill, a few ahead of the loop that consumes them."""

import io
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np

from mlhpc.common.timing.waiting import clock, give_way, occupy
from mlhpc.errors import UserError
from mlhpc.iobench.dataset.layout import Layout, Split
from mlhpc.iobench.definition.schema import Dataset, Reader
from mlhpc.iobench.emulate.plan import Piece
from mlhpc.iobench.formats.access import CountedFile, MemoryFile
from mlhpc.iobench.formats.binary import INDEX, ExtentReader, read_index
from mlhpc.iobench.formats.counting import Activity, ReadStatistics
from mlhpc.iobench.formats.formats import FORMATS, Samples, Sizes
from mlhpc.iobench.formats.mpi_io import MpiFile

OPEN_FILES = 64
"""Number of files that a thread keeps open while it reads samples in random order."""

OpenFile = Callable[[Split, int, ReadStatistics], tuple[CountedFile, Sizes]]


@dataclass
class ThreadTimes:
    """Times of one reader thread. ``decode_s``, the time spent on samples after they are read, is valid once the
    statistics are settled."""

    statistics: ReadStatistics
    samples: int = 0
    content_bytes: int = 0
    sample_s: float = 0.0  # opening files, reading and decoding samples
    preprocess_s: float = 0.0
    blocked_s: float = 0.0  # waiting because the queue was full

    @property
    def decode_s(self) -> float:
        """Seconds spent on decoding and all other processing of samples after they are read."""
        return self.sample_s - self.statistics.seconds - self.statistics.open_s


@dataclass
class Storage:
    """Opens the files of a data set in their real storage."""

    layout: Layout
    reader: Reader

    def open(self, split: Split, file: int, statistics: ReadStatistics) -> tuple[CountedFile, Sizes]:
        """Open a file; also returns the content size in bytes of each of its samples, [samples]."""
        opened: CountedFile
        if self.has_index and not self.reader.reopen:
            self.read_index(split, file, statistics)
        if self.reader.mpi_io:
            shared = self.layout.files(split) == 1
            opened = MpiFile(self.layout.path(split, file), statistics, shared)
        else:
            name, streaming = self.layout.name(split, file), self.reader.sample_order == "sequential"
            opened = self.layout.place.open(
                name, statistics, self.reader.transfer_bytes, self.reader.direct, streaming
            )
        if self.reader.advice != "normal":
            opened.advise(self.reader.advice)
        return opened, self.layout.sizes(split, file)

    @property
    def has_index(self) -> bool:
        """Return whether each file has index files next to it that state the positions of its samples, as in
        DLIO."""
        return self.layout.is_dlio and self.layout.dataset.format == "binary"

    def read_index(self, split: Split, file: int, statistics: ReadStatistics) -> None:
        """Read the index files of one of DLIO's files. Raises UserError if the file's length differs from its
        index."""
        name, place = self.layout.name(split, file), self.layout.place
        for suffix in INDEX:
            opened = place.open(name + suffix, statistics)
            try:
                values = read_index(opened, self.layout.dataset.samples_per_file)
            finally:
                opened.close()
        if values.sum() != place.size(name):
            raise UserError(f"{place}/{name}: damaged: its size does not match its index; regenerate it")


@dataclass
class NullStorage:
    """Infinitely fast storage: a few files of a data set in memory, which stand in for all files."""

    layout: Layout
    files: dict[int, Any]
    block_bytes: int
    numbers: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.numbers = sorted(self.files)

    @classmethod
    def load(cls, layout: Layout, files: Iterable[int], budget: int, reader: Reader) -> "NullStorage":
        """Load as many of ``files`` as fit into ``budget`` bytes, at least one. Raises OSError."""
        loaded: dict[int, Any] = {}
        for file in files:
            name = layout.name("train", file)
            budget -= layout.place.size(name)
            if loaded and budget < 0:
                break
            loaded[file] = layout.place.read(name)
        return cls(layout, loaded, 0 if reader.transfer_bytes or reader.direct else io.DEFAULT_BUFFER_SIZE)

    def open(self, split: Split, file: int, statistics: ReadStatistics) -> tuple[CountedFile, Sizes]:
        """Open the file that stands in for ``file``; also returns the size in bytes of each of its samples,
        [samples]."""
        stand_in = self.numbers[file % len(self.numbers)]
        path = Path("memory") / self.layout.name(split, stand_in)
        return MemoryFile(path, self.files[stand_in], self.block_bytes), self.layout.sizes("train", stand_in)


class Pipeline:
    """Reads an epoch's samples in ``reader.threads`` threads and delivers them in batches by ``next_batch``.

    With 0 threads, ``next_batch`` itself reads. Samples of one piece keep their order; those of different threads
    are delivered when ready, as in a pipeline without a fixed order. With ``reader.preprocess_threads``, samples
    are preprocessed by one of these threads. ``next_batch`` raises the exceptions of threads. ``times``: the times
    of the reader threads, followed by those of the preprocessing threads; ``activity``: when any thread was
    reading; ``step_s``: seconds that the loop spends on a batch that is ready.

    Used as a context manager, the pipeline stops its threads at the end, even after an error, because HDF5 crashes
    if the interpreter exits while they read.
    """

    def __init__(
        self,
        dataset: Dataset,
        reader: Reader,
        split: Split,
        work: Iterator[Piece],
        batch_size: int,
        open_file: OpenFile,
        trace: bool,
        begin: Callable[[ReadStatistics], None] = lambda statistics: None,
    ) -> None:
        """``begin``: called first by each reader thread."""
        self._dataset, self._reader, self._split = dataset, reader, split
        self._open_file, self._batch, self._begin = open_file, batch_size, begin
        self._worker_s, self.step_s = reader.worker_s(dataset, batch_size), reader.step_s(dataset, batch_size)
        self._work, self._work_lock = work, threading.Lock()
        self._read: deque[Any] = deque()  # samples read, to be preprocessed by other threads
        self._ready: deque[Any] = deque()
        self._room = batch_size * reader.prefetch
        self._claimed = 0  # samples ready or in progress
        self._change = threading.Condition()
        self._stopped = False
        self._error: BaseException | None = None
        self.activity = Activity()
        readers = max(1, reader.threads)
        count = readers + reader.preprocess_threads
        self.times = [
            ThreadTimes(ReadStatistics(self.activity, [] if trace else None)) for _ in range(readers)
        ]
        self.times += [ThreadTimes(ReadStatistics()) for _ in range(reader.preprocess_threads)]
        self._random = [np.random.default_rng([dataset.seed, number]) for number in range(count)]
        self._inline = self._samples(0) if reader.threads == 0 else None
        self._threads = [
            threading.Thread(target=self._run, args=(number,), name=f"reader {number}", daemon=True)
            for number in range(reader.threads)
        ]
        self._threads += [
            threading.Thread(target=self._run_preprocessing, args=(number,), daemon=True)
            for number in range(readers, count)
        ]
        for thread in self._threads:
            thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def next_batch(self) -> Sequence[Any]:
        """The next ``batch_size`` samples; waits until they are ready."""
        if self._inline is not None:
            return [next(self._inline) for _ in range(self._batch)]
        with self._change:
            while len(self._ready) < self._batch and self._error is None:
                self._change.wait()
            if self._error is not None:
                raise self._error
            batch = [self._ready.popleft() for _ in range(self._batch)]
            self._claimed -= self._batch
            self._change.notify_all()
        return batch

    def stop(self) -> None:
        """Stop the threads after they have finished their current work."""
        with self._change:
            self._stopped = True
            self._change.notify_all()
        for thread in self._threads:
            thread.join()

    def _run(self, number: int) -> None:
        give_way()
        times = self.times[number]
        samples = self._samples(number)
        try:
            while True:
                start = clock()
                with self._change:
                    while self._claimed >= self._room and not self._stopped:
                        self._change.wait()
                    if self._stopped:
                        return
                    self._claimed += 1
                times.blocked_s += clock() - start
                try:
                    sample = next(samples)
                except StopIteration:
                    with self._change:  # the slot goes to a thread that has samples left
                        self._claimed -= 1
                        self._change.notify_all()
                    return
                with self._change:
                    if self._reader.preprocess_threads:
                        self._read.append(sample)
                        self._change.notify_all()
                    else:
                        self._put(sample)
        except BaseException as error:
            self._fail(error)
        finally:
            samples.close()
            times.statistics.finish()

    def _run_preprocessing(self, number: int) -> None:
        give_way()
        try:
            while True:
                with self._change:
                    while not self._read and not self._stopped:
                        self._change.wait()
                    if self._stopped:
                        return
                    sample = self._read.popleft()
                self._preprocess(number)
                with self._change:
                    self._put(sample)
        except BaseException as error:
            self._fail(error)

    def _preprocess(self, number: int) -> None:
        if seconds := self._reader.preprocess.draw(self._random[number]) + self._worker_s:
            self.times[number].preprocess_s += occupy(seconds)

    def _put(self, sample: Any) -> None:
        self._ready.append(sample)
        if len(self._ready) >= self._batch:
            self._change.notify_all()

    def _fail(self, error: BaseException) -> None:
        with self._change:
            self._error = error
            self._change.notify_all()

    def _samples(self, number: int) -> Generator[Any, None, None]:
        """The samples that thread ``number`` reads, in order, until no work is left."""
        times = self.times[number]
        statistics, reader = times.statistics, self._reader
        files: OrderedDict[int, tuple[Samples, CountedFile, Sizes]] = OrderedDict()
        start = clock()
        self._begin(statistics)
        times.sample_s += clock() - start
        try:
            while True:
                with self._work_lock:
                    piece = next(self._work, None)
                if piece is None:
                    return
                if piece.file in files and not reader.reopen:
                    files.move_to_end(piece.file)
                else:
                    self._make_room(files)
                    start = clock()
                    counted, sizes = self._open_file(self._split, piece.file, statistics)
                    samples = self._open_samples(counted, sizes)
                    files[piece.file] = samples, counted, sizes
                    times.sample_s += clock() - start
                samples, counted, sizes = files[piece.file]
                for sample in piece.samples.tolist():
                    start = clock()
                    if reader.metadata_bytes:
                        counted.read(0, min(reader.metadata_bytes, counted.size))
                    value = samples.read(sample)
                    times.sample_s += clock() - start
                    if not reader.preprocess_threads:
                        self._preprocess(number)
                    times.samples += 1
                    times.content_bytes += samples.size(sample)
                    yield value
        finally:
            for samples, _, _ in files.values():
                samples.close()

    def _open_samples(self, counted: CountedFile, sizes: Sizes) -> Samples:
        if self._reader.extents:
            return ExtentReader(counted, sizes, self._dataset, self._reader.extents)
        return FORMATS[self._dataset.format].open_samples(counted, sizes, self._dataset)

    def _make_room(self, files: OrderedDict[int, tuple[Samples, CountedFile, Sizes]]) -> None:
        # In sequential order, a thread has finished with a file when it opens the next.
        most = 1 if self._reader.reopen or self._reader.sample_order == "sequential" else OPEN_FILES
        while len(files) >= most:
            _, (samples, _, _) = files.popitem(last=False)
            samples.close()
