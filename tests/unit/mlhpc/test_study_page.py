"""The page of a study: figures per setting, tables of all cells, legends."""

import json
from urllib.parse import unquote

import pytest
from helpers.page import Page, rows_of
from helpers.study_site import Site

from mlhpc.submission.report.study import read


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
