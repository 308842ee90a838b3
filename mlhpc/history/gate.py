"""Tests whether new runs are slower than a baseline, by ratios of means with 95% intervals; also finds the parts
of a run that changed.

The interval of a ratio of geometric means is Welch's t interval for the difference of mean logarithms (Welch 1947,
Biometrika 34), so exchanging new runs and baseline only inverts the result. The deviation of a group that consists
of a single run is assumed to be that of the other group.
"""

import math
import statistics
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from mlhpc.common.energy.counters import shared_kind
from mlhpc.common.intervals import half_width, student
from mlhpc.errors import UserError, few
from mlhpc.history.rows import BY_KIND, TO_TARGET
from mlhpc.quantities import count
from mlhpc.record.breakdown import PARTS

RATES = ("accelerator.float32", "accelerator.tf32", "accelerator.bfloat16", "accelerator.float16",
         "accelerator.bandwidth", "links.host", "host.memory_bandwidth", "storage.local_read",
         "storage.local_write", "network.bandwidth")  # fmt: skip
"""Rates of a node that are measured. Sizes of memories and disks are not among them."""
HIGHER_IS_BETTER = frozenset({"samples_per_s", *RATES})
TESTED = ("time_to_train_s", "epochs", "epoch_s")
"""Metrics tested in every gate. Epochs to target and seconds per epoch are tested separately, since they change
for different reasons."""
EMULATED = "emulated"
"""Status of runs whose steps only take time (``--compute``)."""
MOST_RUNS = 1000
"""Maximum number of further runs to propose; if more are needed, the baseline is too noisy."""
Verdict = Literal["pass", "slower", "undecided"]
STATUS: Mapping[Verdict, int] = {"pass": 0, "undecided": 3, "slower": 1}
"""Exit status of each verdict, ordered from best to worst."""
badness = list(STATUS).index
"""The position of a verdict in the order of verdicts from best to worst, as a sorting key."""
Measured = tuple[dict[str, Any], list[dict[str, Any]]]
"""A row of the index, and the measurements of its runs."""
Rules = Mapping[str, float]
"""The fraction by which new runs may be worse, by metric."""
Values = tuple[float, ...]
Ratio = tuple[float, float, float]
"""A ratio, and the ends of its 95% interval."""


@dataclass(frozen=True)
class Test:
    """The test of one metric. ``ratio``: new over baseline (for rates, baseline over new, so that a ratio above 1
    is always worse), with its 95% interval; None if the new runs or the baseline have no values. ``further``:
    number of further runs needed for a verdict; 0 if there is one, None if the baseline has too few runs or varies
    too much. ``counts``: False for metrics that are only shown. ``node``, ``when``: for a metric of one node, the
    node and the time of the new value."""

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
    """The result of comparing new runs with a baseline. ``moved``: the change of each part of a run in seconds,
    largest change first. ``marks``: other differences between new runs and baseline."""

    tests: tuple[Test, ...]
    moved: tuple[tuple[str, float], ...]
    marks: tuple[str, ...]

    @property
    def status(self) -> int:
        """The exit status: 0 passed, 1 slower, 3 undecided."""
        verdicts = (test.verdict for test in self.tests if test.counts)
        return STATUS[max(verdicts, key=badness, default="pass")]


def gate(new: Sequence[Measured], baseline: Sequence[Measured], rules: Rules) -> Gate:
    """Test ``new`` against ``baseline``. Raises UserError if either group of runs is empty, or if the two cannot
    be compared."""
    require_comparable(new, baseline)
    metrics = dict.fromkeys((*TESTED, *rules))
    tests = [tested(metric, *_figures(metric, new, baseline), rules=rules) for metric in metrics]
    known = tuple(test for test in tests if test.counts or test.ratio)
    return Gate(known, _moved(new, baseline), tuple(_marks(new, baseline)))


def require_comparable(new: Sequence[Measured], baseline: Sequence[Measured]) -> None:
    """Raise UserError if ``new`` or ``baseline`` is empty, if benchmarks, presets or their versions differ, or
    if only some runs were emulated."""
    for what, rows in (("new runs", new), ("baseline", baseline)):
        if not rows:
            raise UserError(f"no records selected as {what}: all are withdrawn, or not in this store")
    for key in ("benchmark", "preset"):
        values = [sorted({str(row[key] or "not known") for row, _ in rows}) for rows in (new, baseline)]
        if len({*values[0], *values[1]}) > 1:
            pair = " cannot be compared with ".join(few(each, 3) for each in values)
            raise UserError(f"{key} {pair}; select records of only one {key}")
    if len({row["status"] == EMULATED for row, _ in (*new, *baseline)}) > 1:
        raise UserError(
            "emulated runs cannot be compared with runs that trained; select with status!=emulated"
        )
    stated: dict[str, set[str]] = {}
    for row, _ in (*new, *baseline):
        for each in (row["versions"] or "").split(", "):
            what, _, number = each.partition(" ")
            stated.setdefault(what, set()).add(number)
    for what, numbers in stated.items():
        if what and len(numbers) > 1:
            problem = f"results of {what} versions {few(sorted(numbers), 4)} cannot be compared"
            raise UserError(f"{problem} (docs/reference/stability.md); select one with --where versions=")


def _figures(metric: str, new: Sequence[Measured], baseline: Sequence[Measured]) -> tuple[Values, Values]:
    """For ``new`` and for ``baseline``, the positive values of ``metric`` in all runs or, if the metric depends on
    the target, in the runs that reached the target. Joules are those of one kind of counter, which all these runs
    have."""
    found = [
        [run[metric] for _, runs in rows for run in runs
         if run.get(metric) and (run.get("reached") or metric not in TO_TARGET)]
        for rows in (new, baseline)
    ]  # fmt: skip
    if metric in BY_KIND:
        kind = shared_kind(value for values in found for value in values)
        found = [[value[kind] for value in values if kind in value] for values in found]
    first, second = (tuple(float(value) for value in values if value > 0) for values in found)
    return first, second


def tested(metric: str, new: Values, baseline: Values, rules: Rules, *, plan: bool = True) -> Test:
    """The test of one metric. The verdict is "slower" if the whole interval is above 1 + tolerance, and "pass" if
    the whole interval is below. ``plan``: whether to estimate how many further runs a verdict needs."""
    allowed = rules.get(metric, next(iter(rules.values())))
    worse = (baseline, new) if metric in HIGHER_IS_BETTER else (new, baseline)
    ratio = ratio_interval(*worse)
    verdict = _verdict(ratio, allowed)
    further = 0
    if verdict == "undecided":
        further = _further(*worse, allowed, new is worse[0]) if plan else None
    return Test(metric, new, baseline, ratio, allowed, verdict, further, metric in rules)


def _verdict(ratio: Ratio | None, tolerance: float) -> Verdict:
    if ratio and ratio[2] < 1 + tolerance:
        return "pass"
    return "slower" if ratio and ratio[1] > 1 + tolerance else "undecided"


def ratio_interval(
    above: Sequence[float], below: Sequence[float], more: tuple[int, int] = (0, 0)
) -> Ratio | None:
    """The ratio of the geometric means of ``above`` and ``below`` (positive values), with the ends of its 95%
    interval. None if either is empty; if each has only one value, the interval has no bounds. ``more``: numbers of
    further values above and below to assume, with the same means and deviations."""
    if not above or not below:
        return None
    one, two = [[math.log(value) for value in values] for values in (above, below)]
    middle = statistics.fmean(one) - statistics.fmean(two)
    half = _half_width(one, two, *more)
    ends = (min(max(end, -700.0), 700.0) for end in (middle, middle - half, middle + half))
    ratio, low, high = map(math.exp, ends)
    return ratio, low, high


def paired_ratio(above: Sequence[float], below: Sequence[float]) -> tuple[float, float, float]:
    """Like ``ratio_interval``, for at least two pairs of values, for example pairs of runs with the same seed."""
    logs = [math.log(one / other) for one, other in zip(above, below, strict=True)]
    middle = statistics.fmean(logs)
    half = half_width(statistics.stdev(logs), len(logs))
    return math.exp(middle), math.exp(middle - half), math.exp(middle + half)


def _half_width(one: Sequence[float], two: Sequence[float], more_one: int, more_two: int) -> float:
    """Half the width of the 95% interval for the difference of means (Welch–Satterthwaite) if there were
    ``more_one`` further values with the deviation of ``one`` and ``more_two`` with that of ``two``."""
    variances = [statistics.variance(values) for values in (one, two) if len(values) > 1]
    if not variances:
        return math.inf
    n, m = len(one) + more_one, len(two) + more_two
    first, second = variances[0] / n, variances[-1] / m
    if first + second == 0:
        return 0.0
    freedom = float(max(len(one), len(two)) - 1)
    if len(variances) == 2:
        freedom = (first + second) ** 2 / (first**2 / (n - 1) + second**2 / (m - 1))
    return student(freedom) * math.sqrt(first + second)


def _further(above: Values, below: Values, tolerance: float, new_is_above: bool) -> int | None:
    """The number of further new runs after which there would be a verdict if means and deviations stayed the same;
    None if more than ``MOST_RUNS``."""

    def decided(more: int) -> bool:
        ratio = ratio_interval(above, below, (more, 0) if new_is_above else (0, more))
        return _verdict(ratio, tolerance) != "undecided"

    further = 1 + bisect_left(range(1, MOST_RUNS + 1), True, key=decided)
    return further if further <= MOST_RUNS else None


def _moved(new: Sequence[Measured], baseline: Sequence[Measured]) -> tuple[tuple[str, float], ...]:
    runs = [[run for _, own in rows for run in own if run.get("parts_s")] for rows in (new, baseline)]
    if any(run.get("reached") for own in runs for run in own):  # the others have no time to train to explain
        runs = [[run for run in own if run.get("reached")] for own in runs]
    means = [_part_means([run["parts_s"] for run in own]) for own in runs]
    changes = {part: means[0][part] - means[1][part] for part in PARTS if all(part in each for each in means)}
    return tuple(sorted(changes.items(), key=lambda change: -abs(change[1])))


def _part_means(runs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    parts = {part for run in runs for part in run}
    return {part: statistics.fmean(run.get(part, 0.0) for run in runs) for part in parts}


def _marks(new: Sequence[Measured], baseline: Sequence[Measured]) -> list[str]:
    """Differences between new runs and baseline that may explain a change, and the numbers of records without
    versions and of new runs that missed the target."""
    marks, before = [], _stated(baseline)
    for key, values in _stated(new).items():
        if values and before[key] and values != before[key]:
            shown = (few([each[:24] for each in sorted(group)], 2) for group in (values, before[key]))
            marks.append(f"{key}: {' against '.join(shown)}")
    if unstated := sum(not row["versions"] for row, _ in (*new, *baseline)):
        marks.append(f"{count(unstated, 'record')} without versions may not be comparable")
    of_targets = [runs for row, runs in new if row["kind"] in ("run", "campaign")]
    if missed := sum(not run.get("reached") for runs in of_targets for run in runs):
        marks.append(f"{count(missed, 'new run')} missed the target, so only their epoch times count")
    return marks


def _stated(rows: Sequence[Measured]) -> dict[str, set[str]]:
    """The values in ``rows`` of the keys that may explain a change."""
    keys = ("settings", "framework", "system", "machine", "ranks", "nodes", "accelerators",
            "global_batch_size", "mlhpc", "commit")  # fmt: skip
    stated = {key: {str(row[key]) for row, _ in rows if row[key] is not None} for key in keys}
    kinds = {kind for _, runs in rows for run in runs for kind in run.get("joules") or ()}
    return {**stated, "counters of joules": kinds}
