"""What a profiler of a framework measured of some training steps, whichever framework it is."""

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
    under way and nothing was left to compute, other ranks that are late included; None where not measured."""

    messages: tuple[Message, ...]
    exposed: float | None

    @property
    def bytes(self) -> float:
        """Of a step."""
        return sum(message.bytes * message.calls for message in self.messages)

    @property
    def rate(self) -> float | None:
        """Bytes/s while a message is under way; None where one was not measured."""
        seconds = [message.seconds for message in self.messages]
        if not seconds or None in seconds:
            return None
        total = sum(m.calls * (m.seconds or 0.0) for m in self.messages)
        return self.bytes / total if total else None


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
    """``steps`` training steps of ``batch`` samples a rank, on samples of ``data``, or on zeros in memory for
    None. ``trace``: where the framework's own trace goes; None: nowhere."""

    batch: int
    steps: int
    trace: Path | None = None
    data: Path | None = None


@dataclass(frozen=True)
class Profile:
    """``work`` of one step and its ``wall`` seconds, means over ``steps``. ``modules``: those with weights, in the
    order in which the network calls them. ``device``: what was measured on. ``exchange``: None for one rank.
    ``reading``: None for samples in memory. ``plain``: the median seconds of as many steps without a profiler."""

    device: str
    batch: int
    steps: int
    wall: float
    modules: tuple[str, ...]
    work: tuple[Work, ...]
    exchange: Exchange | None = None
    reading: Reading | None = None
    plain: float = 0.0

    @property
    def busy(self) -> float:
        """Seconds a step in which operations ran; more than ``wall`` where they overlap."""
        return sum(work.seconds for work in self.work)

    @property
    def input_wait(self) -> float:
        """Seconds a step in which the loader had no batch."""
        return self.reading.waited if self.reading else 0.0

    @property
    def wait(self) -> float:
        """Seconds a step in which nothing ran: a GPU that waits for the host, or the host between operations."""
        return max(0.0, self.wall - self.busy - self.input_wait)


def plain_seconds(step: Callable[[], Any], wait: Callable[[Any], object], steps: int) -> float:
    """The median seconds of ``steps`` calls of ``step``, each with ``wait`` on what it returns."""
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

    def reading(self, steps: int) -> Reading | None:
        """What ``steps`` steps since ``start`` have read; then reads as many batches of another epoch alone."""
        if self._bytes_read is None:
            return None
        waited, read = self._waited / steps, (self._count() - self._before) / steps
        close = getattr(self._batches, "close", None)
        if close:
            close()
        alone = self._epoch(1)
        next(alone)  # starting the readers is not reading
        before, begin = self._count(), time.perf_counter()
        for _ in islice(alone, steps):
            pass
        found = (self._count() - before) / (time.perf_counter() - begin)
        if end := getattr(alone, "close", None):
            end()
        return Reading(waited, read, found)

    def _count(self) -> int:
        return self._bytes_read() if self._bytes_read else 0
