"""Epochs to the target against reference convergence points and what submissions needed."""

import pytest

from mlhpc.errors import UserError
from mlhpc.perf.epochs import convergence_points, epochs_to_target, reference_runs, spread_of
from mlhpc.perf.published import published


@pytest.mark.parametrize(
    ("benchmark", "batch", "epochs"),
    [("cosmoflow", 32, 7.85), ("cosmoflow", 64, 18.3), ("cosmoflow", 512, 22.8), ("cosmoflow", 1024, 40.0),
     ("deepcam", 256, 9.0), ("deepcam", 1024, 13.0), ("deepcam", 2048, 22.9)],
)  # fmt: skip
def test_at_a_reference_point_its_mean_is_the_middle(benchmark, batch, epochs):
    interval = epochs_to_target(benchmark, "closed", batch)
    assert interval.value == pytest.approx(epochs, rel=0.02)
    assert interval.low < interval.value < interval.high


@pytest.mark.parametrize(
    ("benchmark", "name", "rules"), [("cosmoflow", "cosmoflow", "2.0.0"), ("deepcam", "deepcam", "2.0.0")]
)
def test_the_points_are_those_that_the_score_is_checked_with(benchmark, name, rules):
    points = {point.batch_size: point.mean for point in reference_runs(name, f"hpc_{rules}")}
    assert {p.size: pytest.approx(p.value[0]) for p in convergence_points(benchmark)} == points


def test_between_points_epochs_lie_between_theirs_and_beyond_they_stay_within_the_limits():
    low, middle, high = (epochs_to_target("cosmoflow", "closed", batch) for batch in (512, 700, 1024))
    assert low.value < middle.value < high.value
    beyond = epochs_to_target("deepcam", "closed", 4096)
    assert beyond.low <= 22.9 and beyond.high >= 2 * 22.9  # from as many epochs to as many steps


def test_the_logged_mean_of_every_test_set_lies_inside_the_interval():
    outside = []
    for row in published():
        interval = epochs_to_target(row.benchmark, row.preset, row.batch)
        if row.use == "test" and not interval.low <= row.epochs[0] <= interval.high:
            outside.append(row.name)
    assert outside == []


def test_an_interval_is_not_simply_everything():
    """Its ends are less than a factor of 3.3 apart at reference points of rounds 1.0 on."""
    for benchmark in ("cosmoflow", "deepcam"):
        for point in convergence_points(benchmark):
            interval = epochs_to_target(benchmark, "closed", int(point.size))
            assert interval.high / interval.low < 3.3


def test_the_prediction_interval_is_the_textbook_one():
    """Five logarithms 0 to 4: mean 2, s = 1.5811, t = 2.7764, so 2 ± 4.8088."""
    low, high = spread_of([2.718281828**n for n in range(5)]).factors
    assert low == pytest.approx(2.718281828 ** (2 - 4.8088), rel=0.02)
    assert high == pytest.approx(2.718281828 ** (2 + 4.8088), rel=0.02)


@pytest.mark.parametrize("preset", ["smoke", "mini"])
def test_a_small_preset_has_no_published_epochs(preset):
    with pytest.raises(UserError, match=preset):
        epochs_to_target("cosmoflow", preset, 16)
