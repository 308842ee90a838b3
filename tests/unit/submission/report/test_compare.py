"""The comparison in the terminal and as a page, and its predictions."""

import hashlib
import json
import math
import re
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from golden.make_run import make_run
from golden.make_tree import Records, make_set
from helpers.compare_logs import epochs, made_log, scaling_tree
from helpers.page import Page, rows_of
from rich.console import Console

from mlhpc.errors import UserError
from mlhpc.submission.report.compare import Comparison, compare
from mlhpc.submission.report.compare_page import page
from mlhpc.submission.report.report import report_on

# Predictions.


def test_a_configuration_that_was_not_run_is_predicted(tmp_path: Path) -> None:
    comparison = compare([scaling_tree(tmp_path)], [(16, None), (16, 128)])
    (first, second, *held) = comparison.predictions
    assert first.prediction == second.prediction  # every unit keeps its share of the batch
    said = first.prediction
    # T_epoch from 4 min to 0.5 min: halfway in logarithms it is √2; epochs from 10 to 20: √200.
    assert said.epoch_s.value / 60 == pytest.approx(math.sqrt(4 * 0.5), rel=1e-3)
    assert said.epochs.value == pytest.approx(math.sqrt(10 * 20))
    assert said.seconds.value / 60 == pytest.approx(1 + math.sqrt(2) * math.sqrt(200), rel=1e-3)
    assert [p.measured_min and round(p.measured_min, 2) for p in held] == [41.0, 11.0]
    assert "measured 41.00" in Page(page(comparison)).text


def test_by_default_half_and_double_are_predicted(tmp_path: Path) -> None:
    asked = [(p.prediction.units, p.prediction.batch) for p in compare([scaling_tree(tmp_path)]).predictions]
    assert asked == [(4, 32), (16, 128), (64, 512), (8, 64), (32, 256)]


# The page and the terminal.


def test_every_figure_states_division_and_number_of_runs(whole: tuple[Comparison, str, str]) -> None:
    comparison, html, _ = whole
    read = Page(html)
    measured = [e for e in comparison.entries if e.measured]
    # Two figures of bars and four planes for each problem.
    assert len(read.alt_texts) == len(read.charts) == 6 * len(comparison.by_problem)
    planes = [label for label in read.alt_texts if re.match(r"[abcd]\) ", label)]
    for e in measured:
        own = [label for label in planes if f"{e.letter} {e.name}: " in label]
        assert len(own) == 4 and all(e.made_from in label for label in own)
    assert "closed, 8 runs" in read.text and "open, 1 run: all runs that converged" in read.text


def test_bars_agree_with_the_numbers(whole: tuple[Comparison, str, str]) -> None:
    comparison, html, _ = whole
    charts = Page(html).charts
    absolute = [c for c in charts if str(c["description"]).startswith("Time by part")]
    relative = [c for c in charts if str(c["description"]).startswith("Share of the time")]
    for group, in_minutes, in_shares in zip(comparison.by_problem, absolute, relative, strict=True):
        longest = max(sum(e.parts_s.values()) for e in group)
        unit = 1.0 if longest < 300 else 60.0 if longest < 3 * 3600 else 3600.0
        for e in group:
            for chart in (in_minutes, in_shares):
                own = [row for row in rows_of(chart) if row.get("says", "").startswith(f"{e.letter} ")]
                values = [row["value"] for row in own]
                assert values == pytest.approx([part / unit for part in e.parts_s.values() if part > 0])
    assert '"stack": "normalize"' in json.dumps(relative[0]) and '"stack": "zero"' in json.dumps(absolute[0])


def test_marks_are_at_the_measured_values(whole: tuple[Comparison, str, str]) -> None:
    comparison, html, _ = whole
    read = Page(html)
    for e in comparison.by_problem[0]:
        (mark,) = [
            row
            for row in rows_of(
                next(c for c in read.charts if str(c["description"]).startswith("c) Throughput"))
            )
            if row.get("letter") == e.letter
        ]
        assert e.steady_epoch_s and mark["x"] == e.scale
        assert mark["y"] == pytest.approx(3600 / e.steady_epoch_s.mean)
        assert mark["hollow"] is (not e.is_closed_score)


@pytest.mark.parametrize("machines", [1, 2])
def test_a_legend_picks_out_the_machines_of_a_plane(machines: int, tmp_path: Path) -> None:
    """Every mark belongs to a name of the legend, and fades by the same selection. One machine needs no legend."""
    for org, nodes in (("first", 2), ("other", 8))[:machines]:
        make_set(tmp_path / org, minutes=[10.0 * nodes + n for n in range(10)], nodes=nodes)
    charts = Page(page(compare([tmp_path]))).charts
    planes = [chart for chart in charts if re.match(r"[abcd]\) ", chart["description"])]
    assert len(planes) == 4
    for plane in planes:
        (selection,) = [param for param in plane["params"] if param.get("bind") == "legend"]
        coloured = [layer["encoding"] for layer in plane["layer"] if "color" in layer["encoding"]]
        assert coloured
        for encoding in coloured:
            names = [name.split(" ")[0] for name in encoding["color"]["scale"]["domain"]]
            assert names == ["first", "other"][:machines]
            assert encoding["opacity"]["condition"]["param"] == selection["name"]
            assert (encoding["color"]["legend"] is not None) == (machines > 1)


def test_the_terminal_shows_the_same_numbers(whole: tuple[Comparison, str, str]) -> None:
    comparison, html, terminal = whole
    for e in comparison.entries:
        if e.score and e.score.minutes is not None:
            assert f"{e.score.minutes:.4f}" in terminal and f"{e.score.minutes:.4f}" in html
    assert "no score: 1 run; a score requires 10" in terminal
    assert "no record" in html
    assert max(map(len, terminal.splitlines())) <= 100


def test_names_are_text_and_never_markup(tmp_path: Path) -> None:
    make_set(tmp_path / "a <b>org v1.0 [bold]", system="x & y.z [red]")
    comparison = compare([tmp_path])
    read = Page(page(comparison))
    assert "a <b>org v1.0 [bold] · x & y.z [red]" in read.text
    terminal = StringIO()
    report_on([tmp_path], Console(file=terminal, width=200), tmp_path.parent / "out.html")
    assert "a <b>org v1.0 [bold] · x & y.z [red]" in terminal.getvalue()


def test_no_file_in_the_trees_is_modified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree, here = scaling_tree(tmp_path / "tree"), tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)

    def state() -> dict[Path, str]:
        return {p: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(tree.rglob("*")) if p.is_file()}

    before = state()
    console = Console(file=StringIO())
    assert report_on([tree], console) is None
    assert list(here.iterdir()) == [], "without --out no page is written"
    assert report_on([tree], console, Path("page.html")) == Path("page.html")
    assert state() == before
    with pytest.raises(UserError, match=r"page\.html already exists"):
        report_on([tree], console, Path("page.html"))
    monkeypatch.chdir(tree / "org" / "results")
    with pytest.raises(UserError, match=r"is inside .*choose another --out"):
        report_on([tree], console, Path("page.html"))
    with pytest.raises(UserError, match="already exists"):
        report_on([tree], console, _text(tmp_path / "notes.txt"))
    assert state() == before and (tmp_path / "notes.txt").read_text() == "mine"


def _text(path: Path) -> Path:
    path.write_text("mine")
    return path


def test_one_run_gets_its_own_report(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    console = Console(file=StringIO())
    assert report_on([run], console) == run / "report.html"
    path = report_on([run], console, tmp_path / "elsewhere.html")
    assert path is not None and path.read_text("utf-8").startswith("<!doctype")
    with pytest.raises(UserError, match="--predict requires several runs"):
        report_on([run], console, None, [(8, None)])


def printed(tmp_path: Path) -> str:
    """What is printed about the sets below ``tmp_path``, with single spaces."""
    terminal = StringIO()
    report_on([tmp_path / "all"], Console(file=terminal, width=300))
    return " ".join(terminal.getvalue().split())


def test_an_unknown_excess_is_not_a_number(tmp_path: Path) -> None:
    run = [*epochs(0, [20, 10], [4, 4]), (40.0, "run_stop")]
    made_log(tmp_path / "all" / "result_1.txt", run)
    assert " 0.0% not known " in printed(tmp_path), "no staging is none, an excess nobody knows is not"
    run = [*epochs(0, [20, 10, 10], [4, 4, 4]), (60.0, "run_stop")]
    made_log(tmp_path / "all" / "result_1.txt", run)
    assert "% not known" not in printed(tmp_path)


def test_the_terminal_names_the_findings(tmp_path: Path) -> None:
    results = tmp_path / "all" / "org" / "results"
    make_set(tmp_path / "all" / "org")
    (results / "idle0" / "strong" / "cosmoflow").mkdir(parents=True)
    count = len(compare([tmp_path / "all"]).problems)
    text = printed(tmp_path)
    assert 1 <= count <= 5 and text.count(" set/") == count and "more: see the page" not in text
    assert f"{count} finding" in text and "set/empty: " in text
    for n in range(1, 9):
        (results / f"idle{n}" / "strong" / "cosmoflow").mkdir(parents=True)
    count = len(compare([tmp_path / "all"]).problems)
    text = printed(tmp_path)
    assert text.count(" set/") == 5 and f"and {count - 5} more: see the page" in text


BOTH = {"mlhpc": "0.1.0", "tensorflow-cpu": "2.18.1", "keras": "3.15.1", "horovod": "0.28.1", "torch": "2.12.1",
        "torchvision": "0.27.1", "nvidia-dali-cuda130": "2.2.0", "h5py": "3.16.0"}  # fmt: skip


@pytest.mark.parametrize(
    "benchmark, framework, software, used",
    [
        ("cosmoflow", None, "tensorflow-cpu 2.18.1", "mlhpc tensorflow-cpu keras horovod h5py"),
        ("cosmoflow", "pytorch", "torch 2.12.1", "mlhpc torch torchvision nvidia-dali-cuda130 h5py"),
        ("deepcam", None, "torch 2.12.1", "mlhpc torch torchvision nvidia-dali-cuda130 h5py"),
        ("resnet50", None, "torch 2.12.1", "mlhpc torch torchvision nvidia-dali-cuda130 h5py"),
    ],
)
def test_a_run_is_reported_with_its_own_framework(
    benchmark: str, framework: str | None, software: str, used: str, tmp_path: Path
) -> None:
    def both(env: dict[str, Any]) -> None:
        env["packages"] = BOTH

    def of(result: dict[str, Any]) -> None:
        result["benchmark"] = benchmark
        if framework:
            result["framework"] = framework

    run = make_run(tmp_path / "all" / "run", env=both, result=of)
    (entry,) = compare([tmp_path / "all"]).entries
    assert entry.software == software
    terminal = StringIO()
    report_on([run], Console(file=terminal, width=300))
    listed = ", ".join(f"{name} {BOTH[name]}" for name in used.split())
    assert listed in " ".join(terminal.getvalue().split())
    assert listed in Page((run / "report.html").read_text("utf-8")).text


def test_runs_on_different_machines_or_frameworks_are_different_sets(tmp_path: Path) -> None:
    """Whatever the first run was; a run without env.json, or of no named
    cluster, belongs to the others."""
    changes = {
        "n0": {},
        "n1": {"hostname": "n1"},
        "cpu": {"cpu": "EPYC"},
        "tensorflow": {"packages": {"tensorflow-cpu": "2.99"}},
        "cluster": {"variables": {"SLURM_CLUSTER_NAME": "gamma"}},
        "another": {"variables": {"SLURM_CLUSTER_NAME": "delta"}},
    }
    for number, (name, facts) in enumerate({**changes, "unknown": {}}.items()):

        def log(made: Records, number: int = number) -> None:
            for record in made:
                record["time_ms"] += 3_600_000 * number

        made = make_run(tmp_path / f"set/{number}_{name}", log=log, env=lambda env, f=facts: env.update(f))
    (made / "env.json").unlink()
    cpu, model = "Intel(R) Xeon(R) Processor <test & quote>", "Intel Xeon Processor <test & quote>"
    entries = compare([tmp_path / "set"]).entries
    assert sorted((e.machine, e.software[-6:], e.line[2], e.logs) for e in entries) == sorted([
        (cpu, "2.18.1", model, 4), ("EPYC", "2.18.1", "EPYC", 1), (cpu, "u 2.99", model, 1),
        (cpu, "2.18.1", f"{model}, delta", 1),
    ])  # fmt: skip
