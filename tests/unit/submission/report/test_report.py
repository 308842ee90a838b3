"""The numbers of a report, its text without a score, and its charts."""

import json
import math
import re
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from golden.make_run import START_MS, make_run
from helpers.report_runs import aborted, curve, report_of, unfinished
from rich.console import Console

from mlhpc.errors import UserError
from mlhpc.submission.report.report import report


def test_a_good_run_shows_its_numbers(tmp_path: Path) -> None:
    page, terminal = report_of(make_run(tmp_path / "run"))
    for text in (page.text, terminal):
        assert "93.2 s" in text  # 93 246 ms from run_start to run_stop
        assert "90.1 s" in text  # less 3 100 ms of staging
        assert "not a closed-division result" in text
        assert "54.2 MB/s" in text  # 536 870 912 bytes in 9.9 s, the median epoch
        assert "128 MB" in text and "41.4 MB/s" in text
        assert "0123456789abcdef0123456789abcdef01234567 with uncommitted changes" in text
        assert "passes (1 expected finding)" in text
        assert "Intel(R) Xeon(R) Processor <test & quote>" in text  # escaped, not swallowed
        assert "No score" not in text and "no score" not in text
    assert "mlhpc run cosmoflow --preset smoke --stage /tmp/stage" in page.text


@pytest.mark.parametrize(
    ("cores", "shown"), [("12.0", "12 cores, "), (1, "1 core, "), (None, "cores not known, ")]
)
def test_the_cores_of_the_machine_are_those_of_its_file(tmp_path: Path, cores: object, shown: str) -> None:
    run = make_run(tmp_path / "run")
    facts = json.loads((run / "env.json").read_text())
    (run / "env.json").write_text(json.dumps(facts | {"cores": cores}))
    assert f"{facts['cpu']}, {shown}" in report_of(run)[1]
    del facts["cores"]
    facts["memory_gib"] = None
    (run / "env.json").write_text(json.dumps(facts))
    assert "cores not known, memory not known, " in report_of(run)[1]


def test_the_breakdown_adds_up_to_the_whole(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    page, _ = report_of(run)
    rows = re.findall(r"(\d+\.\d\d) (\d+\.\d)%", page.text.partition("Breakdown of time to train")[2])
    *parts, whole = [(float(seconds), float(share)) for seconds, share in rows]
    assert len(parts) == 6
    assert whole == (93.25, 100.0)
    assert sum(p[0] for p in parts) == pytest.approx(93.246, abs=0.03)
    assert sum(p[1] for p in parts) == pytest.approx(100, abs=0.3)
    bar = page.rows("Breakdown of time to train")
    assert sum(row["value"] for row in bar) == pytest.approx(93.246, abs=0.03)
    assert [row["part"] for row in bar][:2] == ["Staging", "First-epoch excess"]


def test_a_resnet_run_is_checked_under_the_training_rules(tmp_path: Path) -> None:
    def of_resnet(lines: list[dict[str, Any]]) -> None:
        next(line for line in lines if line["key"] == "submission_benchmark")["value"] = "resnet"

    run = make_run(tmp_path / "run", log=of_resnet, result=lambda result: result.update(benchmark="resnet50"))
    for text in report_of(run):
        text = text if isinstance(text, str) else text.text
        assert "training 4.0.0" in text and "hpc 2.0.0" not in text and "MLPerf HPC training" not in text
    page, terminal = report_of(make_run(tmp_path / "other"))
    assert "hpc 2.0.0" in terminal and "hpc 2.0.0" in page.text


def contradiction(result: dict[str, Any]) -> None:
    result["time_to_train_s"] += 0.5


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (
            {"status": "failed", "settings": ["target.value=0.25"]},
            "the target was not met (best 0.2825, target ≤ 0.25)",
        ),
        ({"resumed": True}, "the run was resumed from a checkpoint"),
        ({"result": aborted}, "the run was aborted"),
        ({"result": contradiction}, "the check does not pass (run/time"),
        (
            {"preset": "closed", "settings": ["network.conv_kernel=2"]},
            "the check does not pass (run/division)",
        ),
    ],
)
def test_without_a_score_no_time_is_shown_as_one(made: dict[str, Any], why: str, tmp_path: Path) -> None:
    page, terminal = report_of(make_run(tmp_path / "run", **made))
    assert f"No score: {why}" in page.text
    assert f"no score: {why}" in terminal
    assert "Time to train No score" in page.text
    assert "Time to train, including staging" not in page.text
    assert "without staging" not in page.text + terminal


def test_a_closed_run_is_labelled_as_one_run_of_a_score(tmp_path: Path) -> None:
    page, _ = report_of(make_run(tmp_path / "run", preset="closed"))
    assert "Closed division, single run" in page.text
    assert "Not verified by MLCommons" in page.text
    assert "not a closed-division result" not in page.text


@pytest.mark.parametrize("name", ["run.log", "result.json", "config.toml", "env.json", "events.rank0.jsonl"])
def test_a_missing_file_is_named_and_the_rest_is_shown(name: str, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    (run / name).unlink()
    page, terminal = report_of(run)
    assert f"{name} is missing" in page.text
    assert f"{name} is missing" in terminal
    assert "Time to train No score" in page.text  # the evidence is not whole
    assert ("16384 for training" in page.text) == (name != "result.json")
    assert "opt_base_learning_rate" in page.text  # from config.toml, or from the log
    assert "CosmoFlow preset smoke" in page.text
    assert "Learning curve" in page.text  # the log or the result has the values, the configuration the target
    assert ("tensorflow-cpu 2.18.1" in page.text) == (name != "env.json")


def test_a_killed_run_still_shows_its_learning_curve(tmp_path: Path) -> None:
    page, _ = report_of(unfinished(tmp_path / "run"))
    assert "No score: no readable result.json" in page.text
    assert "The clock ran" not in page.text  # the duration is unknown
    assert len(curve(page)) == 8


@pytest.mark.parametrize("time_ms", [0, START_MS + 4010])
def test_a_clock_that_was_set_back_does_not_break_charts(time_ms: int, tmp_path: Path) -> None:
    def set_back(lines: list[dict[str, Any]]) -> None:
        for line in lines:
            if line["key"] == "eval_error":
                line["time_ms"] = time_ms

    page, _ = report_of(make_run(tmp_path / "run", log=set_back))
    assert len(curve(page)) == 8


def test_missing_staging_and_unknown_excess_are_labelled(tmp_path: Path) -> None:
    def unknown(result: dict[str, Any]) -> None:
        result["breakdown_s"]["step"] += result["breakdown_s"]["first_epoch_excess"]
        result["breakdown_s"]["first_epoch_excess"] = None

    page, terminal = report_of(make_run(tmp_path / "run", staged=False, epochs=2, result=unknown))
    for text in (page.text, terminal):
        assert "Staging" in text and "nothing staged" in text
        assert "requires three epochs" in text


@pytest.mark.parametrize(
    ("evicted", "says"),
    [
        (True, "The data set was dropped from the page cache before the run."),
        (False, "The data set was not dropped from the page cache: memory may have held it."),
        (None, "Whether the page cache held it is not known."),
    ],
)
def test_a_run_in_place_says_whether_its_data_was_cold(
    evicted: bool | None, says: str, tmp_path: Path
) -> None:
    run = make_run(
        tmp_path / "run", staged=False, result=lambda result: result.update(source_evicted=evicted)
    )
    page, _ = report_of(run)
    assert f"Nothing was staged: training read the data set in place. {says} shuffled over" in page.text
    # Sections of which the run has nothing are left out.
    for title in ("Energy", "Spatial parallelism", "Missing pieces"):
        assert title not in page.text


@pytest.mark.parametrize(
    ("mode", "says"),
    [("replicate", "the whole data set, sample by sample"), ("shard", "node shards, redivided")],
)
def test_what_early_versions_called_global_is_no_exchange_of_shards(
    tmp_path: Path, mode: str, says: str
) -> None:
    def early(result: dict[str, Any]) -> None:
        result["staging"] |= {"shuffle_scope": "global", "mode": mode}

    page, _ = report_of(make_run(tmp_path / "run", result=early))
    assert f"shuffled over {says}" in page.text


@pytest.mark.parametrize("epochs", [1, 2, 3, 128])
def test_charts_work_for_any_number_of_epochs(epochs: int, tmp_path: Path) -> None:
    page, _ = report_of(make_run(tmp_path / "run", epochs=epochs))
    assert len(curve(page)) == epochs
    halves = re.findall(r">[12]\.5</text>", (tmp_path / "run" / "report.html").read_text())
    assert not halves, "an epoch is a whole number on every axis"


def test_values_that_are_not_finite_are_left_out_of_the_curve(tmp_path: Path) -> None:
    def diverged(lines: list[dict[str, Any]]) -> None:
        evaluations = [line for line in lines if line["key"] == "eval_error"]
        evaluations[2]["value"], evaluations[3]["value"] = math.nan, math.inf

    def nan(result: dict[str, Any]) -> None:
        result["epochs"][2]["eval_error"] = math.nan

    page, _ = report_of(make_run(tmp_path / "run", log=diverged, result=nan))
    assert len(curve(page)) == 6
    assert "NaN" not in json.dumps(page.charts)


def test_charts_and_tables_are_accessible_to_screen_readers(tmp_path: Path) -> None:
    page, _ = report_of(make_run(tmp_path / "run", settings=["target.value=0.25"]))
    assert len(page.alt_texts) == len(page.charts) == 7
    assert all(page.alt_texts)
    says = (
        "mean absolute error, target ≤ 0.25, from epoch 1, 16.1 s: 0.3868 to epoch 8, 92.7 s: 0.2425; lowest"
    )
    assert any(text.startswith(says) for text in page.alt_texts)
    headers = [a.get("scope") for tag, a in page.elements if tag == "th"]
    assert headers and set(headers) == {"row", "col"}


def test_equal_nodes_share_a_row(tmp_path: Path) -> None:
    def nodes(env: dict[str, Any]) -> None:
        env["nodes"] = [
            {**env["nodes"][0], "hostname": f"n{i}", "accelerators": ["A100, 40 GiB"] * 4} for i in range(6)
        ]

    page, _ = report_of(make_run(tmp_path / "run", env=nodes))
    assert "n0 … n5 (6 nodes)" in page.text
    assert "4 × A100, 40 GiB" in page.text


def test_a_report_replaces_the_previous_one_atomically(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    report_of(run)
    first = sorted(path.name for path in run.iterdir())
    report_of(run)
    assert sorted(path.name for path in run.iterdir()) == first
    assert "report.html" in first and not [name for name in first if name.endswith(".part")]


def test_a_path_without_a_run_is_a_one_line_error(tmp_path: Path) -> None:
    for path, message in ((tmp_path, "neither run.log nor"), (tmp_path / "none", "no such folder")):
        with pytest.raises(UserError, match=message):
            report(path, Console(file=StringIO()))
