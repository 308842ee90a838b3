"""Time to solution of configurations that were not run: throughput and epoch scaling, which the batch size
connects.

T_solution = T_staging + T_epoch · epochs + T_extra (Farrell et al. 2021, section 4.1, equation 1). T_epoch depends
on the system and its size, the number of epochs to target on the batch size (section 4.1.2), so each is scaled
separately from measurements, and the results are multiplied.

Between two measured sizes a quantity is interpolated linearly in logarithms. Beyond them, and from a single
measurement, it is bounded by two limits: it stays unchanged, or it changes in proportion to the size.
T_epoch and staging are bounded by no gain and by ideal scaling; the number of epochs by staying the same and,
where data parallelism no longer helps, by the same number of steps (the level lines of figure 2).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from mlhpc.errors import few
from mlhpc.quantities import four_digits

Triple = tuple[float, float, float]
"""A value and the ends of its range."""


class Point(NamedTuple):
    """A measurement at one size (units or batch size)."""

    size: float
    value: Triple
    name: str


class Estimate(NamedTuple):
    """A value with its range; ``how``: a phrase that states how the value was derived."""

    value: float
    low: float
    high: float
    how: str

    @property
    def ends(self) -> Triple:
        """Value, low and high."""
        return self.value, self.low, self.high


def added(*terms: Triple) -> Triple:
    """Add independent terms, whose deviations add in quadrature."""
    value = sum(t[0] for t in terms)
    below = math.hypot(*(t[0] - t[1] for t in terms))
    return value, max(0.0, value - below), value + math.hypot(*(t[2] - t[0] for t in terms))


def multiplied(a: Triple, b: Triple) -> Triple:
    """Multiply independent factors; the deviations of their logarithms add in quadrature."""
    value = a[0] * b[0]
    if min(*a, *b) <= 0:
        return value, a[1] * b[1], a[2] * b[2]
    below = math.hypot(math.log(a[0] / a[1]), math.log(b[0] / b[1]))
    above = math.hypot(math.log(a[2] / a[0]), math.log(b[2] / b[0]))
    return value, value * math.exp(-below), value * math.exp(above)


def scaled(a: Triple, factor: float) -> Triple:
    """Each end times ``factor``."""
    return a[0] * factor, a[1] * factor, a[2] * factor


@dataclass(frozen=True)
class Measured:
    """The quantities of one set that the model uses. Times are in seconds.

    ``epoch_s`` is training and evaluation per epoch without the first epoch's excess; ``staging_s`` includes that
    excess, because it is staging that is not logged as such; ``rest_s`` is all other time that counts.
    """

    name: str
    units: int
    batch: int
    epochs: Triple
    epoch_s: Triple
    staging_s: Triple
    rest_s: Triple


@dataclass(frozen=True)
class Prediction:
    """Predicted seconds of one run with ``units`` compute units and a global batch size of ``batch``."""

    units: int
    batch: int
    seconds: Estimate
    epochs: Estimate
    epoch_s: Estimate
    staging_s: Estimate
    rest_s: Estimate


# Exponents of the size: the one for a single measurement, and those of the two limits.
_IDEAL = (-1.0, (-1.0, 0.0))  # constant throughput per unit: weak scaling (Farrell et al. 2021, 4.1.2 b)
_MIDWAY_DOWN = (-0.5, (-1.0, 0.0))
_MIDWAY_UP = (0.5, (0.0, 1.0))
_SAME = (0.0, (0.0, 0.0))


def predict(
    units: int, batch: int, system: Sequence[Measured], convergence: Sequence[Point]
) -> Prediction | None:
    """Combines the throughput scaling of ``system`` (sets of one machine) with the epoch scaling ``convergence``
    (epochs by batch size, of one problem and division on any machine) at ``batch``.

    Each end of the range combines the same end of all terms. Returns None if ``system`` or ``convergence`` is
    empty.
    """
    if not system or not convergence:
        return None
    # T_epoch depends on the batch size per unit, so sets with the same batch size per unit predict it best.
    share = batch / units
    if same_share := [m for m in system if math.isclose(m.batch / m.units, share, rel_tol=0.01)]:
        epoch_s = carried([Point(m.units, m.epoch_s, m.name) for m in same_share], units, "units", *_IDEAL)
    else:
        epoch_s = _other_share(system, units, share)
    epochs = carried(convergence, batch, "batch size", *_MIDWAY_UP)
    staging_s = carried([Point(m.units, m.staging_s, m.name) for m in system], units, "units", *_MIDWAY_DOWN)
    rest_s = carried([Point(m.units, m.rest_s, m.name) for m in system], units, "units", *_SAME)
    value, low, high = (
        staging + epoch * number + rest
        for staging, epoch, number, rest in zip(
            staging_s.ends, epoch_s.ends, epochs.ends, rest_s.ends, strict=True
        )
    )
    seconds = Estimate(value, low, high, f"T_epoch {epoch_s.how}; epochs {epochs.how}")
    return Prediction(units, batch, seconds, epochs, epoch_s, staging_s, rest_s)


def carried(
    points: Sequence[Point], at: float, axis: str, exponent: float, limits: tuple[float, float]
) -> Estimate:
    """A quantity at size ``at``, estimated from ``points``; sizes are positive. ``axis`` is the name of the size.

    A single measurement is scaled with ``exponent``, and its range with both ``limits``. Between two measured
    sizes, the value is interpolated, and the range spans the predictions from each of the two. Beyond several
    measured sizes, the value follows the slope of the two nearest if this slope is within the limits.
    """
    sizes = _by_size(points)
    below = [p for p in sizes if p.size <= at]
    above = [p for p in sizes if p.size >= at]
    if below and above and below[-1] is above[0]:
        return Estimate(*above[0].value, f"measured at {axis} {four_digits(at)} ({above[0].name})")
    if below and above:
        left, right = below[-1], above[0]
        value = _on_line(left, right, at, 0)
        estimates = [value, _on_line(left, right, at, 1), _on_line(left, right, at, 2)]
        estimates += [_scaled(p, at, exponent, end) for p in (left, right) for end in (1, 2)]
        ends = " and ".join(f"{four_digits(p.size)} ({p.name})" for p in (left, right))
        how = f"interpolated between {axis} {ends}"
        return Estimate(value, min(estimates), max(estimates), how)
    near, beyond = (below[-1], sizes[-2:]) if below else (above[0], sizes[:2])
    how = f"extrapolated from {axis} {four_digits(near.size)} ({near.name})"
    if len(sizes) > 1:
        slope = _slope(beyond[0], beyond[1])
        if min(limits) <= slope <= max(limits):
            exponent, how = slope, f"{how} along the slope to it"
    estimates = [_scaled(near, at, limit, end) for limit in limits for end in (1, 2)]
    value = _scaled(near, at, exponent, 0)
    return Estimate(value, min(estimates), max(estimates), how)


def _other_share(system: Sequence[Measured], units: int, share: float) -> Estimate:
    """Estimate T_epoch for a batch size per unit that no set has, from the set with the nearest one, with ideal
    scaling to ``units``. If the wanted batch size per unit is larger than the set's, T_epoch lies between the
    set's (limited by throughput) and that with the same step time (a proportionally shorter epoch); if it is
    smaller, the reverse."""
    near = min(
        system, key=lambda m: (abs(math.log(m.batch / m.units / share)), abs(math.log(m.units / units)))
    )
    ideal = carried([Point(near.units, near.epoch_s, near.name)], units, "units", *_IDEAL)
    factor = near.batch / near.units / share
    how = (
        f"extrapolated from {four_digits(near.batch / near.units)} samples per unit on {near.units} units "
        f"({near.name}), at the same throughput per unit"
    )
    return Estimate(ideal.value, ideal.low * min(1.0, factor), ideal.high * max(1.0, factor), how)


def _by_size(points: Sequence[Point]) -> list[Point]:
    """One point per size, sorted: the mean of the values measured at this size, and the widest range."""
    sizes: dict[float, list[Point]] = {}
    for point in points:
        sizes.setdefault(point.size, []).append(point)
    joined = []
    for size, points_there in sorted(sizes.items()):
        value = sum(p.value[0] for p in points_there) / len(points_there)
        triple = value, min(p.value[1] for p in points_there), max(p.value[2] for p in points_there)
        joined.append(Point(size, triple, few([p.name for p in points_there], 4)))
    return joined


def _scaled(point: Point, at: float, exponent: float, end: int) -> float:
    return point.value[end] * float((at / point.size) ** exponent)


def _on_line(left: Point, right: Point, at: float, end: int) -> float:
    a, b = left.value[end], right.value[end]
    share = math.log(at / left.size) / math.log(right.size / left.size)
    if a <= 0 or b <= 0:  # a system without staging
        return a + (b - a) * share
    return math.exp(math.log(a) + share * math.log(b / a))


def _slope(left: Point, right: Point) -> float:
    a, b = left.value[0], right.value[0]
    return math.log(b / a) / math.log(right.size / left.size) if a > 0 and b > 0 else 0.0


def neighbours(system: Sequence[Measured]) -> list[tuple[int, int]]:
    """Configurations worth predicting, as sorted pairs (units, batch): half and twice the size of each set, with
    the same batch size per unit, unless measured."""
    measured = {(m.units, m.batch) for m in system}
    candidates = set()
    for m in system:
        if m.units % 2 == 0 and m.batch % 2 == 0:
            candidates.add((m.units // 2, m.batch // 2))
        candidates.add((m.units * 2, m.batch * 2))
    for a, b in pairwise(sorted(system, key=lambda m: m.units)):
        # Halfway between two measured sizes with the same batch size per unit.
        middle = round(math.sqrt(a.units * b.units))
        if a.units < middle < b.units and a.batch * b.units == b.batch * a.units:
            candidates.add((middle, middle * a.batch // a.units))
    return sorted(candidates - measured)
