"""Time of a sample by part, from a profile written down by hand."""

import pytest

from mlhpc.benchmarks.load import load
from mlhpc.common.timing.profile import Exchange, Message, Profile, Reading, Work
from mlhpc.perf.profile.batches import by_batch, per_sample
from mlhpc.perf.profile.command import batch_sizes
from mlhpc.perf.profile.layers import LayerTime, by_part
from mlhpc.perf.profile.ranks import exchange_table, reading_table
from mlhpc.perf.profile.tables import Shown

TIMES = [
    LayerTime("conv", "convolution", "forward", 0.2, 100, 0, 10.0),
    LayerTime("norm", "batch norm", "forward", 0.1, 0, 10, 10.0),
]


def shown(batch, wall, overlap=1.0):
    """A step of which a tenth is not hidden communication and a twentieth waits for input."""
    work = (
        Work("forward", "conv", "conv", 0.2 * overlap, 1),
        Work("forward", "norm", "norm", 0.1 * overlap, 1),
        Work("optimizer", "", "sgd", 0.1 * overlap, 1),
        Work("communication", "", "all-reduce", 0.1 * overlap, 1),
    )
    exchange = Exchange((Message(1000, 0.25, 2),), 0.1)
    profile = Profile("cpu", batch, 1, wall, (), work, exchange, Reading(0.05, 500.0, 4000.0))
    times = [time._replace(seconds=time.seconds * overlap) for time in TIMES]
    return Shown(load("cosmoflow", "smoke"), [profile, profile], times, by_part(profile), [], None, [])


def test_parts_add_up_to_the_time_of_a_sample():
    found = per_sample(shown(4, 1.0))
    assert sum(found.values()) == pytest.approx(0.25)
    assert found["compute"] == pytest.approx(0.05)
    assert found["memory"] == pytest.approx(0.05)  # batch norm and the optimizer
    assert found["communication"] == pytest.approx(0.025)
    assert found["input wait"] == pytest.approx(0.0125)


def test_overlapping_operations_count_by_their_share():
    found = per_sample(shown(4, 1.0, overlap=10.0))
    assert sum(found.values()) == pytest.approx(0.25)
    assert found["compute"] == pytest.approx(found["memory"])


def test_the_papers_figure_is_there_where_it_has_both_batches():
    rows = [
        [cell.text for cell in row] for row in by_batch([shown(1, 1.0), shown(2, 1.5), shown(4, 2.0)]).rows
    ]
    assert [row[-1] for row in rows][:2] == ["1", "0.71"]  # section V-D: 29% better from one to two
    assert [row[-2] for row in rows] == ["1.00", "0.75", "0.50"]
    assert not rows[2][-1].strip("–—")


def test_each_rank_has_its_share_and_rates():
    ranks = shown(4, 1.0).ranks
    (row, other) = exchange_table(ranks).rows
    assert [cell.text for cell in row] == ["0", "1e+03", "100", "10.0%", "2", "0.002", "4e-06"]
    assert other[0].text == "1"
    assert [cell.value for cell in reading_table(ranks).rows[0]][1:4] == pytest.approx([500e-6, 500e-9, 4e-6])


def test_batches_are_ascending_and_each_once():
    assert batch_sizes("4,1,4") == [1, 4]
