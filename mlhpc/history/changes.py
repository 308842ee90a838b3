"""Change points of a series of runs: a self-starting, two-sided CUSUM of logarithms.

Each run is compared with a window of earlier runs that ends ``GUARD`` runs before it and begins at the last
change. The transform of Hawkins (1987, The Statistician 36) makes the deviation standard normal however short the
window is. Deviations are divided by what the window's autocorrelation of lag one adds to the deviation of a mean,
and clipped; a large one alone leaves the sums as they are. A window of more than ``SHORT`` runs would find a
change sooner: allowance and threshold are higher instead, against false alarms by drift and autocorrelation. They
were chosen with ``tests/perf/changes.py``, which measures what is found, and how often in error.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

FEWEST = 10
"""Runs of a window below which there is no verdict, and above ``WINDOW`` only the newest count."""
WINDOW = 120
GUARD = 12
ALLOWANCE = 0.5
PENALTY = 2.5
"""By how many standard errors of its mean, above those of 28 runs, a shorter window widens the allowance."""
SHORT = 38
"""Runs of a window, as after 40 runs, for which allowance and threshold are the least."""
THRESHOLD, HIGHEST = 4.35, 6.0
CLIP = 2.0
LARGE = 4.5
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
    """The most likely first run of a step away from the mean ``before``, from run ``since`` on."""
    sums = np.cumsum((logs[since : now + 1] - before)[::-1])[::-1]
    return since + int(np.argmax(sums**2 / np.arange(len(sums), 0, -1)))


def _window(logs: npt.NDArray[np.float64], begin: int, now: int) -> npt.NDArray[np.float64]:
    """The runs with which run ``now`` is compared: with a guard before it once there are enough."""
    end = now if now - begin < FEWEST + GUARD else now - GUARD
    return logs[max(begin, end - WINDOW) : end]


def _added(total: float, since: int, excess: float, now: int) -> tuple[float, int]:
    """The sum after a run, and the run with which it began to grow."""
    total += excess
    return (total, since) if total > 0 else (0.0, now + 1)


def _deviation(window: npt.NDArray[np.float64], value: float) -> float:
    """``value`` in standard deviations of ``window``."""
    from scipy.special import ndtri, stdtr

    kept = _kept(window)
    mean, n = float(np.mean(kept)), len(kept)
    deviation = max(float(np.std(kept, ddof=1)), 1e-4)  # of equal times, as of an emulation
    student = math.sqrt(n / (n + 1)) * (value - mean) / deviation
    normal = float(ndtri(min(max(float(stdtr(n - 1, student)), 1e-15), 1 - 1e-15)))
    return normal / _inflation(kept - mean)


def _kept(window: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The window without outliers, by the median absolute deviation."""
    far = np.abs(window - np.median(window))
    kept = window[far <= 3.5 * _TO_SD * np.median(far)]
    return kept if len(kept) > 1 else window


def _inflation(residuals: npt.NDArray[np.float64]) -> float:
    """By how much autocorrelation widens the distribution of a mean: sqrt((1 + r) / (1 - r)) of an AR(1) series
    (Box, Jenkins and Reinsel, Time Series Analysis, chapter 3), r less a fifth of its standard error."""
    power = float(residuals @ residuals)
    r = float(residuals[1:] @ residuals[:-1]) / power if power > 0 else 0.0
    r = min(max(r - 0.2 / math.sqrt(len(residuals)), 0.0), 0.8)
    return math.sqrt((1 + r) / (1 - r))


def smallest_step(values: Sequence[float]) -> float | None:
    """The share by which the mean must change to be found within twelve runs in most cases: one standard deviation
    of the runs since the last change; None with fewer than ``FEWEST``."""
    found = changes(values)
    logs = np.log(np.asarray(values[found[-1].at if found else 0 :], dtype=np.float64))[-WINDOW:]
    if len(logs) < FEWEST:
        return None
    kept = _kept(logs)
    return math.expm1(float(np.std(kept, ddof=1)) * _inflation(kept - np.mean(kept)))
