"""Rules for logs in addition to those of the official checker, one function per rule. The official checker checks
initialisation time, the order of records and required keys."""

import math
from collections.abc import Iterator
from itertools import pairwise

from mlhpc.benchmarks.findings import Finding, Severity
from mlhpc.errors import shown
from mlhpc.quantities import count, seconds_text
from mlhpc.record.mllog import Log


def log_rules(log: Log) -> Iterator[Finding]:
    """Findings on a log, whether written by this suite or not."""
    for rule in (
        _one_run, _positive_time, _readable_times, _steady_clock, _one_seed, _unique_keys, _staging_pairs,
        _staging_inside_run, _not_a_study, _not_emulated, _untrained_at_start, _on_whole_samples,
    ):  # fmt: skip
        yield from rule(log)


def bare_log_rules(log: Log) -> Iterator[Finding]:
    """Findings on a log outside a run folder; ``run_rules`` applies the same rules to run folders."""
    for rule in (_has_seed, _not_resumed, _successful):
        yield from rule(log)


def _finding(
    rule: str, severity: Severity, log: Log, lines: str, expected: str, actual: str, remedy: str
) -> Finding:
    where = f"{log.path.name}:{lines}" if lines else log.path.name
    return Finding(f"log/{rule}", severity, where, expected, actual, remedy)


def _one_run(log: Log) -> Iterator[Finding]:
    for key in ("run_start", "run_stop"):
        records = log.all(key)
        if len(records) > 1:
            lines = ", ".join(str(r.line) for r in records)
            actual = f"{len(records)}: more than one run in the file"
            remedy = "use one file per run; only the first run would be used for times"
            yield _finding("one-run", "error", log, lines, f"one {key}", actual, remedy)


def _positive_time(log: Log) -> Iterator[Finding]:
    if log.run and not 0 < log.run.seconds < math.inf:
        actual = f"run_stop − run_start = {log.run.seconds:.3f} s"
        remedy = "the clock was set back during the run, or the file was edited: repeat the run"
        yield _finding("time", "error", log, "", "run_stop after run_start", actual, remedy)


def _readable_times(log: Log) -> Iterator[Finding]:
    """Findings on lines that the official parser accepts but this suite's parser does not."""
    for problem in log.problems:
        if not problem.official:
            remedy = "fix the program that writes the log, and repeat the run; the line was ignored"
            yield _finding("line", "error", log, str(problem.line), "a usable record", problem.what, remedy)


def _steady_clock(log: Log) -> Iterator[Finding]:
    backwards = [(b.line, a.time_ms - b.time_ms) for a, b in pairwise(log.records) if b.time_ms < a.time_ms]
    if backwards:
        largest = max(step for _, step in backwards)
        actual = f"{count(len(backwards), 'step')} back, the largest {seconds_text(largest / 1e3)}"
        remedy = "several ranks wrote into the same file, or the clock was set back: log only from rank 0"
        line = str(backwards[0][0])
        yield _finding("clock", "warning", log, line, "times that never decrease", actual, remedy)


def _one_seed(log: Log) -> Iterator[Finding]:
    seeds = log.all("seed")
    if len(seeds) > 1:
        lines = ", ".join(str(r.line) for r in seeds[:4])
        values = ", ".join(str(r.value) for r in seeds[:4]) + ", …" * (len(seeds) > 4)
        remedy = "log the seed once, from rank 0; the first record is used"
        yield _finding("seed", "warning", log, lines, "one seed", f"{len(seeds)} records: {values}", remedy)


def _unique_keys(log: Log) -> Iterator[Finding]:
    if log.repeated:
        lines = ", ".join(map(str, log.repeated[:4]))
        actual = f"{len(log.repeated)} with repeated keys"
        remedy = "readers differ in the value they use: fix the program that writes the log"
        yield _finding("repeated", "error", log, lines, "unique keys in each record", actual, remedy)


def _staging_pairs(log: Log) -> Iterator[Finding]:
    starts, stops = len(log.all("staging_start")), len(log.all("staging_stop"))
    if starts != stops:
        actual = f"{starts} staging_start, {stops} staging_stop"
        remedy = "staging did not finish: see the job's output"
        yield _finding("staging", "error", log, "", "a staging_stop for every staging_start", actual, remedy)


def _staging_inside_run(log: Log) -> Iterator[Finding]:
    """Findings on staging that ends after run_stop."""
    for staging in log.staging:
        if log.run and staging.stop_ms > log.run.stop_ms:
            actual = f"it ends {(staging.stop_ms - log.run.stop_ms) / 1e3:.3f} s after it"
            remedy = "stage inside the run, and wait for it before training"
            yield _finding("staging", "error", log, "", "staging that ends before run_stop", actual, remedy)


def _not_a_study(log: Log) -> Iterator[Finding]:
    if log.value("study_steps"):
        actual = f"a run of a study, stopped after {log.value('study_steps')} measured steps"
        remedy = "remove it: runs of a study measure throughput and are not results"
        yield _finding("study", "error", log, "", "training to the target", actual, remedy)


def _not_emulated(log: Log) -> Iterator[Finding]:
    if (seconds := log.value("emulated_step_s")) is not None:
        remedy = "remove it: a run with --compute does not train"
        actual = f"an emulated run, whose steps waited {seconds} s"
        yield _finding("emulated", "error", log, "", "computed steps", actual, remedy)


def _untrained_at_start(log: Log) -> Iterator[Finding]:
    if (digest := log.value("initial_weights")) is not None and log.value("submission_division") == "closed":
        actual = f"weights from a file (SHA-256 {str(digest)[:12]}…)"
        remedy = "omit training.weights, or run in the open division"
        yield _finding("initial_weights", "error", log, "", "weights initialised at random", actual, remedy)


def _on_whole_samples(log: Log) -> Iterator[Finding]:
    if (epochs := log.value("coarse_epochs")) and log.value("submission_division") == "closed":
        remedy = "omit training.coarse_epochs, or run in the open division"
        actual = f"coarser ones in the first epochs ({epochs})"
        expected = "samples of the same size as in the reference"
        yield _finding("coarse_epochs", "error", log, "", expected, actual, remedy)


def _has_seed(log: Log) -> Iterator[Finding]:
    if log.value("seed") is None:
        remedy = "log the seed; from round 1.0 on the package checker rejects closed sets without seeds"
        yield _finding("seed", "warning", log, "", "a seed", "none", remedy)


def _not_resumed(log: Log) -> Iterator[Finding]:
    if log.value("resumed"):
        remedy = "repeat it from the start; a resumed run has no time to train"
        expected = "an uninterrupted run"
        yield _finding("resumed", "error", log, "", expected, "resumed from a checkpoint", remedy)


def _successful(log: Log) -> Iterator[Finding]:
    stop = log.first("run_stop")
    status = stop.metadata.get("status") if stop else None
    if stop and status not in (None, "success"):
        remedy = "only a run that met its target has a time to train"
        expected = "run_stop with status success"
        yield _finding("status", "error", log, str(stop.line), expected, f"status {shown(status)}", remedy)
