"""The page of a study: figures per setting, tables of all cells, legends."""

import json
from urllib.parse import unquote

import pytest
from helpers.page import Page, rows_of
from helpers.study_site import Site

from mlhpc.benchmarks import load
from mlhpc.submission.report.study import GLOBAL_BATCH, read
from mlhpc.submission.report.study_charts import throughput
from mlhpc.submission.report.study_page import cells_table


@pytest.fixture
def site(tmp_path, monkeypatch):
    site = Site(tmp_path)
    monkeypatch.setattr("mlhpc.common.ranks.local.sys.executable", str(tmp_path / "python"))
    monkeypatch.setenv("COLUMNS", "200")
    return site


def test_the_page_has_a_figure_per_setting_and_a_table_of_all_cells(site):
    stage = site.folder / "stage"
    words = ["--vary", "network.name=lenet,alexnet", "--vary", "ranks=1,2", "--vary", "batch=4,8"]
    words += ["--vary", "storage=shared,staged", "--stage", stage, "--repeats", "2"]
    site.takes(run1=[2.0, 0.1], run2=[3.0, 0.1])
    assert site.study(*words, benchmark="resnet50") == 0
    page = (site.out / "study.html").read_text()
    for title in ("Network", "Ranks", "Local batch size", "Storage", "Variability by storage", "In numbers"):
        assert f"<h2>{title}</h2>" in page
    assert sum(tag == "tr" for tag, _ in Page(page).elements) == 1 + 16
    assert "a processor" in page and "commit 0123456789ab" in page and "preset smoke" in page
    assert "Not a result of the benchmark" in page
    assert "50.0%" in page, "the slower repeat took half as long again"
    read_page = Page(page)
    # All figures of a section have one scale.
    bars = [c for c in read_page.charts if "lenet" in c["description"] and "alexnet:" in c["description"]]
    assert len(bars) == 8
    assert len({json.dumps(c["layer"][0]["encoding"]["y"]["scale"]) for c in bars}) == 1
    (link,) = [str(a["href"]) for _, a in read_page.elements if a.get("download") == "study.json"]
    rows = json.loads(unquote(link.partition(",")[2]))
    assert len(rows) == 16
    assert {(row["ranks"], row["speed-up"], row["efficiency"]) for row in rows} == {
        (1, 1.0, 1.0),
        (2, 2.0, 1.0),
    }
    assert {row["95% interval"] for row in rows} == {"of 2 runs"}, "two runs have no interval"


def test_small_numbers_keep_their_digits_on_an_axis(site):
    """A rate of 0.001 is not 0; an interval that reaches 0 has a place on a logarithmic axis."""
    site.takes(run1=[1.0, 0.1], run2=[9.0, 0.1], run3=[9.0, 0.1])
    rates = "hyperparameters.sgd_opt_base_learning_rate=1e-3,1e-2"
    assert site.study("--vary", rates, "--repeats", "3", benchmark="resnet50") == 0
    assert [cell.samples_per_s.interval[1] for cell in read(site.out).cells] == [0, 0]
    page = (site.out / "study.html").read_text()
    assert ">0.001<" in page and ">0.01<" in page
    (chart,) = Page(page).charts
    assert all(row["low"] > 0 for row in rows_of(chart) if "low" in row)


def test_cells_may_differ_in_settings_that_only_some_have(site):
    """One of two presets has no simulation to vary; curves and names still distinguish the cells."""
    for preset in ("smoke", "closed"):
        assert (
            site.study("--preset", preset, "--vary", "batch=4,8", "--repeats", "1", benchmark="resnet50") == 0
        )
    study = read(site.out)
    names = [study.name(axis) for axis in study.axes]
    assert "network.classes" in names and "data.simulation.classes" in names and len(set(names)) == len(names)
    page = (site.out / "study.html").read_text()
    assert sum(tag == "tr" for tag, _ in Page(page).elements) == 1 + 4
    assert "<h2>Local batch size</h2>" in page


def test_long_names_are_shown_in_a_legend(site):
    names = [f"{'a very long name of a network ' * 3}{i}" for i in (1, 2)]
    assert site.study("--vary", f"submission.platform={','.join(names)}", "--repeats", "1") == 0
    page = (site.out / "study.html").read_text()
    (chart,) = Page(page).charts
    assert chart["layer"][0]["encoding"]["color"]["scale"]["domain"] == names
    assert chart["layer"][0]["encoding"]["color"]["legend"]["orient"] == "bottom"


def test_curves_have_a_legend_that_says_of_what_and_intervals_side_by_side(site):
    """And a single figure has the whole width."""
    site.takes(run1=[1.0, 0.1], run2=[2.0, 0.1], run3=[3.0, 0.1])
    assert site.study("--vary", "ranks=1,2", "--vary", "batch=4,8", "--repeats", "3") == 0
    page = (site.out / "study.html").read_text()
    over_batch, over_ranks = Page(page).charts
    for chart, title in ((over_ranks, "local batch size, samples"), (over_batch, "ranks")):
        encodings = [layer["encoding"] for layer in chart["layer"] if "color" in layer.get("encoding", {})]
        legends = [kind["legend"] for e in encodings for key, kind in e.items() if "legend" in kind]
        assert legends and {legend["title"] for legend in legends} == {title}
        rows = [row for row in rows_of(chart) if "y_low" in row]
        assert len({row["x"] for row in rows}) == len(rows) == 4
    assert page.count('class="grid n1"') == 2 and 'class="grid n2"' not in page


def write_cell(folder, ranks, batch, rate):
    """A cell of one run at ``rate`` samples/s, with ``batch`` samples per step over all ranks."""
    steps, warmup = 6, 2
    run = load.load("cosmoflow", "smoke", [f"{GLOBAL_BATCH}={batch}", f"study.steps={steps}",
                                           f"study.warmup_steps={warmup}"])  # fmt: skip
    end = 9 + steps * batch / rate
    events = [
        {"t": 0.0, "event": "note", "name": "facts", "ranks": ranks},
        {"t": 1.0, "event": "begin", "name": "run"},
        {"t": 1.5, "event": "begin", "name": "train", "epoch": 1},
        {"t": 9.0, "event": "mark", "name": "warm", "waited": {"data_wait": 0.0}},
        {
            "t": end,
            "event": "timed",
            "name": "data_wait",
            "seconds": 0.01,
            "epoch": 1,
            "count": steps + warmup,
        },
        {"t": end, "event": "end", "name": "train", "epoch": 1, "seconds": end - 1.5},
        {"t": 999.0, "event": "end", "name": "run", "seconds": 998.0},
    ]
    (folder / "run-1").mkdir(parents=True)
    settings = {"batch": batch // ranks, "ranks": ranks, GLOBAL_BATCH: batch}
    (folder / "cell.json").write_text(json.dumps({"settings": settings, "data": "/data", "stage": None}))
    (folder / "run-1/config.toml").write_text(load.dumps(run))
    (folder / "run-1/env.json").write_text('{"cpu": "x", "cores": 2}')
    (folder / "run-1/events.rank0.jsonl").write_text("\n".join(map(json.dumps, events)))


STRONG = {(1, 32): 100, (2, 32): 150, (1, 64): 150, (2, 64): 270}
WEAK = {(1, 32): 100, (2, 64): 190, (4, 128): 320}
BOTH = {(1, 32): 100, (2, 32): 150, (2, 64): 190}
"""Samples/s by ranks and global batch size."""


@pytest.mark.parametrize(
    ("rates", "efficiencies"),
    [
        (STRONG, {(1, 32): 1.0, (2, 32): 0.75, (1, 64): 1.0, (2, 64): 0.9}),
        (WEAK, {(1, 32): 1.0, (2, 64): 0.95, (4, 128): 0.8}),
        # The ranks of one local batch: nothing has the local batch of 16 on fewer ranks.
        (BOTH, {(1, 32): 1.0, (2, 32): None, (2, 64): 0.95}),
    ],
)
def test_an_efficiency_compares_ranks_and_nothing_else(tmp_path, rates, efficiencies):
    for (ranks, batch), rate in rates.items():
        write_cell(tmp_path / f"r{ranks}b{batch}", ranks, batch, rate)
    study = read(tmp_path)
    rows = dict(zip([(c.settings["ranks"], c.settings[GLOBAL_BATCH]) for c in study.cells],
                    cells_table(study).rows, strict=True))  # fmt: skip
    columns = list(cells_table(study).head)
    at_speedup, at_efficiency = columns.index("speed-up"), columns.index("efficiency")
    for (ranks, batch), efficiency in efficiencies.items():
        row = rows[ranks, batch]
        if efficiency is None:
            assert row[at_efficiency].text == row[at_speedup].text == ""
        else:
            assert row[at_efficiency].value == pytest.approx(efficiency)
            assert row[at_speedup].value == pytest.approx(efficiency * ranks)


def test_a_cell_that_does_not_say_its_ranks_has_no_efficiency(tmp_path):
    """As in a record that somebody changed: neither a wrong efficiency nor a traceback."""
    for ranks in (1, 2, 4):
        write_cell(tmp_path / f"r{ranks}", ranks, 32, 100 * ranks)
    path = tmp_path / "r1/cell.json"
    cell = json.loads(path.read_text())
    del cell["settings"]["ranks"]
    path.write_text(json.dumps(cell))
    table = cells_table(read(tmp_path))
    at = list(table.head).index("speed-up")
    assert [row[at].text for row in table.rows] == ["", "1", "2"]


def test_a_curve_over_ranks_has_one_batch(tmp_path):
    for (ranks, batch), rate in STRONG.items():
        write_cell(tmp_path / f"r{ranks}b{batch}", ranks, batch, rate)
    figures, _ = throughput(read(tmp_path), "ranks")
    points = [
        (row["series"], round(row["x"]), round(row["y"]))  # intervals are drawn side by side
        for figure in figures
        for row in rows_of(figure.spec)
        if "series" in row and "x" in row
    ]
    assert sorted(points) == sorted((str(batch), ranks, rate) for (ranks, batch), rate in STRONG.items())
