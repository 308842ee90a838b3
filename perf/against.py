"""The model's errors on measured sets: throughput, epochs and time to train, compared with a baseline.

The baseline is the simplest estimate: the median rate of the other sets with the same accelerator, local batch,
benchmark and framework. It uses all other sets; the model only uses the ``fit`` rows. ``apart`` leaves out a whole
round, or a whole accelerator family, in turn: what the errors are, and how often the intervals hold, for software
or hardware of which nothing was known.
"""

import math
import re
import statistics
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from mlhpc.benchmarks.load import load
from mlhpc.benchmarks.schema import Run
from mlhpc.errors import UserError
from mlhpc.perf.calibration import (
    ALL,
    By,
    Calibration,
    calibration,
    fit,
    group_of,
    left_out,
    network,
    rate_of,
    roofline,
)
from mlhpc.perf.epochs import epochs_to_target
from mlhpc.perf.machines import Machine
from mlhpc.perf.parts import Parts, of_sets, parts
from mlhpc.perf.published import Published, machine_of
from mlhpc.perf.scaling import Estimate, Triple, added, multiplied, scaled


@dataclass(frozen=True)
class Compared:
    """One set. ``rate``: predicted training samples/s per accelerator; ``baseline``: the median of similar
    sets, None without any; ``epochs``: None without convergence of other sets; ``total_s``: predicted time to
    train, None for throughput sets, or without epochs. ``how``: the source of the efficiency."""

    row: Published
    rate: Triple
    baseline: float | None
    epochs: Estimate | None
    total_s: Triple | None
    how: str

    @property
    def error(self) -> float:
        """Predicted over measured rate, minus 1."""
        return self.rate[0] / self.row.samples_per_s - 1

    @property
    def rate_inside(self) -> bool:
        """Whether the measured rate is inside the predicted interval."""
        return self.rate[1] <= self.row.samples_per_s <= self.rate[2]

    @property
    def baseline_error(self) -> float | None:
        """Baseline over measured rate, minus 1."""
        return None if self.baseline is None else self.baseline / self.row.samples_per_s - 1

    @property
    def epochs_inside(self) -> bool | None:
        """Whether the mean of the logs is inside the predicted interval."""
        return self.epochs and self.epochs.low <= self.row.epochs[0] <= self.epochs.high

    @property
    def total_error(self) -> float | None:
        """Predicted over measured time to train, minus 1."""
        return (
            None if self.total_s is None or not self.row.total_s else self.total_s[0] / self.row.total_s - 1
        )

    @property
    def total_inside(self) -> bool | None:
        """Whether the measured time to train is inside the predicted interval."""
        if self.total_s is None or not self.row.total_s:
            return None
        return self.total_s[1] <= self.row.total_s <= self.total_s[2]


@dataclass(frozen=True)
class Summary:
    """Absolute errors of the rates of ``sets`` sets: median, and the share within 35%."""

    sets: int
    median: float
    within: float


@dataclass(frozen=True)
class Coverage:
    """How many of ``of`` intervals contain what was measured, and the median of their widths, end over end."""

    inside: int
    of: int
    width: float


def compare(sets: Sequence[Published], given: Machine | None = None) -> list[Compared]:
    """Each set, predicted from its system, batch and framework. Calibrated on the ``fit`` rows among ``sets``, or
    on the suite's where there are none. ``given``: the machine of all of them; else by their system's name."""
    calibrated = fit(sets) if any(row.use == "fit" for row in sets) else calibration()
    return [_compared(row, sets, calibrated, given or machine_of(row)) for row in sets]


def apart(sets: Sequence[Published], by: By) -> list[Compared]:
    """Each set of ``sets`` that is not held out, predicted from those of other rounds, or of other accelerator
    families: rates, epochs, times and baselines. By round without the sets of accelerators that no other round
    has: nothing is known of them, as by accelerator."""
    shown = [row for row in sets if row.use != "held"]
    factors = fit(shown)
    predicted = []
    for row, calibrated in left_out(shown, shown, by):
        others = [other for other in shown if group_of(other, by) != group_of(row, by)]
        calibrated = replace(
            calibrated, of_a_round=factors.of_a_round, of_an_accelerator=factors.of_an_accelerator
        )
        one = _compared(row, [*others, row], calibrated, machine_of(row), others)
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
    """``others``: the sets that epochs and the parts other than steps are known from; None: the published ones."""
    value, efficiency = rate_of(row, machine, calibrated)
    half = calibrated.factor_of(efficiency, machine.family, known=efficiency.exact)
    limit = row.local_batch_size / (
        roofline(network(row.benchmark, row.preset), machine, efficiency.precision)
        * max(1.0, row.local_batch_size)
    )
    rate = value, value / half, max(value, min(value * half, limit)) if row.spatial == 1 else value * half
    total = epochs = None
    with suppress(UserError):
        epochs = epochs_to_target(row.benchmark, row.preset, row.batch, others)
        if row.metric == "strong" and row.total_s:
            spent = parts() if others is None else of_sets(others)
            total = _total(row, load(row.benchmark, row.preset), rate, epochs, spent)
    return Compared(row, rate, baseline(row, sets, machine.family), epochs, total, efficiency.how)


def _total(row: Published, run: Run, rate: Triple, epochs: Estimate, spent: Parts) -> Triple:
    """T_staging as logged, since the staging method is the submitter's choice; the rest predicted."""
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
    like = [other for other in sets if other is not row and other.use != "held" and _like(other, row)]
    alike = [o for o in like if _model(o) == _model(row)] or [o for o in like if _family(o) == family]
    return statistics.median(o.samples_per_s for o in alike) if alike else None


def _like(other: Published, row: Published) -> bool:
    same = (other.benchmark, other.framework) == (row.benchmark, row.framework)
    return same and math.isclose(other.local_batch_size, row.local_batch_size, rel_tol=0.01)


def _model(row: Published) -> str:
    """The name without the part in brackets, such as the power limit."""
    return re.sub(r"\s*\(.*", "", row.model)


def _family(row: Published) -> str:
    try:
        return machine_of(row).family
    except UserError:
        return row.model


def coverage(intervals: Sequence[tuple[Triple | None, bool | None]]) -> Coverage | None:
    """Of (interval, whether the measurement is inside) pairs; None without any."""
    known = [(ends, inside) for ends, inside in intervals if ends is not None and inside is not None]
    if not known:
        return None
    width = statistics.median(high / low if low > 0 else math.inf for (_, low, high), _ in known)
    return Coverage(sum(inside for _, inside in known), len(known), width)


def summary(errors: Sequence[float | None]) -> Summary | None:
    """Of the errors that are known; None without any."""
    absolute = [abs(error) for error in errors if error is not None]
    if not absolute:
        return None
    return Summary(
        len(absolute), statistics.median(absolute), sum(e <= 0.35 for e in absolute) / len(absolute)
    )
