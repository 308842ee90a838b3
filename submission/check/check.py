"""Checks whether runs are valid, with the official checkers and with this suite's rules for logs, run folders and
sets."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mlhpc.benchmarks.findings import Finding
from mlhpc.common.host.progress import progress
from mlhpc.errors import UserError
from mlhpc.record.mllog import parse
from mlhpc.record.result import Result
from mlhpc.record.run_directory import RunDirectory, read
from mlhpc.submission.check.log_rules import bare_log_rules, log_rules
from mlhpc.submission.check.official import official_findings, package_findings, seed_findings, target_in
from mlhpc.submission.check.rulesets import RULESETS, exist, rules_of, rules_of_run
from mlhpc.submission.check.run_rules import run_rules
from mlhpc.submission.findings import passes
from mlhpc.submission.result_set import PRUNED, Metric, ResultSet
from mlhpc.submission.result_sets import result_sets
from mlhpc.submission.score.score import Strong, Weak
from mlhpc.submission.score.set_score import compare_set, division_of, has_own_target, score_set, set_findings


@dataclass(frozen=True)
class SetCheck:
    """A set of runs and its findings. ``rules``: the name of the rules for the set (``rulesets.rules_of``), which
    the official tools may lack; ``complying``: number of the set's logs that pass the official compliance checker
    under these rules, None without rules; ``excused``: number of logs that fail only because the preset's target
    is not the official one; ``copy_of``: an earlier set with the same logs."""

    results: ResultSet
    rules: str
    score: Strong | Weak
    findings: tuple[Finding, ...]
    complying: int | None
    excused: int = 0
    copy_of: Path | None = None

    @property
    def passes(self) -> bool:
        """Whether the set passes: no finding is an error."""
        return passes(self.findings)


def check(path: Path, ruleset: str | None = None) -> list[Finding]:
    """The findings on everything at ``path``: a log, a run, a campaign, a submission tree.

    ``ruleset``: the version of the HPC or training rules; None: each set's own rules apply
    (``rulesets.rules_of``). Nothing is written. Use ``passes(findings)`` for the verdict.

    Raises:
        UserError: there is no run at ``path``, or ``ruleset`` does not exist.
    """
    return [f for checked in check_sets(path, ruleset) for f in checked.findings]


def check_sets(path: Path, ruleset: str | None = None) -> Iterator[SetCheck]:
    """Like :func:`check`, but yields the result of one set at a time, so that many logs need little memory."""
    if ruleset is not None and ruleset not in RULESETS:
        raise UserError(f"no ruleset {ruleset!r}; choose from {', '.join(RULESETS)}")
    sets = result_sets(path)
    scored = {(s.org, s.benchmark) for s in sets if s.metric == "strong"}
    first: dict[frozenset[str], Path] = {}
    while sets:
        results = sets.pop(0)
        checked = check_set(results, ruleset)
        if results.is_tree and results.metric == "weak" and (results.org, results.benchmark) not in scored:
            checked = _with(checked, _only_throughput(results))
        if (
            results.fingerprint
            and (original := first.setdefault(results.fingerprint, results.path)) != results.path
        ):
            checked = replace(_with(checked, _copied(results, original)), copy_of=original)
        yield checked


def check_set(results: ResultSet, ruleset: str | None = None) -> SetCheck:
    """The findings on one set: on each run, on the set as a whole, and from the official checkers for sets. Every
    log is checked under the rules of the set, regardless of the rules named in the log."""
    rules = rules_of(results.benchmark, ruleset, None if results.runs else results.path)
    score = score_set(results)
    is_single = not results.is_tree and (results.path.is_file() or results.runs == (results.path,))
    missed = {run.path for run in score.runs if not run.converged and run.readable}
    # True if at most one run missed the target.
    one_may_miss = isinstance(score, Strong) and score.minutes is not None
    findings, complying, excused, without_lines = list(results.problems), 0, 0, 0
    with progress(len(results.log_paths), "checking", "logs", show=len(results.log_paths) > 20) as advance:
        for path, official, log_findings in _run_by_run(results, rules, is_single):
            if path in results.log_paths:
                complying += complies(official)
                excused += not complies(official) and passes(official)
                without_lines += [f.rule for f in official] == [f"{rules}/log"]
            tolerated = one_may_miss and path in missed and not _is_aborted(path.parent, results)
            found = [*official, *log_findings]
            findings += map(_tolerated, found) if tolerated else found
            advance(1)
    # Logs without lines cannot be checked further.
    if not is_single and not 0 < len(results.log_paths) == without_lines:
        findings += _pruned_findings(results, rules)
        findings += set_findings(results, score)
        if not exist(rules):
            pass  # the official tools cannot run without rules
        elif results.system_json is not None and results.log_paths:
            findings += package_findings(results, rules)
        elif division_of(results) == "closed" and not has_own_target(results):
            findings += seed_findings(results.condensed, rules)
        if division_of(results) == "closed":
            findings += _convergence(results, score, rules)
    return SetCheck(
        results,
        rules,
        score,
        tuple(findings),
        complying if exist(rules) else None,
        excused if exist(rules) else 0,
    )


def complies(official: Sequence[Finding]) -> bool:
    """Return whether a log complies, given the findings ``official`` of the official compliance checker."""
    return all(finding.severity == "warning" for finding in official)


def _pruned_findings(results: ResultSet, rules: str) -> Iterator[Finding]:
    """Findings on pruned logs, which do not count and "should" comply (MLPerf HPC training rules 3.0, Throughput).
    Since package_checker does not read pruned logs, and the log of a killed instance has no run_stop, these
    findings are only warnings."""
    for path in results.pruned_paths:
        log = parse(path)
        for finding in (*official_findings(log, rules), *log_rules(log)):
            yield replace(_prefixed(finding, f"{PRUNED}/"), severity="warning")


def _run_by_run(
    results: ResultSet, rules: str, is_single: bool
) -> Iterator[tuple[Path, list[Finding], list[Finding]]]:
    """Yield, for every log, its path, the findings of the official checker, and all other findings on the log and
    its run folder."""
    for path in results.runs:
        prefix = "" if is_single else f"{path.name}/"
        both = _of_run(read(path), rules, results.metric)
        official, other = ([_prefixed(f, prefix) for f in each] for each in both)
        yield path / "run.log", official, other
    for path in results.log_paths if not results.runs else ():
        log = parse(path)
        own = () if log.unreadable else (*log_rules(log), *bare_log_rules(log))
        yield path, official_findings(log, rules), list(own)


def _is_aborted(folder: Path, results: ResultSet) -> bool:
    """Return whether a run of this suite was killed or stopped by an error. Such a run must be repeated and does
    not count as having missed the target. Logs of other programs do not contain this information."""
    if folder not in results.runs:
        return False
    result = read(folder).result
    return result is None or result.status == "aborted"


def _with(checked: SetCheck, finding: Finding) -> SetCheck:
    return replace(checked, findings=(*checked.findings, finding))


def _copied(results: ResultSet, original: Path) -> Finding:
    remedy = "it counts only once; republished results are not new results"
    expected = "a separate set"
    actual = f"the same logs as {original}"
    return Finding("set/copy", "warning", f"{results.path.name}/", expected, actual, remedy)


def _only_throughput(results: ResultSet) -> Finding:
    remedy = "throughput may not be reported alone (MLPerf HPC training rules 3.0, Throughput)"
    expected = f"a time to solution of {results.benchmark} in addition to its throughput"
    actual = "no strong/ set of this submitter"
    return Finding("set/throughput", "warning", f"{results.path.name}/", expected, actual, remedy)


def _prefixed(finding: Finding, prefix: str) -> Finding:
    return replace(finding, where=prefix + finding.where)


_OF_A_MISS = frozenset({"eval_error", "eval_accuracy", "run_stop", "status", "target", "files"})


def _tolerated(finding: Finding) -> Finding:
    """``finding``, which is about the one run that may miss the target. Its severity becomes "expected" if it is a
    consequence of the missed target."""
    if finding.severity != "error" or finding.rule.rpartition("/")[2] not in _OF_A_MISS:
        return finding
    why = f"expected for one run per set, which counts as the slowest. Otherwise: {finding.remedy}"
    return replace(finding, severity="expected", remedy=why)


def _convergence(results: ResultSet, score: Strong | Weak, rules: str) -> Iterator[Finding]:
    """Findings from this suite's own comparison with the reference convergence points, in addition to those of
    package_checker."""
    comparison = compare_set(results, score, rules)
    if comparison is None or comparison.passes or not comparison.applies:
        return
    actual = comparison.why
    if comparison.epochs is not None and comparison.bound is not None:
        p_value = "" if comparison.p_value is None else f", p = {comparison.p_value:.2g}"
        actual = f"{comparison.epochs:.2f}, reference {comparison.reference:.2f}{p_value}"
    bound = "a reference point" if comparison.bound is None else f"at least {comparison.bound:.2f} epochs"
    remedy = "a closed result may not converge faster than the reference: see the rules on hyperparameters"
    expected = f"{bound} ({rules}, {comparison.how or 'not compared'})"
    yield Finding("set/rcp", "error", f"{results.path.name}/", expected, actual, remedy)


def check_run(run: RunDirectory, ruleset: str | None = None) -> list[Finding]:
    """Like :func:`check`, for a run folder that was already read."""
    official, other = _of_run(run, rules_of_run(run, ruleset), "strong")
    return [*official, *other]


def _of_run(run: RunDirectory, rules: str, metric: Metric) -> tuple[list[Finding], list[Finding]]:
    """The findings of the official checker on a run folder, and all other findings on it. Instances for the
    throughput metric ("weak") may share data that one instance staged while the clocks of all instances were
    running."""
    if not run.log:
        return [], list(run_rules(run, rules, metric))
    official = [_excused(f, run.result) for f in official_findings(run.log, rules)]
    return official, [*log_rules(run.log), *run_rules(run, rules, metric)]


def _excused(finding: Finding, result: Result | None) -> Finding:
    """``finding``. Its severity becomes "expected" if it is about the official target, which is built into the
    checker, and the run met the different target of its open-division preset."""
    official = target_in(finding)
    if official is None or result is None or result.division == "closed" or not result.target.reached:
        return finding
    if result.target.value == official:
        return finding
    why = (
        f"expected: preset {result.preset!r} has its own target {result.target.value:g}, but the checker "
        f"uses the official {official:g}. This is not a closed-division result"
    )
    return replace(finding, severity="expected", remedy=why)
