"""Power and false alarms of the change points of ``mlhpc history page``: ``python tests/perf/changes.py``.

Series of standard normal noise around a time, 40 runs of baseline, then a step, or none for 200 runs. Variants:
outliers (1 in 20 runs 8 deviations slower), drift (half a deviation in 200 runs), autocorrelation of 0.3. False
alarms are those of a page: of time and throughput, which are independent here, the worst case.
"""

import argparse
from collections.abc import Callable
from functools import partial

import numpy as np
import numpy.typing as npt

from mlhpc.history.changes import changes

Values = npt.NDArray[np.float64]
GOALS = ((3.0, 5, 0.95), (2.0, 8, 0.90), (1.0, 12, 0.60))
"""Step in deviations, runs within which it is to be found, in what share of the series."""
KINDS = ("white", "outliers", "drift", "autocorrelation")
BEFORE, FALSE = 40, 200
SHARE = 0.02
"""Standard deviation of a time, as a share of it."""


def noise(draw: np.random.Generator, runs: int, kind: str) -> Values:
    values = draw.standard_normal(runs)
    if kind == "autocorrelation":
        for n in range(1, runs):
            values[n] = 0.3 * values[n - 1] + np.sqrt(1 - 0.3**2) * values[n]
    if kind == "outliers":
        values[draw.random(runs) < 0.05] += 8.0
    if kind == "drift":
        values += np.arange(runs) / 400
    return values


def found(draw: np.random.Generator, kind: str, step: float, within: int) -> bool:
    values = noise(draw, BEFORE + within, kind)
    values[BEFORE:] += step
    return any(change.found >= BEFORE and change.ratio > 1 for change in changes(np.exp(SHARE * values)))


def false_alarms(draw: np.random.Generator, kind: str) -> int:
    return sum(
        sum(change.found >= BEFORE for change in changes(np.exp(SHARE * noise(draw, BEFORE + FALSE, kind))))
        for _ in ("time", "throughput")
    )


def share(trial: Callable[[], float], series: int) -> float:
    return sum(trial() for _ in range(series)) / series


def measure(kind: str, series: int, seed: int) -> tuple[list[float], float]:
    """Shares found of GOALS, and false alarms of a page per 200 runs."""
    draw = np.random.default_rng([seed, len(kind)])
    powers = [share(partial(found, draw, kind, step, within), series) for step, within, _ in GOALS]
    return powers, share(lambda: false_alarms(draw, kind), series)


def known(step: float, within: int, threshold: float, series: int, draw: np.random.Generator) -> Values:
    """For each of ``series`` with autocorrelation, how often the largest likelihood ratio of a step in the last 20
    runs exceeds ``threshold`` anew within ``within`` runs after the baseline: everything but the step is known."""
    values = np.array([noise(draw, BEFORE + within, "autocorrelation") for _ in range(series)])
    values[:, BEFORE:] += step
    white = (values[:, 1:] - 0.3 * values[:, :-1]) / np.sqrt(1 - 0.3**2)  # of unit deviation, one run less
    shape = np.full(20, 0.7 / np.sqrt(1 - 0.3**2))
    shape[0] /= 0.7
    ratios = np.zeros((series, within))
    for length in range(1, len(shape) + 1):
        windows = np.lib.stride_tricks.sliding_window_view(white, length, axis=1)[:, -within:]
        ratios = np.maximum(ratios, abs(windows @ shape[:length]) / np.linalg.norm(shape[:length]))
    alarms = np.zeros(series)
    last = np.full(series, -len(shape))
    for run in range(within):
        anew = (ratios[:, run] > threshold) & (run - last >= len(shape))
        alarms += anew
        last[anew] = run
    return alarms


def bound(series: int, seed: int) -> tuple[list[float], float]:
    """``measure`` of a detector that knows everything but the step, with a threshold for one false alarm."""
    draw = np.random.default_rng(seed)
    for threshold in np.arange(3.0, 5.0, 0.02):
        false = 2 * known(0.0, FALSE, threshold, series, draw).mean()  # of time and throughput
        if false <= 1:
            break
    return [float((known(s, w, threshold, series, draw) > 0).mean()) for s, w, _ in GOALS], float(false)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--series", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--bound", action="store_true", help="what is possible with autocorrelation")
    parser.add_argument("--noise", nargs="+", default=KINDS, choices=KINDS)
    options = parser.parse_args()
    print("noise", *(f"{step:g} sd in {within} runs" for step, within, _ in GOALS), "false in 200", sep="  ")
    print("goal", *(f"{goal:.0%}" for *_, goal in GOALS), "at most 1", sep="  ")
    if options.bound:
        powers, false = bound(options.series, options.seed)
        print("known", *(f"{power:.1%}" for power in powers), f"{false:.2f}", sep="  ")
        return
    for kind in options.noise:
        powers, false = measure(kind, options.series, options.seed)
        print(kind, *(f"{power:.1%}" for power in powers), f"{false:.2f}", sep="  ")


if __name__ == "__main__":
    main()
