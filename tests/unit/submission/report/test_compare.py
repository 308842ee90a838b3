"""What many runs say side by side: parts from logs alone, the figures of paper 001, and what is never put
together. The expected numbers are those from which the logs are made."""

import hashlib
import json
import math
import re
import shutil
from collections.abc import Callable, Sequence
from io import StringIO
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from golden.make_run import make_run
from golden.make_tree import START_MS, Records, make_set, records, write_log
from helpers.page import Page, rows_of
from rich.console import Console

from mlhpc.errors import UserError
from mlhpc.submission.logs.mllog import parse
from mlhpc.submission.logs.phases import Phases, phases
from mlhpc.submission.report.compare import Comparison, compare, letter
from mlhpc.submission.report.compare_page import page
from mlhpc.submission.report.entry import BEFORE_CLOCK, IN_CLOCK, NOT_LOGGED, OVER_ENDED, Entry
from mlhpc.submission.report.report import report_on
from mlhpc.submission.report.spread import spread

SAMPLES, EVALUATED = 524288, 65536


def made_log(
    path: Path, events: Sequence[tuple[float, str] | tuple[float, str, Any] | Any], **keys: Any
) -> Path:
    """A log of (second, key, value, metadata); the run begins at second 0."""
    facts = {"submission_benchmark": "cosmoflow", "submission_org": "org", "submission_division": "closed",
             "submission_platform": "machine", "number_of_nodes": 4, "accelerators_per_node": 8,
             "global_batch_size": 64, "train_samples": SAMPLES, "eval_samples": EVALUATED}  # fmt: skip
    facts |= keys
    rows: list[Any] = [(-1.0, key, value) for key, value in facts.items() if value is not None]
    rows += [(0.0, "run_start"), *events]
    made = []
    for second, key, *rest in rows:
        value, metadata = [*rest, None, {}][:2] if len(rest) < 2 else rest
        made.append({"time_ms": START_MS + 1e3 * second, "event_type": "", "key": key, "value": value,
                     "metadata": metadata or {}})  # fmt: skip
    return write_log(path, made)


def epochs(
    begin: float, train: Sequence[float], evaluate: Sequence[float], *, first: int = 1, last: float = 0.12
) -> list[Any]:
    """Epochs one after the other, each with its evaluation inside; numbered from ``first``."""
    events: list[Any] = []
    now = begin
    for n, (training, evaluation) in enumerate(zip(train, evaluate, strict=True)):
        number = {"epoch_num": n + first}
        events += [(now, "epoch_start", None, number), (now + training, "eval_start", None, number)]
        now += training + evaluation
        error = last if n == len(train) - 1 else 0.4
        events += [(now, "eval_stop", None, number), (now, "epoch_stop", None, number),
                   (now, "eval_error", error, number)]  # fmt: skip
    return events


def phases_of(path: Path) -> Phases:
    parts = phases(parse(path))
    assert parts
    return parts


def near(**seconds: float) -> Any:
    return pytest.approx(seconds, abs=1e-6)


# The parts of one run.


def test_every_second_of_a_run_belongs_to_a_part(tmp_path: Path) -> None:
    staging = [(2.0, "staging_start"), (62.0, "staging_stop")]
    run = [*staging, *epochs(70, [50, 20, 20, 22], [9, 4, 4, 4]), (205.0, "run_stop")]
    parts = phases_of(made_log(tmp_path / "a.txt", run))
    # The first epoch took 50 s where the median of the later ones is 20, its evaluation 9 where it is 4.
    assert parts.parts() == near(staging=60, first_epoch_excess=35, training=82, evaluation=16, rest=12)
    assert parts.total == pytest.approx(205)
    assert parts.epoch_s == pytest.approx(133 / 4)
    assert parts.train_rate == pytest.approx(4 * SAMPLES / 112)


def test_records_after_run_stop_are_ignored(tmp_path: Path) -> None:
    run = [*epochs(0, [20, 20, 20], [4, 4, 4]), (72.0, "run_stop")]
    goes_on = [*run, *epochs(80, [500, 500], [9, 9], first=4), (2000.0, "run_stop")]
    short, longer = (
        phases_of(made_log(tmp_path / f"{n}.txt", events)) for n, events in enumerate((run, goes_on))
    )
    assert short == longer
    assert len(longer.epochs) == 3


@pytest.mark.parametrize("first", [0, 1])
def test_epochs_may_be_counted_from_zero(first: int, tmp_path: Path) -> None:
    run = [*epochs(0, [20] * 5, [4] * 5, first=first), (120.0, "run_stop")]
    made_log(tmp_path / "result_1.txt", run)
    (entry,) = compare([tmp_path]).entries
    assert entry.epochs == (5, None, 1)


def test_evaluations_need_not_follow_epochs(tmp_path: Path) -> None:
    """As DeepCAM of round 0.7: after a fixed number of steps, with checkpoints, the last epoch cut short by the
    target."""
    events: list[Any] = [(0.0, "staging_start"), (100.0, "staging_stop")]
    for n in range(4):
        steps = {"epoch_num": n + 1, "step_num": 50 * n}
        events.append((100.0 + 60 * n, "epoch_start", None, steps))
        if n > 0:
            at = 110.0 + 60 * n
            events += [(at, "eval_start"), (at + 6, "eval_stop")]
            events += [(at + 6, "eval_accuracy", 0.83 if n == 3 else 0.5)]
            events += [(at + 6, "save_start"), (at + 10, "save_stop")]
        stop = {"epoch_num": n + 1, "step_num": 50 * (n + 1) if n < 3 else 170}
        events.append((100.0 + 60 * (n + 1) if n < 3 else 310.0, "epoch_stop", None, stop))
    events.append((310.0, "run_stop"))
    facts = {"submission_benchmark": "deepcam", "train_samples": 3300, "global_batch_size": 64}
    parts = phases_of(made_log(tmp_path / "a.txt", events, **facts))
    # Training 60 + 50 + 50 + 20 s; the first epoch is 60 s where the median of the other whole ones is 50.
    assert parts.parts() == near(staging=100, first_epoch_excess=10, training=170, evaluation=18, rest=12)
    assert [e.samples for e in parts.epochs] == [3200, 3200, 3200, 1280]  # the last of 20 steps
    assert parts.train_rate == pytest.approx(10880 / 180)
    assert parts.epoch_s == pytest.approx(210 / 4)  # checkpoints are part of an epoch


def test_overlapping_staging_counts_once(tmp_path: Path) -> None:
    events = [
        (0.0, "staging_start"), (1.0, "staging_start"), (8.0, "staging_stop"), (10.0, "staging_stop"),
        (10.0, "epoch_start"), (20.0, "staging_start"), (25.0, "staging_stop"), (40.0, "epoch_stop"),
        (41.0, "run_stop"),
    ]  # fmt: skip
    parts = phases_of(made_log(tmp_path / "a.txt", events))
    assert parts.staging == 15
    assert parts.training == 25
    assert parts.first_epoch_excess is None  # one epoch leaves no median


def test_a_clock_that_goes_back_gives_no_negative_time(tmp_path: Path) -> None:
    run = [(5.0, "staging_start"), (3.0, "epoch_start"), (15.0, "staging_stop"), (30.0, "epoch_stop"),
           (31.0, "run_stop")]  # fmt: skip
    parts = phases_of(made_log(tmp_path / "a.txt", run))
    assert parts.total == pytest.approx(31)
    assert all(seconds >= 0 for seconds in parts.parts().values())


@pytest.mark.parametrize("lacks", ["run_start", "run_stop"])
def test_a_run_without_both_ends_has_no_parts(lacks: str, tmp_path: Path) -> None:
    made = [r for r in records() if r["key"] != lacks]
    assert phases(parse(write_log(tmp_path / "a.txt", made))) is None


# A set.


def one(path: Path) -> Entry:
    (entry,) = compare([path]).entries
    return entry


def test_a_set_is_measured_over_the_runs_in_its_score(tmp_path: Path) -> None:
    minutes = [20.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0, 16.0, 17.0, 18.0]
    entry = one(make_set(tmp_path / "org", minutes=minutes, staging_minutes=1.0, epochs=8).parents[3])
    assert entry.score and entry.score.minutes == pytest.approx(14.5)  # 10 and 20 are dropped
    assert len(entry.runs) == 8 and entry.made_from == "closed, 8 runs"
    assert entry.time_s and entry.time_s.mean / 60 == pytest.approx(entry.score.minutes)
    assert sum(entry.parts_s.values()) / 60 == pytest.approx(entry.score.minutes)
    assert entry.scale == 8 and entry.unit == "accelerator"
    # 90% of an epoch trains, 10% evaluates.
    expected = [SAMPLES / (0.9 * (m - 1) * 60 / 8) / 8 for m in range(11, 19)]
    assert entry.train_rate and entry.train_rate.mean == pytest.approx(sum(expected) / 8, rel=1e-4)
    evaluated = [EVALUATED / (0.1 * (m - 1) * 60 / 8) / 8 for m in range(11, 19)]
    assert entry.eval_rate and entry.eval_rate.mean == pytest.approx(sum(evaluated) / 8, rel=1e-3)
    assert entry.budget_h == pytest.approx(14.5 / 60 * 8)
    # T_staging / T_epoch: one minute, against (m - 1) / 8 minutes.
    ratios = [8 / (m - 1) for m in range(11, 19)]
    assert entry.staging_in_epochs and entry.staging_in_epochs.mean == pytest.approx(
        sum(ratios) / 8, rel=1e-4
    )


def test_one_run_that_missed_is_named_and_not_measured(tmp_path: Path) -> None:
    def miss(number: int, made: Records) -> None:
        if number == 3:
            for record in made:
                if record["key"] == "eval_error":
                    record["value"] = 0.1246

    make_set(tmp_path / "org", edit=miss)
    comparison = compare([tmp_path])
    (entry,) = comparison.entries
    assert entry.missed == 1 and len(entry.runs) == 8
    assert entry.score and entry.score.minutes is not None
    assert "set/converged" in [finding.rule for _, finding in comparison.problems]
    assert "1 missed" in Page(page(comparison)).text


def test_without_a_score_the_runs_are_shown_but_no_score(tmp_path: Path) -> None:
    make_set(tmp_path / "org", minutes=[10.0, 12.0, 14.0])
    comparison = compare([tmp_path])
    (entry,) = comparison.entries
    assert entry.made_from == "closed, 3 runs: all runs that converged"
    assert not entry.is_closed_score
    text = Page(page(comparison)).text
    assert "no score 3 runs; a score is made from 10 mean 12.00 of all runs that converged" in text
    # Three runs of closed settings are hollow in the figures: no closed result.
    assert [row["hollow"] for row in Page(page(comparison)).rows("a) ") if row.get("letter") == "A"] == [True]


def test_runs_that_never_converged_predict_nothing(tmp_path: Path) -> None:
    make_set(tmp_path / "org", minutes=[10.0, 12.0], reached=False)
    comparison = compare([tmp_path])
    assert comparison.entries[0].over.startswith("all runs that ended")
    assert comparison.predictions == ()
    text = Page(page(comparison)).text
    assert "target not met in 19" in text and "Prediction" not in text


def test_the_less_strict_division_counts(tmp_path: Path) -> None:
    make_set(tmp_path / "org", division="closed")
    description = tmp_path / "org" / "systems" / "machine.json"
    said = json.loads(description.read_text())
    description.write_text(json.dumps({**said, "division": "open"}))
    entry = one(tmp_path)
    assert entry.division == "open" and not entry.is_closed
    assert "the system description says open, the log closed" in entry.notes


def test_a_weak_set_shows_its_tuple(tmp_path: Path) -> None:
    make_set(tmp_path / "org", "deepcam", [10.0, 11.0, 12.0, 13.0, 14.0], level="weak")
    comparison = compare([tmp_path])
    assert comparison.entries[0].made_from == "closed, 5 throughput instances"
    assert comparison.entries[0].scale == 8  # of one instance, not of the system's 40
    assert "14.0000 TTTa; (T, S, M′) = (40, 8, 5)" in Page(page(comparison)).text


def test_throughput_instances_that_each_log_the_whole_machine_are_measured_by_their_share(
    tmp_path: Path,
) -> None:
    """A published set of 128 instances says S = T = 2048: its samples/s per unit would be 128 times too few."""

    def whole_machine(number: int, made: Records) -> None:
        for record in made:
            if record["key"] == "number_of_nodes":
                record["value"] = 10

    minutes = [10.0, 11.0, 12.0, 13.0, 14.0]
    make_set(tmp_path / "true" / "org", "deepcam", minutes, level="weak")
    make_set(tmp_path / "said" / "org", "deepcam", minutes, level="weak", edit=whole_machine)
    true, said = one(tmp_path / "true"), one(tmp_path / "said")
    assert (said.scale, said.nodes, said.train_rate) == (true.scale, true.nodes, true.train_rate)
    assert true.scale == 8 and any("counts 40 units as its own" in note for note in said.notes)


def test_nodes_without_accelerators_count_processors(tmp_path: Path) -> None:
    make_set(tmp_path / "org", accelerators=0, nodes=6)
    description = tmp_path / "org" / "systems" / "machine.json"
    said = json.loads(description.read_text())
    description.write_text(json.dumps({**said, "host_processors_per_node": "2"}))
    entry = one(tmp_path)
    assert (entry.unit, entry.scale) == ("processor", 12)


# What is never put together.


def test_a_folder_of_mixed_configurations_is_split(tmp_path: Path) -> None:
    for n, batch in enumerate((64, 64, 128), 1):
        made = records()
        for record in made:
            if record["key"] == "global_batch_size":
                record["value"] = batch
        write_log(tmp_path / f"result_{n}.txt", made)
    entries = compare([tmp_path]).entries
    assert [(e.batch, e.logs) for e in entries] == [(64, 2), (128, 1)]
    assert all("shown separately" in " ".join(e.notes) for e in entries)


def test_small_presets_are_separate_and_not_results(tmp_path: Path) -> None:
    make_set(tmp_path / "tree" / "org")
    for n in (1, 2, 3):
        make_run(tmp_path / "mine" / f"run-{n}", settings=["division=closed"] if n == 3 else ())
    comparison = compare([tmp_path / "mine", tmp_path / "tree"])
    official, *small = comparison.by_problem
    assert [e.org for e in official] == ["org"] and official[0].is_closed_score
    entries = [e for group in small for e in group]
    assert entries and all(e.official is False and not e.is_closed for e in entries)
    text = Page(page(comparison)).text
    *_, before, after = text.split("CosmoFlow · 2 048 training samples · preset smoke")
    assert after.startswith(" Not the official data set.")
    assert "CosmoFlow · 524 288 training samples Sets" in before
    assert "preset smoke" in after and "preset smoke" not in before
    html = page(comparison)
    assert html.count('<h2 class="chapter"') == len(comparison.by_problem) == 2
    anchors = [a["id"] for tag, a in Page(html).elements if tag in ("section", "h2") and a.get("id")]
    assert len(anchors) == len(set(anchors)) > 4
    links = [a["href"] for tag, a in Page(html).elements if tag == "a"]
    assert links[: len(anchors)] == [f"#{anchor}" for anchor in anchors]


def test_resumed_runs_are_separate_and_not_results(tmp_path: Path) -> None:
    def resume(number: int, made: Records) -> None:
        if number == 2:
            made.insert(0, {**made[0], "key": "resumed", "value": True})

    make_set(tmp_path / "org", edit=resume)
    whole, resumed = compare([tmp_path]).entries
    assert (whole.logs, resumed.logs) == (9, 1)
    assert resumed.score and resumed.score.why.startswith("resumed from a checkpoint")
    assert resumed.measured is None and resumed.made_from.endswith("which do not count")


def test_a_path_inside_another_adds_no_duplicate_sets(tmp_path: Path) -> None:
    folder = make_set(tmp_path / "org")
    assert len(compare([tmp_path, folder, tmp_path / "org"]).entries) == 1


# Predictions.


def scaling_tree(tmp_path: Path) -> Path:
    """One machine at 8 and 32 accelerators, with twice the epochs and an eighth of T_epoch at the larger."""
    for nodes, batch, count, minutes in ((2, 64, 10, 41.0), (8, 256, 20, 11.0)):

        def sized(number: int, made: Records, batch: int = batch) -> None:
            for record in made:
                if record["key"] == "global_batch_size":
                    record["value"] = batch

        make_set(tmp_path / "org", minutes=[minutes + n / 1000 for n in range(10)], staging_minutes=1.0,
                 epochs=count, nodes=nodes, system=f"n{nodes}", edit=sized)  # fmt: skip
    return tmp_path


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


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Comparison, str, str]:
    """Two sets of CosmoFlow, one of DeepCAM without staging keys, runs of a small preset."""
    top = tmp_path_factory.mktemp("whole")
    scaling_tree(top / "tree")
    make_set(top / "tree" / "other", "deepcam", system="cold start", staging_minutes=0.0)
    make_run(top / "mine" / "1")
    out, terminal = top / "page.html", StringIO()
    paths = [top / "tree", top / "mine"]
    assert report_on(paths, Console(file=terminal, width=100), out) == out
    return compare(paths), out.read_text("utf-8"), terminal.getvalue()


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
                values = [
                    row["value"] for row in rows_of(chart) if row.get("bar") == e.letter and "value" in row
                ]
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
    assert "no score: 1 run; a score is made from 10" in terminal
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
    with pytest.raises(UserError, match=r"page\.html: exists already"):
        report_on([tree], console, Path("page.html"))
    monkeypatch.chdir(tree / "org" / "results")
    with pytest.raises(UserError, match=r"is inside .*choose --out"):
        report_on([tree], console, Path("page.html"))
    with pytest.raises(UserError, match="exists already"):
        report_on([tree], console, _text(tmp_path / "notes.txt"))
    assert state() == before and (tmp_path / "notes.txt").read_text() == "mine"


def _text(path: Path) -> Path:
    path.write_text("mine")
    return path


def test_one_run_gets_its_own_report(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    console = Console(file=StringIO())
    assert report_on([run], console) == run / "report.html"
    assert report_on([run], console, tmp_path / "elsewhere.html").read_text("utf-8").startswith("<!doctype")
    with pytest.raises(UserError, match="--predict is for a comparison"):
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


# Bad input.


def cut(made: Path) -> None:
    made.write_bytes(made.read_bytes()[:-40])


def twice(made: Path) -> None:
    made.write_bytes(made.read_bytes() * 2)


def emptied(made: Path) -> None:
    made.write_bytes(b"")


def garbled(made: Path) -> None:
    text = made.read_text().replace('"time_ms": 17', '"time_ms": 1e400, "was": 17', 5)
    made.write_text(text.replace('"value": 64', '"value": "sixty-four"').replace("524288", '{"a": []}'))


@pytest.mark.parametrize("damage", [cut, twice, emptied, garbled])
def test_a_comparison_tolerates_damaged_logs(damage: Callable[[Path], None], tmp_path: Path) -> None:
    folder = make_set(tmp_path / "org")
    damage(folder / "result_4.txt")
    comparison = compare([tmp_path])
    assert sum(e.logs for e in comparison.entries) == 10
    assert max(len(e.runs) for e in comparison.entries) >= 8
    Page(page(comparison))


def test_a_log_with_only_run_start_and_run_stop_is_accepted(tmp_path: Path) -> None:
    bare = [r for r in records() if r["key"] in ("run_start", "run_stop", "epoch_start", "epoch_stop")]
    write_log(tmp_path / "bare.txt", bare)
    comparison = compare([tmp_path / "bare.txt"])
    (entry,) = comparison.entries
    assert (entry.scale, entry.batch, entry.measured, entry.official) == (None, None, None, None)
    assert "not logged" in Page(page(comparison)).text


def test_an_empty_folder_is_a_finding(tmp_path: Path) -> None:
    make_set(tmp_path / "org")
    (tmp_path / "org" / "results" / "idle" / "strong" / "cosmoflow").mkdir(parents=True)
    comparison = compare([tmp_path])
    idle = tmp_path / "org" / "results" / "idle" / "strong" / "cosmoflow"
    assert "set/empty" in [f.rule for path, f in comparison.problems if path == idle]
    assert "set/empty" in Page(page(comparison)).text
    with pytest.raises(UserError, match="no log"):
        compare([tmp_path / "org" / "results" / "idle"])


# Aborted runs, copies, staging in and outside the clock.


def test_an_aborted_run_is_excluded_from_all_means(tmp_path: Path) -> None:
    def abort(lines: Records) -> None:
        lines[-1]["metadata"]["status"] = "aborted"
        lines[-1]["time_ms"] -= 60_000

    for n in (1, 2, 3):
        make_run(tmp_path / f"run-{n}", status="failed", log=abort if n == 3 else lambda lines: None)
    comparison = compare([tmp_path])
    (entry,) = comparison.entries
    assert entry.over == OVER_ENDED and len(entry.runs) == 2 and entry.aborted == 1
    assert entry.time_s and entry.time_s.sd == pytest.approx(0)
    assert "1 of 3 runs aborted or without run_stop, excluded from all means" in Page(page(comparison)).text


def test_whole_batches_of_the_official_samples_are_the_official_data(tmp_path: Path) -> None:
    def fewer(number: int, made: Records) -> None:
        for record in made:
            if record["key"] == "train_samples":
                record["value"] = 121216
            if record["key"] == "global_batch_size":
                record["value"] = 128

    make_set(tmp_path / "a", "deepcam", system="s1")
    make_set(tmp_path / "b", "deepcam", system="s2", edit=fewer)
    comparison = compare([tmp_path])
    assert [e.official for e in comparison.entries] == [True, True]
    assert len(comparison.by_problem) == 1
    text = Page(page(comparison)).text
    assert "121 216 training samples logged: 121 266 without the last, incomplete batch" in text
    assert "Not the official data set" not in text


def test_a_republished_set_is_a_copy_and_predicts_nothing(tmp_path: Path) -> None:
    tree = scaling_tree(tmp_path / "tree")
    shutil.copytree(tree, tmp_path / "again")
    comparison = compare([tree, tmp_path / "again"])
    assert [e.copy_of for e in comparison.entries] == ["", "", "A", "B"]
    assert comparison.predictions == compare([tree]).predictions
    read = Page(page(comparison))
    assert "10 of 10 logs are also in A: a copy, left out of figures and predictions" in read.text
    assert {row["letter"] for row in read.rows("a) ") if "letter" in row} == {"A", "B"}


def test_scores_with_and_without_staging_are_distinguished(tmp_path: Path) -> None:
    def staged_before(number: int, made: Records) -> None:
        start = next(record for record in made if record["key"] == "run_start")
        moved = [record for record in made if record["key"].startswith("staging_")]
        for record in moved:
            made.remove(record)
            record["time_ms"] = start["time_ms"] - 1000
        made[made.index(start) : made.index(start)] = moved

    make_set(tmp_path / "a", system="s1")
    make_set(tmp_path / "b", system="s2", edit=staged_before)
    make_set(tmp_path / "c", system="s3", staging_minutes=0.0)
    comparison = compare([tmp_path])
    assert [e.staged for e in comparison.entries] == [IN_CLOCK, BEFORE_CLOCK, NOT_LOGGED]
    text = Page(page(comparison)).text
    assert "The scores of A include staging" in text and "Those of B do not" in text


# Figures that few runs cannot support, and columns derived from others.


@pytest.mark.parametrize(("runs", "shown"), [(2, False), (3, True)])
def test_a_deviation_needs_three_runs(runs: int, shown: bool, tmp_path: Path) -> None:
    make_set(tmp_path / "org", minutes=[10.0 + n for n in range(runs)])
    comparison = compare([tmp_path])
    assert ("\xa0±\xa0" in page(comparison)) == shown


def test_two_runs_span_their_own_range_and_three_the_interval_of_students_t() -> None:
    two, three = spread([10.0, 14.0]), spread([10.0, 12.0, 14.0])
    assert two and two.interval == pytest.approx((12, 10, 14))
    # t(0.975, 2 degrees of freedom) = 4.3027 (NIST/SEMATECH e-Handbook, 1.3.6.7.2)
    assert three and three.interval[2] == pytest.approx(12 + 4.3027 * 2 / math.sqrt(3), rel=1e-4)


def test_speed_up_and_efficiency_are_relative_to_the_smallest_set(tmp_path: Path) -> None:
    html = page(compare([scaling_tree(tmp_path)]))
    (link,) = [str(a["href"]) for _, a in Page(html).elements if a.get("download") == "scaling.json"]
    small, large = json.loads(unquote(link.partition(",")[2]))
    assert (small["speed-up"], small["efficiency"]) == (1.0, 1.0)
    assert large["speed-up"] == pytest.approx(41.0045 / 11.0045, rel=1e-4)
    assert large["efficiency"] == pytest.approx(large["speed-up"] / 4)


def test_letters_continue_after_z() -> None:
    assert [letter(n) for n in (0, 25, 26, 27, 701, 702)] == ["A", "Z", "AA", "AB", "ZZ", "AAA"]
