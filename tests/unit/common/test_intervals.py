"""Student's t against SciPy's."""

import numpy as np
import pytest
from scipy import stats

from mlhpc.common.intervals import half_width, student


@pytest.mark.parametrize("freedom", [1, 1.5, 2, 3.3, 4, 6, 9, 30, 40, 999])
def test_the_quantile_is_that_of_scipy(freedom: float) -> None:
    assert student(freedom) == pytest.approx(stats.t.ppf(0.975, freedom), rel=1e-8)


@pytest.mark.parametrize("runs", [2, 3, 10])
def test_the_interval_of_a_mean_is_that_of_scipy(runs: int) -> None:
    values = np.random.default_rng(runs).normal(60.0, 2.0, runs)
    low, high = stats.t.interval(0.95, runs - 1, values.mean(), stats.sem(values))
    assert half_width(float(np.std(values, ddof=1)), runs) == pytest.approx((high - low) / 2, rel=1e-8)
