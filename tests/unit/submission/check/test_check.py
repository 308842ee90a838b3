"""Findings against logs; the reference is the official checker."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from golden.make_run import make_run
from helpers.golden_log import GOOD, Lines, changed, line_of, official_verdict, written

from mlhpc.submission.check.check import check
from mlhpc.submission.check.rulesets import HPC
from mlhpc.submission.findings import passes, verdict


def without(key: str) -> Callable[[Lines], Lines]:
    return lambda lines: [line for line in lines if f'"key": "{key}"' not in line]


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

# Accepted by the official checker, but not by us.
BROKEN_FOR_US: dict[str, tuple[Callable[[Lines], Lines], str, str]] = {
    "two ends of a run": (lambda lines: [*lines, lines[-1]], "log/one-run", ":43, 44"),
    "clock set back": (changed("run_stop", "1700000042318", "1700000004000"), "log/time", ""),
    "staging without end": (without("staging_stop"), "log/staging", ""),
    "staging after the run": (changed("staging_stop", "1700000007110", "1700000049110"), "log/staging", ""),
    "run failed": (changed("run_stop", "success", "failed"), "log/status", ":43"),
}


@pytest.mark.parametrize("ruleset", HPC)
def test_good_log_has_no_findings_under_any_ruleset(ruleset: str, tmp_path: Path) -> None:
    assert check(GOOD, ruleset) == []
    assert official_verdict(written(tmp_path, lambda lines: lines), ruleset)


@pytest.mark.parametrize("name", BROKEN)
def test_official_rejections_are_findings_with_their_place(name: str, tmp_path: Path) -> None:
    edit, rule, line = BROKEN[name]
    log = written(tmp_path, edit)
    assert not official_verdict(log, "2.0.0")
    findings = [f for f in check(log) if f.source == "mlperf-logging hpc_2.0.0" and f.severity == "error"]
    rejections = [f for f in findings if f.rule == rule]
    assert rejections, findings
    assert rejections[0].where == f"result_1.txt{line}"
    assert not rejections[0].expected.startswith("see the message")  # every message is understood
    assert rejections[0].actual and rejections[0].remedy


@pytest.mark.parametrize("name", BROKEN_FOR_US)
def test_problems_that_the_official_checker_misses_are_found(name: str, tmp_path: Path) -> None:
    edit, rule, line = BROKEN_FOR_US[name]
    log = written(tmp_path, edit)
    assert official_verdict(log, "2.0.0")
    errors = [f for f in check(log) if f.severity == "error"]
    assert [(f.rule, f.where) for f in errors if f.rule == rule][:1] == [(rule, f"result_1.txt{line}")], (
        errors
    )


@pytest.mark.parametrize("ruleset", HPC)
def test_staging_before_the_run_counts_from_ruleset_3(ruleset: str, tmp_path: Path) -> None:
    log = written(tmp_path, moved_before("staging_start", "init_stop"))
    assert passes(check(log, ruleset)) == official_verdict(log, ruleset) == (ruleset == "3.0.0")


def test_findings_describe_expected_and_actual_in_words(tmp_path: Path) -> None:
    def only(name: str) -> Any:
        (finding,) = [f for f in check(written(tmp_path, BROKEN[name][0])) if f.severity == "error"]
        return finding

    init = only("init of 31 min")
    assert (init.expected, init.actual) == ("init shorter than 30 min", "31 min 4 s")
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
