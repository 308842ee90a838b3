"""Predictions in the terminal."""

import math
from collections.abc import Sequence
from functools import partial

from rich.console import Console
from rich.text import Text

from mlhpc.benchmarks.schema import Run
from mlhpc.common.pages.blocks import Cell, Table, number, table
from mlhpc.common.pages.terminal import print_facts, print_table, say
from mlhpc.errors import few
from mlhpc.perf.accelerator.memory import RESERVED
from mlhpc.perf.machines import Machine
from mlhpc.perf.prediction.model import Model
from mlhpc.perf.prediction.result import Prediction
from mlhpc.perf.scaling import Triple
from mlhpc.quantities import bytes_text, count, digits, seconds_text, whole

PREDICTED = "Predicted, not measured"
NO_INTERVAL = "no interval model"
"""For waits, exchanges, and staging at the machine's own rates: one value, of an error that is not known."""
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
    print_facts(((Text(key, "dim"), value) for key, value in facts_of(p).items()), console)


def terms_table(p: Prediction) -> Table:
    """The parts of a step, and the terms of the time to train with their intervals."""

    def term(row: tuple[str, Sequence[float]], which: int) -> Cell:
        name, values = row
        if which and len(values) > which and values[1] == values[2]:
            # Staging at the machine's own rates, or none.
            return Cell(NO_INTERVAL if which == 1 and values[0] else "")
        text = "{:.1f}".format if name == "epochs" else seconds_text
        return number(values[which], text) if which < len(values) else Cell()

    parts = {f"step: {name}": (seconds,) for name, seconds in p.step.named.items()}
    ends = {title: partial(term, which=n) for n, title in enumerate(("predicted", "low", "high"))}
    return table("prediction", list((parts | terms(p)).items()), {"term": lambda row: row[0], **ends})


def terms(p: Prediction) -> dict[str, Triple]:
    """The terms of the time to train in display order: seconds, and epochs."""
    rows = {"training step": p.step_s.ends, "  training": p.train_s, "  evaluation": p.eval_s}
    rows |= {"T_epoch": p.epoch_s, "T_staging": p.staging_s}
    if p.epochs and p.total_s:
        rows |= {"epochs": p.epochs.ends, "T_extra": p.extra_s, "time to train": p.total_s}
    return rows


def configuration(p: Prediction) -> str:
    """The size of the run in words."""
    each = f"a sample on {p.parts} accelerators" if p.parts > 1 else f"local batch {p.local_batch_size}"
    each += f" in {p.run.backward_passes} backward passes" if p.run.backward_passes > 1 else ""
    return (
        f"{count(p.nodes, 'node')}, {count(p.accelerators, 'accelerator')}, global batch {p.batch}, {each}, "
        f"{p.run.training.precision}"
    )


def facts_of(p: Prediction) -> dict[str, str]:
    """All that is not a term, by label."""
    value, low, high = (digits(rate) for rate in p.samples_per_s)
    together = whole(p.samples_per_s[0] * p.accelerators)
    unknown = "" if p.tier.read else ", whose bandwidth is not in the machine file"
    facts = {
        "throughput": f"{value} samples/s per accelerator ({low} to {high}), {together} in all",
        "binding": p.binding,
        "memory": f"{bytes_text(p.memory)}; {fits(p)}",
        "training data": f"in {p.tier.name}{unknown}",
        "staging": moved_text(p),
        "all-reduce": f"{p.step.reduce.algorithm}, bound by {p.step.reduce.bound}",
        "efficiency": f"{digits(p.efficiency.value)} of the roofline, {p.efficiency.how}",
        "epochs": p.epochs.how
        if p.epochs
        else "none published for this preset, network and data, so no time to train",
    }
    if p.spatial:
        facts["halos"] = f"{bytes_text(p.spatial.halo_bytes)} sent by all ranks in an epoch with evaluation"
        kept = bytes_text(p.spatial.saved_bytes)
        facts["activations"] = f"{kept} kept by a rank for {count(p.local_batch_size, 'sample')}"
    return facts | {f"note {n}": note for n, note in enumerate(p.notes, 1)}


def moved_text(p: Prediction) -> str:
    """Description of the bytes moved by staging."""
    if p.moved is None:
        return "none"
    held, source, sent = (bytes_text(size) for size in (p.moved.held, p.moved.source, p.moved.sent))
    passed = f", {sent} from node to node" if p.moved.sent else ""
    return f"{p.run.staging.mode}: {held} to each node, {source} off the shared file system{passed}"


def fits(p: Prediction) -> str:
    """The largest batch that fits on an accelerator, or on those sharing a sample."""
    capacity = bytes_text(p.machine.figures["accelerator.memory"])
    whose = f"{p.parts} accelerators of {capacity} each" if p.parts > 1 else f"an accelerator's {capacity}"
    once = " in a backward pass" if p.run.backward_passes > 1 else ""
    reserved = f"{bytes_text(RESERVED)} for libraries"
    return f"the largest batch that fits {whose} is {p.largest_batch}{once}, with {reserved}"


def scaling(model: Model, predictions: Sequence[Prediction], shortest: Prediction | None) -> None:
    """``shortest``: the best of all batch sizes with published convergence. The model says why there are no
    rows before the first and after the last."""
    machine, run = model.machine, model.run
    console = Console(highlight=False)
    say(console, heading(machine, run), "bold")
    batch = run.hyperparameters.global_batch_size
    say(console, f"{PREDICTED}. Global batch {batch}, {run.training.precision}")
    totals = [p.total_s[0] if p.total_s and p.parts == 1 else math.inf for p in predictions]
    fastest = totals.index(min(totals)) if math.isfinite(min(totals)) else -1
    print_table(_by_nodes(predictions), console, styles={fastest: "bold"}, optional=2)
    say(
        console,
        "batch: samples per accelerator and step; time: time to train with its interval; data: location of "
        "the data set",
    )
    say(console, f"memory: {fits(next((p for p in predictions if p.parts == 1), predictions[0]))}")
    if shortest and shortest.total_s:
        where = f"batch {shortest.batch} on {count(shortest.nodes, 'node')}"
        took = seconds_text(shortest.total_s[0])
        say(
            console,
            "shortest of all batch sizes with published convergence, with whole samples on each accelerator: "
            f"{took}, {where}",
        )
    for note in (*model.limits(predictions), *notes_of(predictions)):
        say(console, f"note: {note}")


def notes_of(predictions: Sequence[Prediction]) -> list[str]:
    """The notes of all predictions, each once, preceded by their numbers of nodes unless they apply to all."""
    nodes: dict[str, list[int]] = {}
    for p in predictions:
        for note in p.notes:
            nodes.setdefault(note, []).append(p.nodes)
    return [note if len(on) == len(predictions) else f"{_on(on)}: {note}" for note, on in nodes.items()]


def _on(nodes: Sequence[int]) -> str:
    return f"on {few([str(n) for n in nodes], 8)} {'node' if nodes == [1] else 'nodes'}"


def _by_nodes(predictions: Sequence[Prediction]) -> Table:
    def end(p: Prediction, which: int) -> str:
        return seconds_text(p.total_s[which]) if p.total_s else ""

    return table(
        "scaling",
        predictions,
        {
            "nodes": lambda p: str(p.nodes),
            "batch": lambda p: f"1/{p.parts}" if p.parts > 1 else str(p.local_batch_size),
            "samples/s": lambda p: whole(p.samples_per_s[0] * p.accelerators),
            "T_stag.": lambda p: seconds_text(p.staging_s[0]),
            "T_epoch": lambda p: seconds_text(p.epoch_s[0]),
            **{title: partial(end, which=n) for n, title in enumerate(("time", "low", "high"))},
            "longest part": lambda p: _SHORT.get(p.bound, p.bound),
            "data": lambda p: _SHORT.get(p.tier.name, p.tier.name),
        },
        text_columns=0,
        prose=(8, 9),
    )


def heading(machine: Machine, run: Run) -> str:
    """Benchmark, preset and machine."""
    return f"{run.benchmark}, preset {run.preset}, on {machine.title}"
