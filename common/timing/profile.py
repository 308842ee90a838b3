"""The results of profiling some training steps, independent of the framework. A step is a step of the optimizer:
with gradient accumulation, it has several backward passes and one exchange.
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
    """An operation, or a kernel on a GPU. ``seconds``: self time per step; ``module``: the network's module that
    it belongs to, or empty; ``calls``: calls per step."""

    part: Part
    module: str
    name: str
    seconds: float
    calls: float


class Launch(NamedTuple):
    """The work of one ``operation`` on a GPU: the number of kernels it launches, the bytes of its arguments and
    results (each counted once), and the FLOPs of its matrix products. ``dtype`` and ``shape`` describe the
    result."""

    operation: str
    dtype: str
    shape: tuple[int, ...]
    kernels: int
    bytes: int
    flops: int


class Message(NamedTuple):
    """All-reduces of one size: ``bytes`` per rank and all-reduce, the mean ``seconds`` of an all-reduce (None: not
    measured on this rank), and their number per step."""

    bytes: int
    seconds: float | None
    calls: float


class Exchange(NamedTuple):
    """The gradients' all-reduces on one rank; ``messages`` are grouped by size. ``exposed``: seconds per step in
    which they were in progress without concurrent computation, including the wait for late ranks. ``under_way``:
    seconds per step in which at least one message was in progress, so concurrent ones count once. Both are None if
    not measured."""

    messages: tuple[Message, ...]
    exposed: float | None
    under_way: float | None

    @property
    def bytes(self) -> float:
        """Bytes exchanged per step."""
        return sum(message.bytes * message.calls for message in self.messages)

    @property
    def rate(self) -> float | None:
        """Bytes/s while messages are in progress; None if that was not measured."""
        return self.bytes / self.under_way if self.under_way else None


def covered(intervals: Iterable[tuple[float, float]]) -> float:
    """Seconds covered by at least one of ``intervals``, each (begin, end)."""
    total, reached = 0.0, -math.inf
    for begin, end in sorted(intervals):
        total += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return total


def by_size(sent: Iterable[tuple[int, float | None]], steps: int) -> tuple[Message, ...]:
    """The messages of ``steps`` steps grouped by size, from the (bytes, seconds) of each message."""
    sizes: dict[int, list[float | None]] = {}
    for size, seconds in sent:
        sizes.setdefault(size, []).append(seconds)
    messages = []
    for size, times in sorted(sizes.items()):
        measured = [seconds for seconds in times if seconds is not None]
        mean = sum(measured) / len(measured) if len(measured) == len(times) else None
        messages.append(Message(size, mean, len(times) / steps))
    return tuple(messages)


class Reading(NamedTuple):
    """Input from a data set: seconds ``waited`` for a batch and ``bytes`` read from files, both per step and rank,
    and the bytes/s of the same loader ``alone``, without computation."""

    waited: float
    bytes: float
    alone: float


@dataclass(frozen=True)
class Request:
    """What to profile: ``steps`` training steps of ``passes`` backward passes, each on ``batch`` samples per rank
    from ``data`` (None: zeros in memory). ``trace``: the file for the framework's trace, or None. ``counted``: use
    fake tensors, whose launches are counted and not timed."""

    batch: int
    steps: int
    trace: Path | None = None
    data: Path | None = None
    passes: int = 1
    counted: bool = False


@dataclass(frozen=True)
class Profile:
    """The ``work`` of one step and its ``wall`` seconds, as means over ``steps``. A step has ``passes`` backward
    passes of ``batch`` samples per rank, and an update. ``modules``: the modules with weights, in the order in
    which the network calls them. ``device``: the measured device; ``gpu``: whether the device computes
    asynchronously from the host. ``exchange``: None for one rank. ``reading``: None for samples in memory.
    ``plain``: median seconds per step of the same number of steps without a profiler. ``launches``: the launches
    of one step, if counted. ``memory``: peak bytes of PyTorch's tensors in the steps without a profiler; None on a
    CPU and for TensorFlow.
    """

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
    launches: tuple[Launch, ...] = ()
    memory: int | None = None

    @property
    def samples(self) -> int:
        """Samples per step and rank."""
        return self.batch * self.passes

    @property
    def busy(self) -> float:
        """Seconds per step that operations ran, summed over operations, so more than ``wall`` if operations
        overlap."""
        return sum(work.seconds for work in self.work)

    @property
    def input_wait(self) -> float:
        """Seconds per step in which the loader had no batch. A GPU computes queued work while the host waits, so
        on a GPU this is an upper bound on the time in which no kernel ran for lack of input."""
        waited = self.reading.waited if self.reading else 0.0
        return min(waited, max(0.0, self.wall - self.busy)) if self.gpu else waited

    @property
    def wait(self) -> float:
        """Seconds per step in which nothing ran, because a GPU waited for the host or the host was between
        operations."""
        return max(0.0, self.wall - self.busy - self.input_wait)


def plain_seconds(step: Callable[[], Any], wait: Callable[[Any], object], steps: int) -> float:
    """The median seconds per call of ``steps`` calls of ``step``, each of which waits for its result with
    ``wait``."""
    seconds = []
    for _ in range(steps):
        begin = time.perf_counter()
        wait(step())
        seconds.append(time.perf_counter() - begin)
    return median(seconds)


class Feed:
    """Batches for profiled steps. ``epoch(e)`` iterates over the batches of epoch e, counted from 0.
    ``bytes_read`` returns the bytes that the rank has read from files so far; None for samples in memory."""

    def __init__(self, epoch: Callable[[int], Iterator[Any]], bytes_read: Callable[[], int] | None = None):
        self._epoch, self._bytes_read = epoch, bytes_read
        self._batches = epoch(0)
        self._before, self._waited = 0, 0.0

    def start(self) -> None:
        """Start counting batches and bytes."""
        self._before, self._waited = self._count(), 0.0

    def next(self) -> Any:
        """The next batch. Raises StopIteration if the epoch has no more batches."""
        begin = time.perf_counter()
        batch = next(self._batches)
        self._waited += time.perf_counter() - begin
        return batch

    def reading(self, steps: int, passes: int = 1) -> Reading | None:
        """Return what was read in the ``steps`` steps since ``start``, each of ``passes`` batches. To measure the
        loader alone, this then reads as many batches of a different epoch without computing."""
        if self._bytes_read is None:
            return None
        waited, read = self._waited / steps, (self._count() - self._before) / steps
        if close := getattr(self._batches, "close", None):
            close()
        alone = self._epoch(1)
        next(alone)  # so that starting the readers is not measured
        before, begin = self._count(), time.perf_counter()
        for _ in islice(alone, steps * passes):
            pass
        bytes_per_s = (self._count() - before) / (time.perf_counter() - begin)
        if end := getattr(alone, "close", None):
            end()
        return Reading(waited, read, bytes_per_s)

    def _count(self) -> int:
        return self._bytes_read() if self._bytes_read else 0
