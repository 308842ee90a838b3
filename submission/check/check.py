"""Whether a run counts: the official compliance checker, and what a run directory says about itself."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from mlhpc.common.host.progress import progress
from mlhpc.errors import UserError
from mlhpc.submission.check.log_rules import bare_log_rules, log_rules
from mlhpc.submission.check.official import (
    RULESETS,
    official_findings,
    package_findings,
    rules_of,
    seed_findings,
    target_in,
)
from mlhpc.submission.check.run_rules import run_rules
from mlhpc.submission.logs.findings import Finding, passes, print_findings, verdict
from mlhpc.submission.logs.result_sets import PRUNED, Metric, ResultSet, result_sets
from mlhpc.submission.logs.run_directory import Result, RunDirectory, read
from mlhpc.submission.score.score import Strong, Weak
from mlhpc.submission.score.set_score import compare_set, division_of, has_own_target, score_set, set_findings

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
            found = [*official_findings(log, ruleset), *log_rules(log)]
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
        yield log.path, [*official_findings(log, ruleset), *log_rules(log), *bare_log_rules(log)]


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
        findings += log_rules(run.log)
    findings += run_rules(run, ruleset, metric)
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
