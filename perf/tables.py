"""Predictions in the terminal and as JSON."""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from rich.console import Console
from rich.table import Table as Grid

from mlhpc.benchmarks.schema import Run
from mlhpc.common.pages.blocks import Cell, Table, number, table
from mlhpc.common.pages.terminal import print_table, say
from mlhpc.errors import count, few
from mlhpc.perf.accelerator.memory import RESERVED
from mlhpc.perf.against import Compared, Summary, summary
from mlhpc.perf.machines import Machine
from mlhpc.perf.prediction import Prediction
from mlhpc.perf.scaling import Triple
from mlhpc.perf.units import binary, written

PREDICTED = "Predicted, not measured"
_SHORT = {
    "waiting for input": "input",
    "launching and updating": "launching",
    "shared file system": "file system",
    "node-local storage": "local storage",
    "host memory": "memory",
}


def one(p: Prediction) -> None:
    """Step, epoch and time to train with their parts."""
    console = Console(highlight=False)
    say(console, heading(p.machine, p.run), "bold")
    say(console, f"{PREDICTED}. {configuration(p)}")
    print_table(terms_table(p), console)
    facts = Grid.grid(padding=(0, 2))
    for key, value in facts_of(p).items():
        facts.add_row(f"[dim]{key}[/]", value)
    console.print(facts)


def terms_table(p: Prediction) -> Table:
    """The parts of a step, and the terms of the time to train with their intervals."""

    def term(row: tuple[str, Sequence[float]], which: int) -> Cell:
        name, values = row
        text = "{:.1f}".format if name == "epochs" else seconds_text
        return number(values[which], text) if which < len(values) else Cell()

    parts = {f"step: {name}": (seconds,) for name, seconds in p.step.named.items()}
    ends = {title: partial(term, which=n) for n, title in enumerate(("predicted", "low", "high"))}
    return table("prediction", list((parts | terms(p)).items()), {"term": lambda row: row[0], **ends})


def terms(p: Prediction) -> dict[str, Triple]:
    """The terms of the time to train in the order in which they are printed: seconds, and epochs."""
    found = {"training step": p.step_s.ends, "  training": p.train_s, "  evaluation": p.eval_s}
    found |= {"T_epoch": p.epoch_s, "T_staging": p.staging_s}
    if p.epochs and p.total_s:
        found |= {"epochs": p.epochs.ends, "T_extra": p.extra_s, "time to train": p.total_s}
    return found


def configuration(p: Prediction) -> str:
    each = f"a sample on {p.parts} accelerators" if p.parts > 1 else f"local batch {p.local_batch_size}"
    each += f" in {p.run.backward_passes} backward passes" if p.run.backward_passes > 1 else ""
    return (
        f"{count(p.nodes, 'node')}, {count(p.accelerators, 'accelerator')}, global batch {p.batch}, {each}, "
        f"{p.run.training.precision}"
    )


def facts_of(p: Prediction) -> dict[str, str]:
    value, low, high = (rate_text(rate) for rate in p.samples_per_s)
    whole = whole_number(p.samples_per_s[0] * p.accelerators)
    unknown = "" if p.tier.read else ", whose bandwidth is not in the machine file"
    facts = {
        "throughput": f"{value} samples/s per accelerator ({low} to {high}), {whole} in all",
        "binding": p.binding,
        "memory": f"{binary(p.memory)}; {fits(p)}",
        "training data": f"in {p.tier.name}{unknown}",
        "staging": moved_text(p),
        "all-reduce": f"{p.step.reduce.algorithm}, bound by {p.step.reduce.bound}",
        "efficiency": f"{p.efficiency.value:.3g} of the roofline, {p.efficiency.how}",
        "epochs": p.epochs.how if p.epochs else "none published for this preset, so no time to train",
    }
    if p.spatial:
        facts["halos"] = (
            f"{written(p.spatial.halo_bytes, 'bytes')} sent by all ranks in an epoch and its evaluation"
        )
        kept = binary(p.spatial.saved_bytes)
        facts["activations"] = (
            f"{kept} kept by a rank for the backward pass of {count(p.local_batch_size, 'sample')}"
        )
    return facts | {f"note {n}": note for n, note in enumerate(p.notes, 1)}


def moved_text(p: Prediction) -> str:
    """What staging moves, in words."""
    if p.moved is None:
        return "none"
    held, source, sent = (written(size, "bytes") for size in (p.moved.held, p.moved.source, p.moved.sent))
    passed = f", {sent} from node to node" if p.moved.sent else ""
    return f"{p.run.staging.mode}: {held} to each node, {source} off the shared file system{passed}"


def fits(p: Prediction) -> str:
    """The largest batch that an accelerator, or those that share a sample, can hold."""
    capacity = binary(p.machine.figures["accelerator.memory"])
    whose = f"{p.parts} accelerators of {capacity} each" if p.parts > 1 else f"an accelerator's {capacity}"
    once = " in a backward pass" if p.run.backward_passes > 1 else ""
    return f"the largest batch that fits {whose} is {p.largest_batch}{once}, with {binary(RESERVED)} for libraries"


def scaling(machine: Machine, run: Run, found: Sequence[Prediction], shortest: Prediction | None) -> None:
    """``shortest``: the best of all batch sizes with published convergence."""
    console = Console(highlight=False)
    say(console, heading(machine, run), "bold")
    batch = run.hyperparameters.global_batch_size
    say(console, f"{PREDICTED}. Global batch {batch}, {run.training.precision}")
    totals = [p.total_s[0] if p.total_s and p.parts == 1 else math.inf for p in found]
    fastest = totals.index(min(totals)) if math.isfinite(min(totals)) else -1
    print_table(_by_nodes(found), console, styles={fastest: "bold"}, optional=2)
    say(
        console,
        "batch: samples per accelerator and step; time: time to train with its interval; data: location of "
        "the data set",
    )
    say(console, f"memory: {fits(next((p for p in found if p.parts == 1), found[0]))}")
    if shortest and shortest.total_s:
        where = f"batch {shortest.batch} on {shortest.nodes} nodes"
        took = seconds_text(shortest.total_s[0])
        say(
            console,
            "shortest of all batch sizes with published convergence, with whole samples on each accelerator: "
            f"{took}, {where}",
        )
    for note in notes_of(found):
        say(console, f"note: {note}")


def notes_of(found: Sequence[Prediction]) -> list[str]:
    """The notes of all, each once; after their numbers of nodes where it does not hold for all."""
    nodes: dict[str, list[int]] = {}
    for p in found:
        for note in p.notes:
            nodes.setdefault(note, []).append(p.nodes)
    return [note if len(on) == len(found) else f"{_on(on)}: {note}" for note, on in nodes.items()]


def _on(nodes: Sequence[int]) -> str:
    return f"on {few([str(n) for n in nodes], 8)} {'node' if nodes == [1] else 'nodes'}"


def _by_nodes(found: Sequence[Prediction]) -> Table:
    def end(p: Prediction, which: int) -> str:
        return seconds_text(p.total_s[which]) if p.total_s else ""

    return table(
        "scaling",
        found,
        {
            "nodes": lambda p: str(p.nodes),
            "batch": lambda p: f"1/{p.parts}" if p.parts > 1 else str(p.local_batch_size),
            "samples/s": lambda p: whole_number(p.samples_per_s[0] * p.accelerators),
            "T_stag.": lambda p: seconds_text(p.staging_s[0]),
            "T_epoch": lambda p: seconds_text(p.epoch_s[0]),
            **{title: partial(end, which=n) for n, title in enumerate(("time", "low", "high"))},
            "longest part": lambda p: _SHORT.get(p.bound, p.bound),
            "data": lambda p: _SHORT.get(p.tier.name, p.tier.name),
        },
        text_columns=0,
        prose=(8, 9),
    )


def errors(compared: Sequence[Compared]) -> None:
    console = Console(highlight=False)
    columns: dict[str, Callable[[Compared], Cell | str]] = {
        "use": lambda c: c.row.use,
        "set": lambda c: f"{c.row.benchmark} {c.row.round} {c.row.system}",
        "batch": lambda c: (
            f"{c.row.local_batch_size:g}" if c.row.local_batch_size >= 1 else f"1/{c.row.spatial}"
        ),
        "samples/s": lambda c: f"{c.row.samples_per_s:.3g}",
        "model": lambda c: f"{c.rate:.3g}",
        "error": lambda c: percent(c.error),
        "base": lambda c: percent(c.baseline_error),
        "epochs": lambda c: f"{c.row.epochs[0]:.1f}{'' if c.epochs_inside else ' !'}",
        "interval": lambda c: f"{c.epochs.low:.0f}–{c.epochs.high:.0f}",
        "time": lambda c: percent(c.total_error),
    }
    ordered = sorted(compared, key=lambda c: (c.row.benchmark, c.row.use))
    print_table(table("errors", ordered, columns, text_columns=2), console, optional=1)
    say(console, "error of samples/s per accelerator; base: of the baseline; time: error of the time to "
                 "train, "
                  "T_staging as logged; !: outside the interval")  # fmt: skip
    for use in ("fit", "test"):
        for line in summaries([c for c in compared if c.row.use == use]):
            say(console, f"{use}: {line}")


def summaries(compared: Sequence[Compared]) -> list[str]:
    """What the errors come to, in sentences; of the baseline over the sets that it speaks of."""
    if not compared:
        return []
    both = [c for c in compared if c.baseline is not None]
    found = {
        "throughput": summary([c.error for c in compared]),
        "throughput of sets with a baseline": summary([c.error for c in both]),
        "baseline": summary([c.baseline_error for c in both]),
        "time to train, T_staging as logged": summary([c.total_error for c in compared]),
    }
    inside = sum(c.epochs_inside for c in compared)
    lines = [f"{name}: {_summary(figures)}" for name, figures in found.items() if figures]
    return [*lines, f"epochs inside the interval: {inside} of {len(compared)} sets"]


def _summary(found: Summary) -> str:
    return f"median error {found.median:.1%}, {found.within:.0%} within 35%, {found.sets} sets"


def record(p: Prediction) -> dict[str, Any]:
    """One prediction as JSON. Intervals are [value, low, high]; times in seconds."""
    return {
        "benchmark": p.run.benchmark,
        "preset": p.run.preset,
        "machine": p.machine.name,
        "nodes": p.nodes,
        "accelerators": p.accelerators,
        "global_batch_size": p.batch,
        "local_batch_size": p.local_batch_size,
        "backward_passes": p.run.backward_passes,
        "accelerators_per_sample": p.parts,
        "precision": p.run.training.precision,
        "step_s": list(p.step_s.ends),
        "step_parts_s": p.step.named,
        "samples_per_s_per_accelerator": list(p.samples_per_s),
        "staging_s": list(p.staging_s),
        "staged_bytes": asdict(p.moved) if p.moved else None,
        "train_s": list(p.train_s),
        "eval_s": list(p.eval_s),
        "epoch_s": list(p.epoch_s),
        "epochs": list(p.epochs.ends) if p.epochs else None,
        "extra_s": list(p.extra_s),
        "time_to_train_s": list(p.total_s) if p.total_s else None,
        "spatial": asdict(p.spatial) if p.spatial else None,
        "memory_bytes": p.memory,
        "largest_batch_that_fits": p.largest_batch,
        "tier": p.tier.name,
        "binding": p.binding,
        "efficiency": p.efficiency.value,
        "efficiency_of": p.efficiency.how,
        "notes": list(p.notes),
    }


def error_records(compared: Sequence[Compared]) -> dict[str, Any]:
    sets = [
        {
            "use": c.row.use,
            "set": c.row.name,
            "benchmark": c.row.benchmark,
            "samples_per_s": c.row.samples_per_s,
            "predicted": c.rate,
            "error": c.error,
            "baseline_error": c.baseline_error,
            "epochs": c.row.epochs[0],
            "epochs_interval": [c.epochs.low, c.epochs.high],
            "epochs_inside": c.epochs_inside,
            "time_to_train_error": c.total_error,
            "efficiency_of": c.how,
        }
        for c in compared
    ]
    of_use = {use: summaries([c for c in compared if c.row.use == use]) for use in ("fit", "test")}
    return {"sets": sets, "summary": of_use}


def heading(machine: Machine, run: Run) -> str:
    return f"{run.benchmark}, preset {run.preset}, on {machine.title}"


def whole_number(value: float) -> str:
    return f"{value:,.0f}".replace(",", " ")


def rate_text(value: float) -> str:
    """``3.62``, ``361``, ``3 617``: three digits, never a power of ten."""
    return whole_number(value) if value >= 100 else f"{value:.3g}"


def percent(value: float | None) -> str:
    return "" if value is None else f"{value:+.0%}"


def seconds_text(seconds: float) -> str:
    """``8.62 ms``, ``46.8 s``, ``12.3 min``, ``5.1 h``."""
    if seconds == 0:
        return "0 s"
    units = (("d", 86400, 172800), ("h", 3600, 7200), ("min", 60, 300), ("s", 1, 1), ("ms", 1e-3, 1e-3))
    for unit, factor, least in units:
        if seconds >= least:
            return f"{seconds / factor:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"
