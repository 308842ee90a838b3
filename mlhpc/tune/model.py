"""The model that a search fits to its runs: epochs to target and seconds per epoch as functions of the
configuration.

T = T_epoch · epochs: the seconds per epoch depend on batch size and ranks, and are known after one epoch; the
number of epochs depends on batch size, learning rate and schedule, and varies with the seed. The logarithms of
both quantities are second-order polynomials of the logarithms of the configuration's values, as in
response-surface designs (Box and Wilson 1951), with normal priors on the coefficients. The next configuration to
run is the one with the lowest confidence bound (Cox and John 1992).
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from mlhpc.tune.space import Config, Space

Array = npt.NDArray[np.float64]
NOISE = 0.1
"""Seed-to-seed standard deviation of log(epochs to target)."""
NOISE_OF_AN_EPOCH = 0.03
"""Run-to-run standard deviation of log(seconds per epoch), including the polynomial's error."""
NOISE_OF_EXCESS = 0.3
"""Standard deviation of log(epochs) that is added per unit of log(time / best time): the polynomial must be
accurate only near the best configurations."""
BOUND = 1.5
"""Distance from the mean of the posterior to the confidence bound, in standard deviations."""
RUNGS = 3
"""Maximum runs per configuration, reached only by the best configurations of successive halving."""


class Outcome(NamedTuple):
    """The outcome of one run. ``seconds``: time until the target was reached or the run ended. ``epochs``: epochs
    to target, or a lower bound if the target was not reached. ``epoch_s``: seconds per epoch including its
    evaluation, or a lower bound if the run was stopped in its first epoch. For an aborted run, ``epochs`` and
    ``epoch_s`` are 0, and ``why`` states the reason."""

    config: Config
    state: Literal["converged", "missed", "stopped", "aborted"]
    seconds: float
    epochs: float = 0.0
    epoch_s: float = 0.0
    why: str = ""


@dataclass(frozen=True)
class Prior:
    """The prior of a polynomial's coefficients: the means of linear and of quadratic coefficients, and the
    deviations of first- and of second-order coefficients."""

    linear: tuple[float, ...]
    quadratic: tuple[float, ...]
    deviations: tuple[float, float]

    def of(self, offsets: int) -> tuple[Array, Array]:
        """Means and deviations, [coefficients] each, of all coefficients: constant, linear, quadratic, products,
        and one for each of ``offsets`` named schedules."""
        axes = len(self.linear)
        pairs = axes * (axes - 1) // 2
        mean = np.array([0.0, *self.linear, *self.quadratic, *[0.0] * (pairs + offsets)])
        first, second = self.deviations
        return mean, np.array([1.0, *[first] * axes, *[second] * (axes + pairs), *[0.3] * offsets])


EPOCHS = Prior(linear=(0.15, 0.0, 0.0), quadratic=(0.05, 0.2, 0.3), deviations=(0.3, 0.1))
"""Prior of log(epochs) in log2 of batch size, rate and schedule length: larger batches need more epochs, and the
preset's rate and schedule are near the best."""
SECONDS = Prior(linear=(-0.3, -0.4), quadratic=(0.05, 0.05), deviations=(0.5, 0.2))
"""Prior of log(seconds per epoch) in log2 of batch size and ranks: larger batches need fewer steps, and more ranks
share each step."""


class Search:
    """Chooses the runs of a search over ``space``: the default, then ``starts``, then repeats of the best
    configuration and new configurations that may be faster according to the model. Choices depend only on the
    outcomes passed to ``next``."""

    def __init__(self, space: Space, starts: Sequence[Config]) -> None:
        self.space, self.starts = space, starts
        self._features = self._of(space.candidates)

    def next(self, done: Sequence[Outcome]) -> Config | None:
        """The configuration of the next run after ``done``; None if no further run is possible."""
        tried = {outcome.config for outcome in done}
        for config in (self.space.default, *self.starts):
            if config not in tried:
                return config
        repeated = promoted(done)
        return repeated if repeated and repeated == self.winner(done) else self._promising(done)

    def _promising(self, done: Sequence[Outcome]) -> Config | None:
        """The candidate with the lowest confidence bound. Excluded are candidates that have failed or have been
        run ``RUNGS`` times, and those with a combination of batch size and ranks that was aborted twice."""
        places = Counter(outcome.config[:2] for outcome in done if outcome.state == "aborted")
        runs = Counter(outcome.config for outcome in done)
        out = {config for config, number in runs.items() if number >= RUNGS} | failed(done)
        total, variance = np.zeros((2, len(self.space.candidates)))
        for features, (mean, covariance) in zip(self._features, self._fit(done), strict=True):
            total += features @ mean
            variance += np.sum(features @ covariance * features, axis=1)
        ordered = (self.space.candidates[n] for n in np.argsort(total - BOUND * np.sqrt(variance)))
        return next((each for each in ordered if each not in out and places[each[:2]] < 2), None)

    def winner(self, done: Sequence[Outcome]) -> Config | None:
        """The fastest configuration by the posterior mean among those whose runs have all converged; None if there
        are none."""
        finished = list(finished_runs(done))
        if not finished:
            return None
        features = zip(self._of(finished), self._fit(done), strict=True)
        total = sum(each @ mean for each, (mean, _) in features)
        return finished[int(np.argmin(total))]

    def _fit(self, done: Sequence[Outcome]) -> tuple[tuple[Array, Array], ...]:
        """Mean and covariance of the coefficients for epochs and for seconds per epoch. For a run that did not
        converge, the number of epochs is the model's prediction, but at least the number that the run took."""
        known = [outcome for outcome in done if outcome.epochs]
        rates, speeds = self._of([outcome.config for outcome in known])
        epochs, seconds = (np.log([getattr(o, key) for o in known]) for key in ("epochs", "epoch_s"))
        epochs, seconds = epochs - epochs[0], seconds - seconds[0]
        bound = np.array([outcome.state != "converged" for outcome in known])
        total = epochs + seconds
        excess = np.maximum(total - min(total[~bound], default=total.min()), 0)
        noise = np.hypot(NOISE, NOISE_OF_EXCESS * excess)
        offsets = len(self.space.points)
        values = epochs
        for _ in range(4):
            mean, covariance = _posterior(rates, values, noise, *EPOCHS.of(offsets))
            values = np.where(bound, np.maximum(epochs + 0.8 * NOISE, rates @ mean), epochs)
        return (mean, covariance), _posterior(speeds, seconds, NOISE_OF_AN_EPOCH, *SECONDS.of(0))

    def _of(self, configs: Sequence[Config]) -> tuple[Array, Array]:
        """The features of the regressions, [configs, coefficients], for epochs and for seconds per epoch."""
        base = self.space.default
        axes = np.log2(
            [(c.batch / base.batch, c.rate, c.stretch or 1, c.ranks / base.ranks) for c in configs]
        )
        named = np.array([[c.schedule == name for name in self.space.points] for c in configs], dtype=float)
        return np.hstack([_polynomial(axes[:, :3]), named]), _polynomial(axes[:, [0, 3]])


def finished_runs(done: Sequence[Outcome]) -> dict[Config, list[float]]:
    """The seconds of each run by configuration, only for configurations of which every run converged."""
    runs: dict[Config, list[float]] = {}
    for outcome in done:
        if outcome.state == "converged":
            runs.setdefault(outcome.config, []).append(outcome.seconds)
    without = failed(done)
    return {config: seconds for config, seconds in runs.items() if config not in without}


def failed(done: Sequence[Outcome]) -> set[Config]:
    """The configurations with at least one run that missed its target, was stopped, or was aborted."""
    return {outcome.config for outcome in done if outcome.state != "converged"}


def geometric_mean(seconds: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, seconds)) / len(seconds))


def promoted(done: Sequence[Outcome]) -> Config | None:
    """A configuration to repeat, by asynchronous successive halving (Jamieson and Talwalkar 2016; Li et al. 2020):
    a configuration with exactly n runs that is in the faster half of all configurations with at least n runs, by
    the geometric mean of their first n runs. None if there is no such configuration."""
    runs = finished_runs(done)
    for n in range(RUNGS - 1, 0, -1):
        rung = sorted((geometric_mean(each[:n]), config) for config, each in runs.items() if len(each) >= n)
        for _, config in rung[: len(rung) // 2]:
            if len(runs[config]) == n:
                return config
    return None


def _polynomial(x: Array) -> Array:
    products = [x[:, i] * x[:, j] for i, j in combinations(range(x.shape[1]), 2)]
    return np.column_stack([np.ones(len(x)), x, x**2, *products])


def _posterior(
    features: Array, values: Array, noise: Array | float, mean: Array, deviation: Array
) -> tuple[Array, Array]:
    """Posterior mean and covariance of the coefficients of a linear regression with a normal prior. ``noise``: the
    deviation of all values, or one deviation per value, [values]."""
    weighted = features.T / noise**2
    covariance = np.linalg.inv(np.diag(deviation**-2.0) + weighted @ features)
    return covariance @ (deviation**-2.0 * mean + weighted @ values), covariance
