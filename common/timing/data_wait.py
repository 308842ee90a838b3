"""The definition of data wait for any number of ranks.

At some points of a run, all ranks wait for one another. In an *interval* between two such points, the run waits
for data as long as the rank that waits longest: **data wait is the sum over the intervals of the largest wait of
any rank**. The rest of an interval is the step: computing, and waiting for ranks that compute longer. In training,
an interval is a step of the optimizer with all its accumulated batches; an evaluation is a single interval.

The waits of one rank are not enough: while another rank waits for its files, this one waits for that rank within
its step. The largest of the ranks' sums is not enough either, because in each step a different rank's file may be
slow.

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
"""Maximum number of ranks listed for a loop, of slow batches listed for a run, and of samples listed for a
batch."""
LONG_S, LONG = 0.5, 3.0
"""A batch is slow if its wait exceeds both ``LONG_S`` seconds and ``LONG`` times the median of its rank's
waits."""


@dataclass(frozen=True)
class Waits:
    """How long one rank waited for its batches in (a part of) a loop: ``seconds`` by interval, and ``own``, the
    same without the waits for ranks with which it shares samples. ``tags``: the loop's tags, such as its epoch."""

    name: str
    tags: Mapping[str, Any]
    seconds: Seconds
    own: Seconds


@dataclass(frozen=True)
class DataWait:
    """The data wait of all ranks in (a part of) a loop. ``lost``: for the ``NAMED`` ranks that caused most of this
    wait, the seconds during which the others waited for that rank."""

    name: str
    tags: Mapping[str, Any]
    intervals: int
    seconds: float
    lost: Mapping[int, float]


def by_interval(waits: Sequence[float], passes: int | None, last: float = 0.0) -> Seconds:
    """Seconds by interval, [intervals], from the ``waits`` for each batch. An interval has ``passes`` batches, or
    all batches of the loop if ``passes`` is None. ``last``, the wait until the loop learned that there are no more
    batches, is a separate interval unless the loop is a single interval."""
    if passes is None:
        return np.array([sum(waits) + last], np.float32)
    sums = [sum(waits[begin : begin + passes]) for begin in range(0, len(waits), passes)]
    return np.array([*sums, last], np.float32)


@dataclass(frozen=True)
class SlowBatch:
    """The seconds that ``rank`` waited for its batch ``step`` of ``epoch`` (both counted from 1), and the names of
    the first samples in it."""

    seconds: float
    rank: int
    epoch: int
    step: int
    samples: tuple[str, ...] = ()


def slow_batches(kept: Sequence[Waits], rank: int) -> list[SlowBatch]:
    """The slow batches of this rank's training, slowest first. The first batch of an epoch, which cannot be read
    during a step, is compared with the first batches of other epochs."""
    epochs: dict[int, list[float]] = {}
    for waits in kept:
        if waits.name == "data_wait" and "epoch" in waits.tags:  # the last wait was not for a batch
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
    """The data wait in seconds, from the waits of every rank, each [intervals]."""
    return float(np.max(ranks, axis=0).sum())


def reduce(world: World, kept: Sequence[Waits]) -> list[DataWait] | None:
    """The data wait of all ranks for each loop. ``kept``: this rank's waits, in the order of the loops. Returns
    None if the ranks had different numbers of loops. Called by all ranks while the clock is not running."""
    most, least = _ends(world, [len(kept)])
    if most != least:
        return None
    lengths = _ends(world, [len(waits.seconds) for waits in kept])
    return [_reduce(world, waits, *ends) for waits, *ends in zip(kept, *lengths, strict=True)]


def _reduce(world: World, waits: Waits, longest: float, shortest: float) -> DataWait:
    both = np.stack([waits.seconds, waits.own]).astype(np.float64)
    if longest != shortest:  # the ranks did not wait for one another before the loop ended
        both = both.sum(axis=1, keepdims=True)
    seconds, slowest = world.max(both)
    # Of equally slow ranks, the lowest counts as the cause.
    ranks = -world.max(np.where(both[1] == slowest, -world.rank, -world.size)).astype(int)
    lost = np.bincount(ranks, seconds)
    first = np.argsort(-lost, kind="stable")[:NAMED]
    named = {int(rank): float(lost[rank]) for rank in first if lost[rank] > 0}
    return DataWait(waits.name, waits.tags, len(seconds), float(seconds.sum()), named)


def _ends(world: World, counts: Sequence[int]) -> tuple[list[float], list[float]]:
    """For each of ``counts``, the largest and the smallest value of any rank."""
    most, negative = world.max([counts, [-number for number in counts]])
    return most.tolist(), (-negative).tolist()
