"""Tests whether a set converged faster than the reference can, with reference convergence points (RCP).

The reference is trained many times at several batch sizes; a point consists of its epochs to target at one batch
size. A closed result whose mean number of epochs is significantly below the reference's did not perform the same
training (MLPerf training rules, "Reference Convergence Points"). The points are part of mlperf-logging. This
module implements the test from its definition, so that the official rcp_checker is an independent second opinion.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from mlhpc.perf.epochs import ReferenceRuns, reference_runs
from mlhpc.submission.score.score import RunScore

ALPHA = 0.05
"""Significance level of the one-sided test (mlperf-logging 4.1.68, rcp_checker)."""


@dataclass(frozen=True)
class Comparison:
    """A set compared with the reference.

    ``points``: the point used, or the two points around the batch size. ``epochs``: mean epochs of the set without
    the fastest and slowest run; ``reference``: mean epochs of the reference at this batch size; ``bound``: the
    fewest epochs that are not significantly below ``reference``; ``p_value``: probability of at most this number
    of epochs if the set trains like the reference. These values are None if they cannot be computed; ``why`` then
    states the reason; ``how``: how the points were chosen. ``applies``: False if the comparison is impossible for
    a reason outside the set.
    """

    passes: bool
    how: str
    points: tuple[ReferenceRuns, ...] = ()
    epochs: float | None = None
    reference: float | None = None
    bound: float | None = None
    p_value: float | None = None
    why: str = ""
    applies: bool = True

    @property
    def distance(self) -> float | None:
        """Epochs above the bound; negative if the set converged faster than the reference allows."""
        return None if self.epochs is None or self.bound is None else self.epochs - self.bound

    @property
    def normalisation(self) -> float | None:
        """The factor by which a review may scale the score: reference over epochs if the epochs of the set are
        between the bound and the reference, 1 if there are more (mlperf-logging 4.1.68, rcp_checker)."""
        if self.epochs is None or self.reference is None or not self.passes:
            return None
        return max(1.0, self.reference / self.epochs)


def compare(
    runs: Sequence[RunScore], batch_size: int | None, benchmark: str, rules: str, runs_needed: int
) -> Comparison | None:
    """Compare the ``runs`` of one set with the points of ``rules``, such as ``hpc_2.0.0``. None if there are no
    points for ``benchmark``."""
    points = reference_runs(benchmark, rules)
    if not points:
        return None
    epochs = sorted(r.epochs_to_target or math.inf if r.converged else math.inf for r in runs)
    if batch_size is None:
        return Comparison(False, "", why="the runs have different values of global_batch_size")
    if len(epochs) < 3 or math.isinf(epochs[-2]):
        why = "too few runs with a known number of epochs to target"
        return Comparison(False, "", why=why, applies=False)
    used, how = choose(points, batch_size)
    if how == "missing":
        largest = max(point.batch_size for point in points)
        why = f"no reference above batch size {largest}: submit one of {batch_size}"
        return Comparison(False, "no point", used, statistics.fmean(epochs[1:-1]), why=why)
    # An interpolated point counts for twice the runs of a submission (mlperf-logging 4.1.68).
    between = len(used) == 2
    counted = 2 * runs_needed if between else used[0].counted
    reference, spread = used[0].mean, used[0].spread
    if between:
        share = (batch_size - used[0].batch_size) / (used[1].batch_size - used[0].batch_size)
        reference += share * (used[1].mean - reference)
        spread += share * (used[1].spread - spread)
    mean = statistics.fmean(epochs[1:-1])
    bound, p_value = t_test(mean, reference, spread, counted, runs_needed - 2)
    return Comparison(mean >= bound, how, used, mean, reference, bound, p_value)


def t_test(
    mean: float, reference: float, spread: float, reference_runs: int, runs: int
) -> tuple[float, float | None]:
    """The smallest mean that passes, and the p-value of ``mean``: Student's one-sided test of two means of
    ``runs`` and ``reference_runs`` values, both assumed to have the reference's spread. If the spread is zero, no
    test is possible, and the bound is the reference's mean.
    """
    from scipy.special import stdtr, stdtrit  # importing scipy.stats takes a second

    if spread == 0:
        return reference, None
    freedom = reference_runs + runs - 2
    error = spread * math.sqrt(1 / reference_runs + 1 / runs)
    bound = reference + float(stdtrit(freedom, ALPHA)) * error
    return bound, float(stdtr(freedom, (mean - reference) / error))


def choose(points: Sequence[ReferenceRuns], batch_size: int) -> tuple[tuple[ReferenceRuns, ...], str]:
    """The points to use at ``batch_size``, and how they were chosen: the point at that batch size, the two points
    around it, or the point at the next larger batch size."""
    points = pruned(points)
    if same := [point for point in points if point.batch_size == batch_size]:
        return (same[0],), "found"
    below = [point for point in points if point.batch_size < batch_size]
    above = [point for point in points if point.batch_size > batch_size]
    if below and above:
        low = next(point for point in below if point.batch_size == below[-1].batch_size)
        return (low, above[0]), "interpolated"
    if above:
        return (above[0],), "next larger batch size: a smaller one must not require more"
    return (), "missing"


def pruned(points: Sequence[ReferenceRuns]) -> list[ReferenceRuns]:
    """The points without those at smaller batch sizes than that of the fastest point, and without those above the
    line from the last point kept to the next point (mlperf-logging 4.1.68, rcp_checker)."""
    fastest = min(points, key=lambda point: point.mean)
    rest = [point for point in points if point.batch_size >= fastest.batch_size]
    kept = rest[:1]
    for point, after in pairwise(rest[1:]):
        low = kept[-1]
        width = after.batch_size - low.batch_size
        share = (point.batch_size - low.batch_size) / width if width else 0.0
        if point.mean <= low.mean + share * (after.mean - low.mean):
            kept.append(point)
    kept += rest[-1:] if len(rest) > 1 else []
    sizes = {point.batch_size for point in kept}
    return [point for point in points if point.batch_size in sizes]
