"""The number of epochs to target, and its variation between runs and implementations.

The mean comes from the reference convergence points for the batch size (mlperf-logging); between two points it is
interpolated linearly in logarithms. Submissions differ from the reference by more than repeated runs differ from
each other, so the interval comes from the ratios of the published ``fit`` sets to these points.
"""

import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from mlhpc.common.intervals import student
from mlhpc.errors import UserError
from mlhpc.perf.published import Published, published
from mlhpc.perf.scaling import Estimate, Point, carried

_RULES = {
    "cosmoflow": ("cosmoflow", "hpc_2.0.0"),
    "deepcam": ("deepcam", "hpc_2.0.0"),
    "resnet50": ("resnet", "training_4.0.0"),
}
"""By benchmark: its name in logs, and the rules whose checker has its convergence points."""
ROUND_07 = "the sets of round 0.7 that the model is fitted to; no reference convergence points exist"


@dataclass(frozen=True)
class ReferenceRuns:
    """A reference convergence point as mlperf-logging records it: epochs to target of each run, ascending."""

    name: str
    batch_size: int
    epochs: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Mean epochs, without the fastest and the slowest run (rcp_checker)."""
        return statistics.fmean(self.epochs[1:-1])

    @property
    def spread(self) -> float:
        """The standard deviation of the epochs."""
        return statistics.pstdev(self.epochs)

    @property
    def counted(self) -> int:
        """The number of runs that a test uses as sample size."""
        return len(self.epochs) - 2


@dataclass(frozen=True)
class Spread:
    """The mean and standard deviation of a ratio's logarithm over ``sets`` sets."""

    mean: float
    deviation: float
    sets: int

    @property
    def factors(self) -> tuple[float, float]:
        """The 95% prediction interval for the ratio of one additional set (Student's t)."""
        half = student(self.sets - 1) * self.deviation * math.sqrt(1 + 1 / self.sets)
        return math.exp(self.mean - half), math.exp(self.mean + half)


def spread_of(ratios: Sequence[float]) -> Spread:
    """The spread of at least two ratios."""
    logs = [math.log(ratio) for ratio in ratios]
    return Spread(statistics.fmean(logs), statistics.stdev(logs), len(logs))


@cache
def reference_runs(logged_name: str, rules: str) -> tuple[ReferenceRuns, ...]:
    """The reference convergence points of the benchmark that logs call ``logged_name`` under ``rules``
    (``hpc_2.0.0``), by batch size; empty if mlperf-logging has none. Raises ModuleNotFoundError if mlperf-logging
    is not installed."""
    spec = find_spec("mlperf_logging")  # located without importing it, which would take a second
    if spec is None:
        raise ModuleNotFoundError("No module named 'mlperf_logging'", name="mlperf_logging")
    if not spec.submodule_search_locations or not logged_name.isidentifier():
        return ()
    folder = Path(next(iter(spec.submodule_search_locations))) / "rcp_checker"
    path = folder / rules / f"rcps_{logged_name}.json"
    if not path.is_file():
        return ()
    points = [
        ReferenceRuns(name, record["BS"], tuple(sorted(record["Epochs to converge"])))
        for name, record in json.loads(path.read_text("utf-8")).items()
    ]
    return tuple(sorted(points, key=lambda point: point.batch_size))


def convergence_points(benchmark: str) -> tuple[Point, ...]:
    """The mean, smallest and largest number of epochs by batch size; empty for a benchmark without convergence
    points."""
    runs = reference_runs(*_RULES[benchmark]) if benchmark in _RULES else ()
    return tuple(Point(p.batch_size, (p.mean, p.epochs[0], p.epochs[-1]), "reference") for p in runs)


def epochs_to_target(
    benchmark: str, preset: str, batch: int, sets: Sequence[Published] | None = None
) -> Estimate:
    """The number of epochs to target with its interval, from the ``fit`` rows of ``sets`` (None: the published
    ones). Raises UserError for a preset without published convergence."""
    if preset == "v07":
        return _round_07(batch, published() if sets is None else sets)
    points = convergence_points(benchmark)
    if not points or not (preset.startswith("closed") or preset == "open"):
        raise UserError(
            f"{benchmark}, preset {preset}: no convergence data are published; use a closed preset"
        )  # fmt: skip
    middle = carried(points, batch, "batch size", 0.5, (0.0, 1.0))
    scatter = spread(benchmark) if sets is None else _spread(benchmark, sets)
    down, up = scatter.factors
    low, high = middle.value * min(1.0, down), middle.value * max(1.0, up)
    if not points[0].size <= batch <= points[-1].size:
        low, high = min(low, middle.low), max(high, middle.high)
    own = len(_own(benchmark, published())) > 1
    whose = "published sets" if own else "published sets of other benchmarks"
    return Estimate(middle.value, low, high, f"{middle.how}; interval from {scatter.sets} {whose}")


@cache
def spread(benchmark: str) -> Spread:
    """The spread of the benchmark's ``fit`` sets since round 1.0 around the convergence points. If there are fewer
    than two such sets, those of all benchmarks are used."""
    return _spread(benchmark, published())


def _spread(benchmark: str, sets: Sequence[Published]) -> Spread:
    own = _own(benchmark, sets)
    if len(own) < 2:
        own = [row for row in sets if row.use == "fit" and row.round != "v0.7"]
    if len(own) < 2:
        raise UserError(f"{benchmark}: too few sets marked fit to estimate an interval for the epochs")
    return spread_of([r.epochs[0] / _point(r) for r in own])


def _own(benchmark: str, sets: Sequence[Published]) -> list[Published]:
    """The benchmark's sets from which the interval of its epochs may be derived."""
    return [r for r in sets if (r.use, r.benchmark) == ("fit", benchmark) and r.round != "v0.7"]


def _point(row: Published) -> float:
    return carried(convergence_points(row.benchmark), row.batch, "batch size", 0.5, (0.0, 1.0)).value


def _round_07(batch: int, sets: Sequence[Published]) -> Estimate:
    """Epochs to target of CosmoFlow as in round 0.7 (kernel 2, 262,144 samples), from that round's ``fit`` sets,
    with the range over their runs."""
    rows = [r for r in sets if r.use == "fit" and r.round == "v0.7" and r.benchmark == "cosmoflow"]
    if len(rows) < 3:
        raise UserError("cosmoflow, preset v07: too few sets of round 0.7 to estimate the epochs")
    points = [Point(r.batch, r.epochs, r.name) for r in rows]
    estimate = carried(points, batch, "batch size", 0.5, (0.0, 1.0))
    # The spread of each set around the line through the other sets, like the spread around the reference's points.
    ratios = []
    for left_out in points:
        others = [p for p in points if p is not left_out]
        ratios.append(left_out.value[0] / carried(others, left_out.size, "", 0.5, (0.0, 1.0)).value)
    down, up = spread_of(ratios).factors
    low, high = estimate.value * min(1.0, down), estimate.value * max(1.0, up)
    return Estimate(estimate.value, low, high, f"{estimate.how}; {ROUND_07}")
