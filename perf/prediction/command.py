"""``mlhpc predict``: a prediction, or a table over node counts, in the terminal."""

import argparse
import json
import math
import sys
from collections.abc import Iterator, Sequence
from functools import partial

from rich.console import Console
from rich.text import Text

from mlhpc.benchmarks.load import load, presets
from mlhpc.common.pages.blocks import Table, table
from mlhpc.common.pages.terminal import print_facts, print_table, say
from mlhpc.errors import UserError, few
from mlhpc.perf.machines import Machine, known, machine
from mlhpc.perf.prediction.model import Model, best, enlarged
from mlhpc.perf.prediction.result import NO_EPOCHS, Prediction, terms_table
from mlhpc.quantities import count, seconds_text, whole

PREDICTED = "Predicted, not measured"
_SHORT = {
    "waiting for input": "input",
    "launching and updating": "launching",
    "shared file system": "file system",
    "node-local storage": "local storage",
    "host memory": "memory",
}


def predict(options: argparse.Namespace) -> int:
    """Prints a prediction, or a table over node counts; with --out also writes the page. Raises UserError."""
    if options.benchmark is None:
        raise UserError("no benchmark named; run mlhpc predict BENCHMARK --machine NAME")
    if not options.machine:
        raise UserError(
            f"no machine named; pass --machine with one of {', '.join(known())}, or a machine file"
        )
    given = machine(options.machine)
    if options.out:  # before the prediction, so that a missing package is reported at once
        from mlhpc.common.pages.html import write
        from mlhpc.perf.prediction.page import page

    if options.what_if and not options.nodes:
        raise UserError("--what-if requires --nodes, the number of nodes to start from")
    batch = [] if options.batch is None else [f"hyperparameters.global_batch_size={options.batch}"]
    model = Model(given, load(options.benchmark, options.preset, [*options.set, *batch]))
    predictions = [model.at(options.nodes)] if options.nodes else list(model.over_nodes())
    if not predictions:
        model.at(1)  # raises the error that explains why, if there is one
        batch_size = model.run.hyperparameters.global_batch_size
        raise UserError(
            f"no tabulated number of nodes can train a batch of {batch_size}; choose one with --nodes"
        )
    if options.out:
        write(options.out, page(model, options.nodes))
    if options.json:
        records = [prediction.record() for prediction in predictions]
        if options.nodes:
            records[0]["sample"] = model.sample(predictions[0])
        if options.what_if:
            records[0]["what_if"] = [row._asdict() for row in enlarged(model, options.nodes)]
        print(json.dumps(records[0] if options.nodes else records, indent=1))
    elif options.nodes:
        _one(predictions[0])
        if options.what_if:
            _enlarged(model, predictions[0])
    else:
        _scaling(model, predictions, best(_closed(options, given)))
    if options.out:
        sys.stderr.write(f"page: {options.out}\n")
    return 0


def _closed(options: argparse.Namespace, given: Machine) -> Iterator[Model]:
    """Yield a model of each closed preset; these presets have published convergence, at the batch sizes of the
    reference convergence points."""
    settings = [text for text in options.set if "global_batch_size" not in text]
    for name in presets(options.benchmark):
        if name.startswith("closed"):
            yield Model(given, load(options.benchmark, name, settings))


def _one(p: Prediction) -> None:
    """Print step, epoch and time to train with their parts."""
    console = Console(highlight=False)
    say(console, p.title, "bold")
    say(console, f"{PREDICTED}. {p.configuration}")
    print_table(terms_table(p), console)
    print_facts(((Text(key, "dim"), value) for key, value in p.facts.items()), console)


def _enlarged(model: Model, p: Prediction) -> None:
    """Print which figures of the machine would shorten the time to train if doubled, and by how much."""
    console, before = Console(highlight=False), p.total_s[0] if p.total_s else math.inf
    if not math.isfinite(before):
        raise UserError(f"--what-if requires a time to train: {NO_EPOCHS}; use a closed preset")
    rows = enlarged(model, p.nodes)
    useful = [row for row in rows if row.seconds < (1 - _USEFUL) * before]
    columns = {
        "twice as much": lambda row: row.figure,
        "time to train": lambda row: seconds_text(row.seconds),
        "shorter by": lambda row: f"{1 - row.seconds / before:.1%}",
    }
    if useful:
        print_table(table("what_if", useful, columns), console)
    rest = [row.figure for row in rows if row not in useful]
    say(console, f"doubling these saves less than {_USEFUL:.0%}: {', '.join(rest) or 'none'}")


_USEFUL = 0.01


def _scaling(model: Model, predictions: Sequence[Prediction], shortest: Prediction | None) -> None:
    """Print a row per number of nodes, and why there are no rows before the first and after the last.
    ``shortest``: the best prediction over all batch sizes with published convergence."""
    console = Console(highlight=False)
    say(console, predictions[0].title, "bold")
    run = model.run
    batch = run.hyperparameters.global_batch_size
    say(console, f"{PREDICTED}. Global batch {batch}, {run.training.precision}")
    totals = [p.total_s[0] if p.total_s and p.parts == 1 else math.inf for p in predictions]
    fastest = totals.index(min(totals)) if math.isfinite(min(totals)) else -1
    print_table(_by_nodes(predictions), console, styles={fastest: "bold"}, optional=2)
    say(
        console,
        "batch: samples per accelerator and step; time: time to train with its interval; data: where the data "
        "set is stored",
    )
    say(console, f"memory: {next((p for p in predictions if p.parts == 1), predictions[0]).fits}")
    if not any(p.epochs for p in predictions):
        say(console, f"epochs: {NO_EPOCHS}")
    if shortest and shortest.total_s:
        where = f"batch {shortest.batch} on {count(shortest.nodes, 'node')}"
        took = seconds_text(shortest.total_s[0])
        say(
            console,
            "shortest time over all batch sizes with published convergence and whole samples per accelerator: "
            f"{took}, {where}",
        )
    for note in (*model.limits(predictions), *notes_of(predictions)):
        say(console, f"note: {note}")


def notes_of(predictions: Sequence[Prediction]) -> list[str]:
    """Each note of the predictions once, preceded by the numbers of nodes it applies to unless it applies to
    all."""
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
