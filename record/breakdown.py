"""Divides the time to train, from run_start to run_stop, into parts, using the events of rank 0. The parts are

- staging: the span ``staging``, which ends when the slowest rank has finished;
- data wait: the data wait of all ranks in training, as ``data_wait`` defines it;
- step: the rest of the training spans;
- evaluation: the spans ``eval``, including their data wait;
- first-epoch excess: the time by which training and evaluation of the first epoch exceed the medians of later
  whole epochs. This time is subtracted from evaluation, and from data wait and step in proportion to the amounts
  by which these exceed their medians. The excess reveals that data was read during training: it was 10 to 43% of
  the time to train in published logs without staging records;
- exchange: the spans ``exchange``, in which nodes exchange their shards between epochs;
- rest: everything else (checkpoints, the time between epochs).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

VERSION = 1
"""Version of the definitions of the parts, incremented when a definition changes, since results of different
versions are not comparable."""
PARTS = {
    "staging": ("Staging", "copying the data set to node-local storage"),
    "exchange": ("Exchange", "nodes exchanging their shards between epochs"),
    "first_epoch_excess": (
        "First-epoch excess",
        "time of the first epoch and evaluation above the median of others",
    ),
    "data_wait": ("Data wait", "training waiting for its next batch, in each step for the slowest rank"),
    "step": ("Training steps", "forward, backward, all-reduce, update"),
    "training": ("Training", "data wait and steps, where a log does not tell them apart"),
    "evaluation": ("Evaluation", "the quality metric over the whole evaluation set, its data wait included"),
    "rest": ("Rest", "everything else in the timed region"),
}
"""Label and meaning of each part, in the order in which reports show them."""


@dataclass(frozen=True)
class EpochTimes:
    """The times of one epoch in seconds. ``train_s`` = ``data_wait_s`` + ``step_s``; ``eval_s`` includes
    ``eval_data_wait_s``."""

    epoch: int
    train_s: float
    data_wait_s: float
    eval_s: float
    eval_data_wait_s: float

    @property
    def step_s(self) -> float:
        """Training time without waiting for data."""
        return self.train_s - self.data_wait_s


@dataclass(frozen=True)
class Breakdown:
    """The parts of the time to train in seconds. ``first_epoch_excess`` is None with fewer than three whole
    epochs."""

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
        """The time that belongs to no other part."""
        parts = self.staging + (self.first_epoch_excess or 0.0) + self.data_wait + self.step + self.evaluation
        return self.total - parts - self.exchange

    @property
    def without_staging(self) -> float:
        """The total without staging."""
        return self.total - self.staging

    def parts(self) -> dict[str, float | None]:
        """The parts in seconds, in the order in which reports show them; ``exchange`` only if shards were
        exchanged."""
        return {
            "staging": self.staging,
            **({"exchange": self.exchange} if self.exchange else {}),
            "first_epoch_excess": self.first_epoch_excess,
            "data_wait": self.data_wait,
            "step": self.step,
            "evaluation": self.evaluation,
            "rest": self.rest,
        }


def breakdown(events: Iterable[dict[str, Any]]) -> Breakdown:
    """The breakdown of the time to train, from the events of one rank. Raises ValueError if the events do not
    contain the end of the run."""
    events = list(events)
    runs = _seconds(events, "run")
    if not runs:
        raise ValueError("the events contain no finished run")
    counts = _sums(events, "timed", "data_wait", "count")
    epochs = epoch_times(events)
    return of_epochs(
        epochs,
        # Each evaluation counts separately, because an epoch may have none or several.
        [e["seconds"] for e in events if e["event"] == "end" and e["name"] == "eval"],
        [counts.get(epoch.epoch) for epoch in epochs],
        total=sum(runs.values()),
        staging=sum(_seconds(events, "staging").values()),
        exchange=sum(_seconds(events, "exchange").values()),
    )


def of_epochs(
    epochs: tuple[EpochTimes, ...],
    evaluations: Sequence[float],
    sizes: Sequence[object],
    *,
    total: float,
    staging: float,
    exchange: float,
) -> Breakdown:
    """The breakdown of ``total`` seconds, from the seconds of each evaluation and the times of each epoch.
    ``sizes``: the sizes of the epochs, in batches or samples."""
    whole = whole_epochs(sizes)
    train, waits, steps = ([getattr(e, f"{key}_s") for e in epochs] for key in ("train", "data_wait", "step"))
    excess = first_epoch_excess(train[:whole], evaluations)
    trained, evaluated = excess or (0.0, 0.0)
    waited = _divide(trained, waits[:whole], steps[:whole]) if trained else 0.0
    return Breakdown(
        total=total,
        staging=staging,
        first_epoch_excess=sum(excess) if excess else None,
        data_wait=sum(waits) - waited,
        step=sum(steps) - (trained - waited),
        evaluation=sum(evaluations) - evaluated,
        exchange=exchange,
        epochs=epochs,
    )


def whole_epochs(sizes: Sequence[object]) -> int:
    """The number of epochs that are as long as the first, given the ``sizes`` of all epochs in batches or samples.
    The last epoch may be shorter, because an evaluation within it ended the run."""
    return len(sizes) - (len(sizes) > 1 and sizes[-1] != sizes[0])


def first_epoch_excess(train: Sequence[float], evaluations: Sequence[float]) -> tuple[float, float] | None:
    """The seconds by which training and evaluation of the first epoch exceed those of later epochs, given the
    training seconds of each whole epoch and the seconds of each evaluation; None with fewer than three whole
    epochs."""
    return (_first_excess(train), _first_excess(evaluations)) if len(train) >= 3 else None


def _first_excess(seconds: Sequence[float]) -> float:
    """The amount by which the first of ``seconds`` exceeds the median of the remaining values; 0 with fewer than
    three values."""
    return max(0.0, seconds[0] - median(seconds[1:])) if len(seconds) >= 3 else 0.0


def _divide(excess: float, waits: Sequence[float], steps: Sequence[float]) -> float:
    """The part of the ``excess`` of training that is data wait. The excess is divided in proportion to the
    excesses of ``waits`` and ``steps``, but neither part exceeds the value in the first epoch."""
    waited, stepped = _first_excess(waits), _first_excess(steps)
    share = waited / (waited + stepped) if waited + stepped else 0.5
    return min(max(excess * share, excess - steps[0]), waits[0])


def epoch_times(events: Iterable[dict[str, Any]]) -> tuple[EpochTimes, ...]:
    """The times of the epochs whose training is complete, also for an active run. Data waits cover all ranks if
    ``waits_are_of_all_ranks``, otherwise only rank 0."""
    events = list(events)
    train, evaluation = _seconds(events, "train"), _seconds(events, "eval")
    kind = "waited" if waits_are_of_all_ranks(events) else "timed"
    waits, eval_waits = (_sums(events, kind, name, "seconds") for name in ("data_wait", "eval_data_wait"))
    return tuple(
        EpochTimes(
            epoch,
            seconds,
            # Ranks leave a barrier at slightly different times, so the waits of all ranks may add up to more.
            min(waits.get(epoch, 0.0), seconds),
            evaluation.get(epoch, 0.0),
            min(eval_waits.get(epoch, 0.0), evaluation.get(epoch, 0.0)),
        )
        for epoch, seconds in sorted(train.items())
    )


def waits_are_of_all_ranks(events: Iterable[dict[str, Any]]) -> bool:
    """Return whether the events contain the data wait of all ranks, which is not the case for an aborted or active
    run, or a run of an early version."""
    return any(event["event"] == "waited" for event in events)


def _seconds(events: list[dict[str, Any]], name: str) -> dict[Any, float]:
    return _sums(events, "end", name, "seconds")


def _sums(events: list[dict[str, Any]], event: str, name: str, key: str) -> dict[Any, float]:
    """The sum of ``key``, by epoch, over all events of the kind ``event`` with this ``name``. (An epoch that
    contains evaluations has several training spans.)"""
    sums: dict[Any, float] = {}
    for each in events:
        if each["event"] == event and each["name"] == name:
            sums[each.get("epoch")] = sums.get(each.get("epoch"), 0.0) + each.get(key, 0)
    return sums
