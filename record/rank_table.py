"""``ranks.json``: start-up, staging, training and memory of every rank. Rank 0 writes it once the run has ended,
so that readers need not open a file for each rank."""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from mlhpc.common.ranks.world import World
from mlhpc.common.timing.event_files import event_files
from mlhpc.record.events import read_events
from mlhpc.record.fields import MOST_RANKS, Count, Fields, Number

NAME = "ranks.json"
PERCENTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
_MOST_BYTES = 4 * 2**20
"""Maximum bytes of events that are read for a run without a table, in addition to those of rank 0; reading them
takes about a second."""
_MOST_BYTES_OF_ONE = 256 * 2**20
_COLUMNS: dict[str, tuple[str, str, str, Callable[[Iterable[float]], float]]] = {
    "init_s": ("end", "init", "seconds", sum),
    "staging_s": ("end", "staging", "seconds", sum),
    "train_s": ("end", "train", "seconds", sum),
    "data_wait_s": ("timed", "data_wait", "seconds", sum),
    "longest_wait_s": ("timed", "data_wait", "max", max),
    "eval_s": ("end", "eval", "seconds", sum),
    "peak_bytes": ("note", "memory", "peak_bytes", max),
    "device_peak_bytes": ("note", "memory", "device_peak_bytes", max),
}
"""For each column: kind, name and key of the events, and the function that combines their values."""

Column = Annotated[tuple[Annotated[Number, Field(ge=0)] | None, ...], Field(max_length=MOST_RANKS)]
Steps = dict[int, dict[str, Number]]


class RankTable(Fields):
    """A table with a column per quantity (seconds of spans, bytes of memory) and a value per rank, which is null
    if the rank's events do not contain it. ``steps``: for each epoch, percentiles of the step time in seconds on
    the rank with the smallest median step time. ``left_out``: number of ranks that are not in the table."""

    ranks: Annotated[tuple[Count, ...], Field(max_length=MOST_RANKS)] = ()
    left_out: Count = 0
    init_s: Column = ()
    staging_s: Column = ()
    train_s: Column = ()
    data_wait_s: Column = ()
    longest_wait_s: Column = ()
    eval_s: Column = ()
    peak_bytes: Column = ()
    device_peak_bytes: Column = ()
    steps: Steps = Field(default_factory=dict)

    def of(self, column: str) -> dict[int, float]:
        """The values of a column by rank, in ascending order."""
        pairs = zip(self.ranks, getattr(self, column), strict=False)
        return dict(sorted((pair for pair in pairs if pair[1] is not None), key=lambda pair: pair[1]))


def write_rank_table(folder: Path, world: World, events: Sequence[Mapping[str, Any]]) -> None:
    """Write the table of a run that has ended, from each rank's ``events``. Called by all ranks. Raises UserError
    if the file cannot be written."""
    rows = np.zeros((world.size, len(_COLUMNS)))
    rows[world.rank] = _row(events)
    rows = world.sum(rows)  # a single reduction of arrays, instead of a text from each rank
    own = step_times(events)
    last = int(world.max([max(own, default=0)])[0])
    table = np.full((last + 1, len(PERCENTILES)), np.inf)
    for epoch, percentiles in own.items():
        table[epoch] = [percentiles.get(key, np.inf) for key in PERCENTILES]
    smallest = table[:, :1] == -world.max(-table[:, :1])
    steps = world.max(np.where(smallest & np.isfinite(table), table, -1.0)).tolist()
    if world.rank == 0:
        named = (dict(zip(PERCENTILES, row, strict=True)) for row in steps)
        of_epochs = {epoch: row for epoch, row in enumerate(named) if min(row.values()) >= 0}
        _table(range(world.size), rows.tolist(), of_epochs).write(folder / NAME)


def read_rank_table(folder: Path, ranks: int | None) -> RankTable:
    """The table of a run with ``ranks`` ranks. If there is no table, for example because the run is active,
    returns a table made from the events of as many of the first ranks as can be read in about a second. Raises
    OSError if the files cannot be read."""
    with suppress(OSError, ValueError, TypeError, RecursionError):
        return RankTable.read(folder / NAME)
    read: dict[int, list[dict[str, Any]]] = {}
    steps: Steps = {}
    files, left = event_files(folder), _MOST_BYTES
    for rank, path in files.items():
        size = path.stat().st_size
        left -= size if read else 0
        if left < 0:
            break
        with suppress(OSError, ValueError, RecursionError):
            read[rank] = read_events(path) if size <= _MOST_BYTES_OF_ONE else []
            for epoch, own in step_times(read[rank]).items():
                steps[epoch] = min(steps.get(epoch, own), own, key=lambda each: each.get("p50", np.inf))
    left_out = max(ranks or 0, len(files)) - len(read)
    return _table(read, map(_row, read.values()), steps).model_copy(update={"left_out": left_out})


def _table(ranks: Iterable[int], rows: Iterable[Sequence[float]], steps: Steps) -> RankTable:
    columns = zip(*rows, strict=True)
    known = ([None if value != value else float(f"{value:.6g}") for value in column] for column in columns)
    named: dict[str, Any] = dict(zip(_COLUMNS, map(tuple, known), strict=False))
    return RankTable(ranks=tuple(ranks), steps=steps, **named)


def _row(events: Sequence[Mapping[str, Any]]) -> list[float]:
    """The values of one rank by column; a value that the rank's events do not contain is NaN."""
    row = []
    for kind, name, key, reduce in _COLUMNS.values():
        own = (e.get(key) for e in events if e.get("event") == kind and e.get("name") == name)
        values = [value for value in map(_number, own) if value is not None]
        row.append(reduce(values) if values else np.nan)
    return row


def step_times(events: Iterable[Mapping[str, Any]], phase: str = "train") -> Steps:
    """Percentiles of the step times of ``phase`` by epoch. Those of an epoch that was recorded in several parts,
    between evaluations, are the percentiles over the parts, each counted as often as it has steps."""
    parts: dict[int, dict[str, list[tuple[float, float]]]] = {}
    for event in events:
        epoch = event.get("epoch")
        if (event.get("event"), event.get("name")) == ("steps", phase) and isinstance(epoch, int):
            steps = _number(event.get("count")) or 1.0
            for key in PERCENTILES:
                if (value := _number(event.get(key))) is not None:
                    parts.setdefault(epoch, {}).setdefault(key, []).append((value, steps))
    return {
        epoch: {key: _nearest_rank(each, PERCENTILES[key]) for key, each in own.items()}
        for epoch, own in parts.items()
    }


def _nearest_rank(counted: Iterable[tuple[float, float]], share: float) -> float:
    """The smallest of the values, ``counted`` with their numbers, that at least ``share`` of all do not exceed."""
    ordered = sorted(counted)
    below = list(accumulate(number for _, number in ordered))
    return ordered[bisect_left(below, share * below[-1])][0]


def _number(value: Any) -> float | None:
    """``value`` if it is a finite number of at least 0; otherwise None."""
    valid = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e300
    return float(value) if valid else None
