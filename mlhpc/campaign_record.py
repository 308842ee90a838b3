"""How a campaign stands: its runs read from their directories, scored, written to campaign.json, printed."""

import contextlib
import json
import math
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

import mlhpc
from mlhpc.benchmarks import load, rules
from mlhpc.benchmarks.findings import Finding
from mlhpc.benchmarks.schema import Run
from mlhpc.common.files import atomic
from mlhpc.common.ranks.world import Loss
from mlhpc.common.timing.breakdown import read_events
from mlhpc.submission.logs.mllog import Log, parse
from mlhpc.submission.logs.run_directory import Target
from mlhpc.submission.score.score import Strong, Weak, instance_scale, score_strong, score_weak

State = Literal["converged", "missed", "aborted", "running", "to do"]


@dataclass(frozen=True)
class Campaign:
    """What is to be made: ``runs`` runs of ``run`` in ``out``, ``instances`` of them at a time, of ``ranks``
    ranks each (0: as many as the launcher gives), on ``nodes`` nodes in all. ``words``: the options that each
    run is started with."""

    run: Run
    words: tuple[str, ...]
    data: Path
    stage: Path | None
    out: Path
    runs: int
    instances: int = 1
    ranks: int = 0
    nodes: int = 1

    @property
    def metric(self) -> Literal["strong", "weak"]:
        return "strong" if self.instances == 1 else "weak"

    @property
    def names(self) -> list[str]:
        return [f"run_{number:02}" for number in range(1, self.runs + 1)]


@dataclass(frozen=True)
class Made:
    """One run as its directory tells. ``why``: why it is not what was hoped for; ``aborted``: how many
    attempts were set aside."""

    name: str
    state: State
    seed: int | None = None
    seconds: float | None = None
    without_staging_s: float | None = None
    epochs: int | None = None
    evicted: bool | None = None
    init_s: float | None = None
    why: str = ""
    aborted: int = 0


def attempts(out: Path, name: str) -> int:
    """How many attempts at a run were set aside because they came to no end."""
    return len(list((out / ".aborted").glob(f"{name}-*")))


def read(campaign: Campaign, name: str, at_work: bool = False) -> Made:
    """A run as its directory tells; ``at_work``: somebody is making it, so that what is not there may come. A
    run whose loss is no number any more has missed its target: to make it again would be to choose among
    runs."""
    folder = campaign.out / name
    aborted = attempts(campaign.out, name)
    if at_work and not (folder / "result.json").exists():
        return Made(name, "running", aborted=aborted)
    if not (folder / "run.log").exists():
        return Made(name, "to do", aborted=aborted)
    result: dict[str, Any] = {}
    events: list[dict[str, Any]] = []
    with contextlib.suppress(OSError, ValueError):
        result = json.loads((folder / "result.json").read_text("utf-8"))
    with contextlib.suppress(OSError):
        events = read_events(folder / "events.rank0.jsonl")
    ends = {e["name"]: e for e in events if e["event"] == "end"}
    noted = next((e for e in events if e["event"] == "note" and e["name"] == "facts"), {})
    losses = [e["value"] for e in events if e["event"] == "metric" and e["name"] == "train_loss"]
    diverged = bool(losses) and not math.isfinite(losses[-1])
    target = result.get("target", {})
    state: State = "aborted"
    lost = next((e for e in events if e["event"] == "lost"), None)
    why = ends.get("run", ends.get("init", {})).get(
        "error",
        str(Loss(**{key: lost[key] for key in ("rank", "hostname", "phase", "reason")}))
        if lost
        else "it did not end: killed, or out of time or memory?",
    )
    if result.get("status") == "success":
        state, why = "converged", ""
    elif result.get("status") == "failed":
        best = target.get("best")
        state = "missed"
        why = f"best {target.get('label')} {best:.6g}" if best is not None else "nothing was evaluated"
    elif diverged:
        state, why = "missed", "the loss became infinite or no number"
    return Made(
        name,
        state,
        seed=result.get("seed", noted.get("seed")),
        seconds=result.get("time_to_train_s"),
        without_staging_s=result.get("time_to_train_without_staging_s"),
        epochs=len(result.get("epochs", ())) or None,
        evicted=result.get("source_evicted", noted.get("source_evicted")),
        init_s=ends.get("init", {}).get("seconds"),
        why=why,
        aborted=aborted,
    )


def score_of(campaign: Campaign, made: Sequence[Made]) -> Strong | Weak:
    """The score that the runs make as they are, or why there is none."""
    target = Target(
        metric=campaign.run.target.metric,
        label=campaign.run.target.label,
        value=campaign.run.target.value,
    )
    needed = load.runs_of_a_score(campaign.run.benchmark)
    logs = [parse(campaign.out / m.name / "run.log") for m in made if m.state in ("converged", "missed")]
    if campaign.metric == "strong":
        return score_strong(logs, target, needed)
    return score_weak(logs, target, needed, _total_scale(campaign, logs))


def _total_scale(campaign: Campaign, logs: Sequence[Log]) -> int | None:
    """T, in the units of S (``instance_scale``): accelerators, or nodes where they have none. Instances that
    share nodes without accelerators use no more than these nodes."""
    scales = {instance_scale(log) for log in logs}
    if len(scales) != 1 or (scale := scales.pop()) is None:
        return None
    shared = campaign.nodes < campaign.instances and not any(
        log.value("accelerators_per_node") for log in logs
    )
    return campaign.nodes if shared else scale * campaign.instances


def save(campaign: Campaign, made: Sequence[Made], score: Strong | Weak, why: str) -> None:
    """Write campaign.json. ``why``: why the campaign stopped before its end."""
    run = campaign.run
    content = {
        "mlhpc": mlhpc.__version__,
        "benchmark": run.benchmark,
        "preset": run.preset,
        "division": run.division,
        "metric": campaign.metric,
        "runs": campaign.runs,
        "runs_needed": load.runs_of_a_score(run.benchmark),
        "instances": campaign.instances,
        "stopped": why,
        "made": [asdict(each) for each in made],
        "score": {
            "minutes": score.minutes,
            "without_staging_minutes": score.without_staging_minutes,
            "why": score.why,
            **({"T": score.T, "S": score.S, "M": score.M} if isinstance(score, Weak) else {}),
        },
        "findings": [asdict(finding) for finding in findings(campaign, made)],
    }
    text = json.dumps(content, indent=1) + "\n"
    atomic.write_bytes(campaign.out / "campaign.json", text.encode())


def findings(campaign: Campaign, made: Sequence[Made]) -> list[Finding]:
    """What the rules have against the runs as they are: seeds, their number, caches, the time of init."""
    seeds = [m.seed for m in made if m.seed is not None]
    evicted = [m.evicted for m in made if m.evicted is not None]
    init_s = max((m.init_s for m in made if m.init_s is not None), default=None)
    return rules.findings(
        rules.RunContext(
            campaign.run,
            runs=campaign.runs,
            seeds=seeds,
            evicted=all(evicted) if evicted else None,
            init_s=init_s,
        )
    )


def show(campaign: Campaign, made: Sequence[Made], score: Strong | Weak, why: str, console: Console) -> None:
    """Print the runs as a table, what the rules have against them, and the score."""
    dropped = {run.path.parent.name: run.dropped for run in score.runs if run.dropped}
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("run", "state", "seed"):
        table.add_column(name, no_wrap=True)
    for name in ("minutes", "without staging", "epochs"):
        table.add_column(name, justify="right", min_width=7)  # its longest word: a narrow terminal cuts none
    table.add_column("caches dropped", min_width=7)
    table.add_column("", overflow="fold", ratio=1)
    styles = {"converged": "green", "missed": "yellow", "aborted": "red", "running": "cyan", "to do": "dim"}
    for m in made:
        minutes = ("" if s is None else f"{s / 60:.4f}" for s in (m.seconds, m.without_staging_s))
        notes = [m.why, f"not in the score: {dropped[m.name]}" if m.name in dropped else ""]
        notes += [f"{m.aborted} aborted before" if m.aborted else ""]
        table.add_row(
            m.name,
            Text(m.state, style=styles[m.state]),
            "" if m.seed is None else str(m.seed),
            *minutes,
            "" if m.epochs is None else str(m.epochs),
            "" if m.evicted is None else "yes" if m.evicted else "no",
            Text("; ".join(filter(None, notes))),
        )
    console.print(table)
    for finding in findings(campaign, made):
        console.print(Text(f"{finding.severity}: {rules.sentence(finding)}", style="yellow"), soft_wrap=True)
    if why:
        console.print(Text(f"stopped: {why}", style="bold red"), soft_wrap=True)
    if score.minutes is None or score.without_staging_minutes is None:
        told = f"no score: {score.why}"
    elif isinstance(score, Weak):
        told = f"(T, S, M', TTTa) = ({score.T}, {score.S}, {score.M}, {score.minutes:.4f} min)"
    else:
        told = f"{score.minutes:.4f} min, without staging {score.without_staging_minutes:.4f} min"
    console.print(Text(f"{told}; see: mlhpc score {shlex.quote(str(campaign.out))}"), soft_wrap=True)
