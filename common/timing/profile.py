"""What a profiler of a framework measured of some training steps, whichever framework it is.

A step is one update of the weights: with gradient accumulation, several backward passes and one exchange.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any, Literal, NamedTuple

Part = Literal["forward", "backward", "optimizer", "communication", "input", "other"]


class Work(NamedTuple):
    """An operation, or a kernel on a GPU: seconds a step of its own, without what it calls. ``module``: the module
    of the network that it belongs to; empty for none. ``calls``: a step."""

    part: Part
    module: str
    name: str
    seconds: float
    calls: float


class Message(NamedTuple):
    """All-reduces of one size: ``bytes`` that a rank gives to each, the mean of their ``seconds`` from start to
    end (None: not measured on this rank), and how many a step has."""

    bytes: int
    seconds: float | None
    calls: float


class Exchange(NamedTuple):
    """The gradients' all-reduces on one rank, ``messages`` by size. ``exposed``: seconds a step in which they were
    under way and nothing was left to compute, other ranks that are late included. ``under_way``: seconds a step in
    which at least one message was; several at once count once. None where not measured."""

    messages: tuple[Message, ...]
    exposed: float | None
    under_way: float | None

    @property
    def bytes(self) -> float:
        """Of a step."""
        return sum(message.bytes * message.calls for message in self.messages)

    @property
    def rate(self) -> float | None:
        """Bytes/s while messages are under way; None where that was not measured."""
        return self.bytes / self.under_way if self.under_way else None


def covered(intervals: Iterable[tuple[float, float]]) -> float:
    """Seconds that lie in at least one of ``intervals``, each (begin, end)."""
    total, reached = 0.0, -math.inf
    for begin, end in sorted(intervals):
        total += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return total


def by_size(sent: Iterable[tuple[int, float | None]], steps: int) -> tuple[Message, ...]:
    """(bytes, seconds) of all messages of ``steps`` steps, by size."""
    sizes: dict[int, list[float | None]] = {}
    for size, seconds in sent:
        sizes.setdefault(size, []).append(seconds)
    found = []
    for size, times in sorted(sizes.items()):
        known = [seconds for seconds in times if seconds is not None]
        mean = sum(known) / len(known) if len(known) == len(times) else None
        found.append(Message(size, mean, len(times) / steps))
    return tuple(found)


class Reading(NamedTuple):
    """Input of a step from a data set: seconds ``waited`` for a batch, and ``bytes`` that the rank read from
    files, a step; and bytes/s of the same loader ``alone``, with nothing computed."""

    waited: float
    bytes: float
    alone: float


@dataclass(frozen=True)
class Request:
    """``steps`` training steps of ``passes`` backward passes, each on ``batch`` samples a rank, which come from
    ``data``, or are zeros in memory for None. ``trace``: where the framework's own trace goes; None: nowhere."""

    batch: int
    steps: int
    trace: Path | None = None
    data: Path | None = None
    passes: int = 1


@dataclass(frozen=True)
class Profile:
    """``work`` of one step and its ``wall`` seconds, means over ``steps``. A step is ``passes`` backward passes of
    ``batch`` samples a rank, and an update. ``modules``: those with weights, in the order in which the network
    calls them. ``device``: what was measured on; ``gpu``: whether that works on while the host waits.
    ``exchange``: None for one rank. ``reading``: None for samples in memory. ``plain``: the median seconds of as
    many steps without a profiler."""

    device: str
    batch: int
    steps: int
    wall: float
    modules: tuple[str, ...]
    work: tuple[Work, ...]
    exchange: Exchange | None = None
    reading: Reading | None = None
    plain: float = 0.0
    passes: int = 1
    gpu: bool = False

    @property
    def samples(self) -> int:
        """Of a step, on one rank."""
        return self.batch * self.passes

    @property
    def busy(self) -> float:
        """Seconds a step in which operations ran; more than ``wall`` where they overlap."""
        return sum(work.seconds for work in self.work)

    @property
    def input_wait(self) -> float:
        """Seconds a step in which the loader had no batch. A GPU computes what was queued while the host waits:
        there it is at most this much of the time in which no kernel ran."""
        waited = self.reading.waited if self.reading else 0.0
        return min(waited, max(0.0, self.wall - self.busy)) if self.gpu else waited

    @property
    def wait(self) -> float:
        """Seconds a step in which nothing ran: a GPU that waits for the host, or the host between operations."""
        return max(0.0, self.wall - self.busy - self.input_wait)


def plain_seconds(step: Callable[[], Any], wait: Callable[[Any], object], steps: int) -> float:
    """The median seconds of ``steps`` calls of ``step``, a whole one each, with ``wait`` on what it returns."""
    seconds = []
    for _ in range(steps):
        begin = time.perf_counter()
        wait(step())
        seconds.append(time.perf_counter() - begin)
    return median(seconds)


class Feed:
    """Batches for profiled steps. ``epoch(e)`` iterates over the batches of an epoch counted from 0;
    ``bytes_read`` counts what the rank has read of files, None for samples in memory."""

    def __init__(self, epoch: Callable[[int], Iterator[Any]], bytes_read: Callable[[], int] | None = None):
        self._epoch, self._bytes_read = epoch, bytes_read
        self._batches = epoch(0)
        self._before, self._waited = 0, 0.0

    def start(self) -> None:
        """Count from here."""
        self._before, self._waited = self._count(), 0.0

    def next(self) -> Any:
        """The next batch. Raises StopIteration when the epoch has no more."""
        begin = time.perf_counter()
        batch = next(self._batches)
        self._waited += time.perf_counter() - begin
        return batch

    def reading(self, steps: int, passes: int = 1) -> Reading | None:
        """What ``steps`` steps of ``passes`` batches have read since ``start``; then reads as many batches of
        another epoch alone."""
        if self._bytes_read is None:
            return None
        waited, read = self._waited / steps, (self._count() - self._before) / steps
        close = getattr(self._batches, "close", None)
        if close:
            close()
        alone = self._epoch(1)
        next(alone)  # starting the readers is not reading
        before, begin = self._count(), time.perf_counter()
        for _ in islice(alone, steps * passes):
            pass
        found = (self._count() - before) / (time.perf_counter() - begin)
        if end := getattr(alone, "close", None):
            end()
        return Reading(waited, read, found)

    def _count(self) -> int:
        return self._bytes_read() if self._bytes_read else 0
