"""What a rank recorded while it ran (``common/timing/runlog.py``), one JSON object per line: ``t``, seconds on its
monotonic clock since the log was opened, ``event``, ``name``, and more by kind of event.

- ``begin`` and ``end`` of a span, with ``seconds``, and ``error`` if an exception passed through. They are nested:
  ``init``; ``run`` > ``staging``, ``exchange``, ``epoch`` > (``train``, ``eval``).
- ``timed``: ``name`` is ``data_wait`` or ``eval_data_wait``, with ``epoch``, ``count``, ``seconds``, ``p50``,
  ``p90``, ``p99``, ``max``. Several in an epoch add up. ``steps``: ``name`` is ``train`` or ``eval``, with the
  same keys, by batch: on a CPU from receiving a batch to requesting the next one, on a GPU between the ends of two
  steps in the queue, minus the data wait in between.
- ``metric``: ``value``, ``epoch``. ``mark``: a point in time, and ``waited`` until then, by kind of loop.
- ``waited``, from rank 0 after the run: the data wait of all ranks in a loop of ``count`` intervals, and ``lost``:
  how much of it came from which rank; with ``"after": "warm"`` of the steps after that mark.
- ``progress``: ``step``, from rank 0 about every five seconds.
- ``energy``: ``name`` is the kind of counters, ``joules`` since ``run_start``, ``nodes``, from the first rank of a
  node about every ten seconds; ``incomplete`` if other counters of the node are known to be missing.
- ``note``: facts under a name. ``memory``, at the end: ``peak_bytes`` of the process, ``device_peak_bytes`` of its
  GPU. ``lost``: a rank that was lost, and why.
"""

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mlhpc.common.files.regular import open_regular
from mlhpc.common.files.untrusted import MOST_VALUES, count_values, parse_json
from mlhpc.record.fields import MOST_RANKS, Number

LONGEST_EVENT = 2**20
"""Characters of an event."""
_NAME = re.compile(r"events\.rank(0|[1-9]\d{0,8})\.jsonl")


def rank_of(name: str) -> int | None:
    """The rank whose events are in the file ``name``; None for other files."""
    match = _NAME.fullmatch(name)
    return int(match[1]) if match else None


def event_files(folder: Path) -> dict[int, Path]:
    """The files of events in a run's folder by rank, without links."""
    files = {rank: path for path in folder.iterdir() if (rank := rank_of(path.name)) is not None}
    return {rank: path for rank, path in sorted(files.items()) if path.is_file() and not path.is_symlink()}


def read_events(path: Path) -> list[dict[str, Any]]:
    """The events of one rank, up to the first invalid line: the last line of a killed rank may be truncated.
    A file of more than ``MOST_VALUES`` values is read up to there.
    Raises OSError if ``path`` cannot be read, is a link or no regular file."""
    events = []
    left = MOST_VALUES
    with os.fdopen(open_regular(path, os.O_NOFOLLOW), encoding="utf-8", errors="replace") as file:
        while line := file.readline(LONGEST_EVENT):
            try:
                event = parse_json(line, left)
            except ValueError:
                break
            left -= count_values(line)
            if not is_event(event):
                break
            events.append(event)
    return events


class Event(BaseModel):
    """One event: the keys on whose types readers rely."""

    model_config = ConfigDict(strict=True, extra="allow")
    event: str
    name: str
    t: Number = 0.0
    epoch: int | None = None
    seconds: Number = 0.0
    count: Number = 0
    step: int | None = None
    value: float | None = None
    joules: Annotated[float, Field(ge=0, le=1e18)] | None = None
    nodes: Annotated[int, Field(le=MOST_RANKS)] | None = None


def is_event(line: object) -> bool:
    """Whether a line of a rank's events, as it is parsed, is one."""
    try:
        return bool(Event.model_validate(line))
    except ValidationError:
        return False


PERCENTILES = ("p50", "p90", "p99", "max")
_MOST_BYTES = 256 * 2**20
"""Maximum size of an events file; larger files are not read."""


@dataclass(frozen=True)
class RankTimes:
    """One rank: seconds of its spans, bytes of its memory; None if its events have no such record.

    ``steps``: percentiles of the step time in seconds, by epoch.
    """

    rank: int
    init_s: float | None = None
    staging_s: float | None = None
    train_s: float | None = None
    data_wait_s: float | None = None
    longest_wait_s: float | None = None
    eval_s: float | None = None
    peak_bytes: float | None = None
    device_peak_bytes: float | None = None
    steps: dict[int, dict[str, float]] = field(default_factory=dict)


def read_ranks(folder: Path) -> list[RankTimes]:
    """The times of every rank whose events can be read, sorted by rank."""
    ranks = []
    for rank, path in event_files(folder).items():
        if path.stat().st_size > _MOST_BYTES:
            continue
        try:
            events = read_events(path)
        except (OSError, ValueError, RecursionError):
            continue
        ranks.append(_times(rank, events))
    return ranks


def _times(rank: int, events: list[dict[str, Any]]) -> RankTimes:
    def values(kind: str, name: str, key: str) -> list[float]:
        numbers = (_number(e.get(key)) for e in events if e.get("event") == kind and e.get("name") == name)
        return [value for value in numbers if value is not None]

    steps = {}
    for event in events:
        epoch = event.get("epoch")
        if (event.get("event"), event.get("name")) == ("steps", "train") and isinstance(epoch, int):
            percentiles = {key: _number(event.get(key)) for key in PERCENTILES}
            steps[epoch] = {key: value for key, value in percentiles.items() if value is not None}
    return RankTimes(
        rank,
        init_s=_sum(values("end", "init", "seconds")),
        staging_s=_sum(values("end", "staging", "seconds")),
        train_s=_sum(values("end", "train", "seconds")),
        data_wait_s=_sum(values("timed", "data_wait", "seconds")),
        longest_wait_s=max(values("timed", "data_wait", "max"), default=None),
        eval_s=_sum(values("end", "eval", "seconds")),
        peak_bytes=max(values("note", "memory", "peak_bytes"), default=None),
        device_peak_bytes=max(values("note", "memory", "device_peak_bytes"), default=None),
        steps=steps,
    )


def _number(value: Any) -> float | None:
    """A finite number of at least 0."""
    valid = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e300
    return float(value) if valid else None


def _sum(values: Iterable[float]) -> float | None:
    listed = list(values)
    return sum(listed) if listed else None
