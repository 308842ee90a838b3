"""The model's errors on measured sets: throughput, epochs and time to train, compared with a baseline.

The baseline is the simplest estimate: the median rate of the other sets with the same accelerator, local batch,
benchmark and framework. It uses all other sets; the model only uses the ``fit`` rows.
"""

import math
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from mlhpc.benchmarks.load import load
from mlhpc.benchmarks.schema import Run
from mlhpc.errors import UserError
from mlhpc.perf.calibration import (
    Calibration,
    calibration,
    communication,
    fit,
    kind_of,
    network,
    roofline,
    step_seconds,
)
from mlhpc.perf.epochs import epochs_to_target
from mlhpc.perf.machines import Machine
from mlhpc.perf.parts import parts
from mlhpc.perf.published import Published, machine_of
from mlhpc.perf.scaling import Estimate


@dataclass(frozen=True)
class Compared:
    """One set. ``rate``: predicted training samples/s per accelerator; ``baseline``: the median of similar
    sets, None without any; ``total_s``: predicted time to train, None for throughput sets. ``how``: the
    source of the efficiency."""

    row: Published
    rate: float
    baseline: float | None
    epochs: Estimate
    total_s: float | None
    how: str

    @property
    def error(self) -> float:
        """Predicted over measured rate, minus 1."""
        return self.rate / self.row.samples_per_s - 1

    @property
    def baseline_error(self) -> float | None:
        return None if self.baseline is None else self.baseline / self.row.samples_per_s - 1

    @property
    def epochs_inside(self) -> bool:
        """Whether the mean of the logs is inside the predicted interval."""
        return self.epochs.low <= self.row.epochs[0] <= self.epochs.high

    @property
    def total_error(self) -> float | None:
        return None if self.total_s is None or not self.row.total_s else self.total_s / self.row.total_s - 1


@dataclass(frozen=True)
class Summary:
    """Absolute errors of the rates of ``sets`` sets: median, and the share within 35%."""

    sets: int
    median: float
    within: float


def compare(sets: Sequence[Published], given: Machine | None = None) -> list[Compared]:
    """Each set, predicted from its system, batch and framework. Calibrated on the ``fit`` rows among ``sets``, or
    on the suite's where there are none. ``given``: the machine of all of them; else by their system's name."""
    calibrated = fit(sets) if any(row.use == "fit" for row in sets) else calibration()
    return [_compared(row, sets, calibrated, given or machine_of(row)) for row in sets]


def rate_of(row: Published, machine: Machine, calibrated: Calibration) -> tuple[float, str]:
    """Predicted samples/s of one accelerator, and the source of the efficiency."""
    net = network(row.benchmark, row.preset)
    efficiency = calibrated.efficiency(machine.family, kind_of(net), row.generation)
    bound = roofline(net, machine, efficiency.precision) * max(1.0, row.local_batch_size)
    reduce = communication(machine, 4 * net.parameters, row.accelerators)
    step = step_seconds(bound, efficiency.value, len(net.layers), calibrated.launch, reduce)
    if row.spatial > 1:
        share = calibrated.undivided
        step = (step - reduce) * ((1 - share) / row.spatial + share) + reduce
    return row.local_batch_size / step, efficiency.how


def _compared(
    row: Published, sets: Sequence[Published], calibrated: Calibration, machine: Machine
) -> Compared:
    rate, how = rate_of(row, machine, calibrated)
    epochs = epochs_to_target(row.benchmark, row.preset, row.batch)
    total = None
    if row.metric == "strong" and row.total_s:
        total = _total(row, load(row.benchmark, row.preset), rate, epochs.value)
    return Compared(row, rate, baseline(row, sets, machine.family), epochs, total, how)


def _total(row: Published, run: Run, rate: float, epochs: float) -> float:
    """T_staging as logged, since the staging method is the submitter's choice; the rest predicted."""
    spent = parts()
    epoch = row.train_samples / (rate * row.accelerators)
    epoch *= 1 + spent.evaluation[0] * run.data.eval_samples / run.data.train_samples
    return (row.staging_s or 0.0) + epoch * epochs * (1 + spent.rest[0])


def baseline(row: Published, sets: Sequence[Published], family: str) -> float | None:
    """The median rate of the other sets with the same benchmark, framework, local batch and accelerator model;
    otherwise of the same accelerator family; None if there are none."""
    like = [other for other in sets if other is not row and _like(other, row)]
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


def summary(errors: Sequence[float | None]) -> Summary | None:
    absolute = [abs(error) for error in errors if error is not None]
    if not absolute:
        return None
    return Summary(
        len(absolute), statistics.median(absolute), sum(e <= 0.35 for e in absolute) / len(absolute)
    )
