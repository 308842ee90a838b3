"""Findings against logs and run directories; the reference is the official checker's own command line."""

import json
import subprocess
import sys
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from golden.make_run import make_run
from rich.console import Console

from mlhpc.errors import UserError
from mlhpc.submission.check.check import RULESETS, check, passes, print_findings, verdict
from mlhpc.submission.check.official import official_findings
from mlhpc.submission.logs.mllog import parse

GOOD = Path(__file__).parents[3] / "golden" / "good.log"
Lines = list[str]


def line_of(lines: Lines, key: str) -> int:
    """The index of the first line of ``key``."""
    return next(i for i, line in enumerate(lines) if f'"key": "{key}"' in line)


def without(key: str) -> Callable[[Lines], Lines]:
    return lambda lines: [line for line in lines if f'"key": "{key}"' not in line]


def changed(key: str, old: str, new: str) -> Callable[[Lines], Lines]:
    def edit(lines: Lines) -> Lines:
        at = line_of(lines, key)
        assert old in lines[at]
        return [*lines[:at], lines[at].replace(old, new), *lines[at + 1 :]]

    return edit


def moved_before(key: str, other: str) -> Callable[[Lines], Lines]:
    def edit(lines: Lines) -> Lines:
        line = lines.pop(line_of(lines, key))
        lines.insert(line_of(lines, other), line)
        return lines

    return edit


def all_evaluations_at(value: str) -> Callable[[Lines], Lines]:
    def edit(lines: Lines) -> Lines:
        records = [json.loads(line.removeprefix(":::MLLOG ")) for line in lines]
        for record in records:
            if record["key"] == "eval_error":
                record["value"] = float(value)
        return [f":::MLLOG {json.dumps(record)}\n" for record in records]

    return edit


# One broken log per rule: the change to good.log, the rule that must find it, and the line it must report.
BROKEN: dict[str, tuple[Callable[[Lines], Lines], str, str]] = {
    "no run_stop": (without("run_stop"), "hpc_2.0.0/run_stop", ""),
    "no cache_clear": (without("cache_clear"), "hpc_2.0.0/cache_clear", ""),
    "no number_of_nodes": (without("number_of_nodes"), "hpc_2.0.0/number_of_nodes", ""),
    "no evaluation": (without("eval_error"), "hpc_2.0.0/eval_error", ""),
    "no epoch_start": (without("epoch_start"), "hpc_2.0.0/epoch_start", ""),
    "target missed": (all_evaluations_at("0.1241"), "hpc_2.0.0/eval_error", ""),
    "error of zero": (all_evaluations_at("0.0"), "hpc_2.0.0/eval_error", ""),
    "wrong optimizer": (changed("opt_name", "sgd", "adam"), "hpc_2.0.0/opt_name", ":14"),
    "dropout of one": (changed("dropout", "0.5", "1.0"), "hpc_2.0.0/dropout", ":22"),
    "dropout is a word": (changed("dropout", "0.5", '"half"'), "hpc_2.0.0/dropout", ":22"),
    "unknown status": (changed("submission_status", "research", "x"), "hpc_2.0.0/submission_status", ":6"),
    "unknown benchmark": (changed("submission_benchmark", "cosmoflow", "oc21"), "hpc_2.0.0/crash", ""),
    "no status": (changed("run_stop", ', "status": "success"', ""), "hpc_2.0.0/run_stop", ":43"),
    "no epoch_num": (changed("eval_stop", ', "epoch_num": 1', ""), "hpc_2.0.0/eval_stop", ":30"),
    "init of 31 min": (changed("init_start", "1700000000001", "1699998140001"), "hpc_2.0.0/init_stop", ":24"),
    "init after start": (moved_before("run_start", "init_stop"), "hpc_2.0.0/init_stop", ":25"),
    "staging before run": (moved_before("staging_start", "init_stop"), "hpc_2.0.0/staging_start", ":24"),
    "cut last line": (lambda lines: [*lines[:-1], lines[-1][:70]], "hpc_2.0.0/line", ":43"),
    "nothing in it": (lambda lines: ["no log\n"], "hpc_2.0.0/log", ""),
}  # fmt: skip

# What the official checker lets pass, and we do not.
BROKEN_FOR_US: dict[str, tuple[Callable[[Lines], Lines], str, str]] = {
    "two ends of a run": (lambda lines: [*lines, lines[-1]], "log/one-run", ":43, 44"),
    "clock set back": (changed("run_stop", "1700000042318", "1700000004000"), "log/time", ""),
    "staging without end": (without("staging_stop"), "log/staging", ""),
    "staging after the run": (changed("staging_stop", "1700000007110", "1700000049110"), "log/staging", ""),
    "run failed": (changed("run_stop", "success", "failed"), "log/status", ":43"),
}


def written(tmp_path: Path, edit: Callable[[Lines], Lines]) -> Path:
    path = tmp_path / "result_1.txt"
    path.write_text("".join(edit(GOOD.read_text().splitlines(keepends=True))))
    return path


def official_verdict(log: Path, ruleset: str) -> bool:
    """The verdict of mlperf-logging's command line, in a separate process and folder."""
    scratch = log.parent / "official"
    scratch.mkdir(exist_ok=True)
    command = [
        sys.executable,
        "-m",
        "mlperf_logging.compliance_checker",
        "--usage",
        "hpc",
        "--ruleset",
        ruleset,
    ]
    return subprocess.run([*command, str(log)], cwd=scratch, capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize("ruleset", RULESETS)
def test_good_log_has_no_findings_under_any_ruleset(ruleset: str, tmp_path: Path) -> None:
    assert check(GOOD, ruleset) == []
    assert official_verdict(written(tmp_path, lambda lines: lines), ruleset)


@pytest.mark.parametrize("name", BROKEN)
def test_official_rejections_are_findings_with_their_place(name: str, tmp_path: Path) -> None:
    edit, rule, line = BROKEN[name]
    log = written(tmp_path, edit)
    assert not official_verdict(log, "2.0.0")
    findings = [f for f in check(log) if f.source == "mlperf-logging hpc_2.0.0" and f.severity == "error"]
    found = [f for f in findings if f.rule == rule]
    assert found, findings
    assert found[0].where == f"result_1.txt{line}"
    assert not found[0].expected.startswith("see the message")  # every message is understood
    assert found[0].actual and found[0].remedy


@pytest.mark.parametrize("name", BROKEN_FOR_US)
def test_problems_that_the_official_checker_misses_are_found(name: str, tmp_path: Path) -> None:
    edit, rule, line = BROKEN_FOR_US[name]
    log = written(tmp_path, edit)
    assert official_verdict(log, "2.0.0")
    errors = [f for f in check(log) if f.severity == "error"]
    assert [(f.rule, f.where) for f in errors if f.rule == rule][:1] == [(rule, f"result_1.txt{line}")], (
        errors
    )


@pytest.mark.parametrize("ruleset", RULESETS)
def test_staging_before_the_run_counts_from_ruleset_3(ruleset: str, tmp_path: Path) -> None:
    log = written(tmp_path, moved_before("staging_start", "init_stop"))
    assert passes(check(log, ruleset)) == official_verdict(log, ruleset) == (ruleset == "3.0.0")


def test_findings_describe_expected_and_actual_in_words(tmp_path: Path) -> None:
    def only(name: str) -> Any:
        (finding,) = [f for f in check(written(tmp_path, BROKEN[name][0])) if f.severity == "error"]
        return finding

    init = only("init of 31 min")
    assert (init.expected, init.actual) == ("init shorter than 30 min", "31.1 min")
    missed = only("target missed")
    assert missed.expected == "an evaluation with eval_error <= 0.124 and eval_error > 0"
    assert missed.actual == "the best of 3 is 0.1241"
    assert only("wrong optimizer").actual == "opt_name is 'adam'"
    assert only("no run_stop").actual == "none"


def test_line_numbers_count_foreign_lines_too(tmp_path: Path) -> None:
    log = written(tmp_path, lambda lines: ["hello\n"] * 7 + changed("opt_name", "sgd", "adam")(lines))
    assert [f.where for f in check(log) if f.rule.endswith("opt_name")] == ["result_1.txt:21"]


def test_a_clock_that_goes_back_and_a_missing_seed_are_warnings(tmp_path: Path) -> None:
    log = written(tmp_path, without("seed"))
    log.write_text(log.read_text().replace("1700000030954", "1700000029000"))
    findings = check(log)
    assert {(f.rule, f.severity) for f in findings} == {("log/clock", "warning"), ("log/seed", "warning")}
    assert passes(findings)
    assert verdict(findings) == "passes; 2 warnings"


def test_a_log_with_two_seeds_is_a_warning(tmp_path: Path) -> None:
    def another_seed(lines: Lines) -> Lines:
        at = line_of(lines, "seed")
        return [*lines[: at + 1], *changed("seed", "1234", "99")(lines)[at:]]

    (finding,) = check(written(tmp_path, another_seed))
    # A warning, as the official seed checker has it.
    assert (finding.rule, finding.severity) == ("log/seed", "warning")
    assert finding.where == "result_1.txt:10, 11" and "1234, 99" in finding.actual


def test_two_runs_in_one_file_are_named_by_their_lines(tmp_path: Path) -> None:
    findings = check(written(tmp_path, lambda lines: lines + lines))
    where = {f.where for f in findings if f.rule == "log/one-run"}
    assert where == {"result_1.txt:25, 68", "result_1.txt:43, 86"}


def test_a_crash_of_the_official_checker_does_not_reach_the_next_check(tmp_path: Path) -> None:
    def deepcam_of_no_known_schedule(lines: Lines) -> Lines:
        """The checker queues two more files of rules, falls over the first and leaves the second queued."""
        lines = changed("submission_benchmark", "cosmoflow", "deepcam")(lines)
        lines = changed("opt_name", "sgd", "LAMB")(lines)
        schedule = lines[13].replace("opt_name", "scheduler_type").replace("LAMB", "none_known")
        return [*lines[:13], schedule, *lines[13:]]

    findings = check(written(tmp_path, deepcam_of_no_known_schedule))
    assert "hpc_2.0.0/crash" in {f.rule for f in findings}
    assert check(GOOD) == []


def test_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(tmp_path / "run")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    monkeypatch.chdir(tmp_path)
    check(run)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


# Run directories.


@pytest.mark.parametrize("ruleset", RULESETS)
def test_a_small_preset_has_the_one_expected_finding_and_passes(ruleset: str, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
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

    (finding,) = [f for f in check(make_run(tmp_path / "run", log=missed)) if f.rule == "run/target"]
    assert (finding.expected, finding.actual) == (
        "an evaluation inside the run that meets 0.25",
        "the best eval_error is 0.3425",
    )


@pytest.mark.parametrize(
    "edit", [shifted("time_to_train_s", 0.0009), breakdown_times(1.009), breakdown_times(0.991)]
)
def test_rounding_is_not_a_contradiction(edit: Callable[[dict[str, Any]], None], tmp_path: Path) -> None:
    assert passes(check(make_run(tmp_path / "run", result=edit)))


@pytest.mark.parametrize("ruleset", RULESETS)
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
    for path, message in ((tmp_path, "no run directory"), (tmp_path / "none", "none: No such file")):
        with pytest.raises(UserError, match=message):
            check(path)
    with pytest.raises(UserError, match=r"no HPC ruleset '0\.7'; choose from 1\.0\.0"):
        check(GOOD, "0.7")


def test_the_api_and_the_command_line_agree_on_warnings(tmp_path: Path) -> None:
    """One record twice, with the same value, is a warning of the official checker and no failure."""
    log = written(tmp_path, lambda lines: [lines[12], *lines])
    assert official_verdict(log, "2.0.0")
    (finding,) = official_findings(parse(log), "2.0.0")
    assert (finding.severity, finding.rule) == ("warning", "hpc_2.0.0/global_batch_size")
