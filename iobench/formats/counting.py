"""Counts a thread's reads with negligible overhead.

Only the end time of each read is noted: a read begins when the previous read of its run ends, and its position
follows from the run. The noted times take a fixed amount of memory, and many of them are processed at once.
"""

import struct
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

DISTINCT_SIZES = 4096
UNSETTLED = 4096
"""Number of reads that a thread notes before they are counted; also the maximum per run."""
SPANS_KEPT = 1 << 16
"""Number of reads, over all threads, whose times are kept. When there are more, all times that every thread has
passed are summed up."""
INTERVALS = 256
"""Number of intervals of a timeline."""
SHORTEST = 2.0**-10
"""Initial length in seconds of a timeline's intervals."""
_RUN = struct.Struct("qqqq")

Spans = npt.NDArray[np.float64]
clock = time.perf_counter


class ReadEvent(NamedTuple):
    """One read; times are seconds on the process's clock."""

    start: float
    seconds: float
    offset: int
    size: int


class Activity:
    """Time in which at least one thread was reading, and the part of it in which the training loop was waiting.
    Complete once the threads have reported their reads (``ReadStatistics.settle``).

    Times before the last reported read of the slowest thread are summed and discarded, so that memory does
    not grow with the number of reads.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._handed_in: list[float] = []  # the time up to which each thread has reported
        self._reads: list[Spans] = []
        self._kept, self._most = 0, SPANS_KEPT
        self._reading_s = self._waited_s = 0.0
        self._waits: list[tuple[float, float]] = []
        self._waiting_since: float | None = clock()

    def enter(self) -> int:
        """Register a thread that will ``add`` its reads; returns its number."""
        with self._lock:
            self._handed_in.append(-np.inf)
            return len(self._handed_in) - 1

    def add(self, number: int, reads: Spans) -> None:
        """Add the start and end times of a thread's reads, [n, 2], in order and not overlapping."""
        with self._lock:
            self._reads.append(reads)
            self._kept += len(reads)
            self._handed_in[number] = float(reads[-1, 1])
            if self._kept > self._most:
                self._sum_up(min(self._handed_in))
                self._most = max(SPANS_KEPT, 2 * self._kept)

    def leave(self, number: int) -> None:
        """Note that thread ``number`` will not read any more."""
        with self._lock:
            self._handed_in[number] = np.inf

    def waiting(self, waiting: bool) -> None:
        """Note whether, from now on, the training loop is waiting for a batch. Until the first call, it is."""
        now = clock()
        if self._waiting_since is not None:
            self._waits.append((self._waiting_since, now))
        self._waiting_since = now if waiting else None

    @property
    def reading_s(self) -> float:
        """Seconds in which at least one thread was reading."""
        with self._lock:
            self._sum_up(np.inf)
            return self._reading_s

    @property
    def waited_s(self) -> float:
        """Seconds in which a thread was reading while the loop was waiting."""
        with self._lock:
            self._sum_up(np.inf)
            return self._waited_s

    def _sum_up(self, until: float) -> None:
        """Sum up times before ``until``; later reads may still be reported."""
        reads = union(np.concatenate([np.empty((0, 2)), *self._reads]))
        if not len(reads):
            return
        until = min(until, reads[-1, 1])
        # The loop adds a wait before it clears the wait's start, so at least one of the two is seen.
        since = self._waiting_since
        waits = list(self._waits)
        over = sum(end <= until for _, end in waits)
        if since is not None and since < until:
            waits.append((since, until))
        first = np.searchsorted(reads[:, 0], until)
        if not first:  # a thread has not reported any reads yet
            self._reads, self._kept = [reads], len(reads)
            return
        before = np.minimum(reads[:first], until)
        lengths = before[:, 1] - before[:, 0]
        sums = np.zeros(len(lengths) + 1)
        np.cumsum(lengths, out=sums[1:])

        def read_until(moments: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
            last = np.searchsorted(before[:, 0], moments, "right") - 1  # last read begun; -1: none
            return np.where(last < 0, 0, sums[last] + np.clip(moments - before[last, 0], 0, lengths[last]))

        begins, ends = union(np.array(waits).reshape(-1, 2)).T
        self._reading_s += float(sums[-1])
        self._waited_s += float((read_until(ends) - read_until(begins)).sum())
        rest = np.maximum(reads[np.searchsorted(reads[:, 1], until, "right") :], until)
        self._reads, self._kept = [rest], len(rest)
        del self._waits[:over]


def union(spans: Spans) -> Spans:
    """The union of ``spans`` (start and end times, [n, 2]) as spans in order and without overlaps."""
    if (spans[1:, 0] > spans[:-1, 1]).all():  # already so for a single thread
        return spans
    begins, ends = spans[np.argsort(spans[:, 0], kind="stable")].T
    latest = np.maximum.accumulate(ends)
    first = np.concatenate([[True], begins[1:] > latest[:-1]])
    last = np.concatenate([first[1:], [True]])
    return np.stack([begins[first], latest[last]], 1)


@dataclass
class Timeline:
    """An amount, such as bytes, over the time since ``origin``: ``amounts`` [INTERVALS] in equal intervals, which
    become longer as time passes. Amounts before ``origin`` are not counted."""

    origin: float = field(default_factory=clock)
    interval_s: float = SHORTEST
    amounts: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros(INTERVALS))

    def add(self, spans: Spans, amounts: npt.NDArray[np.float64]) -> None:
        """Add ``amounts`` [n], each spread evenly over its span from start to end time. ``spans`` [n, 2] must be
        in order and not overlap."""
        if not len(spans):
            return
        while spans[-1, 1] > self.origin + INTERVALS * self.interval_s:
            self.lengthen()
        so_far = np.cumsum(amounts)
        edges = self.origin + self.interval_s * np.arange(INTERVALS + 1)
        until = np.interp(edges, spans.ravel(), np.stack([so_far - amounts, so_far], 1).ravel(), left=0)
        self.amounts += np.diff(np.maximum.accumulate(until))  # rounding may make it decrease

    def include(self, other: "Timeline") -> None:
        """Add all amounts of the timeline ``other``, which may begin later."""
        begins = other.origin + other.interval_s * np.arange(INTERVALS)
        spans = np.stack([begins, begins + other.interval_s], 1)
        self.add(spans[: other.used], other.amounts[: other.used])

    @property
    def used(self) -> int:
        """Number of intervals up to the last one with an amount."""
        return int(np.flatnonzero(self.amounts)[-1] + 1) if self.amounts.any() else 0

    def lengthen(self) -> None:
        """Double the length of the intervals."""
        self.amounts = np.concatenate([self.amounts.reshape(-1, 2).sum(1), np.zeros(INTERVALS // 2)])
        self.interval_s *= 2


@dataclass
class ReadStatistics:
    """Reads of one thread. As in Darshan, a read is sequential if it starts at or after the end of the previous
    read of that file, and consecutive if it starts exactly there.

    The counts of opens, calls and bytes are always up to date, for other threads as well; everything else is up to
    date after ``settle``.
    """

    activity: Activity = field(default_factory=Activity)
    events: list[ReadEvent] | None = None
    opens: int = 0
    open_s: float = 0.0
    seconds: float = 0.0
    follow_ups: int = 0  # reads other than the first of an open file, which can be sequential
    sequential: int = 0
    consecutive: int = 0
    sizes: Counter[int] = field(default_factory=Counter)
    timeline: Timeline = field(default_factory=Timeline)
    _times: list[float] = field(default_factory=list)  # for each run: its beginning, and the end of each read
    # The current run, in one object because other threads read it: calls and bytes before the run, bytes per read
    # and of the run, and the list of times with its length when the run began.
    _current: tuple[int, int, int, int, list[float], int] = field(init=False)
    _number: int = field(init=False)
    _runs: bytearray = field(default_factory=lambda: bytearray(UNSETTLED * _RUN.size))
    _noted: int = 0  # number of bytes used in ``_runs``

    def __post_init__(self) -> None:
        self._number = self.activity.enter()
        self._current = 0, 0, 0, 0, self._times, 0

    @property
    def calls(self) -> int:
        """Number of reads so far."""
        before, _, _, _, times, length = self._current
        return before + max(0, len(times) - length - 1)

    @property
    def bytes(self) -> int:
        """Bytes requested so far."""
        _, before, transfer, most, times, length = self._current
        return before + min(max(0, len(times) - length - 1) * transfer, most)

    def add(self, begin: float, end: float, offset: int, size: int, previous_end: int) -> None:
        """Add a read of ``size`` bytes. ``previous_end``: the end of the previous read of this file, -1 for the
        first."""
        note = self.begin_run(size, size)
        note(begin)
        note(end)
        self.end_run(offset, size, size, previous_end)

    def begin_run(self, transfer: int, length: int) -> Callable[[float], None]:
        """Begin a run of at most ``UNSETTLED`` consecutive reads of up to ``length`` bytes together, each of
        ``transfer`` bytes except the last, which may be shorter. Returns a function that notes a time, to be
        called when the first read begins and when each read ends."""
        self._current = self.calls, self.bytes, transfer, length, self._times, len(self._times)
        return self._times.append

    def end_run(self, offset: int, transfer: int, length: int, previous_end: int) -> None:
        """End the run, whose position and length are now known."""
        self._current = self.calls, self._current[1] + length, 0, 0, self._times, len(self._times)
        _RUN.pack_into(self._runs, self._noted, offset, transfer, length, previous_end)
        self._noted += _RUN.size
        if len(self._times) >= 2 * UNSETTLED:
            self.settle()

    def settle(self) -> None:
        """Count all noted reads, so that everything is up to date."""
        if not self._noted:
            return
        runs = np.frombuffer(self._runs, np.int64, self._noted // 8).reshape(-1, 4)
        offset, transfer, length, previous = runs.T
        number = np.maximum(1, -(-length // np.maximum(1, transfer)))
        last = length - (number - 1) * transfer
        # Packing by struct takes a third of the time of converting a list to an array.
        noted = np.frombuffer(struct.pack(f"{len(self._times)}d", *self._times))
        noted = noted[: number.sum() + len(number)]  # without the times of a run that an error ended
        ends = np.ones(len(noted), bool)
        ends[np.cumsum(number + 1) - number - 1] = False  # the beginnings of runs
        times = np.stack([noted[:-1][ends[1:]], noted[ends]], axis=1)
        self.seconds += float((times[:, 1] - times[:, 0]).sum())
        self.activity.add(self._number, times)
        asked = np.repeat(transfer, number)
        asked[np.cumsum(number) - 1] = last
        self.timeline.add(times, asked.astype(float))
        within = int((number - 1).sum())  # within runs, each read begins where the previous one ended
        self.follow_ups += within + int(np.count_nonzero(previous >= 0))
        self.sequential += within + int(np.count_nonzero((previous >= 0) & (offset >= previous)))
        self.consecutive += within + int(np.count_nonzero((previous >= 0) & (offset == previous)))
        sizes, which = np.unique(np.concatenate([transfer, last]), return_inverse=True)
        counts = np.bincount(which, np.concatenate([number - 1, np.ones_like(number)]))
        for size, count in zip(sizes.tolist(), counts.astype(int).tolist(), strict=True):
            if count:
                # If there are too many different sizes, only their powers of two are kept.
                known = size in self.sizes or len(self.sizes) < DISTINCT_SIZES
                self.sizes[size if known else 1 << (size - 1).bit_length()] += count
        if self.events is not None:
            place = np.arange(len(times)) - np.repeat(np.cumsum(number) - number, number)  # within the run
            offsets = np.repeat(offset, number) + place * np.repeat(transfer, number)
            for begin, end, at, size in zip(*times.T.tolist(), offsets.tolist(), asked.tolist(), strict=True):
                self.events.append(ReadEvent(begin, end - begin, at, size))
        self._times, self._noted = [], 0
        self._current = self.calls, self.bytes, 0, 0, self._times, 0

    def finish(self) -> None:
        """Count all reads; the thread will not read any more."""
        self.settle()
        self.activity.leave(self._number)
