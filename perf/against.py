"""The model's errors on measured sets: throughput, epochs and time to train, compared with a baseline.

The baseline is the simplest estimate: the median rate of the other sets with the same accelerator, local batch,
benchmark and framework. The baseline may use all other sets, the model only the ``fit`` rows. ``apart`` leaves out
each whole round, or accelerator family, in turn, to show the errors and the coverage of the intervals for unknown
software or hardware.
"""

import argparse
import json
import math
import re
import statistics
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from rich.console import Console

from mlhpc.benchmarks.schema import Run
from mlhpc.common.pages.blocks import Cell, table
from mlhpc.common.pages.terminal import print_table, say
from mlhpc.errors import UserError, did_you_mean
from mlhpc.perf.calibration import (
    ALL,
    By,
    Calibration,
    calibration,
    fit,
    group_of,
    left_out,
    rate_of,
    roofline,
)
from mlhpc.perf.epochs import epochs_to_target
from mlhpc.perf.machines import Machine, machine
from mlhpc.perf.parts import Parts, of_sets, parts
from mlhpc.perf.published import USES, Published, published, read
from mlhpc.perf.scaling import Estimate, Triple, added, multiplied, scaled
from mlhpc.quantities import digits, four_digits


@dataclass(frozen=True)
class Compared:
    """One set. ``rate``: predicted training samples/s per accelerator; ``baseline``: the median rate of similar
    sets, None if there are none; ``epochs``: the prediction, None if no other sets converged; ``total_s``:
    predicted time to train, None for throughput sets and where ``epochs`` is None. ``how``: the source of the
    efficiency."""

    row: Published
    rate: Triple
    baseline: float | None
    epochs: Estimate | None
    total_s: Triple | None
    how: str

    @property
    def error(self) -> float:
        """Ratio of predicted to measured rate, minus 1."""
        return self.rate[0] / self.row.samples_per_s - 1

    @property
    def baseline_error(self) -> float | None:
        """Ratio of baseline to measured rate, minus 1."""
        return None if self.baseline is None else self.baseline / self.row.samples_per_s - 1

    @property
    def epochs_inside(self) -> bool | None:
        """Return whether the logged runs' mean number of epochs is inside the predicted interval."""
        return self.epochs and self.epochs.low <= self.row.epochs[0] <= self.epochs.high

    @property
    def total_error(self) -> float | None:
        """Ratio of predicted to measured time to train, minus 1."""
        return self.total_s[0] / self.row.total_s - 1 if self.total_s and self.row.total_s else None


@dataclass(frozen=True)
class Summary:
    """Absolute errors of the predicted rates of ``sets`` sets: their median, and the share of sets within 35%."""

    sets: int
    median: float
    within: float


@dataclass(frozen=True)
class Coverage:
    """The number of intervals, out of ``of``, that contain the measurement, and the intervals' median width, as
    the ratio of their ends."""

    inside: int
    of: int
    width: float


def against(options: argparse.Namespace) -> int:
    """``mlhpc predict --against``: prints the prediction errors for the sets in a file, or for the suite's sets if
    the file is "published", of one benchmark or all. Raises UserError."""
    given = machine(options.machine) if options.machine else None
    if options.out:
        raise UserError(
            "--out writes a prediction page and cannot be combined with --against; omit one of them"
        )
    sets = published() if str(options.against) == "published" else read(options.against)
    compared = compare(sets, given)
    if options.benchmark:
        names = sorted({c.row.benchmark for c in compared})
        if options.benchmark not in names:
            raise UserError(
                f"no measured set for {options.benchmark!r}; {did_you_mean(options.benchmark, names)}"
            )
        compared = [c for c in compared if c.row.benchmark == options.benchmark]
    if options.json:
        print(json.dumps(records(compared), indent=1))
    else:
        show(compared)
    return 0


def compare(sets: Sequence[Published], given: Machine | None = None) -> list[Compared]:
    """Predict each set from its system, batch and framework. The model is calibrated on the ``fit`` rows among
    ``sets``, or on the suite's if there are none. ``given`` is the machine of all sets; without it, each set's
    system name selects the machine."""
    calibrated = fit(sets) if any(row.use == "fit" for row in sets) else calibration()
    return [_compared(row, sets, calibrated, given or row.machine) for row in sets]


def apart(sets: Sequence[Published], by: By) -> list[Compared]:
    """For each of ``sets`` that was known when the model was made, predict rate, epochs, time and baseline from
    the sets of other rounds or of other accelerator families. By round, sets whose accelerator occurs in no other
    round are omitted, because nothing is known about that accelerator."""
    shown = [row for row in sets if row.is_early]
    factors = fit(shown)
    predicted = []
    for row, calibrated in left_out(shown, shown, by):
        others = [other for other in shown if group_of(other, by) != group_of(row, by)]
        calibrated = replace(
            calibrated, of_a_round=factors.of_a_round, of_an_accelerator=factors.of_an_accelerator
        )
        one = _compared(row, [*others, row], calibrated, row.machine, others)
        if by == "accelerator" or ALL not in one.how:
            predicted.append(one)
    return predicted


def _compared(
    row: Published,
    sets: Sequence[Published],
    calibrated: Calibration,
    machine: Machine,
    others: Sequence[Published] | None = None,
) -> Compared:
    """Compare a set with its prediction. ``others``: the sets from which epochs and the parts other than steps are
    derived; None: the published sets. For a blind set, the committed prediction is compared, not today's."""
    if row.committed:
        committed = Estimate(*row.committed[1], "committed before the result was read")
        like = baseline(row, sets, machine.family)
        return Compared(row, row.committed[0], like, committed, None, committed.how)
    value, efficiency = rate_of(row, machine, calibrated)
    half = calibrated.factor_of(efficiency, machine.family, known=efficiency.exact)
    limit = row.local_batch_size / (
        roofline(row.network, machine, efficiency.precision) * max(1.0, row.local_batch_size)
    )
    rate = value, value / half, max(value, min(value * half, limit)) if row.spatial == 1 else value * half
    total = epochs = None
    with suppress(UserError):
        epochs = epochs_to_target(row.benchmark, row.preset, row.batch, others)
        if row.metric == "strong" and row.total_s:
            spent = parts() if others is None else of_sets(others)
            total = _total(row, row.run, rate, epochs, spent)
    return Compared(row, rate, baseline(row, sets, machine.family), epochs, total, efficiency.how)


def _total(row: Published, run: Run, rate: Triple, epochs: Estimate, spent: Parts) -> Triple:
    """The predicted time to train, with T_staging as logged, since the staging method is the submitter's
    choice."""
    value, slow, fast = (row.train_samples / (each * row.accelerators) for each in rate)
    train = value, fast, slow
    share = run.data.eval_samples / run.data.train_samples
    epoch = added(train, scaled(multiplied(train, spent.evaluation), share))
    trained = multiplied(epoch, epochs.ends)
    staged = row.staging_s or 0.0
    return added((staged, staged, staged), trained, multiplied(trained, spent.rest))


def baseline(row: Published, sets: Sequence[Published], family: str) -> float | None:
    """The median rate of the other sets with the same benchmark, framework, local batch and accelerator model;
    otherwise of the same accelerator family; None if there are none."""
    like = [other for other in sets if other is not row and other.is_early and _like(other, row)]
    alike = [o for o in like if _model(o) == _model(row)] or [o for o in like if _family(o) == family]
    return statistics.median(o.samples_per_s for o in alike) if alike else None


def _like(other: Published, row: Published) -> bool:
    same = (other.benchmark, other.framework) == (row.benchmark, row.framework)
    return same and math.isclose(other.local_batch_size, row.local_batch_size, rel_tol=0.01)


def _model(row: Published) -> str:
    """The accelerator's name without the part in brackets, such as the power limit."""
    return re.sub(r"\s*\(.*", "", row.model)


def _family(row: Published) -> str:
    try:
        return row.machine.family
    except UserError:
        return row.model


def coverage(intervals: Sequence[tuple[Triple | None, float | None]]) -> Coverage | None:
    """The coverage over pairs of (interval, measurement); None if none has both."""
    known = [(*ends, measured) for ends, measured in intervals if ends is not None and measured is not None]
    if not known:
        return None
    width = statistics.median(high / low if low > 0 else math.inf for _, low, high, _ in known)
    return Coverage(sum(low <= measured <= high for _, low, high, measured in known), len(known), width)


def summary(errors: Sequence[float | None]) -> Summary | None:
    """The summary of all errors that are known; None if none is."""
    absolute = [abs(error) for error in errors if error is not None]
    if not absolute:
        return None
    return Summary(
        len(absolute), statistics.median(absolute), sum(e <= 0.35 for e in absolute) / len(absolute)
    )


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:+.0%}"


def show(compared: Sequence[Compared]) -> None:
    """Print a row for each set, and the summaries."""
    console = Console(highlight=False)
    columns: dict[str, Callable[[Compared], Cell | str]] = {
        "use": lambda c: c.row.use,
        "set": lambda c: f"{c.row.benchmark} {c.row.round} {c.row.system}",
        "batch": lambda c: (
            four_digits(c.row.local_batch_size) if c.row.local_batch_size >= 1 else f"1/{c.row.spatial}"
        ),
        "samples/s": lambda c: digits(c.row.samples_per_s),
        "model": lambda c: digits(c.rate[0]),
        "error": lambda c: _percent(c.error),
        "base": lambda c: _percent(c.baseline_error),
        "epochs": lambda c: f"{c.row.epochs[0]:.1f}{'' if c.epochs_inside is not False else ' !'}",
        "interval": lambda c: f"{c.epochs.low:.0f}–{c.epochs.high:.0f}" if c.epochs else "",
        "time": lambda c: _percent(c.total_error),
    }
    ordered = sorted(compared, key=lambda c: (c.row.benchmark, c.row.use))
    print_table(table("errors", ordered, columns, text_columns=2), console, optional=1)
    say(console, "error: relative error of samples/s per accelerator; base: error of the baseline; time: error of "
                 "the time to train, with T_staging as logged; !: outside the interval")  # fmt: skip
    for name, lines in summaries_of(compared).items():
        for line in lines:
            say(console, f"{name}: {line}")


def summaries_of(compared: Sequence[Compared]) -> dict[str, list[str]]:
    """The summary for each ``use`` of the sets. If some are ``fit``, also for predictions from other rounds and
    from other accelerators, which show what to expect for a system that is not among the sets."""
    uses = {use: use for use in USES} | {"blind": "blind, committed before the result was read"}
    found = {name: summaries([c for c in compared if c.row.use == use]) for use, name in uses.items()}
    rows = [c.row for c in compared]
    if any(row.use == "fit" for row in rows):
        found["each round left out in turn"] = summaries(apart(rows, "round"))
        found["each accelerator left out in turn"] = summaries(apart(rows, "accelerator"))
    return {name: lines for name, lines in found.items() if lines}


def summaries(compared: Sequence[Compared]) -> list[str]:
    """Sentences that summarise the errors of the model and, for the sets that have a baseline, of the baseline."""
    if not compared:
        return []
    both = [c for c in compared if c.baseline is not None]
    errors = {
        "throughput": summary([c.error for c in compared]),
        "throughput of sets with a baseline": summary([c.error for c in both]),
        "baseline": summary([c.baseline_error for c in both]),
        "time to train, T_staging as logged": summary([c.total_error for c in compared]),
    }
    lines = [f"{name}: {_summary(figures)}" for name, figures in errors.items() if figures]
    model, guess = errors["throughput of sets with a baseline"], errors["baseline"]
    if model and guess:
        better = "the baseline is better" if guess.median < model.median else "the model is at least as good"
        lines.append(f"{better}: the median of comparable sets is off by {guess.median:.1%}, the model by "
                     f"{model.median:.1%}")  # fmt: skip
    else:
        lines.append("no set has a baseline: none has comparable sets")
    intervals = {
        "throughput": coverage([(c.rate, c.row.samples_per_s) for c in compared]),
        "epochs": coverage([(c.epochs and c.epochs.ends, c.row.epochs[0]) for c in compared]),
        "time to train": coverage([(c.total_s, c.row.total_s) for c in compared]),
    }
    for name, counted in intervals.items():
        if counted:
            lines.append(
                f"{name} inside the interval: {counted.inside} of {counted.of} sets, median width: a factor of "
                f"{digits(counted.width, 2)}"
            )
    return lines


def _summary(error: Summary) -> str:
    return f"median error {error.median:.1%}, {error.within:.0%} within 35%, {error.sets} sets"


def records(compared: Sequence[Compared]) -> dict[str, Any]:
    """The compared sets as JSON, with the summaries."""
    sets = [
        {
            "use": c.row.use,
            "set": c.row.name,
            "benchmark": c.row.benchmark,
            "samples_per_s": c.row.samples_per_s,
            "predicted": c.rate[0],
            "predicted_interval": list(c.rate[1:]),
            "error": c.error,
            "baseline_error": c.baseline_error,
            "epochs": c.row.epochs[0],
            "epochs_interval": [c.epochs.low, c.epochs.high] if c.epochs else None,
            "epochs_inside": c.epochs_inside,
            "time_to_train_error": c.total_error,
            "efficiency_of": c.how,
        }
        for c in compared
    ]
    return {"sets": sets, "summary": summaries_of(compared)}
