"""The scaling model: exact for a known law, bounded otherwise, compared with publications."""

import math
import random
from itertools import product

import pytest

from mlhpc.perf.scaling import Measured, Point, carried, neighbours, predict

UP = (0.5, (0.0, 1.0))
DOWN = (-1.0, (-1.0, 0.0))


def exact(value: float) -> tuple[float, float, float]:
    return value, value, value


def law(units: int, batch: int, *, name: str = "") -> Measured:
    """A machine and a problem that follow laws to the end: 3000 epoch-seconds spread over the units with an
    efficiency of units^-0.1, 30 epochs at a batch of 256 that grow with its fourth root, staging in
    proportion to 1/units."""
    return Measured(
        name or f"{units}",
        units,
        batch,
        exact(30 * (batch / 256) ** 0.25),
        exact(3000 * units**-0.9),
        exact(6400 / units),
        exact(2.0),
    )


def time_of(m: Measured) -> float:
    return m.staging_s[0] + m.epoch_s[0] * m.epochs[0] + m.rest_s[0]


def points(*sets: Measured) -> list[Point]:
    return [Point(m.batch, m.epochs, m.name) for m in sets]


def test_interpolation_reproduces_a_power_law() -> None:
    small, truth, large = law(64, 128), law(256, 512), law(1024, 2048)
    prediction = predict(256, 512, [small, large], points(small, large))
    assert prediction is not None
    assert prediction.seconds.value == pytest.approx(time_of(truth), rel=1e-12)
    assert prediction.epochs.value == pytest.approx(truth.epochs[0], rel=1e-12)
    assert prediction.seconds.low < time_of(truth) < prediction.seconds.high
    assert "interpolated between units 64 (64) and 1,024 (1024)" in prediction.seconds.how


def test_extrapolation_follows_the_slope_within_the_limits() -> None:
    small, large, truth = law(64, 128), law(256, 512), law(1024, 2048)
    prediction = predict(1024, 2048, [small, large], points(small, large))
    assert prediction is not None
    assert prediction.seconds.value == pytest.approx(time_of(truth), rel=1e-12)
    # Ideal scaling and the same epochs, against no gain and the same number of steps.
    best = large.staging_s[0] / 4 + large.epoch_s[0] / 4 * large.epochs[0] + 2
    worst = large.staging_s[0] + large.epoch_s[0] * large.epochs[0] * 4 + 2
    assert (prediction.seconds.low, prediction.seconds.high) == pytest.approx((best, worst))


def test_a_measured_configuration_is_predicted_as_measured() -> None:
    sets = [law(64, 128), law(256, 512)]
    prediction = predict(256, 512, sets, points(*sets))
    assert prediction is not None
    assert (
        prediction.seconds.value
        == prediction.seconds.low
        == prediction.seconds.high
        == pytest.approx(time_of(sets[1]))
    )


def test_one_measurement_gives_the_papers_weak_scaling_and_both_limits() -> None:
    one = law(512, 512)
    prediction = predict(1024, 1024, [one], points(one))
    assert prediction is not None
    # Constant throughput a unit (Farrell et al. 2021, section 4.1.2, b); epochs between the same and the same
    # steps.
    assert prediction.epoch_s[:3] == (one.epoch_s[0] / 2, one.epoch_s[0] / 2, one.epoch_s[0])
    assert prediction.epochs.low == pytest.approx(one.epochs[0])
    assert prediction.epochs.high == pytest.approx(2 * one.epochs[0])
    assert prediction.epochs.value == pytest.approx(math.sqrt(2) * one.epochs[0])


def test_another_share_of_the_batch_lies_between_the_same_throughput_and_the_same_step() -> None:
    one = law(256, 256)
    prediction = predict(256, 1024, [one], points(one))  # four samples per unit, where one was run
    assert prediction is not None
    assert prediction.epoch_s.value == one.epoch_s[0]
    assert prediction.epoch_s.low == pytest.approx(one.epoch_s[0] / 4)
    assert prediction.epoch_s.high == one.epoch_s[0]
    fewer = predict(256, 128, [one], points(one))
    assert fewer is not None
    assert fewer.epoch_s.low == one.epoch_s[0]
    assert fewer.epoch_s.high == pytest.approx(2 * one.epoch_s[0])


def test_only_sets_with_the_requested_share_are_used() -> None:
    alike, other = law(256, 512), Measured("o", 512, 512, *[exact(1e6)] * 4)
    prediction = predict(1024, 2048, [alike, other], points(alike))
    assert prediction is not None
    assert "(256)" in prediction.epoch_s.how and "(o)" not in prediction.epoch_s.how


@pytest.mark.parametrize(("number", "law_of"), list(product((1, 2, 3), (UP, DOWN))))
def test_the_value_lies_in_its_range(number: int, law_of: tuple[float, tuple[float, float]]) -> None:
    draw = random.Random(number)
    for _ in range(300):
        sizes = draw.sample([2**n for n in range(4, 13)], number)
        there = []
        for size in sizes:
            value = draw.choice([0.0, draw.uniform(0.1, 100)])
            low, high = value * draw.uniform(0.5, 1), value * draw.uniform(1, 2)
            there.append(Point(size, (value, low, high), "s"))
        at = draw.choice([8, 40, 300, 5000, 10_000, *sizes])
        prediction = carried(there, at, "units", *law_of)
        assert 0 <= prediction.low <= prediction.value <= prediction.high < math.inf
        prediction_again = carried(there[::-1], at, "units", *law_of)
        assert prediction_again == prediction  # in any order


def test_without_measurements_there_is_no_prediction() -> None:
    assert predict(4, 4, [], points(law(2, 2))) is None
    assert predict(4, 4, [law(2, 2)], []) is None


def test_piz_daint_at_half_its_size_is_as_published() -> None:
    """Farrell et al. 2021, Table 4: Piz-Daint-256 took 327.01 minutes with a batch of 512, Piz-Daint-128
    461.01 with half of it. From the larger one's 113.1 epochs of 170.6 s (its logs) and the 59 epochs at a
    batch of 128 of section 4.2.4."""
    large = Measured("256", 256, 512, exact(113.1), exact(170.6), exact(294.0), exact(30.0))
    assert time_of(large) / 60 == pytest.approx(327.01, rel=0.01)
    prediction = predict(128, 256, [large], [*points(large), Point(128, exact(59.0), "section 4.2.4")])
    assert prediction is not None
    assert prediction.seconds.value / 60 == pytest.approx(461.01, rel=0.03)
    assert prediction.seconds.low / 60 < 461.01 < prediction.seconds.high / 60


def test_neighbours_keep_the_share_of_the_batch() -> None:
    asked = neighbours([law(128, 256), law(512, 1024)])
    assert asked == [(64, 128), (256, 512), (1024, 2048)]
    assert neighbours([law(1, 1)]) == [(2, 2)]
