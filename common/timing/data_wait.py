"""Data wait: the one definition of it, for any number of ranks.

At some points of a run all ranks wait for one another. Between two of them, in an *interval*, the run has waited
for data as long as the rank that waited longest: **data wait is the sum over the intervals of the largest wait of
any rank**. The rest of an interval is the step: computing, and waiting for ranks that compute longer. An interval
of training is a step of the optimizer with all its accumulated batches; an evaluation is one interval as a whole.

The waits of one rank are not enough: while another rank waits for its files, this one waits for that rank inside
its step. Nor is the largest of the ranks' sums, because a different rank's file may be slow in each step.

Each rank keeps its waits in memory, and they are reduced once the clock has stopped.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import nlargest
from typing import Any

import numpy as np
import numpy.typing as npt

from mlhpc.common.ranks.world import World

Seconds = npt.NDArray[np.float32]
NAMED = 8
"""Maximum number of ranks listed for a loop, and of slow batches and their samples for a run."""
LONG_S, LONG = 0.5, 3.0
"""A batch is slow if its wait exceeds these seconds, and so many times the median of its rank's waits."""


@dataclass(frozen=True)
class Waits:
    """How long one rank waited for its batches in (a part of) a loop: ``seconds`` by interval, and ``own``, the
    same without the waits for ranks with which it shares samples. ``tags``: of the loop, such as its epoch."""

    name: str
    tags: Mapping[str, Any]
    seconds: Seconds
    own: Seconds


@dataclass(frozen=True)
class DataWait:
    """The data wait of all ranks in (a part of) a loop. ``lost``: by rank, the seconds of it in which the others
    waited for that rank, for the ``NAMED`` ranks with most."""

    name: str
    tags: Mapping[str, Any]
    intervals: int
    seconds: float
    lost: Mapping[int, float]


def by_interval(waits: Sequence[float], passes: int | None, last: float = 0.0) -> Seconds:
    """Seconds by interval, from the ``waits`` for each batch. An interval has ``passes`` batches, or all of the
    loop's if that is None. ``last``, the wait until the loop learned that there are no more batches, is an
    interval of its own if there are several. Returns [intervals]."""
    if passes is None:
        return np.array([sum(waits) + last], np.float32)
    sums = [sum(waits[begin : begin + passes]) for begin in range(0, len(waits), passes)]
    return np.array([*sums, last], np.float32)


@dataclass(frozen=True)
class SlowBatch:
    """Seconds that ``rank`` waited for its batch ``step`` of ``epoch``, both counted from 1, and the first of the
    samples in it, by file name."""

    seconds: float
    rank: int
    epoch: int
    step: int
    samples: tuple[str, ...] = ()


def slow_batches(kept: Sequence[Waits], rank: int) -> list[SlowBatch]:
    """The slow batches of this rank's training, the slowest first. The first batch of an epoch, which no step
    hides, is compared with the first batches of other epochs."""
    epochs: dict[int, list[float]] = {}
    for waits in kept:
        if waits.name == "data_wait" and "epoch" in waits.tags:  # the last one: until there were no more
            epochs.setdefault(waits.tags["epoch"], []).extend(waits.own[:-1].tolist())
    first = [waits[0] for waits in epochs.values() if waits]
    later = [wait for waits in epochs.values() for wait in waits[1:]]
    bounds = [max(LONG_S, LONG * float(np.median(waits or [0.0]))) for waits in (first, later)]
    slow = (
        SlowBatch(wait, rank, epoch, step)
        for epoch, waits in epochs.items()
        for step, wait in enumerate(waits, 1)
        if wait > bounds[step > 1]
    )
    return nlargest(NAMED, slow, key=lambda batch: batch.seconds)


def seconds_of(ranks: Sequence[Seconds]) -> float:
    """The data wait of ranks whose waits by interval are all known here. Each is [intervals]."""
    return float(np.max(ranks, axis=0).sum())


def reduce(world: World, kept: Sequence[Waits]) -> list[DataWait] | None:
    """The data wait of all ranks, loop by loop; ``kept`` has this rank's waits, in the order of the loops. None if
    the ranks had different numbers of loops. Called by all ranks, outside the clock."""
    most, least = _ends(world, [len(kept)])
    if most != least:
        return None
    lengths = _ends(world, [len(waits.seconds) for waits in kept])
    return [_reduce(world, waits, *ends) for waits, *ends in zip(kept, *lengths, strict=True)]


def _reduce(world: World, waits: Waits, longest: float, shortest: float) -> DataWait:
    both = np.stack([waits.seconds, waits.own]).astype(np.float64)
    if longest != shortest:  # so they did not wait for one another before the end of the loop
        both = both.sum(axis=1, keepdims=True)
    seconds, slowest = world.max(both)
    # The lowest rank among equal ones.
    ranks = -world.max(np.where(both[1] == slowest, -world.rank, -world.size)).astype(int)
    lost = np.bincount(ranks, seconds)
    first = np.argsort(-lost, kind="stable")[:NAMED]
    named = {int(rank): float(lost[rank]) for rank in first if lost[rank] > 0}
    return DataWait(waits.name, waits.tags, len(seconds), float(seconds.sum()), named)


def _ends(world: World, counts: Sequence[int]) -> tuple[list[float], list[float]]:
    """The largest and the smallest of all ranks, of each of ``counts``."""
    most, negative = world.max([counts, [-number for number in counts]])
    return most.tolist(), (-negative).tolist()
