"""Start-up, staging, waiting, steps and memory of each rank, from its events; and whether a run is active."""

import os
import socket
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mlhpc.common.files.locks import is_locked
from mlhpc.common.timing.breakdown import read_events
from mlhpc.quantities import duration_text
from mlhpc.submission.logs.run_directory import RunDirectory

PERCENTILES = ("p50", "p90", "p99", "max")
_RECENT_S = 600.0
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
    for path in folder.glob("events.rank*.jsonl"):
        number = path.name.removeprefix("events.rank").removesuffix(".jsonl")
        if not number.isdecimal() or not path.is_file() or path.stat().st_size > _MOST_BYTES:
            continue
        try:
            events = read_events(path)
        except (OSError, ValueError, RecursionError):
            continue
        ranks.append(_times(int(number), [event for event in events if isinstance(event, dict)]))
    return sorted(ranks, key=lambda times: times.rank)


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


def running(run: RunDirectory) -> str:
    """The reason why the run counts as active; empty if it has ended, or its process no longer exists.

    A rank keeps a lock on its events until it exits (``RunLog``). If the run is on another machine,
    whose locks may not be visible here, events of the last ten minutes count.
    """
    if run.result or (run.log and run.log.first("run_stop")):
        return ""
    events = [path for path in run.path.glob("events.rank*.jsonl") if path.is_file()]
    if not events:
        return ""
    age = max(0.0, time.time() - max(path.stat().st_mtime for path in events))
    ago = f"its last event was {duration_text(round(age))} ago"
    if any(map(is_locked, sorted(events)[:16])):
        return f"the run is still running; {ago}"
    if age < _RECENT_S and run.env.get("hostname") not in (None, socket.gethostname(), os.uname().nodename):
        return f"the run may still be running on another machine; {ago}"
    return ""
