"""Time per sample by part, from a profile written down by hand."""

import json
from dataclasses import replace
from urllib.parse import unquote

import pytest
from helpers.page import Page

from mlhpc import cli
from mlhpc.benchmarks.load import load
from mlhpc.common.timing.profile import Exchange, Message, Profile, Reading, Work
from mlhpc.perf.profile.batches import bars, by_batch, per_sample
from mlhpc.perf.profile.layers import LayerTime, by_part
from mlhpc.perf.profile.ranks import exchange_table, reading_note, reading_table
from mlhpc.perf.profile.tables import Shown, page

TIMES = [
    LayerTime("conv", "convolution", "forward", 0.2, 100, 0, 10.0),
    LayerTime("norm", "batch norm", "forward", 0.1, 0, 10, 10.0),
]


def shown(batch, wall, overlap=1.0, plain=None, exposed=0.1, benchmark="cosmoflow", passes=1):
    """A step of which a tenth is not hidden communication and a twentieth waits for input. ``plain``: its seconds
    without a profiler, which are ``wall`` where it costs nothing."""
    work = (
        Work("forward", "conv", "conv", 0.2 * overlap, 1),
        Work("forward", "norm", "norm", 0.1 * overlap, 1),
        Work("optimizer", "", "sgd", 0.1 * overlap, 1),
        Work("communication", "", "all-reduce", 0.1 if exposed else 0.1 * overlap, 1),
    )
    exchange = Exchange((Message(1000, 0.25, 2),), exposed, 0.4)
    reading = Reading(0.05, 500.0, 4000.0)
    profile = Profile("cpu", batch, 1, wall, (), work, exchange, reading, plain or wall, passes)
    times = [time._replace(seconds=time.seconds * overlap) for time in TIMES]
    return Shown(load(benchmark, "smoke"), [profile, profile], times, by_part(profile), [], None, [])


def test_parts_add_up_to_the_time_of_a_sample():
    parts = per_sample(shown(4, 1.0))
    assert sum(parts.values()) == pytest.approx(0.25)
    assert parts["compute"] == pytest.approx(0.05)
    assert parts["memory"] == pytest.approx(0.05)  # batch norm and the optimizer
    assert parts["communication"] == pytest.approx(0.025)
    assert parts["input wait"] == pytest.approx(0.0125)


def test_overlapping_operations_count_by_their_share_and_waits_stay_as_long_as_they_were():
    parts = per_sample(shown(4, 1.0, overlap=10.0))
    assert sum(parts.values()) == pytest.approx(0.25)
    assert parts["compute"] == pytest.approx(parts["memory"])
    assert parts["communication"] == pytest.approx(0.025)
    assert parts["input wait"] == pytest.approx(0.0125)


def test_communication_that_is_not_known_to_be_exposed_overlaps_as_other_operations_do():
    """On a GPU it is kernels with concurrent reads: 1 of 5 seconds of operations in 0.95 s without a wait for
    input."""
    parts = per_sample(shown(1, 1.0, overlap=10.0, exposed=None))
    assert parts["communication"] == pytest.approx(0.95 / 5)
    assert parts["input wait"] == pytest.approx(0.05)


def test_times_are_those_of_steps_without_the_profiler():
    """It makes steps twice as long: their parts keep their shares of the shorter one."""
    parts = per_sample(shown(4, 1.0, plain=0.5))
    assert sum(parts.values()) == pytest.approx(0.125)
    assert parts["communication"] == pytest.approx(0.0125)
    table = by_batch([shown(1, 1.0, plain=0.5), shown(2, 4.0, plain=0.5)])
    assert [row[-3].text for row in table.rows] == ["500", "250"]
    assert [row[-2].text for row in table.rows] == ["1.00", "0.50"]


def test_a_step_of_several_backward_passes_has_the_samples_of_all():
    assert sum(per_sample(shown(4, 1.0, passes=5)).values()) == pytest.approx(1 / 20)


def test_what_the_paper_gives_as_up_to_is_a_bound():
    """DeepCAM, section V-D: doubling improves "by up to 1.6×", so a sample takes 1/1.6 of the time or more."""
    sets = [shown(1, 1.0, benchmark="deepcam"), shown(2, 1.5, benchmark="deepcam")]
    assert [row[-1].text for row in by_batch(sets).rows] == ["1", "≥0.62"]
    assert "at least" in bars(sets).note and "Diamonds" not in bars(sets).note
    exact = [shown(1, 1.0), shown(2, 1.5)]
    assert "Diamonds" in bars(exact).note and "at least" not in bars(exact).note


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
    # 2000 bytes while messages are under way for 0.4 s.
    assert [cell.text for cell in row] == ["0", "1,000", "100", "10.0%", "2", "0.002", "0.000005"]
    assert other[0].text == "1"
    assert [cell.value for cell in reading_table(ranks).rows[0]][1:4] == pytest.approx([500e-6, 500e-9, 4e-6])


def test_on_a_gpu_the_input_wait_is_said_to_be_the_hosts():
    on_host = shown(4, 1.0).ranks
    assert "host" not in reading_note(on_host)
    assert "host's" in reading_note([replace(rank, gpu=True) for rank in on_host])


def test_batches_are_each_measured_once():
    options = cli._parser().parse_args(["profile", "cosmoflow", "--batches", "4,1,4"])
    assert options.batches == [4, 1]


def test_the_page_has_charts_and_parts_that_add_up_to_the_step():
    """Ten threads: 4.1 s of operations in a step of a second."""
    one = shown(4, 1.0, overlap=10.0)
    read = Page(page(one))
    assert sum(row["y"] for row in read.rows("Parts of a step.")) == pytest.approx(1000)
    kinds = read.rows("Time by kind of layer.")
    assert {(row["x"], row["part"]): row["y"] for row in kinds} == {
        ("convolution", "forward"): pytest.approx(2000),
        ("convolution", "backward"): 0,
        ("batch norm", "forward"): pytest.approx(1000),
        ("batch norm", "backward"): 0,
    }
    (link,) = [str(a["href"]) for _, a in read.elements if a.get("download") == "step-by-part.json"]
    rows = json.loads(unquote(link.partition(",")[2]))
    assert sum(row["ms per step"] for row in rows) == pytest.approx(1000)
    assert sum(row["share"] for row in rows) == pytest.approx(1)
    assert sum(row["of all threads, ms"] for row in rows) == pytest.approx(1e3 * sum(one.parts.values()))
    assert "Operations ran concurrently" in page(one)
    assert "ran concurrently" not in page(shown(4, 1.0)), "nothing overlaps"


@pytest.mark.parametrize("key", ["compile=true", "cuda_graphs=on"])
def test_steps_that_a_run_would_not_take_eagerly_are_not_profiled(capsys, key):
    assert cli.main(["profile", "deepcam", "--set", f"training.{key}"]) == 2
    assert f"without training.{key.partition('=')[0]}; omit the setting" in capsys.readouterr().err
