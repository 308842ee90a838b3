"""Mean and spread of a quantity over runs."""

import math
import statistics
from collections.abc import Iterable
from typing import NamedTuple

from mlhpc.common.intervals import half_width

FEWEST = 3
"""Minimum number of runs for an interval or a standard deviation."""


class Spread(NamedTuple):
    """Mean and sample standard deviation over ``n`` runs; ``sd`` is None for a single run."""

    mean: float
    sd: float | None
    n: int

    @property
    def has_interval(self) -> bool:
        """Whether there are enough runs to show an interval: at least three."""
        return self.n >= FEWEST

    @property
    def interval(self) -> tuple[float, float, float]:
        """The mean and the ends of its 95% interval (Student's t). For two runs, the ends are the two values; for
        one run, both ends are its value."""
        if self.sd is None:
            return self.mean, self.mean, self.mean
        # Two values differ by sqrt(2) standard deviations.
        half = self.sd / math.sqrt(2) if self.n < FEWEST else half_width(self.sd, self.n)
        return self.mean, max(0.0, self.mean - half), self.mean + half

    def content(self) -> dict[str, float | None]:
        """The spread as JSON; the ends are None if there are too few runs for an interval."""
        mean, low, high = self.interval
        known = self.has_interval
        return {"mean": mean, "low95": low if known else None, "high95": high if known else None, "n": self.n}


def spread(values: Iterable[float | None]) -> Spread | None:
    """The spread of the finite numbers in ``values``; None if there are none."""
    finite = [v for v in values if v is not None and math.isfinite(v)]
    if not finite:
        return None
    return Spread(
        statistics.fmean(finite), statistics.stdev(finite) if len(finite) > 1 else None, len(finite)
    )
