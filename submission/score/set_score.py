"""The target and the score of a set of runs, and the rules that compare its logs."""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

from mlhpc.benchmarks import registry
from mlhpc.benchmarks.findings import Finding, Severity
from mlhpc.benchmarks.load import load, presets
from mlhpc.common.files.untrusted import printable
from mlhpc.errors import shown
from mlhpc.perf.epochs import reference_runs
from mlhpc.quantities import count
from mlhpc.record.energy import Energy, whole_joules
from mlhpc.record.mllog import Log
from mlhpc.record.result import Target, energies_of
from mlhpc.submission.findings import allowed_value
from mlhpc.submission.result_set import SETTINGS, SIZES, ResultSet
from mlhpc.submission.score.rcp import Comparison, compare
from mlhpc.submission.score.score import (
    Strong,
    Weak,
    has_shared_counters,
    instance_scale,
    most_at_once,
    score_rules,
    score_strong,
    score_weak,
)

DIVISIONS = ("closed", "open")
TEXTS = (
    "submitter", "system_name", "host_processor_model_name", "host_processor_core_count",
    "accelerator_model_name", "accelerators_per_node", "framework",
)  # fmt: skip
"""Fields that must not be numbers, because the official tools join them as text (mlperf-logging,
system_desc_checker)."""


def target_of(results: ResultSet) -> tuple[Target, int] | None:
    """The target of a set (its own, or the official one) and the number of runs per score. None for an unknown
    benchmark."""
    official = score_rules(results.benchmark)
    if official is None:
        return None
    return (results.target or official[0]), official[1]


def has_own_target(results: ResultSet) -> bool:
    """Return whether the target of the runs differs from MLPerf's, as in small presets, so that the set is not an
    MLPerf result."""
    official = score_rules(results.benchmark)
    return bool(official and results.target and results.target.value != official[0].value)


def score_set(results: ResultSet) -> Strong | Weak:
    """The score of a set, computed for the set's metric."""
    rules = target_of(results)
    if rules is None:
        named = f"unknown benchmark {shown(results.benchmark)}"
        why = f"{named if results.benchmark else 'no log names its benchmark'}: no target"
        if results.metric == "weak":
            return Weak(results.total_scale, None, 0, None, None, (), why)
        return Strong(None, None, (), None, None, None, why)
    if results.metric == "weak":
        return score_weak(results.condensed, *rules, results.total_scale, results.condensed_pruned)
    return score_strong(results.condensed, *rules)


def scored_joules(score: Strong | Weak) -> dict[str, float]:
    """Mean joules per training by kind of counter, over the runs that make up the score (MLPerf Training, Power
    Measurement Rules, "Scoring"). A kind is omitted if a counter is missing in one of these runs."""
    energies = energies_in_set(score)
    runs = [
        whole_joules(energies[run.path])
        for run in score.runs
        if run.converged and not run.dropped and score.minutes is not None
    ]
    kinds = [kind for kind in (runs[0] if runs else ()) if all(kind in run for run in runs)]
    return {kind: fmean(run[kind] for run in runs) for kind in kinds}


def energies_in_set(score: Strong | Weak) -> dict[Path, dict[str, Energy]]:
    """The energies of each run, by log. Those of instances with shared counters are left out, since no counter
    tells whose they are."""
    shared = has_shared_counters(score)
    return {run.path: {} if shared else energies_of(run.path) for run in score.runs}


def division_of(results: ResultSet) -> str:
    """The division in the system description or, if it states none, in the first log."""
    described = (results.system_json or {}).get("division")
    logged = results.condensed[0].value("submission_division") if results.condensed else None
    return str(described or logged or "")


def compare_set(results: ResultSet, score: Strong | Weak, rules: str) -> Comparison | None:
    """Compare a set with the reference convergence points. None if there are no such points, or if the set has its
    own target."""
    rule = target_of(results)
    if rule is None or has_own_target(results):
        return None
    if (samples := _other_problem(results)) is not None and reference_runs(results.benchmark, rules):
        why = f"not comparable: {samples[0]} training samples, not the reference's {samples[1]}"
        return Comparison(False, "", why=why, applies=False)
    sizes = [log.value("global_batch_size") for log in results.condensed]
    same = all(size == sizes[0] and isinstance(size, int) for size in sizes)
    counted = [run for run in score.runs if run.dropped != "pruned"]
    return compare(counted, sizes[0] if sizes and same else None, results.benchmark, rules, rule[1])


def _other_problem(results: ResultSet) -> tuple[int, int] | None:
    """The numbers of training samples of the set and of the official data set, if they differ by more than one
    percent, the margin for a dropped incomplete batch; otherwise None."""
    official = official_samples(results.benchmark)
    logged = [log.value("train_samples") for log in results.condensed]
    differ = [n for n in logged if isinstance(n, int) and abs(n - official) > 0.01 * official]
    return (differ[0], official) if official and differ and len(differ) == len(logged) else None


def official_samples(benchmark: str) -> int:
    """The number of training samples in the official data set of the benchmark that MLPerf calls ``benchmark``; 0
    if unknown."""
    entry = registry.find_logged(benchmark)
    if entry is None or "closed" not in presets(entry.name):
        return 0
    data = load(entry.name, "closed").data
    return data.train_samples if data.official else 0


def label(log: Log) -> str:
    """The name of the log's file; for a log in a run folder, the name of the folder, since all these logs have the
    same file name."""
    return log.path.parent.name if log.path.name == "run.log" else log.path.name


def set_findings(results: ResultSet, score: Strong | Weak) -> Iterator[Finding]:
    """Findings on the set as a whole, in addition to findings on its logs."""
    yield from _system_name(results)
    yield from _number_of_runs(results)
    yield from _readable(results)
    yield from _convergence(results, score)
    yield from _one_benchmark(results)
    yield from _one_division(results)
    yield from _one_configuration(results)
    yield from _one_machine(results)
    yield from _distinct_seeds(results)
    yield from _distinct_runs(results)
    yield from _system_fields(results)
    yield from _scale(results)


def _finding(rule: str, severity: Severity, where: str, expected: str, actual: str, remedy: str) -> Finding:
    return Finding(f"set/{rule}", severity, where, expected, actual, remedy)


def _system_name(results: ResultSet) -> Iterator[Finding]:
    if results.system and re.search(r"[\[\]*?]", results.system):
        expected = "a system's name without [ ] * ?"
        remedy = "rename the folder and its description: the official tools find logs by glob pattern"
        yield _finding("name", "error", f"{results.system}/", expected, results.system, remedy)


def _number_of_runs(results: ResultSet) -> Iterator[Finding]:
    rule = target_of(results)
    if rule is None:
        names = ", ".join(benchmark.logged_name for benchmark in registry.benchmarks().values())
        expected = f"a benchmark that can be scored: {names}"
        actual = repr(results.benchmark) if results.benchmark else "no submission_benchmark"
        remedy = "its logs are checked but not scored"
        yield _finding("benchmark", "warning", f"{results.path}", expected, actual, remedy)
        return
    number, needed = len(results.log_paths), rule[1]
    enough = number >= needed if results.metric == "weak" else number == needed
    # package_checker reports this for a submission tree with a system description.
    if not enough and number and not (results.is_tree and results.system_json is not None):
        severity: Severity = "error" if results.is_tree else "warning"
        expected = f"{'at least ' if results.metric == 'weak' else ''}{needed} runs for a score"
        remedy = "run the rest" if number < needed else "a set must contain exactly the runs of one score"
        yield _finding("runs", severity, f"{results.path.name}/", expected, str(number), remedy)


def _convergence(results: ResultSet, score: Strong | Weak) -> Iterator[Finding]:
    missed = [run for run in score.runs if not run.converged and run.readable and run.dropped != "pruned"]
    names = {log.path: label(log) for log in results.condensed}
    remedy = "with two or more such runs there is no score: repeat the set"
    if isinstance(score, Weak):
        remedy = "put it into pruned_results: only instances that met the target may count"
    elif len(missed) == 1:
        remedy = "one run may miss the target and counts as the slowest"
    severity: Severity = "warning" if isinstance(score, Strong) and len(missed) == 1 else "error"
    for run in missed:
        yield _finding("converged", severity, names[run.path], "a run that meets the target", run.why, remedy)


def _readable(results: ResultSet) -> Iterator[Finding]:
    """Findings on unreadable logs, which do not show whether the run converged."""
    for log in results.condensed:
        if log.unreadable:
            remedy = "pass the log that the run wrote; older formats get official checks, but no score"
            yield _finding("readable", "warning", label(log), "MLLOG lines", log.unreadable, remedy)


def _one_benchmark(results: ResultSet) -> Iterator[Finding]:
    for log in (*results.condensed, *results.condensed_pruned):
        logged = log.value("submission_benchmark")
        if logged is not None and logged != results.benchmark:
            yield _finding(
                "benchmark",
                "error",
                f"{label(log)}:{_line(log, 'submission_benchmark')}",
                f"a log of {results.benchmark}",
                f"submission_benchmark is {shown(logged)}",
                "move the log to the folder of its benchmark",
            )


def _one_division(results: ResultSet) -> Iterator[Finding]:
    described = (results.system_json or {}).get("division")
    logged = {str(log.value("submission_division")) for log in results.condensed} - {"None"}
    where, divisions = f"{results.path.name}/", " and ".join(sorted(logged))
    if described in DIVISIONS and logged and logged != {described}:
        # The compliance checker uses the log's division: closed logs were checked by the stricter rules.
        severity: Severity = "error" if described == "closed" else "warning"
        expected = f"division {described}, as in the system description"
        remedy = "make them equal; package_checker uses the description, the compliance checker the log"
        yield _finding("division", severity, where, expected, f"{divisions} in the logs", remedy)
    if described is None and len(logged) > 1:
        expected = "the same division in all runs of a score"
        remedy = "closed and open runs are scored separately: put them into separate sets"
        yield _finding("division", "error", where, expected, divisions, remedy)


def _one_configuration(results: ResultSet) -> Iterator[Finding]:
    keys = {
        r.key
        for log in results.condensed
        for r in log.records
        if r.key in SIZES or r.key.startswith(SETTINGS)
    }
    stated = {key: [log.value(key) for log in results.condensed if log.first(key)] for key in sorted(keys)}
    settings = [results.settings_of(log) for log in results.condensed]
    for key in dict.fromkeys(key for each in settings for key in each):
        if key.rpartition(".")[2] not in keys:
            stated[key] = [each.get(key) for each in settings]
    remedy = "all runs of a score must have the same configuration: put them into separate sets"
    yield from _unequal("settings", results, stated, remedy)


def _one_machine(results: ResultSet) -> Iterator[Finding]:
    ran_on = [results.ran_on(log) for log in results.condensed]
    for key in dict.fromkeys(key for each in ran_on for key in each):
        rule = "framework" if key == "framework" else "machine"
        stated = {key: [each[key] for each in ran_on if key in each]}
        yield from _unequal(rule, results, stated, "score the runs of each as a set of their own")


def _unequal(rule: str, results: ResultSet, stated: dict[str, list[Any]], remedy: str) -> Iterator[Finding]:
    """Findings on each key whose ``stated`` values are not the same in all runs."""
    for key, found in stated.items():
        values = Counter(map(_comparable, found))
        if len(values) > 1:
            actual = ", ".join(f"{value} ({count(number, 'run')})" for value, number in values.most_common(3))
            expected = f"the same {key} in all runs of a score"
            yield _finding(rule, "error", f"{results.path.name}/", expected, actual, remedy)


def _comparable(value: Any) -> str:
    """A setting as text, the same for equal numbers in any notation: 1, 1.0, "1e0"."""
    if isinstance(value, list):
        return f"[{', '.join(map(_comparable, value))}]"
    if isinstance(value, bool):
        return str(value)
    try:
        return f"{float(value):.15g}"
    except (TypeError, ValueError, OverflowError):
        return str(value)


def _distinct_seeds(results: ResultSet) -> Iterator[Finding]:
    weak = results.metric == "weak"
    remedy = "use a different seed for every run, for example from the clock, and repeat the run"
    if weak:
        remedy = "this instance is pruned from the score: move it to pruned_results"
    first: dict[str, str] = {}
    for log in results.condensed:
        seed = log.value("seed")
        if seed is None:
            continue
        if str(seed) in first:
            where, actual = f"{label(log)}:{_line(log, 'seed')}", f"seed {seed} as in {first[str(seed)]}"
            severity: Severity = "warning" if weak else "error"
            yield _finding("seed", severity, where, "a different seed in every run", actual, remedy)
        first.setdefault(str(seed), label(log))


def _distinct_runs(results: ResultSet) -> Iterator[Finding]:
    first: dict[str, str] = {}
    for log in results.condensed:
        if log.fingerprint and log.fingerprint in first:
            expected, actual = "a different run in every log", f"the same run as {first[log.fingerprint]}"
            remedy = "a run counts only once: replace it with the log of another run"
            yield _finding("twice", "error", label(log), expected, actual, remedy)
        first.setdefault(log.fingerprint, label(log))


def _system_fields(results: ResultSet) -> Iterator[Finding]:
    fields = results.system_json or {}
    if (division := fields.get("division")) and division not in DIVISIONS:
        expected, remedy = allowed_value("division", str(division), DIVISIONS)
        actual = printable(str(division))
        yield _finding("system", "error", f"{results.system}.json", expected, actual, remedy)
    if numbers := [key for key in TEXTS if key in fields and not isinstance(fields[key], str)]:
        actual = ", ".join(f"{key}: {shown(fields[key])}" for key in numbers)
        remedy = 'put the values in quotes ("8"): the official tools join them as text'
        yield _finding("system", "error", f"{results.system}.json", "text in these fields", actual, remedy)


def _scale(results: ResultSet) -> Iterator[Finding]:
    """Findings on compute units: the number for one run in the logs (S) must fit the number in the system
    description (T)."""
    total = results.total_scale
    scales = {scale for log in results.condensed if (scale := instance_scale(log))}
    if total is None or len(scales) != 1:
        return
    (scale,) = scales
    where = f"{results.system}.json" if results.system_json is not None else "campaign.json"
    actual = f"number_of_nodes × accelerators_per_node = {total}"
    logs = (*results.condensed, *results.condensed_pruned)
    if results.metric == "weak" and (at_once := most_at_once(logs)) > 1 and scale * at_once > total:
        remedy = "log the units of one instance (S), not of the whole system (T)"
        expected = f"at most {total // at_once} units per instance: {at_once} ran concurrently on {total}"
        actual = f"number_of_nodes × accelerators_per_node = {scale} in the logs"
        yield _finding("scale", "error", f"{results.path.name}/", expected, actual, remedy)
        return
    expected = ""
    if results.metric == "weak" and not scale <= total <= scale * len(logs):
        expected = f"S ≤ T ≤ M · S, S = {scale} from the logs, M = {len(logs)}"
    elif results.metric == "strong" and scale != total:
        expected = f"{scale} accelerators (or nodes, if there are none), as in the logs"
    if expected and results.system_json is not None:
        remedy = "describe the part of the machine that was used, and log the same values"
        yield _finding("system", "warning", where, expected, actual, remedy)


def _line(log: Log, key: str) -> int:
    record = log.first(key)
    return record.line if record else 0
