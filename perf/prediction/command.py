"""``mlhpc predict``."""

import argparse
import json
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from mlhpc.benchmarks.load import load, presets
from mlhpc.benchmarks.schema import Run
from mlhpc.errors import UserError, did_you_mean
from mlhpc.perf import against
from mlhpc.perf.machines import Machine, known, machine
from mlhpc.perf.prediction import tables
from mlhpc.perf.prediction.model import Model, best
from mlhpc.perf.prediction.result import Prediction
from mlhpc.perf.published import Published, published, read


def predict(options: argparse.Namespace) -> int:
    """Prints a prediction, a table over node counts, or errors against measured sets. Raises UserError."""
    given = machine(options.machine) if options.machine else None
    if options.against is not None:
        if options.out:
            raise UserError("--out writes the page of a prediction: omit --against")
        _against(options, given)
        return 0
    if options.benchmark is None:
        raise UserError("which benchmark? mlhpc predict BENCHMARK --machine NAME")
    if given is None:
        raise UserError(f"on which machine? --machine NAME, one of {', '.join(known())}, or a machine file")
    if options.out:  # before the prediction, so that a missing extra is found at once
        from mlhpc.common.pages.html import write
        from mlhpc.perf.prediction.page import page

    model = Model(given, _run(options))
    many = [] if options.nodes else _table(model)
    if options.out:
        write(options.out, page(model, options.nodes))
    if options.nodes:
        prediction = model.at(options.nodes)
        record = {**prediction.record(), "sample": model.sample(prediction)}
        _print(options.json, record, lambda: tables.one(prediction))
    else:
        shortest = partial(best, (Model(given, run) for run in _batches(options)))
        _print(options.json, [p.record() for p in many], lambda: tables.scaling(model, many, shortest()))
    if options.out:
        sys.stderr.write(f"page: {options.out}\n")
    return 0


def _run(options: argparse.Namespace) -> Run:
    settings = list(options.set)
    if options.batch is not None:
        settings.append(f"hyperparameters.global_batch_size={options.batch}")
    return load(options.benchmark, options.preset, settings)


def _batches(options: argparse.Namespace) -> list[Run]:
    """The closed presets, which are at the batch sizes of the reference convergence points."""
    settings = [text for text in options.set if "global_batch_size" not in text]
    names = [name for name in presets(options.benchmark) if name.startswith("closed")]
    return [load(options.benchmark, name, settings) for name in names]


def _table(model: Model) -> list[Prediction]:
    predictions = list(model.over_nodes())
    if not predictions:
        model.at(1)  # says why
        batch = model.run.hyperparameters.global_batch_size
        raise UserError(f"no number of nodes is possible for a batch of {batch}; choose one with --nodes")
    return predictions


def _against(options: argparse.Namespace, given: Machine | None) -> None:
    path: Path = options.against
    sets: Sequence[Published] = published() if str(path) == "published" else read(path)
    compared = against.compare(sets, given)
    if options.benchmark:
        names = sorted({c.row.benchmark for c in compared})
        if options.benchmark not in names:
            raise UserError(f"no set of {options.benchmark!r}; {did_you_mean(options.benchmark, names)}")
        compared = [c for c in compared if c.row.benchmark == options.benchmark]
    _print(options.json, against.records(compared), lambda: against.show(compared))


def _print(as_json: bool, content: Any, table: Any) -> None:
    if as_json:
        print(json.dumps(content, indent=1))
    else:
        table()
