"""The learning rate of an epoch, against the reference's schedule as it ran, and value by value."""

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlhpc.common.training.schedules import learning_rate

# mlcommons/hpc, cosmoflow/configs/cosmo.yaml at batch 256: 0.001 at batch 64, scaled linearly, 4 warm-up
# epochs, a quarter after epoch 32 and an eighth after 64. Computed by hand from that description.
BY_HAND = {
    0: 0.001,
    1: 0.00175,
    2: 0.0025,
    3: 0.00325,
    4: 0.004,
    5: 0.004,
    31: 0.004,
    32: 0.004,  # "after epoch 32": epoch 32 itself still has the full rate
    33: 0.001,
    64: 0.001,
    65: 0.0005,  # an eighth of the peak, not of the quarter
    1000: 0.0005,
}
CLOSED = {
    "peak": 0.004,
    "warmup_epochs": 4,
    "warmup_factor": 4.0,
    "decay_boundary_epochs": (32, 64),
    "decay_factors": (0.25, 0.125),
}


@pytest.mark.parametrize(("epoch", "rate"), BY_HAND.items())
def test_the_closed_division_schedule(epoch, rate):
    assert learning_rate(epoch, **CLOSED) == pytest.approx(rate, rel=1e-12)


RECORDED = json.loads((Path(__file__).parents[3] / "data" / "reference" / "cosmoflow.json").read_text())[
    "schedules"
]


@pytest.mark.parametrize("case", RECORDED, ids=lambda case: case["case"])
def test_every_rate_equals_the_recorded_rate_of_the_reference(case):
    logged = case["settings"]
    ours = [
        learning_rate(
            epoch,
            peak=logged["opt_base_learning_rate"],
            warmup_epochs=logged["opt_learning_rate_warmup_epochs"],
            warmup_factor=logged["opt_learning_rate_warmup_factor"],
            decay_boundary_epochs=logged["opt_learning_rate_decay_boundary_epochs"],
            decay_factors=logged["opt_learning_rate_decay_factor"],
        )
        for epoch in range(len(case["rates"]))
    ]
    assert ours == pytest.approx(case["rates"], rel=1e-12)


@pytest.mark.parametrize("warmup_epochs", [0, 1, 7])
@pytest.mark.parametrize("warmup_factor", [1.0, 2.5, 128.0])
def test_warm_up_rises_in_equal_steps_from_its_start_to_the_peak(warmup_epochs, warmup_factor):
    rates = [
        learning_rate(e, peak=0.3, warmup_epochs=warmup_epochs, warmup_factor=warmup_factor)
        for e in range(warmup_epochs + 2)
    ]
    assert rates[-2:] == [0.3, 0.3]
    if warmup_epochs:
        assert rates[0] == pytest.approx(0.3 / warmup_factor)
    steps = [after - before for before, after in pairwise(rates[:-1])]
    assert steps == pytest.approx([(0.3 - 0.3 / warmup_factor) / max(1, warmup_epochs)] * len(steps))


@given(
    st.dictionaries(st.integers(1, 50), st.floats(0.01, 0.99), max_size=4),
    st.integers(0, 10),
    st.floats(1, 100),
    st.integers(0, 60),
)
def test_every_epoch_has_the_ramps_rate_or_that_of_the_last_boundary(decay, warmup_epochs, factor, epoch):
    boundaries = sorted(decay)
    shares = [1.0, *(decay[boundary] for boundary in boundaries)]
    if epoch < warmup_epochs:
        expected = np.interp(epoch, [0, warmup_epochs], [2.0 / factor, 2.0])
    else:
        expected = 2.0 * shares[np.searchsorted(boundaries, epoch, side="left")]
    rate = learning_rate(
        epoch,
        peak=2.0,
        warmup_epochs=warmup_epochs,
        warmup_factor=factor,
        decay_boundary_epochs=boundaries,
        decay_factors=shares[1:],
    )
    assert rate == pytest.approx(expected, rel=1e-9)


def test_no_decay_during_warm_up():
    rates = [
        learning_rate(
            e, peak=1.0, warmup_epochs=4, warmup_factor=2, decay_boundary_epochs=(1,), decay_factors=(0.1,)
        )
        for e in range(5)
    ]
    assert rates == pytest.approx([0.5, 0.625, 0.75, 0.875, 0.1])


def test_linear_falls_in_equal_steps_and_reaches_zero_when_training_ends():
    options = {"peak": 0.8, "warmup_epochs": 2, "warmup_factor": 8, "schedule": "linear", "max_epochs": 6}
    rates = [learning_rate(epoch, **options) for epoch in range(8)]
    assert rates == pytest.approx([0.1, 0.45, 0.8, 0.6, 0.4, 0.2, 0.0, 0.0])


def test_linear_with_nothing_left_after_warm_up():
    rates = [
        learning_rate(e, peak=1.0, warmup_epochs=3, warmup_factor=2, schedule="linear", max_epochs=3)
        for e in range(4)
    ]
    assert rates == pytest.approx([0.5, 0.5 + 0.5 / 3, 0.5 + 1 / 3, 0.0])


@pytest.mark.parametrize(
    ("epoch", "options"),
    [
        (-1, {}),
        (0, {"schedule": "linear"}),
        (0, {"decay_boundary_epochs": (3,)}),
    ],
    ids=["negative epoch", "linear without an end", "a boundary without a factor"],
)
def test_invalid_arguments_raise(epoch, options):
    with pytest.raises(ValueError):
        learning_rate(epoch, peak=0.1, **options)
