"""Mean and spread of a quantity over runs."""

import math
import statistics
from collections.abc import Iterable
from typing import NamedTuple

FEWEST = 3
"""Runs below which no interval and no standard deviation is shown."""


class Spread(NamedTuple):
    """Mean and sample standard deviation of ``n`` runs; ``sd`` is None for one."""

    mean: float
    sd: float | None
    n: int

    @property
    def has_interval(self) -> bool:
        """Whether there are enough runs to show an interval: at least three."""
        return self.n >= FEWEST

    @property
    def interval(self) -> tuple[float, float, float]:
        """Mean, and the ends of the 95% interval of the mean (Student's t). Of two runs the ends are the runs
        themselves, of one its value."""
        if self.sd is None:
            return self.mean, self.mean, self.mean
        if self.n < FEWEST:
            half = self.sd / math.sqrt(2)  # two values are sqrt(2) standard deviations apart
        else:
            from scipy.special import stdtrit

            half = float(stdtrit(self.n - 1, 0.975)) * self.sd / math.sqrt(self.n)
        return self.mean, max(0.0, self.mean - half), self.mean + half


def spread(values: Iterable[float | None]) -> Spread | None:
    """Of the values that are finite numbers; None without any."""
    known = [v for v in values if v is not None and math.isfinite(v)]
    if not known:
        return None
    return Spread(statistics.fmean(known), statistics.stdev(known) if len(known) > 1 else None, len(known))
