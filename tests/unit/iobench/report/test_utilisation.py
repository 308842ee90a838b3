"""Closed forms: epochs with given times, and their utilisation by the rules' formula."""

import numpy as np
import pytest

from mlhpc.iobench.definition.schema import Metric
from mlhpc.iobench.emulate.steps import EpochTimes
from mlhpc.iobench.report.utilisation import Shares, binding, shares


def epoch(
    rows: list[tuple[float, float, float, float]], checkpoint: tuple[int, float] | None = None
) -> EpochTimes:
    """Steps of (wait, compute, oversleep, barrier), one right after the other."""
    times, at = EpochTimes(0), 100.0
    lines = []
    for number, row in enumerate(rows):
        lines.append((at, *row, 0, 0, 0))
        at += sum(row)
        if checkpoint and checkpoint[0] == number:
            at += checkpoint[1]
            times.checkpoint_at.append(number)
            times.checkpoint_step_s.append(checkpoint[1])
    times.steps = np.array(lines)
    times.seconds = at - 100.0
    return times


def test_the_first_step_does_not_count():
    times = epoch([(50.0, 1.0, 0, 0), (1.0, 1.0, 0, 0), (0.0, 1.0, 0, 0)])
    assert shares([times], Metric()).utilisation == pytest.approx(100 * 2 / 3)
    assert shares([times], Metric(exclude_start_steps=0)).utilisation == pytest.approx(100 * 3 / 54)
    assert shares([times], Metric(exclude_end_steps=1)).utilisation == pytest.approx(50)


def test_oversleeping_lowers_the_utilisation():
    exact = epoch([(0.0, 1.0, 0.0, 0.0)] * 5)
    late = epoch([(0.0, 1.0, 0.25, 0.0)] * 5)
    assert shares([exact], Metric()).utilisation == pytest.approx(100)
    assert shares([late], Metric()).utilisation == pytest.approx(80)  # DLIO's sum of measured sleep: 100


def test_checkpoints_are_not_running_time():
    plain, with_one = epoch([(1.0, 1.0, 0, 0)] * 4), epoch([(1.0, 1.0, 0, 0)] * 4, checkpoint=(2, 30.0))
    assert shares([with_one], Metric()) == shares([plain], Metric())
    first = epoch([(1.0, 1.0, 0, 0)] * 4, checkpoint=(0, 30.0))
    assert shares([first], Metric()).running_s == pytest.approx(6.0)


def test_nothing_computed_is_no_utilisation():
    assert shares([epoch([(1.0, 0.0, 0, 0)] * 3)], Metric()).utilisation is None
    assert shares([], Metric()).utilisation is None


@pytest.mark.parametrize(
    ("real", "null", "busy", "resource"),
    [
        # running, compute, wait, barrier, oversleep
        ((10, 9.8, 0.1, 0.1, 0), (10, 9.9, 0.05, 0.05, 0), 20, "compute"),
        ((10, 2, 8, 0, 0), (10, 9.9, 0.1, 0, 0), 20, "storage"),
        ((10, 2, 8, 0, 0), (10, 2.1, 7.9, 0, 0), 50, "decode"),
        ((10, 2, 8, 0, 0), (10, 2.1, 7.9, 0, 0), 97, "cpu"),
        ((10, 2, 0, 8, 0), (10, 2, 0, 8, 0), 20, "barrier"),
        ((10, 2, 0, 8, 0), (10, 9.9, 0, 0.1, 0), 20, "storage"),  # ranks wait for one that waits for data
        ((10, 4, 0, 0, 6), (10, 4, 0, 0, 6), 20, "cpu"),
    ],
)
def test_what_binds_is_named(real, null, busy, resource):
    bottleneck = binding(Shares(*map(float, real)), Shares(*map(float, null)), busy)
    assert bottleneck is not None
    assert bottleneck.resource == resource
    parts = (
        bottleneck.compute,
        bottleneck.storage,
        bottleneck.decode,
        bottleneck.cpu,
        bottleneck.barrier,
        bottleneck.oversleep,
        bottleneck.rest,
    )
    assert sum(parts) == pytest.approx(100)
    assert min(parts) > -1e-9


def test_a_null_run_slower_than_the_real_one_costs_the_storage_nothing():
    bottleneck = binding(Shares(10, 5, 5, 0, 0), Shares(10, 4, 6, 0, 0), 20)
    assert bottleneck is not None
    assert (bottleneck.storage, bottleneck.decode) == (pytest.approx(0), pytest.approx(50))
