"""Converts messages of the official checkers (mlperf-logging 4.1.68) to findings.

Unknown messages are kept unchanged, so that no message is lost if the tools change.
"""

import logging
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mlhpc.benchmarks.findings import Finding, Severity
from mlhpc.errors import few, shown
from mlhpc.quantities import duration_text
from mlhpc.record.mllog import TOKEN, Log, Record
from mlhpc.submission.check.official_guard import RuleFileRefused
from mlhpc.submission.check.rulesets import HPC, TRAINING, without_rules
from mlhpc.submission.findings import allowed_value

RULE_FOLDERS = (*(f"hpc_{each}" for each in HPC), *(f"training_{each}" for each in TRAINING))
"""The folders with official rule files that a user can choose."""

# The compliance checker, on one log.


def checker_findings(checker: Any, log: Log, rules: str, *, unreadable: bool) -> Iterator[Finding]:
    """Yield the messages of a ``ComplianceChecker`` that has run on ``log`` as findings. ``unreadable``: whether
    the official parser failed on a line."""
    problems = [problem for problem in log.problems if problem.official] if unreadable else []
    if unreadable and not problems:  # a line that only the official parser rejects
        expected, actual = "MLLOG lines that the official parser reads", "at least one that it does not"
        yield Finding(f"{rules}/line", "error", log.path.name, expected, actual, _remedy("line"))
    for problem in problems:
        remedy = "the run was killed while writing, or several processes wrote at the same time: log from one"
        expected = "a complete MLLOG record on the line"
        actual = problem.what
        yield Finding(f"{rules}/line", "error", f"{log.path.name}:{problem.line}", expected, actual, remedy)
    for message in checker.warnings.values():
        yield _checker_finding(message, log, rules, "warning")
    for message in (*checker.overwritable.values(), *checker.not_overwritable):
        if not message.startswith("Could not find config file"):  # the crash that follows reports it
            yield _checker_finding(message, log, rules, "error")


def crash_finding(error: Exception, log: Log, rules: str) -> Finding:
    """The finding that the checker crashed with ``error``, or was stopped because of a rule file that does not
    belong to it."""
    if isinstance(error, RuleFileRefused):
        remedy = "do not use this log: it names rule files to execute; later rules were not checked"
        expected = "a division, benchmark and optimizer known to the rules"
        return Finding(f"{rules}/rule_file", "error", log.path.name, expected, str(error), remedy)
    if isinstance(error, FileNotFoundError) and error.filename:
        missing = Path(str(error.filename))
        having = [name for name in RULE_FOLDERS if (missing.parents[1] / name / missing.name).is_file()]
        elsewhere = f"; {few([name.replace('_', ' ') for name in having], 3)} has some" if having else ""
        remedy = "check it by the rules of its round (--ruleset); later rules were not checked"
        expected = f"a benchmark, division, optimizer and schedule of {rules.replace('_', ' ')}"
        actual = f"it has no rules for {missing.stem.replace('_', ' ')}{elsewhere}"
        return Finding(f"{rules}/crash", "error", log.path.name, expected, actual, remedy)
    remedy = "fix the other findings first; the rules after this point were not checked"
    expected = "a log that the official checker can read to the end"
    return Finding(f"{rules}/crash", "error", log.path.name, expected, why_it_stopped(error), remedy)


def too_long(log: Log, rules: str, longest: int) -> Finding:
    """The finding that the log was not passed to the official tools, because they would take too long to parse
    it."""
    return Finding(
        f"{rules}/line",
        "error",
        log.path.name,
        f"MLLOG lines of at most {longest} bytes, few of them nearly as long",
        f"one of {log.longest}",
        "fix the log: the official tools were not run, because parsing it would take hours",
        f"mlperf-logging {rules}",
    )


def no_rules(log: Log, rules: str) -> Finding:
    """The finding that the official checker was not run, because MLPerf has no such benchmark or the checker lacks
    these ``rules``."""
    benchmark = str(log.value("submission_benchmark"))
    if not rules:
        remedy = "MLPerf has no rules for it: only the checks of this suite were run"
        return Finding("run/rules", "expected", log.path.name, "an MLPerf benchmark", benchmark, remedy)
    remedy = "only the checks of this suite were run; --ruleset selects the rules of another round"
    expected = "a round with rules in mlperf-logging"
    actual = without_rules(benchmark, rules)
    return Finding("run/rules", "error", log.path.name, expected, actual, remedy)


def target_in(finding: Finding) -> float | None:
    """The quality target in a finding of the official checker; None for any other finding."""
    match = re.fullmatch(r"an evaluation with eval_\w+ [<>]= ([0-9.]+) and .*", finding.expected)
    return float(match[1]) if match else None


def _checker_finding(message: str, log: Log, rules: str, severity: Severity) -> Finding:
    """The finding for one message of mlp_compliance.py."""
    name = log.path.name

    def finding(key: str, where: str, expected: str, actual: str) -> Finding:
        return Finding(f"{rules}/{key}", severity, where, expected, actual, _remedy(key))

    if match := re.match(r"CHECK for '(\w+)' failed in line (\d+):\n.*\nfailed test: (.*)", message):
        key, index, test = match[1], int(match[2]), match[3].strip()
        line = log.mllog_lines[index] if index < len(log.mllog_lines) else 0
        record = next((r for r in log.records if r.line == line), None)
        return finding(key, f"{name}:{line}", _in_words(test, key), _actual(test, record, log))

    if match := re.match(r"Failed executing CHECK code:\n(.*)\ntriggered by line:\n(.*)", message):
        record = _quoted_record(match[2], log)
        key, line_number = (record.key, f":{record.line}") if record else ("line", "")
        test = match[1].strip()
        return finding(key, name + line_number, _in_words(test, key), _actual(test, record, log))

    if match := re.match(r"Required (.+) occurrence of '(\w+)' but found (\d+)(.*)", message):
        how_often, key, count, values = match.groups()
        expected = {"EXACTLY_ONE": "exactly one", "AT_LEAST_ONE": "at least one"}.get(how_often, how_often)
        lines = ", ".join(str(record.line) for record in log.all(key)[:4])
        where = f"{name}:{lines}" if lines else name
        return finding(key, where, f"{expected} {key}", (count if count != "0" else "none") + values)

    if match := re.match(r"Required AT_LEAST_ONE occurrence of ('\w+'(?: or '\w+')+)", message):
        keys = sorted(re.findall(r"\w+", match[1].replace(" or ", " ")))
        return finding(keys[-1], name, f"at least one {' or '.join(keys)}", "none")

    if match := re.match(r"Failed checks for (\w+) : (.*)", message):
        key, test = match[1], match[2].strip()
        values = [r.value for r in log.all(key) if isinstance(r.value, int | float)]
        best = (min if "<= 0." in test else max)(values, default=None)
        expected = f"an evaluation with {_in_words(test, key)}"
        return finding(key, name, expected, f"the best of {len(values)} is {best:.6g}" if values else "none")

    if "failed test: sorted(s['initialized_tensors'])" in message:
        remedy = "log weights_initialization once for each tensor of the reference, by its name"
        expected = "one weights_initialization for each tensor"
        actual = "tensors that differ from the reference's"
        return Finding(f"{rules}/weights_initialization", severity, name, expected, actual, remedy)
    if message == "No log lines detected":
        return finding("log", name, "MLLOG lines", log.unreadable or "none")
    if message == "Log lines had parsing errors.":
        return finding("log", name, "readable MLLOG lines", f"{len(log.problems)} cannot be read")
    return finding("other", name, "see the message", message.split("\ncurrent context")[0])


_ORDER = {
    "s['init_started']": "after init_start",
    "not s['init_stopped']": "before init_stop",
    "( s['init_stopped'] == True )": "after init_stop",
    "s['run_started']": "after run_start",
    "not s['run_started']": "before run_start",
    "s['staging_started']": "after staging_start",
}
"""The order of records that the state variables in the checker's tests express."""


def _in_words(test: str, key: str) -> str:
    if test in _ORDER:
        return f"{key} {_ORDER[test]}"
    if "first_init_start" in test:
        return "init shorter than 30 min" + (", 240 min if open" if "compile_time_mins" in test else "")
    test = re.sub(r"'(\w+)' in v\['metadata'\]", rf"{key} with \1 in its metadata", test)
    test = re.sub(r"'value' in v\b", f"{key} with a value", test)
    test = test.replace(" | ", " or ")
    return test.replace("v['value']", key).replace("v['metadata']", "metadata").rstrip(".")


def _actual(test: str, record: Record | None, log: Log) -> str:
    """A description of the logged value that failed the checker's ``test``."""
    if record is None:
        return "a record that fails this"
    if test in _ORDER:
        return f"{record.key} at this line, out of order"
    if "first_init_start" in test:
        started = min(r.time_ms for r in log.all("init_start"))
        return duration_text((record.time_ms - started) / 1e3)
    if "in v['metadata']" in test:
        return f"metadata with {', '.join(record.metadata) or 'nothing'}"
    return f"{record.key} is {shown(record.value)}"


def _quoted_record(text: str, log: Log) -> Record | None:
    """The log record that a message of the checker quotes."""
    quoted = re.search(r'"time_ms": *([0-9.]+).*"key": *"(\w+)"', text.removeprefix(TOKEN))
    if not quoted:
        return None
    try:
        time_ms = float(quoted[1])
    except ValueError:
        return None
    return next((r for r in log.all(quoted[2]) if r.time_ms == time_ms), None)


_HARDWARE = "log the hardware; logs of round 0.7 lack this key, and there is no ruleset for them"
_REMEDIES = {
    "run_stop": "the run did not end, or did not log its status: see the end of the log and the job's output",
    "run_start": "a log must contain a single run whose init ends before run_start: use one file per run",
    "init_stop": "init (build, compile, warm-up on synthetic data) ends before run_start, within 30 min",
    "staging_start": "staging is timed up to round 2.0: stage after run_start, or check under 3.0.0",
    "cache_clear": "clear the node's caches before the run and log cache_clear",
    "number_of_nodes": _HARDWARE,
    "accelerators_per_node": _HARDWARE,
    "eval_error": "train until an evaluation meets the target, then log run_stop",
    "eval_accuracy": "train until an evaluation meets the target, then log run_stop",
    "opt_name": "use the optimizer that the closed division requires, or submit to the open division",
    "submission_benchmark": "a ruleset covers only its benchmarks: log one of them",
    "log": "pass the log written by the run (run.log, result_N.txt)",
    "line": "see the end of the log and the job's output",
    "other": "see the rules in mlperf_logging/compliance_checker",
}


def _remedy(key: str) -> str:
    return _REMEDIES.get(key, f"log {key} as the rule requires, or correct its value")


# package_checker and seed_checker, on a set.


def package_message_findings(records: Sequence[logging.LogRecord], where: str) -> list[Finding]:
    """The findings on the set ``where`` in log records of package_checker or seed_checker."""
    messages = [m for record in records for m in _messages(record.getMessage(), record.levelno)]
    return [finding for message in messages if (finding := _package_finding(message, where))]


def package_crash(where: str, error: BaseException) -> Finding:
    """The finding that package_checker stopped with ``error``."""
    remedy = "fix the other findings first; the rules after this point were not checked"
    expected = "a set that package_checker can read to the end"
    return Finding("package/crash", "error", where, expected, why_it_stopped(error), remedy)


def why_it_stopped(error: BaseException) -> str:
    """The reason why a tool stopped with ``error``, in one line. KeyError is frequent, because the official tools
    look up values without checking that they exist."""
    text = str(error.args[0] if isinstance(error, KeyError) and error.args else error).partition("\n")[0]
    if isinstance(error, KeyError):
        missing = text if text not in ("", "None") else "value that it looks up"
        return f"no {missing} in the system description or the logs"
    return f"it stopped with {type(error).__name__}: {text}".removesuffix(": ")


def _messages(message: str, level: int) -> list[str]:
    """The lines of an error message; of a warning, only a line about the set as a whole."""
    if level < logging.ERROR:
        return [message] if "accepting this under olympic scoring" in message else []
    return (
        message.partition("found the following errors: ")[2].split("\n")
        if "errors: " in message
        else [message]
    )


def _package_finding(message: str, where: str) -> Finding | None:
    """The finding for one message of package_checker or of a checker that it calls; None for a message that only
    repeats a different one."""
    message = message.strip()
    if message in ("Seed checker failed", "System description file checker failed"):
        return None

    def finding(key: str, at: str, expected: str, actual: str, remedy: str) -> Finding:
        return Finding(f"package/{key}", "error", at, expected, actual, remedy)

    if match := re.match(r"Incorrect number of files.* found (\d+), expected (\d+)", message):
        remedy = "put exactly the runs of the score into the folder, as result_<i>.txt"
        return finding("runs", where, f"{match[2]} result_<i>.txt", match[1], remedy)
    if match := re.match(r"Expected at least (\d+) runs, but detected (\d+)", message):
        return finding("runs", where, f"at least {match[1]} instances", match[2], "run more instances")
    if match := re.match(r"(\d+) files? do(?:es)? not comply, (accepting)?", message):
        compliance = finding(
            "compliance", where, "logs that comply, except at most one", f"{match[1]} that do not",
            "see the findings of the compliance checker on each log",
        )  # fmt: skip
        return replace(compliance, severity="warning") if match[2] else compliance
    if match := re.match(r"Result file (.*) logs no seed", message):
        remedy = "log the seed of every run; seeds prove that runs were not cherry-picked"
        return finding("seed", _log_name(match[1], where), "a seed", "none", remedy)
    if match := re.match(r"Result file (.*) logs seed (\S+) on .* result file (.*) already logs", message):
        remedy = "use a different seed for every run, for example from the clock, and repeat the run"
        actual = f"seed {match[2]} as in {Path(match[3]).name}"
        return finding("seed", _log_name(match[1], where), "its own seed", actual, remedy)
    if match := re.match(r"Error found when querying seeds from (.*?): (.*)", message):
        return finding("seed", _log_name(match[1], where), "a readable log", match[2], _remedy("line"))
    if match := re.match(r"RCP Test Failed: (.*)", message):
        remedy = "see the comparison with the reference (mlhpc score); a review may request reference runs"
        how = match[1].strip()
        actual = f"fewer ({how})" if how in ("RCP found", "RCP Interpolation") else how
        return finding("rcp", where, "at least as many epochs as the reference", actual, remedy)
    if match := re.search(r"Field (\w+) contains a non valid value: (.*), must be one of \[(.*)\]", message):
        allowed = [a or b for a, b in re.findall(r"'([^']*)'|\"([^\"]*)\"", match[3])]
        expected, remedy = allowed_value(match[1], match[2], allowed)
        return finding("system", where, expected, match[2], remedy)
    if match := re.match(r"System description checker failed for .*? : \[(.*)\]", message):
        remedy = "fill them in: mlhpc doctor --system"
        fields = match[1].replace("'", "")
        return finding("system", where, "every field of the system description", fields, remedy)
    return finding("other", where, "see the message", message, _remedy("other"))


def _log_name(path: str, where: str) -> str:
    """The name of the log in the user's folder, for a ``path`` reported by a tool that worked on a copy of the
    set."""
    return Path(path).name if where else path
