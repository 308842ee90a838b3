"""The state of a campaign: reads its runs from their folders, scores them, writes campaign.json and prints the
result."""

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.text import Text

import mlhpc
from mlhpc.benchmarks import load, rules
from mlhpc.benchmarks.findings import Finding
from mlhpc.benchmarks.schema import Run
from mlhpc.common.pages.blocks import Cell, Table, table
from mlhpc.common.pages.terminal import print_table, say
from mlhpc.common.ranks.world import Loss
from mlhpc.quantities import minutes
from mlhpc.record.events import events_of_rank_0
from mlhpc.record.mllog import Log, parse
from mlhpc.record.result import Result, Target
from mlhpc.record.series import CampaignRecord, CampaignScore, RunState, State
from mlhpc.submission.score.score import Strong, Weak, instance_scale, score_strong, score_weak
from mlhpc.submission.score.set_score import scored_joules


@dataclass(frozen=True)
class Campaign:
    """A campaign: ``runs`` runs of ``run`` in ``out``, ``instances`` of them concurrently, with ``ranks`` ranks
    each (0: one rank; in a Slurm job, the job's tasks divided by the instances), on ``nodes`` nodes in total.
    ``arguments``: the options passed to every run."""

    run: Run
    arguments: tuple[str, ...]
    data: Path
    stage: Path | None
    out: Path
    runs: int
    instances: int = 1
    ranks: int = 0
    nodes: int = 1

    @property
    def metric(self) -> Literal["strong", "weak"]:
        """The kind of score: ``weak`` with concurrent instances, otherwise ``strong``."""
        return "strong" if self.instances == 1 else "weak"

    @property
    def names(self) -> list[str]:
        """The names of the runs' folders, from ``run_01`` on."""
        return [f"run_{number:02}" for number in range(1, self.runs + 1)]


def attempts(out: Path, name: str) -> int:
    """Number of aborted attempts at a run that were set aside."""
    return len(list((out / ".aborted").glob(f"{name}-*")))


def read_run(campaign: Campaign, name: str, running: bool = False) -> RunState:
    """The state of a run, read from its folder. ``running``: a process is working on the run, so missing records
    may still appear. A run whose loss diverged counts as having missed its target, since repeating it would be
    cherry-picking."""
    folder = campaign.out / name
    aborted = attempts(campaign.out, name)
    if running and not (folder / "result.json").exists():
        return RunState(name=name, state="running", aborted=aborted)
    if not (folder / "run.log").exists():
        return RunState(name=name, state="to do", aborted=aborted)
    result = Result.read_or_none(folder / "result.json")
    events = events_of_rank_0(folder)
    ends = {e["name"]: e for e in events if e["event"] == "end"}
    facts = next((e for e in events if e["event"] == "note" and e["name"] == "facts"), {})
    state, why = _outcome(result, events, ends)
    shared_nodes = campaign.instances > campaign.nodes  # each instance counts the energy of its whole node
    counted = None if state == "aborted" or shared_nodes else result
    return RunState(
        name=name,
        state=state,
        seed=result.seed if result else facts.get("seed"),
        seconds=result.time_to_train_s if result else None,
        without_staging_s=result.time_to_train_without_staging_s if result else None,
        epochs=(len(result.epochs) or None) if result else None,
        evicted=result.source_evicted if result else facts.get("source_evicted"),
        init_s=ends.get("init", {}).get("seconds"),
        joules=counted.joules if counted else {},
        joules_per_sample=counted.joules_per_sample if counted else {},
        why=why,
        aborted=aborted,
    )


def _outcome(
    result: Result | None, events: Sequence[Mapping[str, Any]], ends: Mapping[str, Mapping[str, Any]]
) -> tuple[State, str]:
    """How a run ended, and the reason if it did not converge."""
    if result and result.status == "success":
        return "converged", ""
    if result and result.status == "failed":
        label, best = result.target.label, result.target.best
        return "missed", "nothing was evaluated" if best is None else f"best {label} {best:.6g}"
    losses = [e["value"] for e in events if e["event"] == "metric" and e["name"] == "train_loss"]
    if losses and not math.isfinite(losses[-1]):
        return "missed", "the loss diverged (infinite or NaN)"
    if error := ends.get("run", ends.get("init", {})).get("error"):
        return "aborted", str(error)
    for event in events:
        if event["event"] == "lost":
            return "aborted", str(Loss(*(event[key] for key in ("rank", "hostname", "phase", "reason"))))
    return "aborted", "ended without a result: killed, or out of time or memory?"


def score_of(campaign: Campaign, states: Sequence[RunState]) -> Strong | Weak:
    """The score of the runs so far, or the reason why there is none."""
    target = Target.of(campaign.run)
    needed = load.runs_of_a_score(campaign.run.benchmark)
    logs = [parse(campaign.out / s.name / "run.log") for s in states if s.state in ("converged", "missed")]
    if campaign.metric == "strong":
        return score_strong(logs, target, needed)
    return score_weak(logs, target, needed, _total_scale(campaign, logs))


def _total_scale(campaign: Campaign, logs: Sequence[Log]) -> int | None:
    """T, the scale of the whole system, in the units of S, the scale of one instance (``instance_scale``):
    accelerators, or nodes if there are no accelerators. A node without accelerators that several instances share
    counts once."""
    scales = {instance_scale(log) for log in logs}
    if len(scales) != 1 or (scale := scales.pop()) is None:
        return None
    shared = campaign.nodes < campaign.instances and not any(
        log.value("accelerators_per_node") for log in logs
    )
    return campaign.nodes if shared else scale * campaign.instances


def save(campaign: Campaign, states: Sequence[RunState], score: Strong | Weak, why: str) -> None:
    """Write campaign.json. ``why``: the reason if the campaign stopped early."""
    run = campaign.run
    record = CampaignRecord(
        mlhpc=mlhpc.__version__,
        benchmark=run.benchmark,
        preset=run.preset,
        division=run.division,
        metric=campaign.metric,
        runs=campaign.runs,
        runs_needed=load.runs_of_a_score(run.benchmark),
        instances=campaign.instances,
        stopped=why,
        run_states=tuple(states),
        score=CampaignScore.model_validate(score, from_attributes=True),
        joules=scored_joules(score),
        findings=tuple(findings(campaign, states)),
    )
    record.write(campaign.out / "campaign.json")


def findings(campaign: Campaign, states: Sequence[RunState]) -> list[Finding]:
    """Violations of the rules on seeds, number of runs, page caches and initialisation time by the runs so far."""
    seeds = [s.seed for s in states if s.seed is not None]
    evicted = [s.evicted for s in states if s.evicted is not None]
    init_s = max((s.init_s for s in states if s.init_s is not None), default=None)
    return rules.findings(
        rules.RunContext(
            campaign.run,
            runs=campaign.runs,
            seeds=seeds,
            evicted=all(evicted) if evicted else None,
            init_s=init_s,
        )
    )


def show(
    campaign: Campaign, states: Sequence[RunState], score: Strong | Weak, why: str, console: Console
) -> None:
    """Print the runs as a table, rule violations, and the score."""
    print_table(_table(states, score), console)
    for finding in findings(campaign, states):
        say(console, Text(f"{finding.severity}: {rules.sentence(finding)}", style="yellow"))
    if why:
        say(console, Text(f"stopped: {why}", style="bold red"))
    if score.minutes is None or score.without_staging_minutes is None:
        line = f"no score: {score.why}"
    elif isinstance(score, Weak):
        line = f"(T, S, M', TTTa) = ({score.T}, {score.S}, {score.M}, {score.minutes:.4f} min)"
    else:
        line = f"{score.minutes:.4f} min, without staging {score.without_staging_minutes:.4f} min"
    say(console, Text(f"{line}; see: mlhpc score {shlex.quote(str(campaign.out))}"))


_TONES = {"converged": "good", "missed": "warning", "aborted": "error", "running": "expected"}


def _table(states: Sequence[RunState], score: Strong | Weak) -> Table:
    dropped = {run.path.parent.name: run.dropped for run in score.runs if run.dropped}

    def notes(state: RunState) -> str:
        left_out = f"not in the score: {dropped[state.name]}" if state.name in dropped else ""
        aborted = f"aborted attempts: {state.aborted}" if state.aborted else ""
        return "; ".join(filter(None, (state.why, left_out, aborted)))

    return table(
        "runs",
        states,
        {
            "run": lambda state: state.name,
            "state": lambda state: Cell(state.state, tone=_TONES.get(state.state, "")),
            "seed": lambda state: "" if state.seed is None else str(state.seed),
            "minutes": lambda state: minutes(state.seconds),
            "without staging": lambda state: minutes(state.without_staging_s),
            "epochs": lambda state: "" if state.epochs is None else str(state.epochs),
            "caches cleared": lambda state: "" if state.evicted is None else "yes" if state.evicted else "no",
            "notes": notes,
        },
        prose=(1, 6, 7),
    )
