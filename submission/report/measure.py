"""Measures sets of runs from their logs, their system descriptions and the files next to the logs. A set whose
logs have different configurations is split, because each entry has a single configuration.
"""

import math
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from mlhpc.benchmarks import load, registry
from mlhpc.benchmarks.schema import COMPUTATION, Run
from mlhpc.quantities import whole
from mlhpc.record.energy import Energy
from mlhpc.record.environment import Environment, framework_of
from mlhpc.record.mllog import Log
from mlhpc.record.phases import Phases, phases
from mlhpc.record.result import Result, Target, energies_of
from mlhpc.submission.report.entry import (
    BEFORE_CLOCK,
    IN_CLOCK,
    NOT_LOGGED,
    OVER_CONVERGED,
    OVER_ENDED,
    OVER_RESUMED,
    OVER_SCORED,
    OVER_UNKNOWN,
    Entry,
    RunFacts,
)
from mlhpc.submission.result_set import ResultSet, environment_of, named
from mlhpc.submission.score.score import (
    RESUMED,
    SHARED_COUNTERS,
    Strong,
    Weak,
    has_shared_counters,
    instance_scale,
    score_strong,
    score_weak,
    shared_scale,
)
from mlhpc.submission.score.set_score import energies_in_set, target_of


def entries_of(results: ResultSet) -> list[Entry]:
    """The entries of a set, one per configuration."""
    keys = ["global_batch_size", "number_of_nodes", "accelerators_per_node", "number_of_accelerators",
            "number_of_ranks", "train_samples", "submission_benchmark", "submission_division", "resumed",
            "preset_version", "parts_version"]  # fmt: skip
    if not results.is_tree:  # in a tree the folders name the submitter
        keys.append("submission_org")
    ran_on = {log.path: results.ran_on(log) for log in results.logs}
    # What a run did not record, because it ended early, does not make a set of its own.
    known = {key: value for facts in reversed([*ran_on.values()]) for key, value in facts.items()}
    groups: dict[tuple[object, ...], list[Log]] = {}
    for log in results.logs:
        if log.value("study_steps") or log.value("emulated_step_s") is not None:
            continue  # a study's only epoch ends early and an emulated run computes nothing: neither is training
        settings, where = results.settings_of(log), known | ran_on[log.path]
        configuration = (*(log.value(key) for key in keys), settings, where)
        groups.setdefault(tuple(map(str, configuration)), []).append(log)
    split = len(groups) > 1
    return [_entry(results, logs, split) for logs in groups.values()]


_SPLIT = "part of a folder whose logs differ in configuration, shown separately"
_NOT_OFFICIAL = "the log says closed, but its sample counts are not those of the official data set"
_OVERLAP = "staging overlapped the first epoch: T_staging is only the part not hidden by training"


def _of_resumed(score: Strong | Weak) -> Strong | Weak:
    return replace(score, minutes=None, without_staging_minutes=None, why=RESUMED)


def _entry(results: ResultSet, logs: list[Log], split: bool) -> Entry:
    description = results.system_json or {}
    env, log = environment_of(logs[0]), logs[0].path
    result = Result.read_or_none(log.with_name("result.json")) if log.name == "run.log" else None
    value = logs[0].value
    logged = str(value("submission_benchmark") or "")
    benchmark = (logged if split else results.benchmark) or logged or results.benchmark or "unknown"
    train, evaluate = _count(value("train_samples")), _count(value("eval_samples"))
    batch = _count(value("global_batch_size"))
    division, doubt = _division(value("submission_division"), description.get("division"))
    official, data_set = _official_data(benchmark, train, evaluate, batch)
    unread = sum(bool(log.unreadable) for log in logs)
    aborted = [log for log in logs if not log.unreadable and _is_aborted(log)]
    coarse = any(log.first("coarse_epochs") for log in logs)
    unit, machine, scale, nodes = _units(logs[0], description, result, env)
    shared = ""
    if results.metric == "weak" and not split:
        scale, nodes, shared = _shared(results, logs, scale, nodes)
    stated = f"{whole(train)} training samples logged: {whole(data_set[0])} without the last batch"
    ended = f"{len(aborted)} of {len(logs)} runs aborted or without run_stop, excluded from all means"
    overlap = any(log.first("staging_overlap") for log in logs)
    versions = _versions(logs)
    mixed = (f"{what} versions {sorted(numbers)}" for what, numbers in versions.items() if len(numbers) > 1)
    target, score = _scored(results, benchmark, logs, split)
    notes = (
        doubt,
        _SPLIT if split else "",
        _NOT_OFFICIAL if division == "closed" and official is False else "",
        stated if official and train != data_set[0] else "",
        ended if aborted else "",
        f"{unread} of {len(logs)} logs not readable, excluded from all means" if unread else "",
        _OVERLAP if overlap else "",
        "some epochs trained on coarser samples" if coarse else "",
        shared,
        f"energy of a training: {SHARED_COUNTERS}" if score and has_shared_counters(score) else "",
        *(f"{each} in one set: its runs are not comparable (docs/reference/stability.md)" for each in mixed),
    )
    runs, left_out, over = _measured_runs(logs, target, score)
    if value("resumed"):
        score, left_out, over = score and _of_resumed(score), (), OVER_RESUMED
    logged_org = named(value("submission_org"))
    org = (results.org if results.is_tree else logged_org) or logged_org or "unnamed"
    platform, run = named(value("submission_platform")), results.configurations.get(logs[0].path)
    system = results.system or platform or env.hostname or results.path.name
    processor = named(description.get("host_processor_model_name")) or env.cpu
    # In a tree, each size of a machine is a system of its own.
    line = org, unit, _place((machine, processor, None if results.is_tree else platform or env.cluster), run)
    of_run = (result.benchmark, result.framework) if result else (None, None)
    software = framework_of(of_run[0], of_run[1], env.packages)
    system += f", preset {results.preset}" if results.preset else ""
    return Entry(
        letter="", path=results.path, org=org, system=system, benchmark=benchmark, metric=results.metric,
        division=division, preset=results.preset, when=_month(logs[0]), unit=unit, machine=machine,
        software=str(description.get("framework") or software), scale=scale, nodes=nodes,
        batch=batch, train_samples=train, eval_samples=evaluate, data_set=data_set,
        official=official, target=target, logs=len(logs), runs=runs, left_out=left_out, over=over, score=score,
        notes=tuple(filter(None, notes)), aborted=len(aborted), staged=_staged(logs[0]), coarse=coarse,
        log_ids=frozenset(filter(None, map(_log_id, logs))),
        versions={what: min(numbers) for what, numbers in versions.items() if numbers},
        network=_network(run), line=line,
    )  # fmt: skip


def _place(names: Iterable[str | None], run: Run | None) -> str:
    """Where and how a set ran: models of its units and processors and its system (``names``, where known), and how
    steps are computed where it is not the default."""
    settings = dict(load.dotted(run.model_dump(mode="json", exclude_defaults=True))) if run else {}
    computed = (f"{key} {settings[key]}" for key in COMPUTATION if key in settings)
    known = dict.fromkeys(re.sub(r"\s*\(.*?\)", "", name) for name in names if name)
    return ", ".join((*known, *computed))


def _network(run: Run | None) -> str:
    """The settings of the network and its sample shape that differ from the preset. A user-defined preset on the
    official data set is compared with the closed preset."""
    if run is None:
        return ""
    known = load.presets(run.benchmark)
    preset = run.preset if run.preset in known or not run.data.official else "closed"
    published = load.load(run.benchmark, preset) if preset in known else None
    of_network: Any = {"network": True, "data": {"sample_shape"}}
    before, now = (
        each.model_dump(mode="json", include=of_network) if each else {} for each in (published, run)
    )
    changed = load.differing(before, now)
    return ", ".join(f"{key} {own}" for key, (_, own) in changed.items() if key != "network.parameters")


def _versions(logs: list[Log]) -> dict[str, set[int]]:
    """The versions in the logs; an aborted run may have ended before it logged that of its data."""
    return {
        what: {number for log in logs if (number := _count(log.value(f"{what}_version")))}
        for what in ("preset", "parts", "data")
    }


def _scored(
    results: ResultSet, benchmark: str, logs: list[Log], split: bool
) -> tuple[Target | None, Strong | Weak | None]:
    """The target of the benchmark and the score of ``logs``; both None for a benchmark without a target."""
    target, runs_needed = target_of(replace(results, benchmark=benchmark)) or (None, 0)
    if target is None:
        return None, None
    if results.metric == "weak":
        scale = None if split else results.total_scale
        return target, score_weak(logs, target, runs_needed, scale, results.pruned)
    return target, score_strong(logs, target, runs_needed)


def _is_aborted(log: Log) -> bool:
    """Return whether a run was terminated: its log has no run_stop, or it is a run of this suite with status
    "aborted". In logs of other programs, "aborted" is the status of any run that missed its target."""
    stop = log.first("run_stop")
    return stop is None or (log.path.name == "run.log" and stop.metadata.get("status") == "aborted")


def _staged(log: Log) -> str:
    start = log.first("run_start")
    stagings = log.all("staging_start")
    if not (start and stagings):
        return NOT_LOGGED
    return IN_CLOCK if any(record.line > start.line for record in stagings) else BEFORE_CLOCK


def _log_id(log: Log) -> tuple[float, float] | None:
    """The start and stop times of a log's run in milliseconds since 1970, which identify the run."""
    run = log.run
    return (run.start_ms, run.stop_ms) if run else None


def _measured_runs(
    logs: list[Log], target: Target | None, score: Strong | Weak | None
) -> tuple[tuple[RunFacts, ...], tuple[RunFacts, ...], str]:
    """The runs to measure, the runs that converged but that the score of the time to solution leaves out, and a
    description of the former."""
    scored = {r.path: r for r in score.runs} if score else {}
    over = OVER_SCORED if score and score.minutes is not None else OVER_CONVERGED
    chosen = [log for log in logs if (r := scored.get(log.path)) and r.converged]
    extreme = [log for log in chosen if over == OVER_SCORED and scored[log.path].dropped]
    if over == OVER_SCORED:
        chosen = [log for log in chosen if not scored[log.path].dropped]
    if not chosen:
        chosen, over = [log for log in logs if not _is_aborted(log)], OVER_ENDED if target else OVER_UNKNOWN
    energies = energies_in_set(score) if score else {log.path: energies_of(log.path) for log in chosen}
    measured = _facts(chosen, target, energies)
    return measured, _facts(extreme if isinstance(score, Strong) else (), target, energies), over


def _facts(
    logs: Iterable[Log], target: Target | None, energies: Mapping[Path, Mapping[str, Energy]]
) -> tuple[RunFacts, ...]:
    return tuple(
        RunFacts(parts, _epochs_to_target(log, parts, target), energies[log.path])
        for log in logs
        if (parts := phases(log)) and 0 < parts.total < math.inf
    )


def _epochs_to_target(log: Log, parts: Phases, target: Target | None) -> int:
    start = log.first("run_start")
    met = target and next((e for e in log.evaluations(target.metric) if target.met_by(e.value)), None)
    if not (start and met):
        return len(parts.epochs)
    return sum(start.line < record.line < met.line for record in log.all("epoch_start"))


def _division(logged: Any, described: Any) -> tuple[str, str]:
    """The division, and a note if it is in doubt. If log and system description differ, the less strict division
    counts."""
    stated = [str(v).lower() for v in (described, logged) if v]
    if len(set(stated)) < 2:
        return (stated or ["not stated"])[0], ""
    return "open", f"the system description says {stated[0]}, the log {stated[1]}"


def _units(
    log: Log, description: dict[str, Any], result: Result | None, env: Environment
) -> tuple[str, str, int | None, int | None]:
    """The compute units of one run: kind, model, number of units, and number of nodes. The log describes the run;
    the system description describes the machine, which may be larger. On nodes without accelerators, processors
    are counted, as in Farrell et al. 2021."""
    nodes = _count(log.value("number_of_nodes")) or _count(description.get("number_of_nodes"))
    logged = log.value("accelerators_per_node")
    each = _count(logged if logged is not None else description.get("accelerators_per_node"))
    if nodes and each:
        model = named(description.get("accelerator_model_name")) or ", ".join(dict.fromkeys(env.accelerators))
        total = _count(log.value("number_of_accelerators")) or nodes * each
        return "accelerator", model or "model not known", total, nodes
    model = named(description.get("host_processor_model_name")) or env.cpu or "model not known"
    processors = _count(description.get("host_processors_per_node"))
    if nodes and processors:
        return "processor", model, nodes * processors, nodes
    if ranks := (result and result.ranks) or _count(log.value("number_of_ranks")):
        return "rank", model, ranks, nodes
    return "node", model, nodes, nodes


def _shared(
    result_set: ResultSet, logs: list[Log], scale: int | None, nodes: int | None
) -> tuple[int | None, int | None, str]:
    """The numbers of units and nodes of one instance, and a note if the logs state those of the whole system
    instead."""
    logged, total = instance_scale(logs[0]), result_set.total_scale
    if logged is None or total is None:
        return scale, nodes, ""
    one = shared_scale(logged, total, (*logs, *result_set.pruned))
    if one == logged:
        return scale, nodes, ""
    scale, nodes = (number and max(number * one // logged, 1) for number in (scale, nodes))
    note = f"each log counts {whole(logged)} units; concurrent instances shared {whole(total)}"
    return scale, nodes, note


@cache
def _official_sizes() -> dict[str, set[tuple[int, int]]]:
    """The numbers of (training, evaluation) samples of the published data sets, by benchmark."""
    sizes: dict[str, set[tuple[int, int]]] = {}
    for benchmark in registry.benchmarks():
        for preset in load.presets(benchmark):
            data = getattr(load.load(benchmark, preset), "data")  # noqa: B009
            if data.official:
                sizes.setdefault(benchmark, set()).add((data.train_samples, data.eval_samples))
    return sizes


def _official_data(
    benchmark: str, train: int | None, evaluate: int | None, batch: int | None
) -> tuple[bool | None, tuple[int | None, int | None]]:
    """Return whether the sample counts are those of a published data set (None if unknown), and the counts of that
    data set or, without one, the counts passed. Some submitters log only samples in whole batches, so counts may
    be lower by less than one global batch."""
    sizes = _official_sizes()
    published = sizes.get(registry.our_name(benchmark))
    if published is None or train is None:
        return None, (train, evaluate)
    for whole_train, whole_eval in sorted(published):
        same_eval = evaluate is None or 0 <= whole_eval - evaluate < (batch or 1)
        if 0 <= whole_train - train < (batch or 1) and same_eval:
            return True, (whole_train, whole_eval)
    return False, (train, evaluate)


def _count(value: Any) -> int | None:
    """``value`` as a positive whole number, also if it is written as text; None for any other value and for
    unrealistically large numbers."""
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if 0 < number <= sys.maxsize else None


def _month(log: Log) -> str:
    start = log.first("run_start")
    try:
        return datetime.fromtimestamp(start.time_ms / 1e3, UTC).strftime("%Y-%m") if start else ""
    except (ValueError, OverflowError, OSError):
        return ""
