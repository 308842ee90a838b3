"""Whether new runs are slower than a baseline: ratios of means with 95% intervals, and the parts that changed.

The ratio is of geometric means, with Welch's t interval of the difference of mean logarithms (Welch 1947,
Biometrika 34), so that it does not depend on which of the two is the baseline. A single run has no deviation of
its own and is assumed to have that of the other group.
"""

import math
import statistics
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from mlhpc.common.energy.counters import widest
from mlhpc.common.intervals import half_width, student
from mlhpc.errors import UserError, few
from mlhpc.quantities import count
from mlhpc.record.breakdown import PARTS

METRICS = ("time_to_train_s", "epochs", "epoch_s", "time_to_train_without_staging_s", "samples_per_s",
           "joules", "joules_per_sample")  # fmt: skip
RATES = ("accelerator.float32", "accelerator.tf32", "accelerator.bfloat16", "accelerator.float16",
         "accelerator.bandwidth", "links.host", "host.memory_bandwidth", "storage.local_read",
         "storage.local_write", "network.bandwidth")  # fmt: skip
"""Figures of a node that are measured; sizes of memories and disks are not."""
HIGHER_IS_BETTER = frozenset({"samples_per_s", *RATES})
TO_TARGET = frozenset({"time_to_train_s", "epochs", "time_to_train_without_staging_s", "joules"})
"""Figures that only runs that reached the target have."""
TESTED = ("time_to_train_s", "epochs", "epoch_s")
"""Figures tested in every gate. Epochs to target and seconds per epoch are tested separately, since their causes
differ."""
MOST_RUNS = 1000
"""Maximum number of further runs to propose; if more are needed, the baseline is too noisy."""
Verdict = Literal["pass", "slower", "undecided"]
STATUS: Mapping[Verdict, int] = {"pass": 0, "undecided": 3, "slower": 1}
"""Exit statuses of verdicts, the worst last."""
Measured = tuple[dict[str, Any], list[dict[str, Any]]]
"""A row of the index, and the figures of its runs."""
Rules = Mapping[str, float]
"""By metric, the share by which new runs may be worse."""
Values = tuple[float, ...]
Ratio = tuple[float, float, float]
"""A ratio, and the ends of its 95% interval."""


@dataclass(frozen=True)
class Test:
    """``ratio``: new over baseline, or baseline over new for rates, so that above 1 is worse, with its 95%
    interval; None where one of the two has no figures. ``further``: runs needed to decide, 0 if it is decided,
    None if the baseline has too few runs or varies too much. ``counts``: False for quantities that are only shown.
    ``node``, ``when``: of a figure of one node, and the time of the new one."""

    metric: str
    new: Values
    baseline: Values
    ratio: Ratio | None
    tolerance: float
    verdict: Verdict
    further: int | None
    counts: bool
    node: str = ""
    when: str = ""


@dataclass(frozen=True)
class Gate:
    """The result of a gate. ``moved``: the change of each part in seconds per run, the largest first. ``marks``:
    what else differs."""

    tests: tuple[Test, ...]
    moved: tuple[tuple[str, float], ...]
    marks: tuple[str, ...]

    @property
    def status(self) -> int:
        """The exit status: 0 passed, 1 slower, 3 undecided."""
        verdicts = (test.verdict for test in self.tests if test.counts)
        return STATUS[max(verdicts, key=badness, default="pass")]


def badness(verdict: Verdict) -> int:
    """The order of verdicts, the worst last."""
    return list(STATUS).index(verdict)


def gate(new: Sequence[Measured], baseline: Sequence[Measured], rules: Rules) -> Gate:
    """Test ``new`` against ``baseline``. Raises UserError if either is empty, or if they cannot be compared."""
    require_comparable(new, baseline)
    shown = dict.fromkeys((*TESTED, *rules))
    tests = [tested(metric, _figures(new, metric), _figures(baseline, metric), rules) for metric in shown]
    known = tuple(test for test in tests if test.counts or test.ratio)
    return Gate(known, _moved(new, baseline), tuple(_marks(new, baseline)))


def require_comparable(new: Sequence[Measured], baseline: Sequence[Measured]) -> None:
    """Raise UserError if there is nothing to compare, or if benchmarks or versions of their definitions differ."""
    for what, rows in (("new runs", new), ("baseline", baseline)):
        if not rows:
            raise UserError(f"no records selected as {what}: all are withdrawn, or not in this store")
    for key in ("benchmark", "preset"):
        values = [sorted({str(row[key] or "not known") for row, _ in rows}) for rows in (new, baseline)]
        if len({*values[0], *values[1]}) > 1:
            pair = " cannot be compared with ".join(few(each, 3) for each in values)
            raise UserError(f"{key} {pair}; select records of only one {key}")
    stated: dict[str, set[str]] = {}
    for row, _ in (*new, *baseline):
        for each in (row["versions"] or "").split(", "):
            what, _, number = each.partition(" ")
            stated.setdefault(what, set()).add(number)
    for what, numbers in stated.items():
        if what and len(numbers) > 1:
            problem = f"results of {what} versions {few(sorted(numbers), 4)} cannot be compared"
            raise UserError(f"{problem} (docs/reference/stability.md); select one with --where versions=")


def _figures(rows: Sequence[Measured], metric: str) -> Values:
    """The positive figures of all runs or, if the metric depends on the target, of the runs that reached it."""
    values = []
    for _, runs in rows:
        for run in runs:
            value = run.get(metric)
            if isinstance(value, dict):  # joules by kind of counter
                value = widest(value)
            if value is not None and value > 0 and (run.get("reached") or metric not in TO_TARGET):
                values.append(float(value))
    return tuple(values)


def tested(metric: str, new: Values, baseline: Values, rules: Rules, *, plan: bool = True) -> Test:
    """The verdict on one figure: slower when all of the interval is above 1 + tolerance, passed when all of it is
    below. ``plan``: whether to work out how many further runs would decide."""
    allowed, counts = rules.get(metric, next(iter(rules.values()))), metric in rules
    worse = (baseline, new) if metric in HIGHER_IS_BETTER else (new, baseline)
    ratio = ratio_interval(*worse)
    if ratio and ratio[1] <= ratio[0] <= ratio[2]:
        if ratio[2] < 1 + allowed:
            return Test(metric, new, baseline, ratio, allowed, "pass", 0, counts)
        if ratio[1] > 1 + allowed:
            return Test(metric, new, baseline, ratio, allowed, "slower", 0, counts)
    further = _further(*worse, allowed, new is worse[0]) if plan else None
    return Test(metric, new, baseline, ratio, allowed, "undecided", further, counts)


def ratio_interval(above: Sequence[float], below: Sequence[float]) -> Ratio | None:
    """The ratio of the geometric means of ``above`` and ``below``, which are positive, with the ends of its 95%
    interval. None if either is empty; the ends are 0 and infinity for one value each."""
    if not above or not below:
        return None
    one, two = [[math.log(value) for value in values] for values in (above, below)]
    middle = statistics.fmean(one) - statistics.fmean(two)
    half = _half_width(one, two, len(one), len(two))
    return (math.exp(middle), math.exp(max(middle - half, -700.0)), math.exp(min(middle + half, 700.0)))


def paired_ratio(above: Sequence[float], below: Sequence[float]) -> tuple[float, float, float]:
    """Like ``ratio_interval``, for at least two pairs of values, such as those of runs with the same seed."""
    logs = [math.log(one / other) for one, other in zip(above, below, strict=True)]
    middle = statistics.fmean(logs)
    half = half_width(statistics.stdev(logs), len(logs))
    return math.exp(middle), math.exp(middle - half), math.exp(middle + half)


def _half_width(one: Sequence[float], two: Sequence[float], n: int, m: int) -> float:
    """Half the width of the 95% interval of the difference of means (Welch–Satterthwaite), if ``one`` had ``n``
    values and ``two`` ``m`` with the deviations that they have now."""
    deviations = [statistics.variance(values) if len(values) > 1 else None for values in (one, two)]
    known = [variance for variance in deviations if variance is not None]
    if not known:
        return math.inf
    first, second = (known[0] if variance is None else variance for variance in deviations)
    error = first / n + second / m
    if error == 0:
        return 0.0
    if len(known) == 1:
        freedom = float((len(one) if deviations[0] is not None else len(two)) - 1)
    else:
        freedom = error**2 / ((first / n) ** 2 / max(n - 1, 1) + (second / m) ** 2 / max(m - 1, 1))
    return student(freedom) * math.sqrt(error)


def _further(above: Values, below: Values, tolerance: float, new_is_above: bool) -> int | None:
    """The number of further new runs after which the interval would exclude 1 + ``tolerance`` if means and
    deviations stayed the same; None if more than ``MOST_RUNS``."""
    if not above or not below:
        return None
    one, two = [[math.log(value) for value in values] for values in (above, below)]
    distance = abs(statistics.fmean(one) - statistics.fmean(two) - math.log1p(tolerance))

    def enough(more: int) -> bool:
        n, m = (len(one) + more, len(two)) if new_is_above else (len(one), len(two) + more)
        return _half_width(one, two, n, m) < distance

    further = 1 + bisect_left(range(1, MOST_RUNS + 1), True, key=enough)
    return further if further <= MOST_RUNS else None


def _moved(new: Sequence[Measured], baseline: Sequence[Measured]) -> tuple[tuple[str, float], ...]:
    means = [_part_means(rows) for rows in (new, baseline)]
    changes = {part: means[0][part] - means[1][part] for part in PARTS if all(part in each for each in means)}
    return tuple(sorted(changes.items(), key=lambda change: -abs(change[1])))


def _part_means(rows: Sequence[Measured]) -> dict[str, float]:
    runs = [run["parts_s"] for _, own in rows for run in own if run.get("parts_s")]
    parts = {part for run in runs for part in run}
    return {part: statistics.fmean(run.get(part, 0.0) for run in runs) for part in parts}


def _marks(new: Sequence[Measured], baseline: Sequence[Measured]) -> list[str]:
    """Differences between the two that may explain a change; also says how many records lack versions."""
    marks = []
    for key in ("settings", "framework", "system", "machine", "ranks", "nodes", "accelerators",
                "global_batch_size", "mlhpc", "commit"):  # fmt: skip
        values = [{str(row[key]) for row, _ in rows if row[key] is not None} for rows in (new, baseline)]
        if all(values) and values[0] != values[1]:
            shown = (few([each[:24] for each in sorted(value)], 2) for value in values)
            marks.append(f"{key}: {' against '.join(shown)}")
    unstated = sum(not row["versions"] for row, _ in (*new, *baseline))
    if unstated:
        marks.append(f"{count(unstated, 'record')} without versions may not be comparable")
    of_targets = [runs for row, runs in new if row["kind"] in ("run", "campaign")]
    missed = sum(not run.get("reached") for runs in of_targets for run in runs)
    if missed:
        marks.append(f"{count(missed, 'new run')} missed the target, so only their epoch times count")
    return marks
