"""Breakdown of the time of a run from its log: any MLLOG file of any program.

All time from run_start to run_stop belongs to exactly one part, so the parts add up to the total. Records after
run_stop are ignored: some published logs continue training for a power measurement. Epochs are counted as they
begin; epoch_num is not used, since some logs count it from 0.

The events of this suite's runs have more detail (``record/breakdown.py``: training split into data
wait and steps); here all runs are measured in the same way.
"""

from dataclasses import dataclass

from mlhpc.record.breakdown import first_epoch_excess, whole_epochs
from mlhpc.record.mllog import Log, Record

PARTS = {
    "staging": ("Staging", "between staging_start and staging_stop"),
    "first_epoch_excess": (
        "First-epoch excess",
        "time by which the first epoch and the first evaluation exceed the median of the later ones: "
        "includes data read during training, which has no separate key",
    ),
    "training": ("Training", "inside the epochs, without evaluation and checkpoints"),
    "evaluation": ("Evaluation", "between eval_start and eval_stop"),
    "rest": (
        "Rest",
        "everything else inside the clock: set-up after run_start, checkpoints, shards exchanged between epochs",
    ),
}

# Time belongs to the innermost open interval.
_OWNERS = (("eval", "evaluation"), ("save", "rest"), ("staging", "staging"), ("epoch", "training"))


@dataclass(frozen=True)
class Epoch:
    """Seconds of one epoch: training, evaluation, checkpoints; and the samples it trained on: steps × batch
    size if steps are logged, else ``train_samples``; None if it did not end or they are not logged."""

    train_s: float
    eval_s: float
    save_s: float
    samples: float | None


@dataclass(frozen=True)
class Phases:
    """Seconds of the parts of one run; ``evaluations`` are the seconds of each evaluation.

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
        return sum(self.parts().values())

    def parts(self) -> dict[str, float]:
        """The parts in the order of ``PARTS``, in seconds; an unknown excess counts as zero."""
        return {
            "staging": self.staging,
            "first_epoch_excess": self.first_epoch_excess or 0.0,
            "training": self.training,
            "evaluation": self.evaluation,
            "rest": self.rest,
        }

    @property
    def epoch_s(self) -> float | None:
        """T_epoch: the mean epoch with its evaluation and checkpoints, including the first epoch's excess
        (Farrell et al. 2021, section 4.1.1). None without an epoch."""
        whole = sum(e.train_s + e.eval_s + e.save_s for e in self.epochs)
        return whole / len(self.epochs) if self.epochs else None

    @property
    def train_rate(self) -> float | None:
        """Training samples/s over all epochs of known size, without evaluation."""
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
    spent = dict.fromkeys(("staging", "training", "evaluation", "rest"), 0.0)
    open_: dict[str, int] = {}
    epochs: list[_Open] = []
    evaluations: list[float] = []
    now = start.time_ms
    staged = next(
        iter(log.all("staging_stop")[-1:]), None
    )  # all staging has ended at this point, logged or not
    for record in log.records:
        if record.line <= start.line:
            continue
        name, _, edge = record.key.rpartition("_")
        last = record.line >= stop.line
        if not last and (edge not in ("start", "stop") or name not in ("eval", "save", "staging", "epoch")):
            continue
        # Clocks of several ranks in one file go back by milliseconds: do not count time twice.
        passed, now = max(0.0, record.time_ms - now) / 1e3, max(now, record.time_ms)
        owner = next((part for key, part in _OWNERS if open_.get(key)), "rest")
        spent[owner] += passed
        if owner == "training":
            epochs[-1].train_s += passed
        elif owner == "evaluation":
            evaluations[-1] += passed
            if epochs:
                epochs[-1].eval_s += passed
        elif open_.get("save") and epochs:
            epochs[-1].save_s += passed
        if last:
            break
        if edge == "start":
            if name == "epoch":
                epochs.append(_Open(record))
            if name == "eval" and not open_.get("eval"):
                evaluations.append(0.0)
            # Every rank may log its staging; the start of an epoch or evaluation ends the previous one.
            open_[name] = open_.get(name, 0) + 1 if name == "staging" else 1
        else:
            if name == "epoch" and open_.get("epoch"):
                epochs[-1].stop = record
            left = name == "staging" and record is not staged
            open_[name] = max(0, open_.get(name, 0) - 1) if left else 0
    spent["rest"] += run.seconds - sum(spent.values())
    finished = tuple(Epoch(e.train_s, e.eval_s, e.save_s, _samples(e, log)) for e in epochs)
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


@dataclass
class _Open:
    start: Record
    stop: Record | None = None
    train_s: float = 0.0
    eval_s: float = 0.0
    save_s: float = 0.0


def _samples(epoch: _Open, log: Log) -> float | None:
    if epoch.stop is None:
        return None
    steps = [record.metadata.get("step_num") for record in (epoch.start, epoch.stop)]
    batch, samples = log.value("global_batch_size"), log.value("train_samples")
    first, last = steps
    if isinstance(first, int) and isinstance(last, int) and last > first and isinstance(batch, int | float):
        return float((last - first) * batch)
    return float(samples) if isinstance(samples, int | float) else None
