"""The official checkers (mlperf-logging 4.1.68), their messages turned into findings.

Called through their Python API, and never on the user's files but to read one: the command lines write their
logs where they stand, package_checker exits 0 whatever it found, and the RCP checker, package_checker and
result_summarizer write ``scaling.json`` into the folders they read. Those three get a copy.
"""

import io
import json
import logging
import re
import shutil
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path

from mlperf_logging.compliance_checker import mlp_compliance, mlp_parser

from mlhpc.benchmarks import registry
from mlhpc.submission.logs.findings import Finding, Severity
from mlhpc.submission.logs.mllog import TOKEN, Log, Record
from mlhpc.submission.logs.result_sets import BYPASS, PRUNED, ResultSet

RULESETS = ("1.0.0", "2.0.0", "3.0.0")
"""The HPC rulesets in mlperf-logging 4.1.68. There is none for round 0.7."""

LONGEST = 10_000
"""Characters of an MLLOG line that the official parser still reads in a moment; its time grows with their
square (100 000 characters: more than a minute). Logs with longer lines are not given to it."""


def rules_of(benchmark: str, ruleset: str) -> str:
    """``hpc_<ruleset>``, or the one training ruleset of a benchmark of MLPerf Training."""
    known = registry.find_logged(benchmark)
    return f"training_{known.training_ruleset}" if known and known.training_ruleset else f"hpc_{ruleset}"


def in_mlperf(benchmark: str) -> bool:
    """Whether MLPerf has rules for ``benchmark``. True for names that are not known here: the official checker
    then says so itself."""
    known = registry.find_logged(benchmark)
    return known is None or known.mlperf_name is not None


def official_findings(log: Log, ruleset: str) -> list[Finding]:
    """What the official compliance checker has against ``log`` under the HPC ``ruleset``, or under the
    training ruleset of its benchmark; its verdict is SUCCESS if and only if no finding is an ``error``."""
    benchmark = str(log.value("submission_benchmark"))
    rules = rules_of(benchmark, ruleset)
    if not in_mlperf(benchmark):
        return [_not_in_mlperf(log, benchmark)]
    usage, version = rules.split("_")
    if log.longest > LONGEST:
        return [_too_long(log, rules)]
    source = f"mlperf-logging {rules}"
    checker = mlp_compliance.make_checker(usage, version, False, False)
    mlp_compliance.enqueued_configs.clear()  # a module global, left filled when an earlier check crashed
    crash: Exception | None = None
    errors: list[tuple[str, str]] = []
    try:
        with _overheard():
            lines, errors = mlp_parser.parse_file(str(log.path), ruleset=version)
            checker.check_loglines(lines, f"{rules}/common.yaml")
    except Exception as error:  # it evaluates its rules on whatever the log holds, so it may raise anything
        crash = error

    def findings() -> Iterator[Finding]:
        if errors:
            for problem in log.problems:
                yield Finding(
                    f"{rules}/line",
                    "error",
                    f"{log.path.name}:{problem.line}",
                    "a whole MLLOG record on the line",
                    problem.what,
                    "the run was killed while it wrote, or several processes wrote at once: log from one",
                )
        for message in checker.warnings.values():
            yield _finding(message, log, rules, "warning")
        for message in (*checker.overwritable.values(), *checker.not_overwritable):
            if not message.startswith("Could not find config file"):  # it crashes next, and says so itself
                yield _finding(message, log, rules, "error")
        if crash:
            yield Finding(
                f"{rules}/crash",
                "error",
                log.path.name,
                "a log that the official checker can read to the end",
                f"it stopped with {type(crash).__name__}: {crash}",
                "mend the other findings first; the rules after this point were not checked",
            )

    return [replace(finding, source=source) for finding in findings()]


def _not_in_mlperf(log: Log, benchmark: str) -> Finding:
    return Finding(
        "run/rules",
        "expected",
        log.path.name,
        "a benchmark of MLPerf",
        benchmark,
        "MLPerf has no rules for it: only the checks of this suite were made",
    )


def target_in(finding: Finding) -> float | None:
    """The quality target that a finding of the official checker asks for; None for any other finding."""
    match = re.fullmatch(r"an evaluation with eval_\w+ [<>]= ([0-9.]+) and .*", finding.expected)
    return float(match[1]) if match else None


def _finding(message: str, log: Log, rules: str, severity: Severity) -> Finding:
    """One message of the checker. The patterns are those of mlp_compliance.py, version 4.1.68; a message of
    another form is passed on as it is."""
    name = log.path.name

    def finding(key: str, where: str, expected: str, actual: str) -> Finding:
        return Finding(f"{rules}/{key}", severity, where, expected, actual, _remedy(key))

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
        return "init shorter than 30 min" + (", 240 min if open" if "compile_time_mins" in test else "")
    test = re.sub(r"'(\w+)' in v\['metadata'\]", rf"{key} with \1 in its metadata", test)
    test = re.sub(r"'value' in v\b", f"{key} with a value", test)
    test = test.replace(" | ", " or ")
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
    "submission_benchmark": "an HPC ruleset covers only these benchmarks",
    "log": "give the log that the run wrote (run.log, result_N.txt)",
    "line": "see the end of the log and of the job's output",
    "other": "see the rules in mlperf_logging/compliance_checker",
}


def _remedy(key: str) -> str:
    return _REMEDIES.get(key, f"log {key} as the rule asks, or mend its value")


# Sets of runs. Each tool gets a copy that holds nothing but the set, so that a message has a place, and a
# crash over one set hides no other.


def package_findings(results: ResultSet, ruleset: str) -> list[Finding]:
    """What package_checker has against a set of a submission tree: number of files, seeds, convergence points
    (the last two in the closed division), system description. That logs do not comply is said in one line."""
    from mlperf_logging.package_checker import package_checker

    rules = rules_of(results.benchmark, ruleset)
    if not _fit_for_official(results):
        return []
    with _copy(results, rules) as tree, _overheard() as said:
        crash = None
        try:
            package_checker.check_training_package(
                str(tree), *rules.split("_"), False, False, False, False, False, ""
            )
        except (Exception, SystemExit) as error:
            crash = error
    mlp_compliance.enqueued_configs.clear()
    where = f"{results.path.name}/"
    messages = [m for record in said for m in _split(record.getMessage(), record.levelno)]
    findings = [f for m in messages if (f := _package_finding(m, where))]
    if crash is not None:
        findings.append(_package_crash(where, crash))
    elif not any("FOUND NO ERRORS" in record.getMessage() for record in said) and not any(
        f.severity == "error" for f in findings
    ):
        findings.append(
            Finding("package/other", "error", where, "acceptance", "errors, no message", _remedy("other"))
        )
    return [replace(f, source=f"mlperf-logging {rules} package_checker") for f in findings]


def seed_findings(logs: Sequence[Log], benchmark: str, ruleset: str) -> list[Finding]:
    """What the official seed checker has against the logs of one set."""
    from mlperf_logging.package_checker.seed_checker import SeedChecker

    rules = rules_of(benchmark, ruleset)
    logs = [log for log in logs if log.longest <= LONGEST]
    with _overheard() as said:
        SeedChecker(rules.split("_")[1]).check_seeds([str(log.path) for log in logs])
    messages = [m for record in said for m in _split(record.getMessage(), record.levelno)]
    findings = [f for m in messages if (f := _package_finding(m, ""))]
    return [replace(f, source=f"mlperf-logging {rules} seed_checker") for f in findings]


def rcp_verdict(results: ResultSet, ruleset: str) -> tuple[bool, str]:
    """Whether the official RCP checker passes the set, and its message."""
    from mlperf_logging.rcp_checker import rcp_checker

    rules = rules_of(results.benchmark, ruleset)
    if not _fit_for_official(results):
        return False, "not asked: a log has a line that is too long for it"
    with _copy(results, rules) as tree, _overheard():
        folder = tree / "results" / _inside(results, rules)
        try:
            passes, message, _ = rcp_checker.check_directory(
                str(folder), *rules.split("_"), False, False, rcp_pass="pruned_rcps", set_scaling=True
            )
        except Exception as error:
            return False, f"it stopped with {type(error).__name__}: {error}"
    return bool(passes), str(message).strip()


def summary(results: ResultSet, ruleset: str) -> float | None:
    """The score of result_summarizer for a set of a submission tree, in minutes: time to solution, or TTTa.
    None where it gives none, as for every set with two logs that do not comply."""
    from mlperf_logging.result_summarizer import result_summarizer

    rules = rules_of(results.benchmark, ruleset)
    if not _fit_for_official(results):
        return None
    with _copy(results, rules) as tree, _overheard():
        try:
            strong, weak, *_ = result_summarizer.summarize_results(str(tree), *rules.split("_"))
            if results.metric == "weak":
                minutes = weak[f"{results.benchmark}:time_to_train_all"].iloc[0]
            else:
                minutes = strong[results.benchmark].iloc[0]
            return None if minutes is None or minutes != minutes else float(minutes)
        except Exception:  # it raises where a field of the description or a benchmark is missing
            return None


def _fit_for_official(results: ResultSet) -> bool:
    return all(log.longest <= LONGEST for log in results.logs)


def _too_long(log: Log, rules: str) -> Finding:
    return Finding(
        f"{rules}/line",
        "error",
        log.path.name,
        f"MLLOG lines of at most {LONGEST} characters",
        f"one of {log.longest}",
        "mend the log: the official tools were not asked, for they would not come to an end",
        f"mlperf-logging {rules}",
    )


@contextmanager
def _copy(results: ResultSet, rules: str) -> Iterator[Path]:
    """A submission tree with this set alone, under the level ``strong`` or ``weak`` that HPC's tools expect;
    removed at the end. Logs of run directories become result_<i>.txt; a missing description stays missing."""
    with tempfile.TemporaryDirectory(prefix="mlhpc-") as scratch:
        tree = Path(scratch) / "org"
        inside = _inside(results, rules)
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
        for place, above in (
            (folder, results.path),
            (tree / "results" / inside.parts[0], _system_folder(results)),
        ):
            if above and (above / BYPASS).is_file():
                shutil.copyfile(above / BYPASS, place / BYPASS)
        if results.system_json is not None:
            text = json.dumps(results.system_json)
            (tree / "systems" / f"{inside.parts[0]}.json").write_text(text, "utf-8")
        yield tree


def _inside(results: ResultSet, rules: str) -> Path:
    # Outside of a tree the name is what a log says, which may be anything, a path included.
    known = results.is_tree or re.fullmatch(r"\w+", results.benchmark)
    scaling = (results.metric,) if rules.startswith("hpc_") else ()
    return Path(results.system or "system", *scaling, results.benchmark if known else "benchmark")


def _system_folder(results: ResultSet) -> Path | None:
    if results.system is None:
        return None
    return next((p for p in results.path.absolute().parents if p.name == results.system), None)


@contextmanager
def _overheard() -> Iterator[list[logging.LogRecord]]:
    """What is said meanwhile on the root logger; nothing of it, nor of what is printed, reaches the terminal.

    The tools call ``logging.info`` and the like, which set the root logger up where nobody has.
    """
    said: list[logging.LogRecord] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record)

    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers[:] = [Listener()]
    root.setLevel(logging.INFO)
    try:
        nowhere = io.StringIO()
        with redirect_stdout(nowhere), redirect_stderr(nowhere), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield said
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)


def _split(message: str, level: int) -> list[str]:
    """The messages of errors, one a line; of warnings those alone that are about the set, not about a log."""
    if level < logging.ERROR:
        return [message] if "accepting this under olympic scoring" in message else []
    return (
        message.partition("found the following errors: ")[2].split("\n")
        if "errors: " in message
        else [message]
    )


def _package_finding(message: str, where: str) -> Finding | None:
    """One message of package_checker or of one that it calls; None for those that only repeat another."""
    message = message.strip()
    if message in ("Seed checker failed", "System description file checker failed"):
        return None

    def finding(key: str, at: str, expected: str, actual: str, remedy: str) -> Finding:
        return Finding(f"package/{key}", "error", at, expected, actual, remedy)

    if match := re.match(r"Incorrect number of files.* found (\d+), expected (\d+)", message):
        remedy = "put all runs of the score there, and no others, as result_<i>.txt"
        return finding("runs", where, f"{match[2]} result_<i>.txt", match[1], remedy)
    if match := re.match(r"Expected at least (\d+) runs, but detected (\d+)", message):
        return finding("runs", where, f"at least {match[1]} instances", match[2], "run more instances")
    if match := re.match(r"(\d+) files? do(?:es)? not comply, (accepting)?", message):
        found = finding(
            "compliance", where, "logs that comply, all but one at most", f"{match[1]} that do not",
            "see what the compliance checker has against each log",
        )  # fmt: skip
        return replace(found, severity="warning") if match[2] else found
    if match := re.match(r"Result file (.*) logs no seed", message):
        remedy = "log the seed of every run; runs whose seed is unknown cannot be told from chosen ones"
        return finding("seed", _name(match[1], where), "a seed", "none", remedy)
    if match := re.match(r"Result file (.*) logs seed (\S+) on .* result file (.*) already logs", message):
        remedy = "give every run a seed of its own, from a clock for example, and run it again"
        actual = f"seed {match[2]} as in {Path(match[3]).name}"
        return finding("seed", _name(match[1], where), "a seed of its own", actual, remedy)
    if match := re.match(r"Error found when querying seeds from (.*?): (.*)", message):
        return finding("seed", _name(match[1], where), "a log that can be read", match[2], _remedy("line"))
    if match := re.match(r"RCP Test Failed: (.*)", message):
        remedy = "see the comparison with the reference (mlhpc score); a review may ask for reference runs"
        return finding("rcp", where, "as many epochs as the reference needs", match[1].strip(), remedy)
    if match := re.match(r"System description checker failed for .*? : \[(.*)\]", message):
        remedy = "fill them in: mlhpc doctor --system"
        said = match[1].replace("'", "")
        return finding("system", where, "every field of the system description", said, remedy)
    return finding("other", where, "see the message", message, _remedy("other"))


def _name(path: str, where: str) -> str:
    """The log as the user knows it: what the tools saw is a copy."""
    return Path(path).name if where else path


def _package_crash(where: str, error: BaseException) -> Finding:
    return Finding(
        "package/crash",
        "error",
        where,
        "a set that package_checker can read to the end",
        f"it stopped with {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}",
        "mend the other findings first; what it checks after this point was not checked",
    )
