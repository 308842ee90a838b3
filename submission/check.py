"""Whether a run counts: the official compliance checker, and what a run directory says about itself."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from mlhpc.benchmarks.load import load
from mlhpc.benchmarks.schema import Run
from mlhpc.common.errors import UserError
from mlhpc.common.progress import progress
from mlhpc.submission.findings import Finding, passes, print_findings, verdict
from mlhpc.submission.official import (
    RULESETS,
    official_findings,
    package_findings,
    rules_of,
    seed_findings,
    target_in,
)
from mlhpc.submission.parse import Log
from mlhpc.submission.rundir import Result, RunDirectory, read
from mlhpc.submission.score import Strong, Weak
from mlhpc.submission.sets import compare_set, division_of, has_own_target, score_set, set_findings
from mlhpc.submission.tree import MLPERF_NAMES, PRUNED, Metric, ResultSet, result_sets

__all__ = [
    "RULESETS",
    "Finding",
    "SetCheck",
    "check",
    "check_run",
    "check_set",
    "check_sets",
    "passes",
    "print_findings",
    "verdict",
]


@dataclass(frozen=True)
class SetCheck:
    """A set and what was found against it. ``rules``: those of its benchmark, ``hpc_2.0.0`` for example;
    ``complying``: how many of its logs the official compliance checker passes, each on its own."""

    results: ResultSet
    rules: str
    score: Strong | Weak
    findings: tuple[Finding, ...]
    complying: int

    @property
    def passes(self) -> bool:
        return passes(self.findings)


def check(path: Path, ruleset: str = "2.0.0") -> list[Finding]:
    """The findings against all that lies at ``path``: a log, a run, a campaign, a submission tree.

    ``ruleset`` is the HPC ruleset; resnet has one of its own, training 4.0.0. Nothing is written.
    ``passes(findings)`` is the verdict.

    Raises:
        UserError: there is no run at ``path``, or no such ruleset.
    """
    return [f for checked in check_sets(path, ruleset) for f in checked.findings]


def check_sets(path: Path, ruleset: str = "2.0.0") -> Iterator[SetCheck]:
    """As :func:`check`, set by set; none is kept after it was taken, so that many logs need little memory."""
    if ruleset not in RULESETS:
        raise UserError(f"no HPC ruleset {ruleset!r}; choose from {', '.join(RULESETS)}")
    sets = result_sets(path)
    scored = {(s.org, s.benchmark) for s in sets if s.metric == "strong"}
    while sets:
        results = sets.pop(0)
        checked = check_set(results, ruleset)
        if results.is_tree and results.metric == "weak" and (results.org, results.benchmark) not in scored:
            checked = replace(checked, findings=(*checked.findings, _throughput_alone(results)))
        yield checked


def check_set(results: ResultSet, ruleset: str = "2.0.0") -> SetCheck:
    """All that speaks against one set: run by run, as a set, and by the official checkers for sets."""
    rules = rules_of(results.benchmark, ruleset)
    score = score_set(results)
    one = not results.is_tree and (results.path.is_file() or results.runs == (results.path,))
    missed = {run.path for run in score.runs if not run.converged}
    excused = isinstance(score, Strong) and score.minutes is not None  # then at most one run missed
    findings, complying = list(results.problems), 0
    with progress(len(results.log_paths), "checking", "logs", show=len(results.log_paths) > 20) as advance:
        for path, found in _run_by_run(results, ruleset, one):
            complying += path in results.log_paths and not any(
                f.source == f"mlperf-logging {rules}" and f.severity != "warning" for f in found
            )
            tolerated = excused and path in missed and not _is_aborted(path.parent, results)
            findings += map(_tolerated, found) if tolerated else found
            advance(1)
    if not one:
        for log in results.pruned:
            found = [*official_findings(log, ruleset), *_log_rules(log)]
            findings += [_prefixed(f, f"{PRUNED}/") for f in found]
        findings += set_findings(results, score)
        if results.system_json is not None and results.log_paths:
            findings += package_findings(results, ruleset)
        elif division_of(results) == "closed" and not has_own_target(results):
            findings += seed_findings(results.logs, results.benchmark, ruleset)
        if division_of(results) == "closed":
            findings += _convergence(results, score, rules)
    return SetCheck(results, rules, score, tuple(findings), complying)


def _run_by_run(results: ResultSet, ruleset: str, one: bool) -> Iterator[tuple[Path, list[Finding]]]:
    """Every log with the findings against it, and against the run directory that it lies in."""
    for path in results.runs:
        prefix = "" if one else f"{path.name}/"
        yield path / "run.log", [_prefixed(f, prefix) for f in check_run(read(path), ruleset, results.metric)]
    for log in results.logs if not results.runs else ():
        yield log.path, [*official_findings(log, ruleset), *_log_rules(log), *_bare_log_rules(log)]


def _is_aborted(folder: Path, results: ResultSet) -> bool:
    """Whether this suite's run there did not come to its end: killed, or ended by an error. It missed nothing;
    it is to be made again, not counted as the slowest. Of a foreign log nobody knows."""
    if folder not in results.runs:
        return False
    result = read(folder).result
    return result is None or result.status == "aborted"


def _throughput_alone(results: ResultSet) -> Finding:
    return Finding(
        "set/throughput",
        "warning",
        f"{results.path.name}/",
        f"a time to solution of {results.benchmark} beside its throughput",
        "no strong/ set of this submitter",
        "throughput may not be reported on its own (MLPerf HPC training rules 3.0, Throughput)",
    )


def _prefixed(finding: Finding, prefix: str) -> Finding:
    return replace(finding, where=prefix + finding.where)


_OF_A_MISS = frozenset({"eval_error", "eval_accuracy", "run_stop", "status", "target", "files"})


def _tolerated(finding: Finding) -> Finding:
    """What speaks against the one run that a score may do without, where it comes of missing the target."""
    if finding.severity != "error" or finding.rule.rpartition("/")[2] not in _OF_A_MISS:
        return finding
    why = f"expected of a run that missed the target; one may, as the slowest. Otherwise: {finding.remedy}"
    return replace(finding, severity="expected", remedy=why)


def _convergence(results: ResultSet, score: Strong | Weak, rules: str) -> Iterator[Finding]:
    """Our comparison with the reference; package_checker's stands beside it."""
    comparison = compare_set(results, score, rules)
    if comparison is None or comparison.passes or comparison.why.startswith("too few"):
        return
    actual = comparison.why
    if comparison.epochs is not None and comparison.bound is not None:
        p_value = "" if comparison.p_value is None else f", p = {comparison.p_value:.2g}"
        actual = f"{comparison.epochs:.2f}, reference {comparison.reference:.2f}{p_value}"
    bound = "a reference point" if comparison.bound is None else f"at least {comparison.bound:.2f} epochs"
    yield Finding(
        "set/rcp",
        "error",
        f"{results.path.name}/",
        f"{bound} ({rules}, {comparison.how or 'not compared'})",
        actual,
        "a closed result may not converge faster than the reference: see the rules on hyperparameters",
    )


def check_run(run: RunDirectory, ruleset: str = "2.0.0", metric: Metric = "strong") -> list[Finding]:
    """As :func:`check`, for a run directory that was read already. Instances of the throughput metric
    ("weak") may share what one of them staged while all their clocks ran."""
    findings = []
    if run.log:
        findings += [_excused(f, run.result) for f in official_findings(run.log, ruleset)]
        findings += _log_rules(run.log)
    findings += _files(run)
    if run.result:
        findings += _result_rules(run.result)
        findings += _staged_inside(run.result, ruleset, metric)
    if run.result and run.log:
        findings += _result_against_log(run.result, run.log)
    if run.config:
        findings += _division(run.config)
    if run.config and run.result:
        findings += _result_against_config(run.result, run.config)
    return findings


def _excused(finding: Finding, result: Result | None) -> Finding:
    """The official target is built into the checker. A preset in the open division with a target of its own
    cannot meet both; where it met its own, the finding is expected and no fault of the run."""
    official = target_in(finding)
    if official is None or result is None or result.division == "closed" or not result.target.reached:
        return finding
    if result.target.value == official:
        return finding
    why = (
        f"expected: preset {result.preset!r} has its own target {result.target.value:g}; the checker knows "
        f"the official {official:g} alone. This is no closed-division result"
    )
    return replace(finding, severity="expected", remedy=why)


def _log_rules(log: Log) -> Iterator[Finding]:
    """What the official checker lets pass in a log. Init time, order and keys are its own."""
    name = log.path.name
    for key in ("run_start", "run_stop"):
        if len(log.all(key)) > 1:
            lines = ", ".join(str(r.line) for r in log.all(key))
            yield Finding(
                "log/one-run",
                "error",
                f"{name}:{lines}",
                f"one {key}",
                f"{len(log.all(key))}: more than one run in the file",
                "give every run a file of its own; times would be taken from the first run alone",
            )
    if log.run and not 0 < log.run.seconds < math.inf:
        yield Finding(
            "log/time",
            "error",
            name,
            "run_stop after run_start",
            f"run_stop − run_start = {log.run.seconds:.3f} s",
            "the clock was set back during the run, or the file was edited: run again",
        )
    backwards = [(b.line, a.time_ms - b.time_ms) for a, b in pairwise(log.records) if b.time_ms < a.time_ms]
    if backwards:
        largest = max(step for _, step in backwards)
        yield Finding(
            "log/clock",
            "warning",
            f"{name}:{backwards[0][0]}",
            "times that never go back",
            f"{len(backwards)} steps back, the largest {largest:g} ms",
            "several ranks wrote into one file, or a clock was set: log from rank 0",
        )
    seeds = log.all("seed")
    if len(seeds) > 1:
        yield Finding(
            "log/seed",
            "warning",
            f"{name}:{', '.join(str(r.line) for r in seeds[:4])}",
            "one seed",
            f"{len(seeds)} records: {', '.join(str(r.value) for r in seeds[:4])}{', …' * (len(seeds) > 4)}",
            "log the one that the run was started with, from rank 0; the first is taken for it",
        )
    if log.repeated:
        yield Finding(
            "log/repeated",
            "error",
            f"{name}:{', '.join(map(str, log.repeated[:4]))}",
            "every key of a record once",
            f"{len(log.repeated)} with a key twice",
            "which of the two counts is left to the reader: mend what writes the log, and run again",
        )
    starts, stops = len(log.all("staging_start")), len(log.all("staging_stop"))
    if starts != stops:
        yield Finding(
            "log/staging",
            "error",
            name,
            "a staging_stop for every staging_start",
            f"{starts} staging_start, {stops} staging_stop",
            "staging did not end: see the job's output",
        )
    for staging in log.staging:
        # Staging before run_start is for the ruleset to judge: 3.0.0 allows it.
        if log.run and staging.stop_ms > log.run.stop_ms:
            yield Finding(
                "log/staging",
                "error",
                name,
                "staging that ends before run_stop",
                f"it ends {(staging.stop_ms - log.run.stop_ms) / 1e3:.3f} s after it",
                "stage inside the run, and wait for it before training",
            )
    if log.value("study_steps"):
        yield Finding(
            "log/study",
            "error",
            log.path.name,
            "a training to the target",
            f"a run of a study, ended after {log.value('study_steps')} measured steps",
            "leave it out: a study measures throughput, its runs are no results",
        )


def _bare_log_rules(log: Log) -> Iterator[Finding]:
    name = log.path.name
    if log.value("seed") is None:
        yield Finding(
            "log/seed",
            "warning",
            name,
            "a seed",
            "none",
            "log the seed; the package checker rejects a set of runs without seeds",
        )
    if log.value("resumed"):
        yield Finding(
            "log/resumed",
            "error",
            name,
            "a run in one piece",
            "resumed from a checkpoint",
            "run it again from the start; the time of a resumed run counts for nothing",
        )
    stop = log.first("run_stop")
    status = stop.metadata.get("status") if stop else None
    if stop and status not in (None, "success"):
        yield Finding(
            "log/status",
            "error",
            f"{name}:{stop.line}",
            "run_stop with status success",
            f"status {status!r}",
            "only a run that met its target has a time to train",
        )


def _files(run: RunDirectory) -> Iterator[Finding]:
    for name, what in run.problems:
        if name == "result.json" and what == "is missing":
            remedy = "the run did not end (killed, out of time or memory?): see the job's output, run again"
        else:
            remedy = "the directory is the evidence of the run: restore the file, or run again"
        yield Finding("run/files", "error", name, f"{name}, whole", what, remedy)


def _result_rules(result: Result) -> Iterator[Finding]:
    target = result.target
    if result.status != "success":
        best = "nothing was evaluated" if target.best is None else f"best {target.label} {target.best:.6g}"
        yield Finding(
            "run/status",
            "error",
            "result.json",
            f"status success: {target.label} of {target.value:g} met",
            f"status {result.status!r}, {best}",
            "only a run that met its target has a time to train",
        )
    if result.resumed:
        yield Finding(
            "run/resumed",
            "error",
            "result.json",
            "a run from start to target",
            "resumed from a checkpoint",
            "a resumed run cannot be scored: its clock did not see the first part. Run without --resume",
        )
    if result.seed is None:
        yield Finding("run/seed", "error", "result.json", "a seed", "none", "run again with this version")
    total, parts = result.time_to_train_s, result.breakdown_s
    if total is not None and parts is not None:
        summed = sum(seconds or 0.0 for seconds in parts.values())
        if not abs(summed - total) <= 0.01 * total:
            yield Finding(
                "run/breakdown",
                "error",
                "result.json",
                f"parts that add up to {total:.3f} s, within 1%",
                f"{summed:.3f} s",
                "the breakdown does not explain the run; report this as a fault of mlhpc",
            )


def _staged_inside(result: Result, ruleset: str, metric: Metric) -> Iterator[Finding]:
    """Up to round 2.0 data starts on the shared file system and its way to the node is timed (MLPerf HPC
    training rules); files that an earlier run left in the target were not copied inside the clock."""
    if result.staging is None or ruleset == "3.0.0":
        return
    before = result.staging.kept - (result.staging.shared if metric == "weak" else 0)
    if before:
        yield Finding(
            "run/staging",
            "error",
            "result.json",
            "every staged file copied inside the run",
            f"{before} files were in the staging target before",
            "empty the staging target, run again; or check under 3.0.0, which does not time staging",
        )


def _result_against_log(result: Result, log: Log) -> Iterator[Finding]:
    """result.json is written from the same clock readings as the log: to the millisecond of its records."""
    for label, claimed, logged in (
        ("run_stop − run_start", result.time_to_train_s, log.time_to_train_s),
        ("the same without staging", result.time_to_train_without_staging_s, _without_staging(log)),
    ):
        if claimed is None or logged is None:
            continue
        # A difference of two whole milliseconds is off by less than one, of four by less than two.
        allowed_ms = 1 if label.startswith("run_stop") else 2
        if not abs(claimed - logged) * 1e3 <= allowed_ms + 1e-3:
            yield Finding(
                "run/time",
                "error",
                "result.json",
                f"{label} of the log: {logged:.3f} s",
                f"{claimed:.3f} s",
                "the log and the result are not of one run, or one was edited; run again",
            )
    target = result.target
    evaluations = log.evaluations(target.metric)
    if target.reached and not any(target.met_by(e.value) for e in evaluations):
        best = (max if target.metric == "eval_accuracy" else min)(
            (e.value for e in evaluations), default=None
        )
        yield Finding(
            "run/target",
            "error",
            log.path.name,
            f"an evaluation inside the run that meets {target.value:g}",
            "none" if best is None else f"the best {target.metric} is {best:.6g}",
            "result.json says that the target was reached, the log does not: run again",
        )
    for rule, key, value in (
        ("run/seed", "seed", result.seed),
        ("run/samples", "train_samples", result.samples.train),
        ("run/samples", "eval_samples", result.samples.eval),
        ("run/division", "submission_division", result.division),
        ("run/division", "submission_benchmark", MLPERF_NAMES.get(result.benchmark, result.benchmark)),
    ):
        logged_value = log.value(key)
        if value is not None and logged_value != value:
            yield Finding(
                rule,
                "error",
                log.path.name,
                f"{key} {value} as in result.json",
                "no such record" if logged_value is None else str(logged_value),
                "the log and the result are not of one run, or one was edited; run again",
            )


def _without_staging(log: Log) -> float | None:
    if log.time_to_train_s is None:
        return None
    return log.time_to_train_s - sum(interval.seconds for interval in log.staging)


def _result_against_config(result: Result, config: Run) -> Iterator[Finding]:
    for rule, what, claimed, configured in (
        ("run/samples", "training samples", result.samples.train, config.data.train_samples),
        ("run/samples", "evaluation samples", result.samples.eval, config.data.eval_samples),
        ("run/samples", "sample shape", result.samples.shape, config.data.sample_shape),
        ("run/target", "target", result.target.value, config.target.value),
        ("run/division", "division", result.division, config.division),
        ("run/division", "preset", result.preset, config.preset),
    ):
        if claimed != configured:
            yield Finding(
                rule,
                "error",
                "result.json",
                f"{what} {configured} as in config.toml",
                str(claimed),
                "the run did not do what was configured: check the data set, and run again",
            )


def _division(config: Run) -> Iterator[Finding]:
    """Closed means the reference's data, network and target (MLPerf HPC training rules, section 5); these
    stand in the preset ``closed`` of the benchmark."""
    if config.division != "closed":
        return
    try:
        official = load(config.benchmark, "closed")
    except UserError as error:
        yield Finding("run/division", "error", "config.toml", "a closed division", str(error), "call it open")
        return
    for part in ("target", "data", "network"):
        ours, theirs = getattr(config, part).model_dump(), getattr(official, part).model_dump()
        for key in ours:
            if ours[key] != theirs[key]:
                yield Finding(
                    "run/division",
                    "error",
                    "config.toml",
                    f"closed: {part}.{key} = {theirs[key]}",
                    f"{ours[key]} (preset {config.preset!r})",
                    "run the preset closed as it is, or set division to open",
                )
