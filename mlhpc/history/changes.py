"""Change points of a series of runs: a self-starting, two-sided CUSUM of logarithms.

Each run is compared with a window of earlier runs that ends ``GUARD`` runs before it and begins at the last change:
the window follows a slow drift, and the runs after a step are not in it yet. The transform of Hawkins (1987, The
Statistician 36) makes the deviation standard normal however short the window is. Outliers count as ``CLIP``
deviations, and deviations are divided by the inflation of the mean's variance by the window's autocorrelation of
lag one. ``tests/perf/changes.py`` measures what is found, and how often in error.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

BASELINE = 40
"""Runs of a window; with fewer than ``FEWEST`` there is no verdict."""
FEWEST = 10
GUARD = 8
ALLOWANCE = 0.5
THRESHOLD = 5.0
CLIP = 3.0
_TO_SD = 1.4826
"""Median absolute deviations of a normal distribution in a standard deviation."""


@dataclass(frozen=True)
class Change:
    """``at``: the index of the first run after the change; ``found``: of the run at which it was certain;
    ``ratio``: geometric mean from ``at`` to ``found`` over that of the window before."""

    at: int
    found: int
    ratio: float


def changes(values: Sequence[float]) -> list[Change]:
    """The changes in positive ``values``, in the order of the runs."""
    logs = np.log(np.asarray(values, dtype=np.float64))
    found: list[Change] = []
    begin = 0  # of the runs since the last change
    up = down = 0.0
    up_from = down_from = 0
    for now in range(len(logs)):
        window = _window(logs, begin, now)
        if len(window) < FEWEST:
            up_from = down_from = now + 1
            continue
        deviation = _deviation(window, float(logs[now]))
        up, up_from = _added(up, up_from, deviation, now)
        down, down_from = _added(down, down_from, -deviation, now)
        if max(up, down) > THRESHOLD:
            at = up_from if up > down else down_from
            ratio = math.exp(float(np.mean(logs[at : now + 1]) - np.mean(logs[begin:at][-BASELINE:])))
            found.append(Change(at, now, ratio))
            begin, up, down, up_from, down_from = at, 0.0, 0.0, now + 1, now + 1
    return found


def _window(logs: npt.NDArray[np.float64], begin: int, now: int) -> npt.NDArray[np.float64]:
    """The runs with which run ``now`` is compared: with a guard before it once there are enough."""
    end = now if now - begin < FEWEST + GUARD else now - GUARD
    return logs[max(begin, end - BASELINE) : end]


def _added(total: float, since: int, deviation: float, now: int) -> tuple[float, int]:
    """The sum after a run, and the run with which it began to grow."""
    total += deviation - ALLOWANCE
    return (total, since) if total > 0 else (0.0, now + 1)


def _deviation(window: npt.NDArray[np.float64], value: float) -> float:
    """``value`` in standard deviations of ``window``, clipped."""
    from scipy.special import ndtri, stdtr

    middle = float(np.median(window))
    spread = _TO_SD * float(np.median(np.abs(window - middle)))
    kept = np.clip(window, middle - CLIP * spread, middle + CLIP * spread) if spread else window
    mean, deviation, n = float(np.mean(kept)), float(np.std(kept, ddof=1)), len(kept)
    if deviation <= 1e-9:  # equal times, as of an emulation: a thousandth is a deviation then
        deviation = 1e-3
    student = math.sqrt(n / (n + 1)) * (value - mean) / deviation
    normal = float(ndtri(min(max(float(stdtr(n - 1, student)), 1e-12), 1 - 1e-12)))
    return float(np.clip(normal, -CLIP, CLIP)) / _inflation(kept - mean)


def _inflation(residuals: npt.NDArray[np.float64]) -> float:
    """By how much autocorrelation widens the distribution of a mean: sqrt((1 + r) / (1 - r)) of an AR(1) series
    (Box, Jenkins and Reinsel, Time Series Analysis, chapter 3), r less its standard error."""
    power = float(residuals @ residuals)
    r = float(residuals[1:] @ residuals[:-1]) / power if power > 0 else 0.0
    r = min(max(r - 1 / math.sqrt(len(residuals)), 0.0), 0.8)
    return math.sqrt((1 + r) / (1 - r))


def smallest_step(values: Sequence[float]) -> float | None:
    """The share by which the mean must change to be found within twelve runs in most cases: one standard deviation
    of the newest ``BASELINE`` runs since the last change; None with fewer than ``FEWEST``."""
    found = changes(values)
    logs = np.log(np.asarray(values[found[-1].at if found else 0 :], dtype=np.float64))[-BASELINE:]
    if len(logs) < FEWEST:
        return None
    residuals = logs - np.mean(logs)
    return math.expm1(float(np.std(residuals, ddof=1)) * _inflation(residuals))
