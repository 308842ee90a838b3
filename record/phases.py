"""Divides the time of a run into parts, using its log, which may be an MLLOG file written by any program.

All time from run_start to run_stop belongs to exactly one part, so the parts add up to the total. Records after
run_stop are ignored, since some published logs continue training for a power measurement. Epochs are counted in
the order in which they begin; epoch_num, which starts at 0 in some logs, only identifies evaluations that run
concurrently with the next epoch (NVIDIA's OC20 in HPC 3.0). The time of such an evaluation counts as training of
the next epoch, which does not wait for the evaluation.

The events of this suite's runs are more detailed (``record/breakdown.py`` divides training into data wait and
steps), but this module measures all runs in the same way.
"""

from dataclasses import dataclass

from mlhpc.record.breakdown import first_epoch_excess, whole_epochs
from mlhpc.record.mllog import Log, Record

# Time belongs to the first of these intervals that is open, which is the innermost one.
_OWNERS = {"eval": "evaluation", "save": "rest", "staging": "staging", "epoch": "training"}


@dataclass(frozen=True)
class Epoch:
    """Seconds of training, evaluation and checkpoints in one epoch, and the number of training samples: steps ×
    batch size if steps are logged, otherwise ``train_samples``; None if the epoch did not end or neither is
    logged."""

    train_s: float
    eval_s: float
    save_s: float
    samples: float | None


@dataclass(frozen=True)
class Phases:
    """Seconds of the parts of one run. ``evaluations``: seconds of each evaluation.

    ``first_epoch_excess`` is None with fewer than three whole epochs.
    """

    staging: float
    first_epoch_excess: float | None
    training: float
    evaluation: float
    rest: float
    epochs: tuple[Epoch, ...]
    evaluations: tuple[float, ...]

    @property
    def total(self) -> float:
        """The sum of the parts in seconds."""
        return sum(self.parts().values())

    def parts(self) -> dict[str, float]:
        """The parts in the order of ``breakdown.PARTS``, in seconds; an unknown excess counts as zero."""
        return {
            "staging": self.staging,
            "first_epoch_excess": self.first_epoch_excess or 0.0,
            "training": self.training,
            "evaluation": self.evaluation,
            "rest": self.rest,
        }

    @property
    def epoch_s(self) -> float | None:
        """T_epoch: mean seconds of an epoch with its evaluation and checkpoints, including the first epoch's
        excess (Farrell et al. 2021, section 4.1.1). None for a log without epochs."""
        whole = sum(e.train_s + e.eval_s + e.save_s for e in self.epochs)
        return whole / len(self.epochs) if self.epochs else None

    @property
    def steady_epoch_s(self) -> float | None:
        """Mean seconds of an epoch with its evaluation, without the first epoch's excess."""
        return (self.training + self.evaluation) / len(self.epochs) if self.epochs else None

    @property
    def train_rate(self) -> float | None:
        """Training samples per second over all epochs of known size, excluding the time of evaluations."""
        counted = [e for e in self.epochs if e.samples is not None]
        seconds = sum(e.train_s for e in counted)
        return sum(e.samples or 0.0 for e in counted) / seconds if seconds > 0 else None


def phases(log: Log) -> Phases | None:
    """The parts of the log's first run; None without run_start or run_stop."""
    run = log.run
    if run is None:
        return None
    start, stop = log.first("run_start"), log.first("run_stop")
    assert start and stop
    # With the last staging_stop, all staging has ended, whatever else is logged.
    staged = log.all("staging_stop")[-1:]
    intervals = _Intervals(_continued(log))
    now = start.time_ms
    for record in log.records:
        name, _, edge = record.key.rpartition("_")
        if not start.line < record.line <= stop.line:
            continue
        if record.line < stop.line and not (edge in ("start", "stop") and name in _OWNERS):
            continue
        # In a file with the clocks of several ranks, times go back by milliseconds; no time is counted twice.
        passed, now = max(0.0, record.time_ms - now) / 1e3, max(now, record.time_ms)
        intervals.spend(passed)
        if edge == "start":
            intervals.begin(name, record)
        else:
            intervals.end(name, record, all_ranks=record in staged)
    spent, evaluations = intervals.spent, intervals.evaluations
    spent["rest"] += run.seconds - sum(spent.values())
    finished = tuple(Epoch(e.train_s, e.eval_s, e.save_s, _samples(e, log)) for e in intervals.epochs)
    whole = finished[: whole_epochs([epoch.samples for epoch in finished])]
    excess = first_epoch_excess([epoch.train_s for epoch in whole], evaluations)
    if excess:
        spent["training"] -= excess[0]
        spent["evaluation"] -= excess[1]
    return Phases(
        **spent,
        first_epoch_excess=sum(excess) if excess else None,
        epochs=finished,
        evaluations=tuple(evaluations),
    )


def _continued(log: Log) -> set[float | None]:
    """The epoch_num of each epoch that ends only after a later epoch has begun."""
    begun, continued, latest = set[float | None](), set[float | None](), None
    for record in log.records:
        number = _number(record)
        if record.key == "epoch_start":
            begun.add(latest := number)
        elif record.key == "epoch_stop" and number in begun and number != latest:
            continued.add(number)
    return continued


class _Intervals:
    """The intervals that are open at a point in a log, and the seconds spent so far in each part and epoch.
    ``continued``: the result of ``_continued``."""

    def __init__(self, continued: set[float | None]) -> None:
        self._continued = continued
        self.spent = dict.fromkeys(("staging", "training", "evaluation", "rest"), 0.0)
        self.epochs: list[_Open] = []
        self.evaluations: list[float] = []
        self._open: dict[str, int] = {}
        self._evaluated: float | None = None

    def spend(self, seconds: float) -> None:
        """Add ``seconds`` to the part and the epoch that are currently open."""
        owner = next((part for key, part in _OWNERS.items() if self._open.get(key)), "rest")
        self.spent[owner] += seconds
        if owner == "evaluation":
            self.evaluations[-1] += seconds
        if not self.epochs:
            return
        if owner == "training":
            self.epochs[-1].train_s += seconds
        elif owner == "evaluation":
            self.epochs[-1].eval_s += seconds
        elif self._open.get("save"):
            self.epochs[-1].save_s += seconds

    def begin(self, name: str, record: Record) -> None:
        """Open the interval that ``record`` starts. The start of an epoch or evaluation ends the previous one.
        Every rank may log staging."""
        if name == "eval" and self._is_beside(record):
            return
        if name == "epoch":
            if self._evaluated in self._continued - {_number(record)}:
                self._open["eval"] = 0  # from now on, it is concurrent with this epoch
            self.epochs.append(_Open(record))
        if name == "eval":
            self._evaluated = _number(record)
        if name == "eval" and not self._open.get("eval"):
            self.evaluations.append(0.0)
        self._open[name] = self._open.get(name, 0) + 1 if name == "staging" else 1

    def end(self, name: str, record: Record, *, all_ranks: bool) -> None:
        """Close the interval that ``record`` ends. Staging is closed when it has ended on every rank that logged
        its start, or if ``all_ranks``."""
        if name in ("epoch", "eval") and self._is_beside(record):
            for epoch in self.epochs:
                if name == "epoch" and epoch.number == _number(record):
                    epoch.stop = record
            return
        if name == "epoch" and self._open.get("epoch"):
            self.epochs[-1].stop = record
        ranks_left = max(0, self._open.get(name, 0) - 1)
        self._open[name] = ranks_left if name == "staging" and not all_ranks else 0

    def _is_beside(self, record: Record) -> bool:
        """Return whether ``record`` belongs to an epoch that continues while a later epoch trains."""
        number, latest = _number(record), self.epochs[-1].number if self.epochs else None
        return number in self._continued and latest not in (None, number)


def _number(record: Record) -> float | None:
    number = record.metadata.get("epoch_num")
    return number if isinstance(number, int | float) else None


@dataclass
class _Open:
    start: Record
    stop: Record | None = None
    train_s: float = 0.0
    eval_s: float = 0.0
    save_s: float = 0.0

    @property
    def number(self) -> float | None:
        """The epoch's epoch_num."""
        return _number(self.start)


def _samples(epoch: _Open, log: Log) -> float | None:
    if epoch.stop is None:
        return None
    steps = [record.metadata.get("step_num") for record in (epoch.start, epoch.stop)]
    batch, samples = log.value("global_batch_size"), log.value("train_samples")
    first, last = steps
    if isinstance(first, int) and isinstance(last, int) and last > first and isinstance(batch, int | float):
        return float((last - first) * batch)
    return float(samples) if isinstance(samples, int | float) else None
