"""The facts about a run that its report shows in the terminal and on the page, and their formatting."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from mlhpc.benchmarks.findings import Finding
from mlhpc.common.energy.counters import NAMES as MEASURED
from mlhpc.errors import few
from mlhpc.quantities import bytes_text, count, digits, duration_text, joules_text, seconds_text, watts_text
from mlhpc.record.breakdown import PARTS, whole_epochs
from mlhpc.record.environment import Environment
from mlhpc.record.phases import phases
from mlhpc.record.progress import Progress
from mlhpc.record.result import Epoch, Target
from mlhpc.record.run_directory import RunDirectory, running
from mlhpc.submission.check.rulesets import rules_of_run


@dataclass(frozen=True)
class Part:
    """A part of the time to train. ``seconds`` is None if unknown. ``share``: fraction of the total, 0 to 1."""

    key: str
    label: str
    what: str
    seconds: float | None
    share: float

    @property
    def unknown(self) -> str:
        """The reason why ``seconds`` is None."""
        return "nothing staged" if self.key == "staging" else "requires three epochs"


def parts(run: RunDirectory) -> list[Part]:
    """The parts of the time to train, in order; each ``share`` is relative to the sum of the parts, so that shares
    add up to 1. If the result has no breakdown, as for an aborted run, the parts are taken from the log, which
    lacks data wait; empty if the log has none either. Parts with unknown keys are omitted."""
    seconds = {
        key: value for key, value in ((run.result and run.result.breakdown_s) or {}).items() if key in PARTS
    }
    if not seconds and run.log and (log_phases := phases(run.log)):
        seconds = dict(log_phases.parts())
    positive = {key: _positive(value) for key, value in seconds.items()}
    total = sum(value or 0.0 for value in positive.values())
    return [
        Part(key, *PARTS[key], value, value / total if value and total else 0.0)
        for key, value in positive.items()
    ]


def _positive(value: float | None) -> float | None:
    return max(value, 0.0) if value is not None and math.isfinite(value) else None


def rules_text(run: RunDirectory, ruleset: str | None) -> str:
    """The rules under which ``run`` is checked, as text: "hpc 2.0.0", or "no rules of MLPerf"."""
    return rules_of_run(run, ruleset).replace("_", " ") or "no rules of MLPerf"


def commit(env: Environment) -> str | None:
    """The commit in a run's ``env.json``; None if the file does not contain one."""
    changed = " with uncommitted changes" if env.dirty else ""
    return f"{env.commit}{changed}" if env.commit else None


def no_score(run: RunDirectory, findings: Sequence[Finding]) -> list[str]:
    """The reasons why the time of the run does not count for a score; empty if it does."""
    result = run.result
    if result is None:
        return [running(run) or "no readable result.json: the run did not end, or the file is damaged"]
    reasons = []
    if result.resumed:
        reasons.append("the run was resumed from a checkpoint, so its clock does not include the first part")
    if result.status == "emulated":
        reasons.append("steps were emulated (--compute), not trained")
    elif result.status == "failed":
        reasons.append(f"the target was not met ({quality(result.target)})")
    elif result.status != "success":
        reasons.append(f"the run was {result.status}")
    elif result.time_to_train_s is None:
        reasons.append("the result has no time to train")
    stated = {"run/resumed", "run/status", "log/emulated"}
    rules = dict.fromkeys(f.rule for f in findings if f.severity == "error" and f.rule not in stated)
    if rules and not reasons:
        reasons.append(f"the check does not pass ({', '.join(rules)})")
    return reasons


def slow_ranks(run: RunDirectory) -> str:
    """A sentence about the ranks for which other ranks waited, with their nodes and the time that each cost the
    run; if only the data wait of rank 0 is known, a sentence that says so. Empty for a run with one rank or
    without data wait."""
    result = run.result
    if result is None or result.ranks < 2:
        return ""
    waits = result.data_wait
    if waits is None or waits.of != "all ranks":
        seconds = waits.train_s if waits else sum(e.data_wait_s or 0.0 for e in result.epochs)
        why = "earlier versions recorded no others" if waits is None else "the run was aborted"
        only = f"of rank 0 only, because {why}; its steps include waiting for other ranks' data"
        return f"{duration_text(seconds)} in training, {only}"
    whole = waits.train_s + waits.eval_s
    if not whole > _SLIGHT * sum(part.seconds or 0.0 for part in parts(run)):
        return ""
    hosts = {binding.rank: binding.hostname for binding in run.env.bindings}
    # If all ranks are equally fast, each is the slowest in about the same number of steps.
    least = max(_NOTABLE, _TIMES_FAIR / result.ranks) * whole
    named = []
    for slow in waits.ranks[:_NAMED]:
        if slow.train_s + slow.eval_s >= least:
            on = f" on {hosts[slow.rank]}" if slow.rank in hosts else ""
            most = "" if slow.epoch is None else f", most in epoch {slow.epoch}"
            where = ((slow.train_s, "in training"), (slow.eval_s, "in evaluation"))
            lost = " and ".join(f"{duration_text(seconds)} {what}" for seconds, what in where if seconds)
            named.append(f"rank {slow.rank}{on} cost {lost}{most}")
    total = f"{duration_text(waits.train_s)} in training, {duration_text(waits.eval_s)} in evaluation"
    return f"{total}: " + ("; ".join(named) or "no rank stands out")


def slow_epochs(run: RunDirectory) -> str:
    """A sentence about epochs that took longer than the rest (by how much, and in which part), and about the
    batches, in any epoch, for which a rank waited longest. Empty if there are none."""
    result = run.result
    if result is None:
        return ""
    hosts = {binding.rank: binding.hostname for binding in run.env.bindings}
    batches: dict[int, list[str]] = {}
    every = result.data_wait.batches if result.data_wait else ()
    often = Counter(name for slow in every for name in slow.samples)
    for slow in every:
        on = f" on {hosts[slow.rank]}" if slow.rank in hosts else ""
        # Samples that are in several slow batches come first, since they are the likely cause.
        of = f" ({few(sorted(slow.samples, key=lambda name: -often[name]), 2)})" if slow.samples else ""
        words = f"rank {slow.rank}{on} waited {duration_text(slow.seconds)} for batch {slow.step}{of}"
        batches.setdefault(slow.epoch, []).append(words)
    said = []
    for epoch in result.epochs:
        more = _more(result.epochs, epoch)
        if more or epoch.epoch in batches:
            longer = [f"{duration_text(seconds)} of {part}" for part, seconds in more.items() if seconds > 0]
            took = f"{duration_text(sum(more.values()))} more than the median ({', '.join(longer)})"
            phrases = [took] * bool(more) + batches.get(epoch.epoch, [])[:_NAMED]
            said.append(f"epoch {epoch.epoch}: {', '.join(phrases)}")
    return "; ".join(said[:_NAMED]) + (f"; and {len(said) - _NAMED} more" if len(said) > _NAMED else "")


def _more(epochs: Sequence[Epoch], epoch: Epoch) -> dict[str, float]:
    """Seconds by which each part of a slow epoch exceeded its median; empty for other epochs."""
    whole = epochs[: whole_epochs([each.samples for each in epochs])]
    names = {"data_wait_s": "data wait", "step_s": "steps", "eval_s": "evaluation"}
    if len(whole) < 3:
        return {}
    usual = {key: median(getattr(each, key) or 0.0 for each in whole) for key in names}
    more = {name: (getattr(epoch, key) or 0.0) - usual[key] for key, name in names.items()}
    beyond = sum(more.values())
    return more if beyond > max(_LONG_S, _LONG * sum(usual.values())) else {}


_LONG_S, _LONG = 1.0, 0.1
"""Limits in seconds and as a fraction of the median epoch. An epoch is slow if it exceeds the median epoch by
both."""
_SLIGHT = 0.01
"""Fraction of the run below which data wait does not get a line of its own."""
_NAMED, _NOTABLE, _TIMES_FAIR = 4, 0.05, 1.5
"""Maximum number of slow ranks named in a line; and the minimum that a rank must have cost to be named, as a
fraction of the data wait and as a multiple of an equal share."""


def standing(run: RunDirectory) -> str:
    """A sentence about the status of the result: division, preset, and limitations."""
    if run.result is None:
        return (
            "No result yet: the run has not ended."
            if running(run)
            else "Not a result: the run has no result.json."
        )
    division, preset = run.result.division, run.result.preset
    if run.result.emulation:
        waited = f"each step waited {seconds_text(run.result.emulation.step_s)}"
        return f"Emulated run, preset {preset}: {waited} instead of computing. Not a result."
    if division == "closed":
        return "Closed division, single run: a score is the mean of several. Not verified by MLCommons."
    return f"{division.capitalize()} division, preset {preset}: not a closed-division result."


def quality(target: Target) -> str:
    """The best value and the target of the metric as text, such as ``best 0.3412, target ≤ 0.3``."""
    best = "nothing was evaluated" if target.best is None else f"best {digits(target.best, 4)}"
    return f"{best}, target {target_sign(target)} {digits(target.value, 4)}"


def target_sign(target: Target) -> str:
    """The comparison sign between the metric and its target: ≤ or ≥."""
    return "≥" if target.metric == "eval_accuracy" else "≤"


def data_rates(epochs: Sequence[Epoch]) -> dict[int, float]:
    """Bytes per second that training read in each epoch: bytes read divided by training time."""
    return {e.epoch: e.bytes / e.train_s for e in epochs if e.bytes is not None and e.train_s}


def data_rate(run: RunDirectory) -> float | None:
    """The median of ``data_rates``."""
    rates = data_rates(run.result.epochs if run.result else ()).values()
    finite = [rate for rate in rates if math.isfinite(rate)]
    return median(finite) if finite else None


def memory_text(gib: float | None) -> str:
    """The memory of a node as text, from GiB as in ``env.json``."""
    return bytes_text(None if gib is None else gib * 2**30)


def place(now: Progress) -> str:
    """The current epoch, step and phase of a run as text, such as ``epoch 3 of 16, step 40 of 128, training for
    12.1 s``."""
    epoch = "" if now.epoch is None else f"epoch {now.epoch}"
    if epoch and now.epochs is not None:
        epoch += f" of {now.epochs}"
    if now.step is not None:
        epoch += f", step {now.step}" + (f" of {now.steps}" if now.steps else "")
    where = f"{now.phase} for {duration_text(now.phase_s)}" if now.status == "running" else now.phase
    return ", ".join(filter(None, (epoch, where)))


def progress_facts(now: Progress) -> dict[str, str]:
    """The progress of a run as text by label; unknown values are omitted."""
    facts = {}
    if now.metric is not None:
        best = "not evaluated yet" if now.best is None else f"best {digits(now.best, 4)}"
        facts[now.metric] = f"{best}, target {digits(now.target, 4)}"
    if now.samples_per_s is not None:
        facts["samples/s"] = digits(now.samples_per_s)
    if now.data_wait_share is not None:
        of_rank = ", of the rank that waited longest" if now.ranks and now.ranks > 1 else ""
        facts["data wait"] = f"{now.data_wait_share:.1%} of training{of_rank}"
    if now.elapsed_s is not None:
        facts["clock"] = duration_text(now.elapsed_s)
    for kind, used in now.energy.items():
        power = "" if used.watts is None else f", now {watts_text(used.watts)}"
        least = "at least " if used.at_least else ""
        nodes = count(used.of_nodes, "node")
        of = f"{used.nodes} of {nodes}" if used.nodes < used.of_nodes else nodes
        facts[f"energy of {MEASURED[kind]}"] = f"{least}{joules_text(used.joules)}{power} ({of})"
    if now.left_s is not None:
        facts["time left"] = f"at most {duration_text(now.left_s)}"
    if now.status == "gone":
        facts["last event"] = f"{duration_text(now.quiet_s)} ago: the processes ended without a result"
    elif now.quiet_s > 30 and now.status == "running":
        facts["last event"] = f"{duration_text(now.quiet_s)} ago"
    return facts
