"""Findings against run folders: small presets, contradictions between files, damage."""

from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from golden.make_run import make_run
from helpers.golden_log import GOOD, changed, official_verdict, written
from rich.console import Console

from mlhpc.errors import UserError
from mlhpc.record.mllog import parse
from mlhpc.submission.check.check import check
from mlhpc.submission.check.official import official_findings
from mlhpc.submission.check.rulesets import HPC
from mlhpc.submission.findings import passes, print_findings


@pytest.mark.parametrize("ruleset", HPC)
def test_a_small_preset_has_the_one_expected_finding_and_passes(ruleset: str, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", settings=["target.value=0.25"])
    assert not official_verdict(run / "run.log", ruleset)  # it knows only 0.124
    (finding,) = check(run, ruleset)
    assert (finding.severity, finding.rule) == ("expected", f"hpc_{ruleset}/eval_error")
    assert "own target 0.25" in finding.remedy and "not a closed-division result" in finding.remedy
    out = StringIO()
    assert print_findings([finding], Console(file=out, width=100)) == 0
    assert out.getvalue().splitlines()[-1] == "passes (1 expected finding)"


def test_a_closed_run_with_the_official_facts_passes(tmp_path: Path) -> None:
    assert check(make_run(tmp_path / "run", preset="closed")) == []


def test_printing_an_unexpected_finding_returns_1(tmp_path: Path) -> None:
    findings = check(make_run(tmp_path / "run", status="failed"))
    out = StringIO()
    assert print_findings(findings, Console(file=out, width=100)) == 1
    assert out.getvalue().splitlines()[-1] == "does not pass: 2 errors"
    text = "".join(out.getvalue().split())
    assert "run/status" in text and "run_stop" in text


def test_square_brackets_in_a_log_are_not_markup(tmp_path: Path) -> None:
    log = written(tmp_path, changed("opt_name", "sgd", "[red]x[/blue]"))
    out = StringIO()
    print_findings(check(log), Console(file=out, width=200))
    assert "[red]x[/blue]" in out.getvalue()


def test_an_own_target_does_not_excuse_a_closed_run(tmp_path: Path) -> None:
    findings = check(make_run(tmp_path / "run", preset="closed", settings=["target.value=0.3"]))
    assert {(f.rule, f.severity) for f in findings} == {
        ("hpc_2.0.0/eval_error", "error"),
        ("run/division", "error"),
    }


def test_an_own_target_does_not_excuse_a_run_that_missed_it(tmp_path: Path) -> None:
    rules = {f.rule for f in check(make_run(tmp_path / "run", status="failed")) if f.severity == "error"}
    assert rules == {"hpc_2.0.0/eval_error", "run/status"}


def test_a_small_preset_is_not_closed(tmp_path: Path) -> None:
    findings = check(make_run(tmp_path / "run", settings=['division="closed"']))
    told = {f.expected for f in findings if f.rule == "run/division"}
    assert {"closed: target.value = 0.124", "closed: data.train_samples = 524288"} <= told
    assert not passes(findings)


def set_key(key: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda result: result.update({key: value})


def shifted(key: str, by: float) -> Callable[[dict[str, Any]], None]:
    return lambda result: result.update({key: result[key] + by})


def breakdown_times(factor: float) -> Callable[[dict[str, Any]], None]:
    """The sum of the parts is scaled by ``factor``."""

    def edit(result: dict[str, Any]) -> None:
        result["breakdown_s"]["step"] += (factor - 1) * result["time_to_train_s"]

    return edit


def samples(result: dict[str, Any]) -> None:
    result["samples"]["train"] -= 1


def reached_at(result: dict[str, Any]) -> None:
    result["target"]["value"] = 0.28


@pytest.mark.parametrize(
    ("edit", "rule"),
    [
        (set_key("resumed", True), "run/resumed"),
        (set_key("seed", None), "run/seed"),
        (set_key("seed", 99), "run/seed"),
        (set_key("division", "closed"), "run/division"),
        (set_key("preset", "mini"), "run/division"),
        (shifted("time_to_train_s", 0.003), "run/time"),
        (shifted("time_to_train_s", -0.003), "run/time"),
        (shifted("time_to_train_without_staging_s", 0.005), "run/time"),
        (breakdown_times(1.011), "run/breakdown"),
        (breakdown_times(0.989), "run/breakdown"),
        (samples, "run/samples"),
        (reached_at, "run/target"),
        (set_key("status", "aborted"), "run/status"),
    ],
)
def test_contradictions_between_files_are_found(
    edit: Callable[[dict[str, Any]], None], rule: str, tmp_path: Path
) -> None:
    assert rule in {f.rule for f in check(make_run(tmp_path / "run", result=edit)) if f.severity == "error"}


@pytest.mark.parametrize("division", ["closed", "open"])
@pytest.mark.parametrize("key, value", [("initial_weights", "ab" * 32), ("coarse_epochs", [4, 4])])
def test_a_closed_log_of_an_open_technique_is_found(
    key: str, value: object, division: str, tmp_path: Path
) -> None:
    def technique(lines: list[dict[str, Any]]) -> None:
        (line,) = [line for line in lines if line["key"] == "submission_division"]
        line["value"] = division
        lines.insert(lines.index(line), {**line, "key": key, "value": value})

    rules = {f.rule for f in check(make_run(tmp_path / "run", log=technique)) if f.severity == "error"}
    assert (f"log/{key}" in rules) == (division == "closed")


def test_a_target_reached_only_according_to_the_result_is_found(tmp_path: Path) -> None:
    def missed(lines: list[dict[str, Any]]) -> None:
        for line in lines:
            if line["key"] == "eval_error":
                line["value"] += 0.1

    run = make_run(tmp_path / "run", settings=["target.value=0.25"], log=missed)
    (finding,) = [f for f in check(run) if f.rule == "run/target"]
    assert (finding.expected, finding.actual) == (
        "an evaluation inside the run that meets 0.25",
        "the best eval_error is 0.3425",
    )


@pytest.mark.parametrize(
    "edit", [shifted("time_to_train_s", 0.0009), breakdown_times(1.009), breakdown_times(0.991)]
)
def test_rounding_is_not_a_contradiction(edit: Callable[[dict[str, Any]], None], tmp_path: Path) -> None:
    assert passes(check(make_run(tmp_path / "run", result=edit)))


@pytest.mark.parametrize("ruleset", HPC)
def test_files_staged_before_the_run_are_not_timed_staging(ruleset: str, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", result=lambda result: result["staging"].update(kept=3))
    assert passes(check(run, ruleset)) == (ruleset == "3.0.0")


@pytest.mark.parametrize("name", ["run.log", "result.json", "config.toml", "env.json", "events.rank1.jsonl"])
def test_a_missing_file_is_found(name: str, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", ranks=2)
    assert passes(check(run))
    (run / name).unlink()
    (finding,) = [f for f in check(run) if f.rule == "run/files"]
    assert (finding.where, finding.actual) == (name, "is missing")


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("result.json", '{"status": ', "Invalid JSON"),
        ("result.json", '{"status": "success"}', "benchmark: Field required"),
        ("env.json", "[]", "not a JSON object"),
        ("config.toml", "a = ", "Invalid value"),
        ("config.toml", 'benchmark = "cosmoflow"', "preset: Field required"),
    ],
)
def test_a_damaged_file_is_found(name: str, text: str, told: str, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    (run / name).write_text(text)
    (finding,) = [f for f in check(run) if f.rule == "run/files"]
    assert finding.where == name and told in finding.actual


def test_a_path_without_a_run_is_a_one_line_error(tmp_path: Path) -> None:
    for path, message in ((tmp_path, "has no run.log"), (tmp_path / "none", "none does not exist")):
        with pytest.raises(UserError, match=message):
            check(path)
    with pytest.raises(UserError, match=r"no ruleset '0\.7'; choose from 0\.6\.0"):
        check(GOOD, "0.7")


def test_the_api_and_the_command_line_agree_on_warnings(tmp_path: Path) -> None:
    """One record twice, with the same value, is a warning of the official checker and no failure."""
    log = written(tmp_path, lambda lines: [lines[12], *lines])
    assert official_verdict(log, "2.0.0")
    (finding,) = official_findings(parse(log), "hpc_2.0.0")
    assert (finding.severity, finding.rule) == ("warning", "hpc_2.0.0/global_batch_size")
