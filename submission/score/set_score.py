"""A set of runs as one: its rules, its score, and what speaks against it beyond its single logs."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from mlhpc.benchmarks import registry
from mlhpc.errors import count
from mlhpc.submission.logs.findings import Finding
from mlhpc.submission.logs.mllog import Log
from mlhpc.submission.logs.result_sets import ResultSet
from mlhpc.submission.logs.run_directory import Target
from mlhpc.submission.score.rcp import Comparison, compare
from mlhpc.submission.score.score import Strong, Weak, instance_scale, score_rules, score_strong, score_weak

SETTINGS = ("opt_", "sgd_", "lars_", "lamb_", "scheduler_", "dropout", "batchnorm_", "gradient_accumulation")
"""How the keys of hyperparameters begin (mlperf-logging, closed_*.yaml of HPC and of resnet)."""
SIZES = ("global_batch_size", "train_samples", "eval_samples", "number_of_nodes", "accelerators_per_node")
TEXTS = (
    "submitter", "system_name", "host_processor_model_name", "host_processor_core_count",
    "accelerator_model_name", "accelerators_per_node", "framework",
)  # fmt: skip
"""Fields that the official tools join to one text (mlperf-logging, system_desc_checker), so no numbers."""


def target_of(results: ResultSet) -> tuple[Target, int] | None:
    """The target and the number of runs of a score: the set's own target, or the official one. None where the
    benchmark is not known here."""
    rules = score_rules(results.benchmark)
    if rules is None:
        return None
    return (results.target or rules[0]), rules[1]


def has_own_target(results: ResultSet) -> bool:
    """Whether the runs were run to another target than MLPerf's: a small preset, no MLPerf result."""
    rules = score_rules(results.benchmark)
    return bool(rules and results.target and results.target.value != rules[0].value)


def score_set(results: ResultSet) -> Strong | Weak:
    """The score of a set by its metric."""
    rules = target_of(results)
    if rules is None:
        why = f"no target is known for the benchmark {results.benchmark!r}"
        if results.metric == "weak":
            return Weak(results.total_scale, None, 0, None, None, (), why)
        return Strong(None, None, (), None, None, None, why)
    if results.metric == "weak":
        return score_weak(results.logs, *rules, results.total_scale, results.pruned)
    return score_strong(results.logs, *rules)


def division_of(results: ResultSet) -> str:
    """As the system description says, else the first log."""
    said = (results.system_json or {}).get("division")
    logged = results.logs[0].value("submission_division") if results.logs else None
    return str(said or logged or "")


def compare_set(results: ResultSet, score: Strong | Weak, rules: str) -> Comparison | None:
    """The set held against the reference convergence points; None where there are none, or where the set was
    run to a target of its own."""
    known = target_of(results)
    if known is None or has_own_target(results):
        return None
    sizes = [log.value("global_batch_size") for log in results.logs]
    same = all(size == sizes[0] and isinstance(size, int) for size in sizes)
    counted = [run for run in score.runs if run.dropped != "pruned"]
    return compare(counted, sizes[0] if sizes and same else None, results.benchmark, rules, known[1])


def label(log: Log) -> str:
    """The log's name; of a run directory the directory's, since all its logs have one name."""
    return log.path.parent.name if log.path.name == "run.log" else log.path.name


def set_findings(results: ResultSet, score: Strong | Weak) -> Iterator[Finding]:
    """What speaks against the set beyond its single logs."""
    yield from _name(results)
    yield from _number(results)
    yield from _converged(results, score)
    yield from _of_one_kind(results)
    yield from _seeds(results)
    yield from _twice(results)
    yield from _system(results)


def _name(results: ResultSet) -> Iterator[Finding]:
    if results.system and re.search(r"[\[\]*?]", results.system):
        yield _finding(
            "name",
            "error",
            f"{results.system}/",
            "a system's name without [ ] * ?",
            results.system,
            "rename the folder and its description: the official tools look for the logs by pattern",
        )


def _finding(rule: str, severity: str, where: str, expected: str, actual: str, remedy: str) -> Finding:
    return Finding(
        f"set/{rule}", "error" if severity == "error" else "warning", where, expected, actual, remedy
    )


def _number(results: ResultSet) -> Iterator[Finding]:
    known = target_of(results)
    if known is None:
        yield _finding(
            "benchmark",
            "warning",
            f"{results.path}",
            f"a benchmark that can be scored: {', '.join(b.logged_name for b in registry.benchmarks().values())}",
            repr(results.benchmark) if results.benchmark else "no submission_benchmark",
            "its logs are checked, but not scored",
        )
        return
    number, needed = len(results.log_paths), known[1]
    enough = number >= needed if results.metric == "weak" else number == needed
    # Of a submission tree with its system description package_checker says it.
    if not enough and number and not (results.is_tree and results.system_json is not None):
        yield _finding(
            "runs",
            "error" if results.is_tree else "warning",
            f"{results.path.name}/",
            f"{'at least ' if results.metric == 'weak' else ''}{needed} runs for a score",
            str(number),
            "make the rest" if number < needed else "a set holds the runs of one score, and all of them",
        )


def _converged(results: ResultSet, score: Strong | Weak) -> Iterator[Finding]:
    missed = [run for run in score.runs if not run.converged and run.dropped != "pruned"]
    names = {log.path: label(log) for log in results.logs}
    for run in missed:
        alone = isinstance(score, Strong) and len(missed) == 1
        yield _finding(
            "converged",
            "warning" if alone else "error",
            names[run.path],
            "a run that meets the target",
            run.why,
            "one may miss it: it counts as the slowest"
            if alone
            else "put it into pruned_results: only instances that met the target may count"
            if isinstance(score, Weak)
            else "with two or more such runs there is no score: run the set again",
        )


def _of_one_kind(results: ResultSet) -> Iterator[Finding]:
    for log in (*results.logs, *results.pruned):
        said = log.value("submission_benchmark")
        if said is not None and said != results.benchmark:
            yield _finding(
                "benchmark",
                "error",
                f"{label(log)}:{_line(log, 'submission_benchmark')}",
                f"a log of {results.benchmark}",
                f"submission_benchmark is {said!r}",
                "move the log to its own benchmark's folder",
            )
    said = (results.system_json or {}).get("division")
    logged = {str(log.value("submission_division")) for log in results.logs} - {"None"}
    if said in ("closed", "open") and logged and logged != {said}:
        # The compliance checker goes by the log: one that calls itself closed was held to the stricter rules.
        yield _finding(
            "division",
            "error" if said == "closed" else "warning",
            f"{results.path.name}/",
            f"division {said}, as the system description says",
            f"{' and '.join(sorted(logged))} in the logs",
            "make them agree; package_checker goes by the description, the compliance checker by the log",
        )
    if said is None and len(logged) > 1:
        yield _finding(
            "division",
            "error",
            f"{results.path.name}/",
            "one division in all runs of a score",
            " and ".join(sorted(logged)),
            "closed and open are scored apart: sort them into sets of their own",
        )
    keys = {k for log in results.logs for k in _settings(log)}
    for key in sorted(keys):
        values = Counter(_comparable(log.value(key)) for log in results.logs if log.first(key))
        if len(values) > 1:
            told = ", ".join(f"{value} ({count(number, 'run')})" for value, number in values.most_common(3))
            yield _finding(
                "settings",
                "error",
                f"{results.path.name}/",
                f"one {key} in all runs of a score",
                told,
                "a score is made from runs of one configuration: sort them into sets of their own",
            )


def _comparable(value: Any) -> str:
    """A setting as text that is the same for the same number, however the log writes it: 1, 1.0, "1e0"."""
    if isinstance(value, list):
        return f"[{', '.join(map(_comparable, value))}]"
    if isinstance(value, bool):
        return str(value)
    try:
        return f"{float(value):.15g}"
    except (TypeError, ValueError, OverflowError):
        return str(value)


def _settings(log: Log) -> Iterable[str]:
    return {r.key for r in log.records if r.key in SIZES or r.key.startswith(SETTINGS)}


def _seeds(results: ResultSet) -> Iterator[Finding]:
    first: dict[str, str] = {}
    for log in results.logs:
        seed = log.value("seed")
        if seed is None:
            continue
        if str(seed) in first:
            weak = results.metric == "weak"
            yield _finding(
                "seed",
                "warning" if weak else "error",
                f"{label(log)}:{_line(log, 'seed')}",
                "a seed of its own for every run",
                f"seed {seed} as in {first[str(seed)]}",
                "this instance is pruned from the score: move it to pruned_results"
                if weak
                else "give every run a seed of its own, from a clock for example, and run it again",
            )
        first.setdefault(str(seed), label(log))


def _twice(results: ResultSet) -> Iterator[Finding]:
    first: dict[tuple[float, ...], str] = {}
    for log in results.logs:
        times = tuple(r.time_ms for r in log.records)
        if times and times in first:
            yield _finding(
                "twice",
                "error",
                label(log),
                "a run of its own in every log",
                f"the same run as {first[times]}",
                "a run counts once: put the log of another run there",
            )
        first.setdefault(times, label(log))


def _system(results: ResultSet) -> Iterator[Finding]:
    said = results.system_json
    if said is None:
        return
    where = f"{results.system}.json"
    numbers = [key for key in TEXTS if key in said and not isinstance(said[key], str)]
    if numbers:
        yield _finding(
            "system",
            "error",
            where,
            "text in these fields",
            ", ".join(f"{key}: {said[key]!r}" for key in numbers),
            'put the values in quotes ("8"): the official tools join them',
        )
    total = results.total_scale
    scales = {scale for log in results.logs if (scale := instance_scale(log))}
    if total is None or len(scales) != 1:
        return
    (scale,) = scales
    instances = len(results.log_paths) + len(results.pruned_paths)
    if results.metric == "weak" and not scale <= total <= scale * instances:
        expected = f"S ≤ T ≤ M · S, S = {scale} from the logs, M = {instances}"
    elif results.metric == "strong" and scale != total:
        expected = f"{scale} accelerators (or nodes without), as the logs say"
    else:
        return
    yield _finding(
        "system",
        "warning",
        where,
        expected,
        f"number_of_nodes × accelerators_per_node = {total}",
        "describe the part of the machine that ran, and log the same",
    )


def _line(log: Log, key: str) -> int:
    record = log.first(key)
    return record.line if record else 0
