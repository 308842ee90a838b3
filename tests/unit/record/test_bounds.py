"""Untrusted files: types and bounds of values are checked when they are read."""

import json
import os
import tracemalloc
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from golden.make_run import make_run
from golden.make_tree import make_set, records, write_log
from rich.console import Console

from mlhpc.common.files.untrusted import clean, printable, read_text
from mlhpc.record.environment import Environment
from mlhpc.record.events import read_events
from mlhpc.record.mllog import parse
from mlhpc.record.run_directory import read
from mlhpc.submission.check.check import check
from mlhpc.submission.check.console import print_check, print_score
from mlhpc.submission.result_sets import result_sets

ESCAPE = "\x1b]0;owned\x07\x1b[2J"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain · × − é 東京", "plain · × − é 東京"),
        ("\x1b[31m", "\\x1b[31m"),
        ("a\rb\tc\n", "a\\rb\\tc\\n"),
        ("\ud800", "\\ud800"),
        ("\u202egnp", "\\u202egnp"),
        ("no\u00a0break", "no\u00a0break"),
    ],
)
def test_the_result_has_only_printable_text(text: str, shown: str) -> None:
    assert printable(text) == shown
    assert clean({text: [text, {"x": text}]}) == {shown: [shown, {"x": shown}]}


def test_integers_that_no_float_holds_are_infinite() -> None:
    assert clean([10**400, -(10**400), 2**64]) == [float("inf"), float("-inf"), 2**64]


def set_at(*keys: str, value: Any) -> Any:
    def edit(result: dict[str, Any]) -> None:
        for key in keys[:-1]:
            result = result[key]
        result[keys[-1]] = value

    return edit


@pytest.mark.parametrize(
    "edit",
    [
        set_at("time_to_train_s", value=float("inf")),
        set_at("time_to_train_s", value=1e300),
        set_at("ranks", value=10**12),
        set_at("ranks", value=0),
        set_at("preset", value="[/red]"),
        set_at("preset", value="a;b"),
        set_at("benchmark", value=ESCAPE),
        set_at("target", "metric", value="<script>"),
        set_at("breakdown_s", value={"<b>": 1.0}),
        set_at("samples", "train", value=-1),
        set_at("global_batch_size", value=2**70),
    ],
)
def test_a_result_out_of_bounds_is_damaged(edit: Any, tmp_path: Path) -> None:
    run = read(make_run(tmp_path / "run", result=edit))
    assert run.result is None
    assert "result.json" in dict(run.problems)


def test_losses_of_a_diverged_run_are_unknown(tmp_path: Path) -> None:
    def diverge(result: dict[str, Any]) -> None:
        result["epochs"][-1].update(train_loss=float("nan"), eval_error=float("nan"))

    run = read(make_run(tmp_path / "run", result=diverge))
    assert run.result and run.result.epochs[-1].train_loss is None
    assert run.result.epochs[-1].quality("eval_error") is None


@pytest.mark.parametrize(
    "values",
    [{"nodes": 5}, {"nodes": ["n0"]}, {"packages": ["numpy"]}, {"accelerators": "A100"}, {"cores": "many"}],
)
def test_an_environment_of_other_types_is_damaged(values: dict[str, Any], tmp_path: Path) -> None:
    run = read(make_run(tmp_path / "run", env=lambda env: env.update(values)))
    assert run.env == Environment() and "env.json" in dict(run.problems)


def test_of_many_missing_event_files_only_the_first_is_listed(tmp_path: Path) -> None:
    run = read(make_run(tmp_path / "run", result=lambda result: result.update(ranks=1_000_000)))
    assert run.problems == (("events.rank1.jsonl", "is missing, and 999,998 others"),)


@pytest.mark.parametrize("name", ["result.json", "env.json", "config.toml"])
def test_a_fifo_is_refused_without_hanging(name: str, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    (run / name).unlink()
    os.mkfifo(run / name)
    assert "not a regular file" in dict(read(run).problems)[name]
    assert len(result_sets(tmp_path)) == 1


@pytest.mark.parametrize("name", ["result.json", "env.json", "config.toml", "run.log", "events.rank0.jsonl"])
def test_a_link_in_a_run_folder_is_not_read(name: str, tmp_path: Path) -> None:
    """It may lead anywhere; the file behind this one is a valid one, and outside of the run."""
    folder = make_run(tmp_path / "run")
    assert not read(folder).problems
    (folder / name).rename(tmp_path / name)
    (folder / name).symlink_to(tmp_path / name)
    run = read(folder)
    assert [problem[0] for problem in run.problems] == [name]
    kept = {"result.json": run.result, "config.toml": run.config, "run.log": run.log}.get(name)
    assert kept is None and (name != "env.json" or run.env == Environment())
    with pytest.raises(OSError, match="not followed"):
        read_events(tmp_path / "run" / name) if "events" in name else read_text(
            folder / name, "strict", os.O_NOFOLLOW
        )
    if name == "run.log":
        assert not result_sets(folder)[0].log_paths


def test_a_link_among_logs_is_no_log(tmp_path: Path) -> None:
    folder = make_set(tmp_path / "org")
    (folder / "result_3.txt").rename(tmp_path / "elsewhere.txt")
    (folder / "result_3.txt").symlink_to(tmp_path / "elsewhere.txt")
    (results,) = result_sets(tmp_path)
    assert len(results.logs) == 9 and folder / "result_3.txt" not in results.log_paths
    assert {f.rule: f.actual for f in results.problems} == {"set/files": "result_3.txt"}


def test_a_line_without_end_takes_no_more_memory_than_others(tmp_path: Path) -> None:
    """As in a sparse file, which takes no space on the disk."""
    path = tmp_path / "result_0.txt"
    good = (
        '{"time_ms": 1, "event_type": "POINT_IN_TIME", "key": "seed", "value": 1, "metadata": {"lineno": 1}}'
    )
    path.write_text(f":::MLLOG {good}\n")
    os.truncate(path, 100 * 2**20)
    with path.open("a") as file:
        file.write(f"\n:::MLLOG {good}\n")
    tracemalloc.start()
    try:
        log = parse(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(log.records) == 2 and peak < 20 * 2**20
    assert log.longest > 10_000, "the official parser is not given such a log"


def test_a_time_outside_the_calendar_is_a_finding(tmp_path: Path) -> None:
    """The official parser accepts it."""
    made = records()
    made[-1]["time_ms"] = float("inf")
    log = parse(write_log(tmp_path / "result_1.txt", made))
    assert log.run is None
    assert "log/line" in {f.rule for f in check(tmp_path / "result_1.txt")}


@pytest.mark.parametrize("where", ["value", "key", "metadata", "folder"])
@pytest.mark.parametrize("printer", [print_check, print_score])
def test_escapes_and_markup_do_not_reach_the_terminal(where: str, printer: Any, tmp_path: Path) -> None:
    hostile = ESCAPE + "[/red]\ud800"

    def edit(number: int, made: Any) -> None:
        if number == 1 and where == "value":
            for record in made:
                if record["key"] in ("submission_division", "opt_name", "seed", "submission_org"):
                    record["value"] = hostile
        if number == 1 and where == "key":
            made[3]["key"] = hostile
        if number == 1 and where == "metadata":
            made[-1]["metadata"] = {"status": hostile}

    tree = tmp_path / (ESCAPE if where == "folder" else "org")
    make_set(tree, "deepcam", edit=edit)
    out = StringIO()
    printer(tmp_path, "2.0.0", Console(file=out, width=100))
    out.getvalue().encode("utf-8")
    assert "\x1b" not in out.getvalue() and "\x07" not in out.getvalue()


def test_a_system_description_is_cleaned_too(tmp_path: Path) -> None:
    make_set(tmp_path / "org", "deepcam")
    path = tmp_path / "org/systems/machine.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"submitter": ESCAPE}))
    (results,) = result_sets(tmp_path)
    assert results.system_json and results.system_json["submitter"] == printable(ESCAPE)
