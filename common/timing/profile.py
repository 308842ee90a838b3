"""Results of a profiler for some training steps, independent of the framework. A step is a step of the optimizer:
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
    """An operation, or a kernel on a GPU: seconds per step (self time). ``module``: its module of the
    network; empty for none. ``calls``: per step."""

    part: Part
    module: str
    name: str
    seconds: float
    calls: float


class Launch(NamedTuple):
    """The work of one ``operation`` on a GPU: the kernels it launches, the bytes of its arguments and results,
    each counted once, and the FLOPs of its matrix products. ``dtype`` and ``shape`` describe the result."""

    operation: str
    dtype: str
    shape: tuple[int, ...]
    kernels: int
    bytes: int
    flops: int


class Message(NamedTuple):
    """All-reduces of one size: ``bytes`` per rank and all-reduce, the mean ``seconds`` of an all-reduce
    (None: not measured on this rank), and their number per step."""

    bytes: int
    seconds: float | None
    calls: float


class Exchange(NamedTuple):
    """The gradients' all-reduces on one rank, ``messages`` by size. ``exposed``: seconds per step in which
    they were in progress without concurrent computation, including the wait for late ranks. ``under_way``:
    seconds per step in which at least one message was in progress; concurrent ones count once. None if not
    measured."""

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
    """(bytes, seconds) of all messages of ``steps`` steps, by size."""
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
    """Input from a data set: seconds ``waited`` for a batch and ``bytes`` read from files, per step and rank;
    and bytes/s of the same loader ``alone``, without computation."""

    waited: float
    bytes: float
    alone: float


@dataclass(frozen=True)
class Request:
    """``steps`` training steps of ``passes`` backward passes, each on ``batch`` samples per rank from
    ``data``, or zeros in memory if None. ``trace``: the file for the framework's trace, or None. ``counted``: on
    fake tensors, whose launches are counted and not timed."""

    batch: int
    steps: int
    trace: Path | None = None
    data: Path | None = None
    passes: int = 1
    counted: bool = False


@dataclass(frozen=True)
class Profile:
    """``work`` of one step and its ``wall`` seconds, means over ``steps``. A step has ``passes`` backward
    passes of ``batch`` samples per rank, and an update. ``modules``: those with weights, in the order in
    which the network calls them. ``device``: the measured device; ``gpu``: whether it computes asynchronously
    to the host. ``exchange``: None for one rank. ``reading``: None for samples in memory. ``plain``: the
    median seconds of the same number of steps without a profiler. ``launches``: of one step, if counted.
    ``memory``: peak bytes of PyTorch's tensors in those steps; None on a CPU, and of TensorFlow."""

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
        """Seconds per step in which operations ran; more than ``wall`` if they overlap."""
        return sum(work.seconds for work in self.work)

    @property
    def input_wait(self) -> float:
        """Seconds per step in which the loader had no batch. A GPU computes queued work while the host waits,
        so there this is an upper bound for the share of the time in which no kernel ran."""
        waited = self.reading.waited if self.reading else 0.0
        return min(waited, max(0.0, self.wall - self.busy)) if self.gpu else waited

    @property
    def wait(self) -> float:
        """Seconds per step in which nothing ran: a GPU that waits for the host, or the host between operations."""
        return max(0.0, self.wall - self.busy - self.input_wait)


def plain_seconds(step: Callable[[], Any], wait: Callable[[Any], object], steps: int) -> float:
    """The median seconds of ``steps`` calls of ``step``, each waiting for its result with ``wait``."""
    seconds = []
    for _ in range(steps):
        begin = time.perf_counter()
        wait(step())
        seconds.append(time.perf_counter() - begin)
    return median(seconds)


class Feed:
    """Batches for profiled steps. ``epoch(e)`` iterates over the batches of an epoch counted from 0;
    ``bytes_read`` counts the bytes that the rank has read from files, None for samples in memory."""

    def __init__(self, epoch: Callable[[int], Iterator[Any]], bytes_read: Callable[[], int] | None = None):
        self._epoch, self._bytes_read = epoch, bytes_read
        self._batches = epoch(0)
        self._before, self._waited = 0, 0.0

    def start(self) -> None:
        """Start counting batches and bytes."""
        self._before, self._waited = self._count(), 0.0

    def next(self) -> Any:
        """The next batch. Raises StopIteration if the epoch has no more."""
        begin = time.perf_counter()
        batch = next(self._batches)
        self._waited += time.perf_counter() - begin
        return batch

    def reading(self, steps: int, passes: int = 1) -> Reading | None:
        """The input of ``steps`` steps of ``passes`` batches since ``start``; then reads the same number of
        batches of another epoch without computation."""
        if self._bytes_read is None:
            return None
        waited, read = self._waited / steps, (self._count() - self._before) / steps
        close = getattr(self._batches, "close", None)
        if close:
            close()
        alone = self._epoch(1)
        next(alone)  # excludes starting the readers
        before, begin = self._count(), time.perf_counter()
        for _ in islice(alone, steps * passes):
            pass
        bytes_per_s = (self._count() - before) / (time.perf_counter() - begin)
        if end := getattr(alone, "close", None):
            end()
        return Reading(waited, read, bytes_per_s)

    def _count(self) -> int:
        return self._bytes_read() if self._bytes_read else 0
