"""The scores of MLPerf HPC for a set of runs: time to solution ("strong") and throughput ("weak").

A run has converged when an evaluation inside the run meets the target. The status of run_stop is not used:
some published runs have status success without meeting the target, or meet it without a status. Times are from the
first run_start to the first run_stop, since some logs continue after run_stop.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from mlhpc.benchmarks import load, registry
from mlhpc.common.intervals import half_width
from mlhpc.errors import few
from mlhpc.record.environment import Environment
from mlhpc.record.mllog import Interval, Log
from mlhpc.record.result import Target, energies_of


def score_rules(logged_name: str) -> tuple[Target, int] | None:
    """The target and the number of runs per score for the benchmark that logs call ``logged_name``, from its TOML
    file; None for an unknown name."""
    benchmark = registry.find_logged(logged_name)
    if benchmark is None:
        return None
    return _score_rules(benchmark.name)


@cache
def _score_rules(name: str) -> tuple[Target, int]:
    target = load.official_target(name)
    read = Target(metric=target.metric, label=target.label, value=target.value)
    return read, load.runs_of_a_score(name)


SHARED_COUNTERS = "not known, since concurrent runs on a node each recorded all of its energy"
RESUMED = "resumed from a checkpoint: the clock did not cover the first part"


@dataclass(frozen=True)
class RunScore:
    """The contribution of one run to a score. ``seconds``: run_stop − run_start, None if the log lacks either
    record; ``without_staging_s``: ``seconds`` minus the staging time in between. ``epochs_to_target`` counts from
    1. ``why``: the reason if the run did not converge. ``dropped``: the reason if the run does not count in the
    score. ``readable``: False if the log does not show whether and when the run converged."""

    path: Path
    seconds: float | None
    without_staging_s: float | None
    converged: bool
    epochs_to_target: int | None
    why: str = ""
    dropped: str = ""
    readable: bool = True


@dataclass(frozen=True)
class Strong:
    """Time to solution in minutes, with its runs. ``why``: the reason if there is no score.

    ``mean``, ``spread`` (sample standard deviation) and ``ci95`` (Student's t interval of the mean) describe all
    runs that converged, including the fastest and slowest, in minutes; None if there are too few runs.
    """

    minutes: float | None
    without_staging_minutes: float | None
    runs: tuple[RunScore, ...]
    mean: float | None
    spread: float | None
    ci95: tuple[float, float] | None
    why: str = ""


@dataclass(frozen=True)
class Weak:
    """Throughput: the tuple (T, S, M', TTTa) of MLPerf HPC training rules 3.0, "Throughput".

    ``T`` and ``S``: compute units (accelerators, or nodes if there are none) in total and of one instance; S is
    taken from the logs, but is at most T divided by the number of concurrent instances. ``M``: the number of
    instances that count (M'); ``minutes``: TTTa; ``without_staging_minutes``: TTTa as if the clock of every
    instance started after staging. ``runs``: every instance, including pruned ones. ``why``: the reason if there
    is no score; ``M`` is then the number of instances that could count. ``shared_counters``: whether instances ran
    on a node at the same time, so that each recorded the energy of all.
    """

    T: int | None
    S: int | None
    M: int
    minutes: float | None
    without_staging_minutes: float | None
    runs: tuple[RunScore, ...]
    why: str = ""
    shared_counters: bool = False


def score_run(log: Log, target: Target) -> RunScore:
    """Determine whether and when the run in ``log`` met ``target``."""
    if log.unreadable:
        return RunScore(log.path, None, None, False, None, f"not readable: {log.unreadable}", readable=False)
    run = log.run
    if run is None:
        missing = next((key for key in ("run_start", "run_stop") if not log.first(key)), "run_stop")
        return RunScore(log.path, None, None, False, None, f"no {missing}: the run did not end")
    without = run.seconds - staged_s(log)
    if not 0 < run.seconds < math.inf:
        why = f"run_stop − run_start is {run.seconds:.3f} s: the clock was set back"
        return RunScore(log.path, run.seconds, without, False, None, why)
    if log.value("emulated_step_s") is not None:
        why = "emulated, without training"
        return RunScore(log.path, run.seconds, without, False, None, why, readable=False)
    if log.value("resumed"):
        return RunScore(log.path, run.seconds, without, False, None, RESUMED, readable=False)
    evaluations = log.evaluations(target.metric)
    met = next((e for e in evaluations if target.met_by(e.value)), None)
    if met is None:
        why = f"no {target.metric} inside the run"
        if evaluations:
            values = [e.value for e in evaluations if not math.isnan(e.value)]
            best = (max if target.higher_is_better else min)(values, default=math.nan)
            why = f"the best of {len(evaluations)} {target.metric} is {best:.6g}, not {target.value:g}"
        return RunScore(log.path, run.seconds, without, False, None, why)
    epoch = None if met.epoch is None else met.epoch + 1 - log.first_epoch
    return RunScore(log.path, run.seconds, without, True, epoch)


def staged_s(log: Log) -> float:
    """Seconds of the run during which staging was in progress; staging before run_start does not count."""
    if log.run is None:
        return 0.0
    total, reached = 0.0, log.run.start_ms
    for part in sorted(log.staging, key=lambda interval: interval.start_ms):
        start, stop = max(part.start_ms, reached), min(part.stop_ms, log.run.stop_ms)
        if stop > start:
            total, reached = total + Interval(start, stop).seconds, stop
    return total


def score_strong(logs: Sequence[Log], target: Target, runs_needed: int) -> Strong:
    """Time to solution: the mean without the fastest and the slowest run. One run that did not converge counts as
    the slowest; with two such runs, there is no score (MLPerf training rules, "Benchmark Results").

    The score without staging is computed in the same way from the times without staging, so different runs may be
    dropped.
    """
    runs = [score_run(log, target) for log in logs]
    times = [r.seconds / 60 for r in runs if r.converged and r.seconds is not None]
    unreadable = [r for r in runs if not r.readable]
    missed = len(runs) - len(times)
    why = ""
    if len(runs) != runs_needed:
        why = f"{len(runs)} run{'' if len(runs) == 1 else 's'}; a score requires {runs_needed}"
    elif unreadable:
        reasons = few(list(dict.fromkeys(r.why for r in unreadable)), 3, "; ")
        why = f"{len(unreadable)} of {len(runs)} logs {reasons}"
    elif missed > 1:
        why = f"{missed} of {len(runs)} runs did not converge; only one may"
    mean = statistics.fmean(times) if times else None
    spread = statistics.stdev(times) if len(times) > 1 else None
    ci95 = None
    if mean is not None and spread is not None:
        half = half_width(spread, len(times))
        ci95 = mean - half, mean + half
    if why:
        return Strong(None, None, tuple(runs), mean, spread, ci95, why)
    ranked = sorted(runs, key=lambda r: (not r.converged, r.seconds or 0.0))
    ranked[0] = replace(ranked[0], dropped="fastest")
    ranked[-1] = replace(ranked[-1], dropped="slowest" if ranked[-1].converged else "did not converge")
    dropped = {r.path: r for r in (ranked[0], ranked[-1])}
    without = sorted(r.without_staging_s if r.converged else math.inf for r in runs)  # type: ignore[type-var]
    return Strong(
        statistics.fmean(r.seconds or 0.0 for r in ranked[1:-1]) / 60,
        statistics.fmean(s or 0.0 for s in without[1:-1]) / 60,
        tuple(dropped.get(r.path, r) for r in runs),
        mean,
        spread,
        ci95,
    )


def score_weak(
    logs: Sequence[Log],
    target: Target,
    runs_needed: int,
    total_scale: int | None = None,
    pruned: Sequence[Log] = (),
) -> Weak:
    """Throughput over the instances ``logs``; ``pruned``: the instances that the submitter has removed.

    Instances that did not converge do not count; of several instances with the same seed, only the first counts.
    Without ``total_scale`` (T, from the system description), T is S times the number of concurrent instances: all
    M only "if all M models are trained concurrently" (rules, "Throughput").
    """
    runs = []
    first_of: dict[str, Path] = {}
    for log in logs:
        run, seed = score_run(log, target), log.value("seed")
        if not run.converged:
            run = replace(run, dropped="did not converge" if run.readable else run.why)
        elif seed is not None and first_of.setdefault(str(seed), log.path) != log.path:
            run = replace(run, dropped=f"seed {seed} repeated")
        runs.append(run)
    runs += [replace(score_run(log, target), dropped="pruned") for log in pruned]
    kept = [log for log, run in zip(logs, runs, strict=False) if not run.dropped]
    scales = {instance_scale(log) for log in (*logs, *pruned)}
    scale = next(iter(scales)) if len(scales) == 1 else None
    if total_scale is None and scale is not None:
        total_scale = scale * most_at_once((*logs, *pruned)) or None
    elif total_scale is not None and scale is not None:
        scale = shared_scale(scale, total_scale, (*logs, *pruned))
    shared = _share_counters((*logs, *pruned))
    why = ""
    if len(scales - {None}) > 1:
        why = f"instances of different scales: {', '.join(map(str, sorted(s for s in scales if s)))}"
    elif scale is None:
        why = "no instance scale: number_of_nodes and accelerators_per_node are missing in some logs"
    elif len(kept) < runs_needed:
        why = f"{len(kept)} instance{'' if len(kept) == 1 else 's'} to score, but {runs_needed} are required"
    if why:
        return Weak(total_scale, scale, len(kept), None, None, tuple(runs), why, shared)
    intervals = [log.run for log in kept if log.run]
    stop = max(run.stop_ms for run in intervals)
    start = min(run.start_ms for run in intervals)
    staged = min(log.run.start_ms + 1e3 * staged_s(log) for log in kept if log.run)
    minutes, without_staging = (stop - start) / 60e3, (stop - staged) / 60e3
    return Weak(total_scale, scale, len(kept), minutes, without_staging, tuple(runs), why, shared)


def has_shared_counters(score: Strong | Weak) -> bool:
    """Whether energies of the runs cannot be told apart (``Weak.shared_counters``)."""
    return isinstance(score, Weak) and score.shared_counters


def _share_counters(logs: Sequence[Log]) -> bool:
    """Whether runs with energies ran on a node at the same time, according to their ``env.json``."""
    on_node: dict[str, list[Log]] = {}
    for log in logs:
        env = Environment.read_or_none(log.path.with_name("env.json")) if energies_of(log.path) else None
        for name in {machine.hostname for machine in env.machines if machine.hostname} if env else ():
            on_node.setdefault(name, []).append(log)
    return any(most_at_once(ran) > 1 for ran in on_node.values())


def instance_scale(log: Log) -> int | None:
    """Compute units of one run according to its log: accelerators, or nodes if a node has none; None if the log
    does not state them. Logs of this suite state the total if nodes have different numbers."""
    nodes, accelerators = log.value("number_of_nodes"), log.value("accelerators_per_node")
    try:
        scale = int(log.value("number_of_accelerators") or int(nodes) * max(int(accelerators), 1))
    except (TypeError, ValueError, OverflowError):
        return None
    return scale if scale > 0 else None


def shared_scale(scale: int, total_scale: int, logs: Sequence[Log]) -> int:
    """Compute units of one instance: the logged number, but at most ``total_scale``, the units of the system,
    divided by the number of concurrent instances."""
    at_once = most_at_once(logs)
    return min(scale, max(total_scale // at_once, 1)) if at_once > 1 else scale


def most_at_once(logs: Sequence[Log]) -> int:
    """The largest number of concurrent runs, from run_start to run_stop."""
    edges = [
        edge
        for log in logs
        if log.run and log.run.stop_ms > log.run.start_ms
        for edge in ((log.run.start_ms, 1), (log.run.stop_ms, -1))
    ]
    running = most = 0
    for _, change in sorted(edges):  # a run that stops when another starts does not overlap with it
        running += change
        most = max(most, running)
    return most
