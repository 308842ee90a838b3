"""One set of runs, measured: from its logs, its system description and what lies beside its logs.

A set is split where its logs differ in configuration: an entry is of one configuration.
"""

import json
import math
import re
import statistics
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from mlhpc.benchmarks import load, registry
from mlhpc.errors import count
from mlhpc.perf.scaling import Measured
from mlhpc.submission.logs.mllog import Log
from mlhpc.submission.logs.phases import Phases, phases
from mlhpc.submission.logs.result_sets import ResultSet
from mlhpc.submission.logs.run_directory import Target
from mlhpc.submission.report.summary import framework_of, whole
from mlhpc.submission.score.score import Strong, Weak, score_strong, score_weak
from mlhpc.submission.score.set_score import target_of


class Spread(NamedTuple):
    """Mean and sample standard deviation of ``n`` runs; ``sd`` is None for one."""

    mean: float
    sd: float | None
    n: int

    @property
    def interval(self) -> tuple[float, float, float]:
        """Mean, and the ends of the 95% interval of the mean (Student's t); of one run the value alone."""
        if self.sd is None:
            return self.mean, self.mean, self.mean
        from scipy.special import stdtrit

        half = float(stdtrit(self.n - 1, 0.975)) * self.sd / math.sqrt(self.n)
        return self.mean, max(0.0, self.mean - half), self.mean + half


def spread(values: Iterable[float | None]) -> Spread | None:
    """Of the values that are known; None without any."""
    known = [v for v in values if v is not None and math.isfinite(v)]
    if not known:
        return None
    return Spread(statistics.fmean(known), statistics.stdev(known) if len(known) > 1 else None, len(known))


@dataclass(frozen=True)
class RunFacts:
    """One run that is measured. ``epochs``: those begun before the evaluation that met the target; all of the
    run where none did."""

    phases: Phases
    epochs: int


@dataclass(frozen=True)
class Entry:
    """One set of runs of one configuration, measured.

    ``letter`` names it in the figures. ``unit`` is what is counted: accelerators, processors, ranks or nodes;
    ``machine`` its model. ``runs`` are those that the measurements are made from, ``over`` says which.
    ``official``: whether its sample counts are those of a published data set; None where the log or the suite
    does not know. ``scale`` is the compute units of one run.
    """

    letter: str
    path: Path
    org: str
    system: str
    benchmark: str
    metric: str
    division: str
    preset: str | None
    when: str
    unit: str
    machine: str
    software: str
    scale: int | None
    nodes: int | None
    batch: int | None
    train_samples: int | None
    eval_samples: int | None
    official: bool | None
    target: Target | None
    logs: int
    runs: tuple[RunFacts, ...]
    over: str
    score: Strong | Weak | None
    notes: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{self.org} · {self.system}"

    @property
    def title(self) -> str:
        """What was solved: benchmark, size of the data set, and the preset where it is no official one."""
        samples = f"{whole(self.train_samples)} training samples" if self.train_samples else ""
        preset = f"preset {self.problem[3]}" if self.problem[3] else ""
        return " · ".join(t for t in (registry.title(self.benchmark), samples, preset) if t)

    @property
    def made_from(self) -> str:
        """Division, and the number and kind of the runs that are measured: goes with every figure."""
        runs = count(len(self.runs), "run" if self.metric == "strong" else "throughput instance")
        return f"{self.division}, {runs}" + ("" if self.over == OVER_SCORED else f": {self.over}")

    @property
    def missed(self) -> int:
        """How many runs did not meet the target."""
        return sum(not run.converged for run in self.score.runs) if self.score else 0

    @property
    def is_closed(self) -> bool:
        """Closed by all that is known of it; never without an official data set."""
        return self.division == "closed" and self.official is True

    @property
    def is_closed_score(self) -> bool:
        return self.is_closed and self.score is not None and self.score.minutes is not None

    @property
    def problem(self) -> tuple[str, int | None, int | None, str]:
        """Sets may share a figure where this is the same."""
        own = "" if self.official or self.preset is None else self.preset
        return self.benchmark, self.train_samples, self.eval_samples, own

    @property
    def line(self) -> tuple[str, str, str]:
        """One submitter's one machine: sets that throughput scaling may join."""
        return self.org, self.unit, re.sub(r"\s*\(.*?\)", "", self.machine)

    @property
    def time_s(self) -> Spread | None:
        return spread(r.phases.total for r in self.runs)

    @property
    def parts_s(self) -> dict[str, float]:
        """Mean seconds of each part; they add up to the mean time."""
        told = [r.phases.parts() for r in self.runs]
        return {key: statistics.fmean(p[key] for p in told) for key in told[0]} if told else {}

    @property
    def epochs(self) -> Spread | None:
        return spread(r.epochs for r in self.runs if r.epochs)

    @property
    def epoch_s(self) -> Spread | None:
        """T_epoch of paper 001: the first epoch's excess is in it."""
        return spread(r.phases.epoch_s for r in self.runs)

    @property
    def steady_epoch_s(self) -> Spread | None:
        """T_epoch without the first epoch's excess: training and evaluation over the epochs."""
        return spread(
            (r.phases.training + r.phases.evaluation) / len(r.phases.epochs) if r.phases.epochs else None
            for r in self.runs
        )

    @property
    def staging_s(self) -> Spread | None:
        return spread(r.phases.staging for r in self.runs)

    @property
    def excess_s(self) -> Spread | None:
        return spread(r.phases.first_epoch_excess for r in self.runs)

    @property
    def staging_ratio(self) -> Spread | None:
        """T_staging / T_epoch: the compute-to-staging throughput ratio (paper 001, Table 5)."""
        return spread(r.phases.staging / r.phases.epoch_s if r.phases.epoch_s else None for r in self.runs)

    @property
    def hidden_ratio(self) -> Spread | None:
        """The same with the first epoch's excess counted as staging, in steady epochs."""
        return spread(
            (r.phases.staging + r.phases.first_epoch_excess)
            / ((r.phases.training + r.phases.evaluation) / len(r.phases.epochs))
            if r.phases.first_epoch_excess is not None and r.phases.training > 0
            else None
            for r in self.runs
        )

    @property
    def train_rate(self) -> Spread | None:
        """Training samples a second and unit."""
        if not self.scale:
            return None
        return spread(rate / self.scale if (rate := r.phases.train_rate) else None for r in self.runs)

    @property
    def eval_rate(self) -> Spread | None:
        """Evaluation samples a second and unit: the whole evaluation set over the mean evaluation."""
        if not (self.scale and self.eval_samples):
            return None
        times = [statistics.fmean(r.phases.evaluations) for r in self.runs if r.phases.evaluations]
        return spread(self.eval_samples / t / self.scale for t in times if t > 0)

    @property
    def budget_h(self) -> float | None:
        """Time to solution × compute units, in hours (paper 001, Table 6)."""
        return self.time_s.mean / 3600 * self.scale if self.time_s and self.scale else None

    @property
    def measured(self) -> Measured | None:
        """For the scaling model; None where a quantity that it needs is not in the logs."""
        epochs, epoch_s = self.epochs, self.steady_epoch_s
        staging = spread(r.phases.staging + (r.phases.first_epoch_excess or 0.0) for r in self.runs)
        rest = spread(r.phases.rest for r in self.runs)
        if not (self.scale and self.batch and epochs and epoch_s and staging and rest):
            return None
        if self.over in (OVER_ENDED, OVER_RESUMED) or epoch_s.mean <= 0:
            return None
        return Measured(
            self.letter,
            self.scale,
            self.batch,
            epochs.interval,
            epoch_s.interval,
            staging.interval,
            rest.interval,
        )


OVER_SCORED = "the runs that the score is made from"
OVER_CONVERGED = "all runs that converged"
OVER_ENDED = "all runs that ended; none converged"
OVER_RESUMED = "resumed runs, which are no results"


def entries_of(found: ResultSet) -> list[Entry]:
    """One entry for every configuration in the set."""
    keys = ["global_batch_size", "number_of_nodes", "accelerators_per_node", "number_of_ranks",
            "train_samples", "submission_benchmark", "submission_division", "resumed"]  # fmt: skip
    if not found.is_tree:  # in a tree the folders say whose they are
        keys += ["submission_org", "submission_platform"]
    groups: dict[tuple[object, ...], list[Log]] = {}
    for log in found.logs:
        if log.value("study_steps"):
            continue  # its one epoch was cut: what it says of epochs and samples is no measure of a training
        groups.setdefault(tuple(str(log.value(key)) for key in keys), []).append(log)
    split = len(groups) > 1
    return [_entry(found, logs, split) for logs in groups.values()]


def _entry(found: ResultSet, logs: list[Log], split: bool) -> Entry:
    said, notes = found.system_json or {}, []
    own = _own_run(logs[0])
    value = logs[0].value
    logged = str(value("submission_benchmark") or "")
    benchmark = (logged if split else found.benchmark) or logged or found.benchmark or "unknown"
    train, evaluate = _count(value("train_samples")), _count(value("eval_samples"))
    division, doubt = _division(value("submission_division"), said.get("division"))
    official = _is_official(benchmark, train, evaluate)
    if doubt:
        notes.append(doubt)
    if split:
        notes.append("part of a folder whose logs differ in configuration, shown apart")
    if division == "closed" and official is False:
        notes.append("its log says closed, but these are not the samples of the official data set")
    target, runs_needed = target_of(replace(found, benchmark=benchmark)) or (None, 0)
    score: Strong | Weak | None = None
    if target and found.metric == "weak":
        score = score_weak(logs, target, runs_needed, None if split else found.total_scale, found.pruned)
    elif target:
        score = score_strong(logs, target, runs_needed)
    runs, over = _measured_runs(logs, target, score)
    if score and value("resumed"):
        why = "resumed from a checkpoint: the clock did not see the first part"
        score = replace(score, minutes=None, without_staging_minutes=None, why=why)
        over = OVER_RESUMED
    unit, machine, scale, nodes = _units(logs[0], said, own)
    logged_org = _named(value("submission_org"))
    org = (found.org if found.is_tree else logged_org) or logged_org or "unnamed"
    system = found.system or _named(value("submission_platform")) or own.hostname or found.path.name
    preset = found.preset
    if preset:
        system = f"{system}, preset {preset}"
    return Entry(
        letter="", path=found.path, org=org, system=system, benchmark=benchmark, metric=found.metric,
        division=division, preset=preset, when=_month(logs[0]), unit=unit, machine=machine,
        software=str(said.get("framework") or own.software), scale=scale, nodes=nodes,
        batch=_count(value("global_batch_size")), train_samples=train, eval_samples=evaluate,
        official=official, target=target, logs=len(logs), runs=runs, over=over, score=score,
        notes=tuple(notes),
    )  # fmt: skip


def _measured_runs(
    logs: list[Log], target: Target | None, score: Strong | Weak | None
) -> tuple[tuple[RunFacts, ...], str]:
    scored = {r.path: r for r in score.runs} if score else {}
    over = OVER_SCORED if score and score.minutes is not None else OVER_CONVERGED
    chosen = [log for log in logs if (r := scored.get(log.path)) and r.converged]
    if over == OVER_SCORED:
        chosen = [log for log in chosen if not scored[log.path].dropped]
    if not chosen:
        chosen, over = logs, OVER_ENDED
    told = [(log, parts) for log in chosen if (parts := phases(log)) and 0 < parts.total < math.inf]
    return tuple(RunFacts(parts, _epochs_to_target(log, parts, target)) for log, parts in told), over


def _epochs_to_target(log: Log, parts: Phases, target: Target | None) -> int:
    start = log.first("run_start")
    met = target and next((e for e in log.evaluations(target.metric) if target.met_by(e.value)), None)
    if not (start and met):
        return len(parts.epochs)
    return sum(start.line < record.line < met.line for record in log.all("epoch_start"))


def _division(logged: Any, described: Any) -> tuple[str, str]:
    """The division, and what is in doubt. The less strict one holds where log and description differ."""
    said = [str(v).lower() for v in (described, logged) if v]
    if len(set(said)) < 2:
        return (said or ["not said"])[0], ""
    return "open", f"the system description says {said[0]}, the log {said[1]}"


@dataclass(frozen=True)
class _Own:
    """What a run directory of this suite says beside its log."""

    ranks: int | None = None
    hostname: str | None = None
    cpu: str | None = None
    accelerators: tuple[str, ...] = ()
    software: str = ""


def _own_run(log: Log) -> _Own:
    if log.path.name != "run.log":
        return _Own()
    result, env = (_json(log.path.with_name(name)) for name in ("result.json", "env.json"))
    accelerators = env.get("accelerators")
    return _Own(
        _count(result.get("ranks")),
        _named(env.get("hostname")),
        _named(env.get("cpu")),
        tuple(map(str, accelerators)) if isinstance(accelerators, list) else (),
        framework_of(_named(result.get("benchmark")), env.get("packages")),
    )


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _units(log: Log, said: dict[str, Any], own: _Own) -> tuple[str, str, int | None, int | None]:
    """What one run was spread over: kind, model, count, and nodes. The log knows the run, the system
    description the machine: it may be larger than one run. Nodes without accelerators count processors, as
    paper 001 does."""
    nodes = _count(log.value("number_of_nodes")) or _count(said.get("number_of_nodes"))
    logged = log.value("accelerators_per_node")
    each = _count(logged if logged is not None else said.get("accelerators_per_node"))
    if nodes and each:
        model = _named(said.get("accelerator_model_name")) or ", ".join(dict.fromkeys(own.accelerators))
        return "accelerator", model or "model not known", nodes * each, nodes
    model = _named(said.get("host_processor_model_name")) or own.cpu or "model not known"
    processors = _count(said.get("host_processors_per_node"))
    if nodes and processors:
        return "processor", model, nodes * processors, nodes
    if ranks := own.ranks or _count(log.value("number_of_ranks")):
        return "rank", model, ranks, nodes
    return "node", model, nodes, nodes


@cache
def _official_sizes() -> dict[str, set[tuple[int, int]]]:
    """(training, evaluation) samples of the published data sets, by benchmark."""
    sizes: dict[str, set[tuple[int, int]]] = {}
    for benchmark in registry.benchmarks():
        for preset in load.presets(benchmark):
            data = getattr(load.load(benchmark, preset), "data")  # noqa: B009
            if data.official:
                sizes.setdefault(benchmark, set()).add((data.train_samples, data.eval_samples))
    return sizes


def _is_official(benchmark: str, train: int | None, evaluate: int | None) -> bool | None:
    sizes = _official_sizes()
    known = sizes.get(registry.our_name(benchmark))
    if known is None or train is None:
        return None
    return any(train == a and evaluate in (b, None) for a, b in known)


def _count(value: Any) -> int | None:
    """A positive whole number, also where a description writes it as text; none that nothing can count to."""
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if 0 < number <= sys.maxsize else None


def _named(value: Any) -> str | None:
    text = str(value).strip() if value else ""
    return text if text and text.lower() not in ("n/a", "none", "unnamed") else None


def _month(log: Log) -> str:
    start = log.first("run_start")
    try:
        return datetime.fromtimestamp(start.time_ms / 1e3, UTC).strftime("%Y-%m") if start else ""
    except (ValueError, OverflowError, OSError):
        return ""
