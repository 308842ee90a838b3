"""The official checkers (mlperf-logging 4.1.68), with their messages converted to findings.

The checkers are called through their Python API, under a guard (``official_guard.py``), because their command-line
programs write logs to the working directory and package_checker always exits with status 0. The RCP checker,
package_checker and result_summarizer write ``scaling.json`` into the folders that they read, so these three work
on a copy.
"""

import json
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from mlperf_logging.compliance_checker import mlp_compliance, mlp_parser

from mlhpc.benchmarks.findings import Finding
from mlhpc.common.files.untrusted import read_object
from mlhpc.errors import shown
from mlhpc.record.mllog import Log
from mlhpc.submission.check.official_guard import guarded
from mlhpc.submission.check.official_messages import (
    checker_findings,
    crash_finding,
    no_rules,
    package_crash,
    package_message_findings,
    target_in,
    too_long,
    why_it_stopped,
)
from mlhpc.submission.check.rulesets import exist
from mlhpc.submission.result_set import BYPASS, PRUNED, SCALING, ResultSet

__all__ = ["official_findings", "package_findings", "rcp_verdict", "seed_findings", "summary", "target_in"]

LONGEST = 10_000
"""Length in bytes of an MLLOG line that takes the official parser 0.1 s. Its time grows with the square of the
length (100,000 bytes take 6 to 10 s), so logs with longer lines are not passed to it."""
MOST_PARSING = 50_000_000_000
"""Sum of the squared lengths of MLLOG lines that the official parser reads in a minute, such as a million lines of
220 bytes."""


def official_findings(log: Log, rules: str) -> list[Finding]:
    """The findings of the official compliance checker on ``log`` under ``rules``, such as ``hpc_2.0.0``. The
    checker's verdict is SUCCESS if and only if all findings are warnings."""
    if not exist(rules):
        return [no_rules(log, rules)]
    usage, version = rules.split("_")
    if not _is_readable(log):
        return [too_long(log, rules, LONGEST)]
    crash: Exception | None = None
    unreadable: list[tuple[str, str]] = []
    with guarded():
        checker = mlp_compliance.make_checker(usage, version, False, False)
        try:
            lines, unreadable = mlp_parser.parse_file(str(log.path), ruleset=version)
            checker.check_loglines(lines, f"{rules}/common.yaml")
        except Exception as error:
            # The checker evaluates expressions on the log's values, so it may raise any exception.
            crash = error
    findings = list(checker_findings(checker, log, rules, unreadable=bool(unreadable)))
    if crash is None and not lines and not unreadable:  # otherwise, every record would be reported as missing
        findings = [finding for finding in findings if finding.rule == f"{rules}/log"] or findings
    if crash is not None:
        findings.append(crash_finding(crash, log, rules))
    return [replace(finding, source=f"mlperf-logging {rules}") for finding in findings]


# Sets of runs. Each tool gets a copy of only this set, so that its messages can be attributed, and a crash on one
# set does not hide findings on another.


def package_findings(results: ResultSet, rules: str) -> list[Finding]:
    """The findings of package_checker on a set of a submission tree: number of files, seeds and convergence points
    (both in the closed division), and system description. For logs that do not comply, only their number is
    reported."""
    from mlperf_logging.package_checker import package_checker

    if not _are_readable(results):
        return []
    crash: BaseException | None = None
    with _copy(results, rules) as tree, guarded() as records:
        try:
            package_checker.check_training_package(
                str(tree), *rules.split("_"), False, False, False, False, False, ""
            )
        except (Exception, SystemExit) as error:
            crash = error
        computed = _scaling(tree / "results" / _folder_in_tree(results, rules))
    where = f"{results.path.name}/"
    findings = package_message_findings(records, where)
    if (results.path / SCALING).is_file() and (written := _scaling(results.path)) != computed:
        expected, remedy = (
            f"a factor of {computed:.9g}",
            "let the official rcp_checker write this file, which scales the score",
        )
        at = f"{where}{SCALING}"
        findings.append(Finding("set/scaling", "warning", at, expected, str(written), remedy))
    if crash is not None:
        findings.append(package_crash(where, crash))
    accepted = any(record.getMessage().startswith("PACKAGE CHECKER FOUND NO ERRORS") for record in records)
    if crash is None and not accepted and not any(f.severity == "error" for f in findings):
        findings.append(
            Finding(
                "package/other", "error", where, "acceptance", "errors without a message",
                "see the rules in mlperf_logging/package_checker",
            )
        )  # fmt: skip
    return [replace(f, source=f"mlperf-logging {rules} package_checker") for f in findings]


def _scaling(folder: Path) -> Any:
    """The scaling factor of the score that the official tools wrote into a folder of results; a description of the
    problem if the file is damaged."""
    try:
        factor = read_object(folder / SCALING)["scaling_factor"]
    except FileNotFoundError:
        return 1.0
    except (OSError, ValueError, KeyError, RecursionError):
        return "a file without scaling_factor"
    return round(factor, 9) if isinstance(factor, float | int) else shown(factor)


def seed_findings(logs: Sequence[Log], rules: str) -> list[Finding]:
    """The findings of the official seed checker on the logs of one set."""
    from mlperf_logging.package_checker.seed_checker import SeedChecker

    with guarded() as records:
        SeedChecker(rules.split("_")[1]).check_seeds([str(log.path) for log in logs if _is_readable(log)])
    findings = package_message_findings(records, "")
    return [replace(f, source=f"mlperf-logging {rules} seed_checker") for f in findings]


def rcp_verdict(results: ResultSet, rules: str) -> tuple[bool, str]:
    """Return whether the set passes the official RCP checker, and the checker's message."""
    from mlperf_logging.rcp_checker import rcp_checker

    if not _are_readable(results):
        return False, "not run: a log has a line that is too long for it"
    if not results.log_paths:
        return False, "not run: no valid logs"
    with _copy(results, rules) as tree, guarded():
        folder = tree / "results" / _folder_in_tree(results, rules)
        try:
            passes, message, _ = rcp_checker.check_directory(
                str(folder), *rules.split("_"), False, False, rcp_pass="pruned_rcps", set_scaling=True
            )
        except (Exception, SystemExit) as error:
            return False, why_it_stopped(error)
    return bool(passes), str(message).strip()


def summary(results: ResultSet, rules: str) -> float | None:
    """The score in minutes that result_summarizer computes for a set of a submission tree: time to solution, or
    TTTa. None if there is no score, for example if two logs of the set do not comply."""
    from mlperf_logging.result_summarizer import result_summarizer

    if not _are_readable(results):
        return None
    with _copy(results, rules) as tree, guarded():
        try:
            strong, weak, *_ = result_summarizer.summarize_results(str(tree), *rules.split("_"))
            if results.metric == "weak":
                minutes = weak[f"{results.benchmark}:time_to_train_all"].iloc[0]
            else:
                minutes = strong[results.benchmark].iloc[0]
            return None if minutes is None or minutes != minutes else float(minutes)
        except Exception:  # it raises if a field of the description or a benchmark is missing
            return None


def _is_readable(log: Log) -> bool:
    """Return whether the official parser can read the log in reasonable time."""
    return log.longest <= LONGEST and log.parsing_cost <= MOST_PARSING


def _are_readable(results: ResultSet) -> bool:
    return all(map(_is_readable, results.condensed))


@contextmanager
def _copy(results: ResultSet, rules: str) -> Iterator[Path]:
    """Context manager that yields a temporary submission tree with only this set, below the folder ``strong`` or
    ``weak`` that the HPC tools expect. Logs of run folders are renamed to result_<i>.txt. A missing system
    description is not added."""
    with tempfile.TemporaryDirectory(prefix="mlhpc-") as scratch:
        tree = Path(scratch) / "org"
        inside = _folder_in_tree(results, rules)
        folder = tree / "results" / inside
        folder.mkdir(parents=True)
        (tree / "systems").mkdir()
        for number, path in enumerate(results.log_paths, 1):
            name = path.name if results.is_tree else f"result_{number}.txt"
            shutil.copyfile(path, folder / name)
        if results.pruned_paths:
            (folder / PRUNED).mkdir()
        for path in results.pruned_paths:
            shutil.copyfile(path, folder / PRUNED / path.name)
        for copied, original in (
            (folder, results.path),
            (tree / "results" / inside.parts[0], _system_folder(results)),
        ):
            if original and (original / BYPASS).is_file():
                shutil.copyfile(original / BYPASS, copied / BYPASS)
        if results.system_json is not None:
            text = json.dumps(results.system_json)
            (tree / "systems" / f"{inside.parts[0]}.json").write_text(text, "utf-8")
        yield tree


def _folder_in_tree(results: ResultSet, rules: str) -> Path:
    # Outside of a tree the benchmark comes from a log, which may contain anything, even a path.
    is_name = results.is_tree or re.fullmatch(r"\w+", results.benchmark)
    scaling = (results.metric,) if rules.startswith("hpc_") else ()
    return Path(results.system or "system", *scaling, results.benchmark if is_name else "benchmark")


def _system_folder(results: ResultSet) -> Path | None:
    if results.system is None:
        return None
    return next((p for p in results.path.absolute().parents if p.name == results.system), None)
