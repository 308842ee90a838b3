"""The official compliance checker (mlperf-logging), its messages turned into findings.

Called through its Python API: the command line writes ``compliance_checker.log`` where it stands and counts
lines without saying from where. Nothing is written here, and the log is only read.
"""

import re
from collections.abc import Iterator
from dataclasses import replace

from mlperf_logging.compliance_checker import mlp_compliance, mlp_parser

from mlhpc.submission.findings import Finding, Severity
from mlhpc.submission.parse import TOKEN, Log, Record

RULESETS = ("1.0.0", "2.0.0", "3.0.0")
"""The HPC rulesets in mlperf-logging 4.1.68. There is none for round 0.7."""


def official_findings(log: Log, ruleset: str) -> list[Finding]:
    """What the official checker has against ``log`` under ``hpc_<ruleset>``; its verdict is SUCCESS if and
    only if no finding has the severity ``error``."""
    source = f"mlperf-logging hpc_{ruleset}"
    checker = mlp_compliance.make_checker("hpc", ruleset, False, False)
    mlp_compliance.enqueued_configs.clear()  # a module global, left filled when an earlier check crashed
    crash: Exception | None = None
    errors: list[tuple[str, str]] = []
    try:
        lines, errors = mlp_parser.parse_file(str(log.path), ruleset=ruleset)
        checker.check_loglines(lines, f"hpc_{ruleset}/common.yaml")
    except Exception as error:  # it evaluates its rules on whatever the log holds, so it may raise anything
        crash = error

    def findings() -> Iterator[Finding]:
        if errors:
            for problem in log.problems:
                yield Finding(
                    f"hpc_{ruleset}/line",
                    "error",
                    f"{log.path.name}:{problem.line}",
                    "a whole MLLOG record on the line",
                    problem.what,
                    "the run was killed while it wrote, or several processes wrote at once: log from one",
                )
        for message in checker.warnings.values():
            yield _finding(message, log, ruleset, "warning")
        for message in (*checker.overwritable.values(), *checker.not_overwritable):
            if not message.startswith("Could not find config file"):  # it crashes next, and says so itself
                yield _finding(message, log, ruleset, "error")
        if crash:
            yield Finding(
                f"hpc_{ruleset}/crash",
                "error",
                log.path.name,
                "a log that the official checker can read to the end",
                f"it stopped with {type(crash).__name__}: {crash}",
                "mend the other findings first; the rules after this point were not checked",
            )

    return [replace(finding, source=source) for finding in findings()]


def target_in(finding: Finding) -> float | None:
    """The quality target that a finding of the official checker asks for; None for any other finding."""
    match = re.fullmatch(r"an evaluation with eval_\w+ [<>]= ([0-9.]+) and .*", finding.expected)
    return float(match[1]) if match else None


def _finding(message: str, log: Log, ruleset: str, severity: Severity) -> Finding:
    """One message of the checker. The patterns are those of mlp_compliance.py, version 4.1.68; a message of
    another form is passed on as it is."""
    name = log.path.name

    def finding(key: str, where: str, expected: str, actual: str) -> Finding:
        return Finding(f"hpc_{ruleset}/{key}", severity, where, expected, actual, _remedy(key))

    if match := re.match(r"CHECK for '(\w+)' failed in line (\d+):\n.*\nfailed test: (.*)", message):
        key, index, test = match[1], int(match[2]), match[3].strip()
        line = log.mllog_lines[index]
        record = next((r for r in log.records if r.line == line), None)
        return finding(key, f"{name}:{line}", _in_words(test, key), _found(test, record, log))

    if match := re.match(r"Failed executing CHECK code:\n(.*)\ntriggered by line:\n(.*)", message):
        record = _same(match[2], log)
        key, line_number = (record.key, f":{record.line}") if record else ("line", "")
        test = match[1].strip()
        return finding(key, name + line_number, _in_words(test, key), _found(test, record, log))

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

    if message == "No log lines detected":
        return finding("log", name, "MLLOG lines", "none")
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
"""The checker's states, as the order of records that they stand for."""


def _in_words(test: str, key: str) -> str:
    if test in _ORDER:
        return f"{key} {_ORDER[test]}"
    if "first_init_start" in test:
        return "init shorter than 30 min"
    test = re.sub(r"'(\w+)' in v\['metadata'\]", rf"{key} with \1 in its metadata", test)
    test = re.sub(r"'value' in v\b", f"{key} with a value", test)
    return test.replace("v['value']", key).replace("v['metadata']", "metadata").rstrip(".")


def _found(test: str, record: Record | None, log: Log) -> str:
    if record is None:
        return "a record that does not"
    if test in _ORDER:
        return f"{record.key} at this line, out of order"
    if "first_init_start" in test:
        started = min(r.time_ms for r in log.all("init_start"))
        return f"{(record.time_ms - started) / 60e3:.1f} min"
    if "in v['metadata']" in test:
        return f"metadata with {', '.join(record.metadata) or 'nothing'}"
    return f"{record.key} is {record.value!r}"


def _same(text: str, log: Log) -> Record | None:
    """The record that the checker quotes."""
    with_number = re.search(r'"time_ms": *([0-9.]+).*"key": *"(\w+)"', text.removeprefix(TOKEN))
    if not with_number:
        return None
    time_ms, key = float(with_number[1]), with_number[2]
    return next((r for r in log.all(key) if r.time_ms == time_ms), None)


_HARDWARE = "log the hardware; logs of round 0.7 lack this key, and have no ruleset of their own"
_REMEDIES = {
    "run_stop": "the run did not end, or did not say how: see the end of the log and of the job's output",
    "run_start": "a log holds one run, and init ends before it starts: one file a run",
    "init_stop": "init (build, compile, warm-up on synthetic data) ends before run_start, within 30 min",
    "staging_start": "staging is timed up to round 2.0: stage after run_start, or check under 3.0.0",
    "cache_clear": "clear the node's caches before the run and log cache_clear",
    "number_of_nodes": _HARDWARE,
    "accelerators_per_node": _HARDWARE,
    "eval_error": "train until an evaluation meets the target, then log run_stop",
    "eval_accuracy": "train until an evaluation meets the target, then log run_stop",
    "opt_name": "use the optimizer that the closed division asks for, or submit to the open division",
    "submission_benchmark": "an HPC ruleset knows these benchmarks alone",
    "log": "give the log that the run wrote (run.log, result_N.txt)",
    "line": "see the end of the log and of the job's output",
    "other": "see the rules in mlperf_logging/compliance_checker",
}


def _remedy(key: str) -> str:
    return _REMEDIES.get(key, f"log {key} as the rule asks, or mend its value")
