"""Closed forms: epochs with given times, and their utilisation by the rules' formula."""

import numpy as np
import pytest

from mlhpc.iobench.definition.schema import Metric
from mlhpc.iobench.emulate.steps import EpochTimes
from mlhpc.iobench.report.result import _cpu_busy
from mlhpc.iobench.report.utilisation import Shares, binding, dlio_percent, shares


def epoch(
    rows: list[tuple[float, float, float, float]], checkpoint: tuple[int, float, float] | None = None
) -> EpochTimes:
    """Steps of (wait, compute, oversleep, barrier), one right after the other. ``checkpoint``: the step before it,
    and the seconds to write it and to wait for other ranks."""
    times, at = EpochTimes(0), 100.0
    lines = []
    for number, row in enumerate(rows):
        lines.append((at, *row, 0, 0, 0))
        at += sum(row)
        if checkpoint and checkpoint[0] == number:
            at += checkpoint[1] + checkpoint[2]
            times.checkpoint_at.append(number)
            times.checkpoint_step_s.append(checkpoint[1])
            times.checkpoint_wait_s.append(checkpoint[2])
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
    plain = epoch([(1.0, 1.0, 0, 0)] * 4)
    for checkpoint in ((2, 30.0, 0.0), (2, 0.0, 30.0), (2, 10.0, 20.0)):
        assert shares([epoch([(1.0, 1.0, 0, 0)] * 4, checkpoint)], Metric()) == shares([plain], Metric())
    first = epoch([(1.0, 1.0, 0, 0)] * 4, checkpoint=(0, 30.0, 0.0))
    assert shares([first], Metric()).running_s == pytest.approx(6.0)


def test_nothing_computed_is_no_utilisation():
    assert shares([epoch([(1.0, 0.0, 0, 0)] * 3)], Metric()).utilisation is None
    assert shares([], Metric()).utilisation is None


def as_dlio_counts(epochs, metric):
    """The mean over ``epochs``, step by step with a clock, as DLIO's loop meets them: blocks start at the epoch's
    start and after each checkpoint; a step is processed before its barrier."""
    of_epochs = []
    for times in epochs:
        now, blocks = 0.0, [{"start": 0.0, "proc": [], "compute": []}]
        for number, row in enumerate(times.steps):
            _, wait, compute, oversleep, barrier, *_ = row
            blocks[-1]["proc"].append(wait + compute + oversleep)
            blocks[-1]["compute"].append(compute + oversleep)
            now += wait + compute + oversleep + barrier
            if number in times.checkpoint_at:
                blocks[-1]["end"] = now
                checkpoint = times.checkpoint_at.index(number)
                now += times.checkpoint_step_s[checkpoint]
                blocks.append({"start": now, "proc": [], "compute": []})
                now += times.checkpoint_wait_s[checkpoint]
        blocks[-1]["end"] = now
        begin, end = metric.exclude_start_steps, len(times.steps) - metric.exclude_end_steps
        weighted = 0.0
        for block in blocks:
            if block["proc"]:
                outside = sum(block["proc"][:begin]) + sum(block["proc"][end:])
                counted = sum(block["compute"][begin:end])
                part = counted / (block["end"] - block["start"] - outside) if counted else 0.0
                weighted += part * len(block["proc"])
        of_epochs.append(100 * weighted / len(times.steps))
    return sum(of_epochs) / len(of_epochs)


@pytest.mark.parametrize("metric", [Metric(), Metric(exclude_start_steps=0), Metric(exclude_end_steps=1)])
@pytest.mark.parametrize(
    "checkpoints",
    [[None, None], [(2, 30.0, 0), None], [(0, 7.0, 0), (11, 3.0, 0)], [(4, 1.0, 5.0), (11, 0, 6.0)]],
)
def test_the_tools_utilisation_is_dlios(metric, checkpoints):
    rng = np.random.default_rng(3)
    epochs = [epoch(list(map(tuple, rng.exponential(0.5, (12, 4)))), at) for at in checkpoints]
    of_epochs = [dlio_percent(each, metric) for each in epochs]
    assert sum(of_epochs) / 2 == pytest.approx(as_dlio_counts(epochs, metric))


def test_a_slow_first_epoch_decides_by_the_text_and_not_by_the_tool():
    """The required utilisation is 90%: the same epochs pass by one formula, and fail by the other."""

    def of(percent):
        return epoch([(9.0, 1.0, 0, 0), *[(100 / percent - 1, 1.0, 0, 0)] * 99])

    epochs = [of(70.0), *[of(95.5)] * 4]
    assert shares(epochs, Metric()).utilisation == pytest.approx(100 * 5 / (1 / 0.7 + 4 / 0.955))
    assert shares(epochs, Metric()).utilisation < 90
    assert sum(dlio_percent(each, Metric()) for each in epochs) / 5 == pytest.approx((70 + 4 * 95.5) / 5)


def test_without_compute_the_tool_has_no_utilisation_either():
    assert dlio_percent(epoch([(1.0, 0.0, 0, 0)] * 3), Metric()) is None
    assert dlio_percent(epoch([(1.0, 1.0, 0, 0)]), Metric()) is None
    assert dlio_percent(EpochTimes(0), Metric()) is None


@pytest.mark.parametrize(
    ("real", "null", "busy", "resource", "loss"),
    [
        # running, compute, wait, barrier, oversleep
        ((10, 9.8, 0.1, 0.1, 0), (10, 9.9, 0.05, 0.05, 0), 20, "compute", None),
        ((10, 2, 8, 0, 0), (10, 9.9, 0.1, 0, 0), 20, "storage", "storage"),
        ((10, 2, 8, 0, 0), (10, 2.1, 7.9, 0, 0), 50, "decode", "decode"),
        ((10, 2, 8, 0, 0), (10, 2.1, 7.9, 0, 0), 97, "cpu", "cpu"),
        ((10, 2, 0, 8, 0), (10, 2, 0, 8, 0), 20, "barrier", "barrier"),
        # Ranks wait for one that waits for data.
        ((10, 2, 0, 8, 0), (10, 9.9, 0, 0.1, 0), 20, "storage", "storage"),
        ((10, 4, 0, 0, 6), (10, 4, 0, 0, 6), 20, "cpu", "cpu"),
        # Compute takes most of the time, so faster processors or storage cannot bring much.
        ((10, 8.84, 0.2, 0.13, 0.83), (10, 9, 0.1, 0.1, 0.8), 20, "compute", "cpu"),
        ((10, 9.17, 0.2, 0.48, 0.15), (10, 9.2, 0.15, 0.5, 0.15), 20, "compute", "barrier"),
        ((10, 6, 4, 0, 0), (10, 9.9, 0.1, 0, 0), 20, "compute", "storage"),
    ],
)
def test_what_takes_most_of_the_time_binds_and_the_largest_loss_is_named(real, null, busy, resource, loss):
    bottleneck = binding(Shares(*map(float, real)), Shares(*map(float, null)), busy)
    assert bottleneck is not None
    assert (bottleneck.resource, bottleneck.loss) == (resource, loss)
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


@pytest.mark.parametrize(
    ("affinities", "cores"),
    [([{0}, {1}], 2), ([{0, 1}, {0, 1}], 2), ([{0, 1}, {1, 2}], 3)],
    ids=["bound", "unbound", "overlapping"],
)
def test_cores_of_a_node_are_busy_in_proportion_to_those_that_its_ranks_may_use(affinities, cores):
    """Two ranks that each compute for 3 of 10 s; the other node has a rank that computes for 1 s."""
    null = {"cpu_s": 3.0, "seconds": 10.0}
    ranks = [{"host": "n0", "affinity": sorted(own), "cores": len(own), "null": null} for own in affinities]
    ranks.append({"host": "n1", "affinity": [0], "cores": 1, "null": null | {"cpu_s": 1.0}})
    assert _cpu_busy(ranks) == pytest.approx(100 * 6 / (cores * 10))
