"""Change points in a series of runs, found by a self-starting, two-sided CUSUM of logarithms.

Each run is compared with a window of earlier runs that ends ``GUARD`` runs before it and begins at the last
change. The transform of Hawkins (1987, The Statistician 36) makes the deviation standard normal for a window of
any length. Deviations are divided by the factor by which the window's lag-one autocorrelation widens the
distribution of a mean, and then clipped. A single large deviation does not increase the cumulative sums. A window
of more than ``SHORT`` runs could find a change sooner; allowance and threshold are raised instead, to avoid false
alarms from drift and autocorrelation. Allowance and threshold were chosen with ``tests/perf/changes.py``, which
counts the changes found and the false alarms.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

FEWEST = 10
"""Minimum number of runs in a window for a verdict. A window contains at most the newest ``WINDOW`` runs."""
WINDOW = 120
GUARD = 12
ALLOWANCE = 0.5
PENALTY = 2.5
"""Increase of the allowance for windows of fewer than 28 runs, per unit by which the standard error of their mean
exceeds that for 28 runs."""
SHORT = 38
"""Number of runs in a window up to which allowance and threshold are not raised."""
THRESHOLD, HIGHEST = 4.35, 6.0
CLIP = 2.0
LARGE = 4.5
_TO_SD = 1.4826
"""Standard deviation of a normal distribution in units of its median absolute deviation."""


@dataclass(frozen=True)
class Change:
    """A change point. ``at``: index of the first run after the change; ``found``: index of the run with which the
    change became certain; ``ratio``: geometric mean of the runs from ``at`` to ``found``, relative to that of the
    runs before ``at``."""

    at: int
    found: int
    ratio: float


def changes(values: Sequence[float]) -> list[Change]:
    """The changes in positive ``values``, in the order of the runs."""
    logs = np.log(np.asarray(values, dtype=np.float64))
    found: list[Change] = []
    begin = 0  # first run since the last change
    up = down = before = 0.0
    up_from = down_from = 0
    for now in range(len(logs)):
        window = _window(logs, begin, now)
        if len(window) < FEWEST:
            up_from = down_from = now + 1
            continue
        raw = _deviation(window, float(logs[now]))
        alone = abs(raw) > LARGE and math.copysign(before, raw * before) < CLIP
        long = max(0.0, 1 - math.sqrt(SHORT / len(window)))
        allowance = ALLOWANCE + 0.4 * long + PENALTY * max(0.0, len(window) ** -0.5 - 28**-0.5)
        deviation, before = math.copysign(allowance if alone else min(abs(raw), CLIP), raw), raw
        up, up_from = _added(up, up_from, deviation - allowance, now)
        down, down_from = _added(down, down_from, -deviation - allowance, now)
        if max(up, down) > min(THRESHOLD + 9 * long, HIGHEST):
            at = _onset(logs, float(np.median(window)), up_from if up > down else down_from, now)
            ratio = math.exp(float(np.mean(logs[at : now + 1]) - np.mean(logs[begin:at][-WINDOW:])))
            found.append(Change(at, now, ratio))
            begin, up, down, up_from, down_from = at, 0.0, 0.0, now + 1, now + 1
    return found


def _onset(logs: npt.NDArray[np.float64], before: float, since: int, now: int) -> int:
    """The run, among runs ``since`` to ``now``, at which the values most likely stepped away from their earlier
    mean ``before``."""
    sums = np.cumsum((logs[since : now + 1] - before)[::-1])[::-1]
    return since + int(np.argmax(sums**2 / np.arange(len(sums), 0, -1)))


def _window(logs: npt.NDArray[np.float64], begin: int, now: int) -> npt.NDArray[np.float64]:
    """The values, [runs], with which the value of run ``now`` is compared; once there are enough runs, the last
    ``GUARD`` runs before ``now`` are excluded."""
    end = now if now - begin < FEWEST + GUARD else now - GUARD
    return logs[max(begin, end - WINDOW) : end]


def _added(total: float, since: int, excess: float, now: int) -> tuple[float, int]:
    """The cumulative sum ``total`` after adding ``excess`` for run ``now``, and the run at which the sum last rose
    from zero."""
    total += excess
    return (total, since) if total > 0 else (0.0, now + 1)


def _deviation(window: npt.NDArray[np.float64], value: float) -> float:
    """The deviation of ``value`` from the mean of ``window``, [runs], in standard deviations, corrected for
    autocorrelation."""
    from scipy.special import ndtri, stdtr

    kept = _kept(window)
    mean, n = float(np.mean(kept)), len(kept)
    deviation = max(float(np.std(kept, ddof=1)), 1e-4)  # times may be equal, as in emulations
    student = math.sqrt(n / (n + 1)) * (value - mean) / deviation
    normal = float(ndtri(min(max(float(stdtr(n - 1, student)), 1e-15), 1 - 1e-15)))
    return normal / _inflation(kept - mean)


def _kept(window: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """``window``, [runs], without outliers, which are identified by the median absolute deviation."""
    far = np.abs(window - np.median(window))
    kept = window[far <= 3.5 * _TO_SD * np.median(far)]
    return kept if len(kept) > 1 else window


def _inflation(residuals: npt.NDArray[np.float64]) -> float:
    """The factor by which autocorrelation widens the distribution of a mean: sqrt((1 + r) / (1 - r)) for an AR(1)
    series (Box, Jenkins and Reinsel, Time Series Analysis, chapter 3), where r is reduced by a fifth of its
    standard error."""
    power = float(residuals @ residuals)
    r = float(residuals[1:] @ residuals[:-1]) / power if power > 0 else 0.0
    r = min(max(r - 0.2 / math.sqrt(len(residuals)), 0.0), 0.8)
    return math.sqrt((1 + r) / (1 - r))


def smallest_step(values: Sequence[float]) -> float | None:
    """The relative change of the mean that in most cases is found within twelve runs: one standard deviation of
    the runs since the last change. None for fewer than ``FEWEST`` runs."""
    found = changes(values)
    logs = np.log(np.asarray(values[found[-1].at if found else 0 :], dtype=np.float64))[-WINDOW:]
    if len(logs) < FEWEST:
        return None
    kept = _kept(logs)
    return math.expm1(float(np.std(kept, ddof=1)) * _inflation(kept - np.mean(kept)))
