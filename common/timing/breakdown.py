"""Breakdown of time to train into parts, from a rank's events. The parts of the interval run_start to run_stop are

- staging: the span ``staging``;
- data wait: time that the training loop waited for its next batch;
- step: the rest of the training spans;
- evaluation: the spans ``eval``;
- first-epoch excess: the amount by which data wait, step and evaluation of the first epoch exceed the median
  of later whole epochs, subtracted from these three. It shows data read during training: it was 10 to 43% of
  time to train in published logs that have no staging records;
- exchange: the spans ``exchange``, in which nodes exchange their shards between epochs;
- rest: everything else (checkpoints, the time between epochs).
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from mlhpc.common.files.regular import open_regular
from mlhpc.common.files.untrusted import MOST_VALUES, count_values, parse_json


@dataclass(frozen=True)
class EpochTimes:
    """Seconds of one epoch. ``train_s`` = ``data_wait_s`` + ``step_s``."""

    epoch: int
    train_s: float
    data_wait_s: float
    eval_s: float

    @property
    def step_s(self) -> float:
        return self.train_s - self.data_wait_s


@dataclass(frozen=True)
class Breakdown:
    """Seconds. ``first_epoch_excess`` is None with fewer than three whole epochs."""

    total: float
    staging: float
    first_epoch_excess: float | None
    data_wait: float
    step: float
    evaluation: float
    exchange: float
    epochs: tuple[EpochTimes, ...]

    @property
    def rest(self) -> float:
        parts = self.staging + (self.first_epoch_excess or 0.0) + self.data_wait + self.step + self.evaluation
        return self.total - parts - self.exchange

    @property
    def without_staging(self) -> float:
        return self.total - self.staging

    def parts(self) -> dict[str, float | None]:
        """The parts in seconds, in the order of reports; ``exchange`` only if there was one."""
        return {
            "staging": self.staging,
            **({"exchange": self.exchange} if self.exchange else {}),
            "first_epoch_excess": self.first_epoch_excess,
            "data_wait": self.data_wait,
            "step": self.step,
            "evaluation": self.evaluation,
            "rest": self.rest,
        }


LONGEST_EVENT = 2**20
"""Characters of an event."""


def read_events(path: Path) -> list[dict[str, Any]]:
    """The events of one rank, up to the first invalid line: the last line of a killed rank may be truncated.
    A file of more than ``MOST_VALUES`` values is read up to there.
    Raises OSError if ``path`` cannot be read or is not a regular file."""
    events = []
    left = MOST_VALUES
    with os.fdopen(open_regular(path), encoding="utf-8", errors="replace") as file:
        while line := file.readline(LONGEST_EVENT):
            try:
                event = parse_json(line, left)
            except ValueError:
                break
            left -= count_values(line)
            if not isinstance(event, dict) or not is_event(event):
                break
            events.append(event)
    return events


def is_event(fields: dict[str, Any]) -> bool:
    """Whether a line of a rank's events has names and finite numbers in the fields used by readers."""
    if not isinstance(fields.get("event"), str) or not isinstance(fields.get("name"), str):
        return False
    for key in ("t", "seconds", "count", "epoch"):
        number = fields.get(key, 0)
        if type(number) not in (int, float) or not -1e300 < number < 1e300:
            return False
    return True


def breakdown(events: Iterable[dict[str, Any]]) -> Breakdown:
    """Breakdown of time to train, from the events of one rank. Raises ValueError if they do not contain the
    run's end."""
    events = list(events)
    runs = _seconds(events, "run")
    if not runs:
        raise ValueError("the events contain no finished run")
    epochs = epoch_times(events)
    counts = _sums(events, "timed", "data_wait", "count")
    # An evaluation within the last epoch may end it early: it is then not comparable with the first.
    batches = [counts.get(epoch.epoch) for epoch in epochs]
    whole = len(epochs) - (len(epochs) > 1 and batches[-1] != batches[0])
    wait = _without_excess([epoch.data_wait_s for epoch in epochs], whole)
    step = _without_excess([epoch.step_s for epoch in epochs], whole)
    # Each evaluation separately: an epoch may have none or several.
    evaluations = [e["seconds"] for e in events if e["event"] == "end" and e["name"] == "eval"]
    evaluated = _without_excess(evaluations, len(evaluations) if whole >= 3 else 0)
    return Breakdown(
        total=sum(runs.values()),
        staging=sum(_seconds(events, "staging").values()),
        first_epoch_excess=wait[1] + step[1] + evaluated[1] if whole >= 3 else None,
        data_wait=wait[0],
        step=step[0],
        evaluation=evaluated[0],
        exchange=sum(_seconds(events, "exchange").values()),
        epochs=epochs,
    )


def epoch_times(events: Iterable[dict[str, Any]]) -> tuple[EpochTimes, ...]:
    """The times of the epochs with completed training, also for an active run."""
    events = list(events)
    train, evaluation = _seconds(events, "train"), _seconds(events, "eval")
    waits = _sums(events, "timed", "data_wait", "seconds")
    return tuple(
        EpochTimes(epoch, seconds, waits.get(epoch, 0.0), evaluation.get(epoch, 0.0))
        for epoch, seconds in sorted(train.items())
    )


def _seconds(events: list[dict[str, Any]], name: str) -> dict[Any, float]:
    return _sums(events, "end", name, "seconds")


def _sums(events: list[dict[str, Any]], event: str, name: str, key: str) -> dict[Any, float]:
    """Sums by epoch: an epoch with evaluations inside it has several training spans."""
    sums: dict[Any, float] = {}
    for each in events:
        if each["event"] == event and each["name"] == name:
            sums[each.get("epoch")] = sums.get(each.get("epoch"), 0.0) + each.get(key, 0)
    return sums


def _without_excess(seconds: list[float], whole: int) -> tuple[float, float]:
    """(sum without the first epoch's excess over the median of the other ``whole`` epochs, that excess)."""
    excess = max(0.0, seconds[0] - median(seconds[1:whole])) if whole >= 3 else 0.0
    return sum(seconds) - excess, excess
