"""Reading a file so that every call is known: how many bytes, where, and how long it took.

All formats read through ``CountedFile``; nothing is read beside it, so that what is counted here is what the
application asked of its storage.
"""

import mmap
import os
import time
from array import array
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mlhpc.common.files.regular import open_regular
from mlhpc.errors import UserError

ALIGNMENT = 4096
"""Of offset, length and address with O_DIRECT: enough for the logical blocks of every disk (open(2), NOTES)."""
LARGEST_READ = 1 << 30
"""Linux reads at most 2 GiB less a page at once (read(2))."""
DIRECT_READ = 8 << 20
"""Bytes of the aligned buffer for direct reads where the workload sets no transfer size."""
DISTINCT_SIZES = 4096

UNSETTLED = 4096
"""Reads that are noted before they are counted."""

Bytes = npt.NDArray[np.uint8]
Spans = npt.NDArray[np.float64]
clock = time.perf_counter


class ReadEvent(NamedTuple):
    """One read: seconds on the process's clock."""

    start: float
    seconds: float
    offset: int
    size: int


class Activity:
    """How long at least one thread was reading, and how much of that the training loop spent waiting. Complete
    once the threads have handed in their reads (``ReadStatistics.settle``)."""

    def __init__(self) -> None:
        self._reads: list[Spans] = []
        self._waits: list[tuple[float, float]] = []
        self._waiting_since: float | None = None

    def add(self, reads: Spans) -> None:
        """Reads of one thread, [n, 2]: when each began and ended."""
        self._reads.append(reads)

    def waiting(self, waiting: bool) -> None:
        """Whether the loop waits for a batch from now on."""
        now = clock()
        if self._waiting_since is not None:
            self._waits.append((self._waiting_since, now))
        self._waiting_since = now if waiting else None

    @property
    def reading_s(self) -> float:
        return covered(self._all_reads())

    @property
    def waited_s(self) -> float:
        reads, waits = self._all_reads(), np.array(self._waits).reshape(-1, 2)
        return covered(reads) + covered(waits) - covered(np.concatenate([reads, waits]))

    def _all_reads(self) -> Spans:
        return np.concatenate([np.empty((0, 2)), *self._reads])


def covered(spans: Spans) -> float:
    """Seconds that lie in at least one of the spans [n, 2] of begin and end."""
    if not len(spans):
        return 0.0
    begins, ends = spans[np.argsort(spans[:, 0])].T
    latest = np.maximum.accumulate(ends)
    gaps = np.maximum(0.0, begins[1:] - latest[:-1]).sum()
    return float(latest[-1] - begins[0] - gaps)


@dataclass
class ReadStatistics:
    """What one thread asked of the storage. As in Darshan, a read is sequential when it starts at or behind
    the end of the previous read of that file, consecutive when exactly there.

    Opens, calls, bytes and seconds are always up to date. The rest is after ``settle``: of each read only its
    numbers are noted at first, since what is counted must not slow down what is measured.
    """

    activity: Activity = field(default_factory=Activity)
    events: list[ReadEvent] | None = None
    opens: int = 0
    open_s: float = 0.0
    calls: int = 0
    bytes: int = 0
    seconds: float = 0.0
    follow_ups: int = 0  # reads that are not the first of an open file: those that can be sequential
    sequential: int = 0
    consecutive: int = 0
    sizes: Counter[int] = field(default_factory=Counter)
    _times: "array[float]" = field(default_factory=lambda: array("d"))  # begin and end of each read
    _places: "array[int]" = field(
        default_factory=lambda: array("q")
    )  # offset, size, end of the one before or -1

    def add(self, begin: float, end: float, offset: int, size: int, previous_end: int) -> None:
        self.calls += 1
        self.bytes += size
        self.seconds += end - begin
        self._times.extend((begin, end))
        self._places.extend((offset, size, previous_end))
        if len(self._times) >= 2 * UNSETTLED:
            self.settle()

    def settle(self) -> None:
        """Bring everything up to date."""
        times = np.array(self._times).reshape(-1, 2)
        places = np.array(self._places, np.int64).reshape(-1, 3)
        del self._times[:], self._places[:]
        self.activity.add(times)
        offsets, sizes, previous = places.T
        self.follow_ups += int(np.count_nonzero(previous >= 0))
        self.sequential += int(np.count_nonzero((previous >= 0) & (offsets >= previous)))
        self.consecutive += int(np.count_nonzero((previous >= 0) & (offsets == previous)))
        for size, count in zip(
            *(each.tolist() for each in np.unique(sizes, return_counts=True)), strict=True
        ):
            # Where sizes vary without end, only their powers of two are kept.
            known = size in self.sizes or len(self.sizes) < DISTINCT_SIZES
            self.sizes[size if known else 1 << (size - 1).bit_length()] += count
        if self.events is not None:
            for (begin, end), (offset, size, _) in zip(times.tolist(), places.tolist(), strict=True):
                self.events.append(ReadEvent(begin, end - begin, offset, size))


class CountedFile:
    """A file open for reading. Not for several threads at once.

    ``transfer``: bytes of the largest read, 0 for no limit. ``streaming``: the samples are read one after the
    other, through a window of ``transfer`` bytes, as buffered input streams do; otherwise exactly what is
    asked for is read. Raises UserError when the file cannot be opened, read, or ends early.
    """

    def __init__(
        self,
        path: Path,
        statistics: ReadStatistics,
        *,
        transfer: int = 0,
        direct: bool = False,
        streaming: bool = False,
    ) -> None:
        self._begin(path, statistics, transfer, streaming)
        self._direct = direct
        self._aligned: mmap.mmap | None = None
        start = clock()
        try:
            self._fd = open_regular(path, os.O_DIRECT if direct else 0)
            self.size = os.fstat(self._fd).st_size
        except OSError as error:
            hint = "; this file system has no direct reads" if direct and error.errno == 22 else ""
            raise UserError(
                f"{path}: cannot be opened: {error.strerror}{hint}; check the data folder"
            ) from error
        statistics.opens += 1
        statistics.open_s += clock() - start

    def _begin(self, path: Path | str, statistics: ReadStatistics, transfer: int, streaming: bool) -> None:
        """What a file that is not opened here needs as well. ``path`` is for messages."""
        self.path = path
        self._statistics = statistics
        self._transfer = min(transfer or LARGEST_READ, LARGEST_READ)
        self._streaming = streaming and transfer > 0
        self._window, self._window_at = np.empty(0, np.uint8), 0
        self._previous_end = -1

    def close(self) -> None:
        if self._aligned is not None:
            self._aligned.close()
        os.close(self._fd)

    def read(self, offset: int, length: int) -> Bytes:
        """``length`` bytes from ``offset``, in memory of their own."""
        out = np.empty(length, np.uint8)
        self.read_into(offset, out)
        return out

    def read_into(self, offset: int, out: Bytes) -> None:
        if offset < 0 or offset + len(out) > self.size:
            raise UserError(
                f"{self.path}: has {self.size} bytes, {offset + len(out)} are expected: damaged; generate it again"
            )
        if not self._streaming:
            return self._fetch(offset, out)
        done = self._from_window(offset, out)
        whole = (len(out) - done) // self._transfer * self._transfer
        if whole:
            self._fetch(offset + done, out[done : done + whole])
            done += whole
        if done < len(out):
            at = offset + done
            self._window = np.empty(min(self._transfer, self.size - at), np.uint8)
            self._window_at = at
            self._fetch(at, self._window)
            self._from_window(at, out[done:])

    def _from_window(self, offset: int, out: Bytes) -> int:
        """Copy what the window has from ``offset`` on; returns how many bytes."""
        start = offset - self._window_at
        if not 0 <= start < len(self._window):
            return 0
        found = self._window[start : start + len(out)]
        out[: len(found)] = found
        return len(found)

    def _fetch(self, offset: int, out: Bytes) -> None:
        done = 0
        while done < len(out):
            step = min(self._transfer, len(out) - done)
            done += self._once(offset + done, out[done : done + step])

    def _once(self, offset: int, out: Bytes) -> int:
        """One read of at most ``out``; returns how many bytes came."""
        begin = clock()
        count, asked_at, asked = self._transfer_into(offset, out)
        end = clock()
        if count <= 0:
            raise UserError(f"{self.path}: ends at byte {offset}: damaged; generate it again")
        self._statistics.add(begin, end, asked_at, asked, self._previous_end)
        self._previous_end = asked_at + asked
        return count

    def _transfer_into(self, offset: int, out: Bytes) -> tuple[int, int, int]:
        """A read of at most ``out``: bytes delivered, where it started, bytes asked for."""
        try:
            if self._direct:
                return self._read_aligned(offset, out)
            return os.preadv(self._fd, [out.data], offset), offset, len(out)
        except OSError as error:
            raise UserError(
                f"{self.path}: cannot be read: {error.strerror}; check the data folder and its file system"
            ) from error

    def _read_aligned(self, offset: int, out: Bytes) -> tuple[int, int, int]:
        """A direct read of the blocks around ``out``: bytes delivered, where it started, bytes asked for."""
        if self._aligned is None:
            room = min(self._transfer, DIRECT_READ)
            self._aligned = mmap.mmap(-1, -(-room // ALIGNMENT) * ALIGNMENT + ALIGNMENT)
        begin = offset // ALIGNMENT * ALIGNMENT
        asked = min(-(-(offset + len(out) - begin) // ALIGNMENT) * ALIGNMENT, len(self._aligned))
        view = memoryview(self._aligned)[:asked]
        count = min(os.preadv(self._fd, [view], begin) - (offset - begin), len(out))
        if count > 0:
            out[:count] = np.frombuffer(view, np.uint8)[offset - begin : offset - begin + count]
        return count, begin, asked


class MemoryFile(CountedFile):
    """A file whose bytes are in memory: storage that takes no time. Nothing is counted."""

    def __init__(self, path: Path, data: Bytes) -> None:
        self.path, self.size, self._data = path, len(data), data

    def close(self) -> None:
        pass

    def read(self, offset: int, length: int) -> Bytes:
        if offset < 0 or offset + length > self.size:
            raise UserError(f"{self.path}: has {self.size} bytes, {offset + length} are expected: damaged")
        return self._data[offset : offset + length]  # no copy: it takes no time

    def read_into(self, offset: int, out: Bytes) -> None:
        out[:] = self.read(offset, len(out))


class FileObject:
    """A counted file as libraries want it: with a position."""

    def __init__(self, file: CountedFile) -> None:
        self._file, self._at = file, 0
        self.closed = False

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._file.size}[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: memoryview) -> int:
        out = np.frombuffer(buffer, np.uint8)[: max(0, self._file.size - self._at)]
        if len(out):
            self._file.read_into(self._at, out)
            self._at += len(out)
        return len(out)

    def read(self, length: int = -1) -> bytes:
        left = max(0, self._file.size - self._at)
        length = left if length < 0 else min(length, left)
        data = self._file.read(self._at, length).tobytes() if length else b""
        self._at += length
        return data

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def writable(self) -> bool:
        return False

    def flush(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True
