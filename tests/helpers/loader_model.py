"""An event simulation of training on several ranks: readers, reading ahead, steps, and where ranks meet.

Written from the descriptions of the loaders, apart from the product, to say what delays of single reads must add
up to. Times are in seconds.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

Batches = Sequence[Sequence[float]]
"""By batch, what each of its samples takes to read."""


@dataclass
class Threads:
    """``threads`` read samples in order; ``ahead`` batches are begun before they are requested."""

    batches: Batches
    threads: int
    ahead: int
    _free: list[float] = field(default_factory=list)
    _ready: list[float] = field(default_factory=list)

    def get(self, number: int, now: float) -> float:
        """When the batch arrives that is requested ``now``."""
        self._free = self._free or [0.0] * self.threads
        while len(self._ready) < min(len(self.batches), number + self.ahead + 1):
            ends = [now]
            for seconds in self.batches[len(self._ready)]:
                begin = max(now, heapq.heappop(self._free))
                ends.append(begin + seconds)
                heapq.heappush(self._free, ends[-1])
            self._ready.append(max(ends))
        return max(now, self._ready[number])


@dataclass
class Pipeline:
    """A pipeline behind ``Threads``: it takes each batch ``depth`` batches before it hands it on, while its caller
    waits."""

    source: Threads
    depth: int
    _taken: int = 0

    def get(self, number: int, now: float) -> float:
        while self._taken < min(len(self.source.batches), number + self.depth):
            now = self.source.get(self._taken, now)
            self._taken += 1
        return now


@dataclass
class Workers:
    """``workers`` processes, each reading whole batches in turn. ``ahead`` batches of each are being read or wait;
    one that is handed on makes room for the next. They take ``start`` to begin."""

    batches: Batches
    workers: int
    ahead: int
    start: float = 0.0
    _free: list[float] = field(default_factory=list)
    _ready: list[float] = field(default_factory=list)

    def get(self, number: int, now: float) -> float:
        if not self._free:
            self._free = [now + self.start] * self.workers
            self._begin(now, self.ahead * self.workers)
        arrives = max(now, self._ready[number])
        self._begin(arrives, 1)
        return arrives

    def _begin(self, now: float, batches: int) -> None:
        for seconds in self.batches[len(self._ready) : len(self._ready) + batches]:
            worker = len(self._ready) % self.workers
            self._free[worker] = max(now, self._free[worker]) + sum(seconds)
            self._ready.append(self._free[worker])


@dataclass
class Group:
    """Ranks that share samples: of the group's batches each reads every n-th, and n of them are exchanged at a
    time, when the slowest one has read its own. The same for all ranks of the group."""

    members: Sequence[Threads]
    _arrived: float = 0.0

    def get(self, number: int, now: float) -> float:
        turn, first = divmod(number, len(self.members))
        if first == 0:
            reads = [each.get(turn, now) for each in self.members if turn < len(each.batches)]
            self._arrived = max(reads)
        return max(now, self._arrived)


Loader = Threads | Pipeline | Workers | Group


def train(
    loaders: Sequence[Loader], steps: Sequence[Sequence[float]], passes: int
) -> tuple[float, float, list[float]]:
    """Seconds of an epoch in which rank r takes ``steps[r][k]`` for its k-th batch, and all meet after every
    ``passes`` of them; seconds of it that are data wait; and those that each rank cost the others."""
    now, waited, cost = 0.0, 0.0, [0.0] * len(loaders)
    for begin in range(0, len(steps[0]), passes):
        ends, waits = [], []
        for loader, own in zip(loaders, steps, strict=True):
            at, wait = now, 0.0
            for number in range(begin, begin + passes):
                arrives = loader.get(number, at)
                wait += arrives - at
                at = arrives + own[number]
            ends.append(at)
            waits.append(wait)
        waited += max(waits)
        cost[waits.index(max(waits))] += max(waits)
        now = max(ends)
    return now, waited, cost


def evaluate(loaders: Sequence[Loader], steps: Sequence[Sequence[float]]) -> tuple[float, float, list[float]]:
    """As ``train``, for an evaluation in which ranks, with any number of batches, meet only at its end."""
    ends, waits = [0.0], []
    for loader, own in zip(loaders, steps, strict=True):
        at, wait = 0.0, 0.0
        for number, seconds in enumerate(own):
            arrives = loader.get(number, at)
            wait += arrives - at
            at = arrives + seconds
        ends.append(at)
        waits.append(wait)
    return max(ends), max(waits), [wait if wait == max(waits) else 0.0 for wait in waits]


def copy(files: Sequence[Sequence[float]], workers: int) -> float:
    """Seconds of staging if rank r copies ``files[r]``, ``workers`` of them at a time."""
    return max(Threads([own], workers, 0).get(0, 0.0) if own else 0.0 for own in files)
