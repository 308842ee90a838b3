"""``mlhpc export``: a run's epochs and facts for other tools: CSV, TensorBoard."""

import csv
import shutil
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mlhpc.errors import UserError
from mlhpc.submission.logs.run_directory import Result, RunDirectory, read


def export(folder: Path, to: str, out: Path) -> Path:
    """Write the run in ``folder`` for the tool ``to`` into the new folder ``out``, and return it.

    Raises UserError where the run has no result, ``out`` exists, or the tool's package is not installed.
    """
    run = read(folder)
    if run.result is None:
        raise UserError(f"{folder}: no readable result.json; export a run that has ended")
    if out.exists():
        raise UserError(f"{out}: exists already; choose another --out, or remove it first")
    package, writer = _WRITERS[to]
    if find_spec(package) is None:
        raise UserError(f"--to {to} needs the package {package}: pip install 'mlhpc[{to}]'")
    try:
        out.mkdir(parents=True)
    except OSError as error:
        raise UserError(f"{out}: cannot be made ({error.strerror}); choose another --out") from None
    try:
        writer(run, run.result, out)
    except OSError as error:
        shutil.rmtree(out, ignore_errors=True)
        raise UserError(f"{out}: cannot be written ({error.strerror}); choose another --out") from None
    return out


def metrics_of(result: Result) -> list[dict[str, float]]:
    """The numbers of each epoch by name, ``epoch`` first; those that are missing or not finite are left out."""
    rows = []
    for epoch in result.epochs:
        numbers = epoch.model_dump()
        rows.append({k: v for k, v in numbers.items() if isinstance(v, int | float) and abs(v) < 1e300})
    return rows


def _facts(run: RunDirectory, result: Result) -> dict[str, Any]:
    keys = (
        "benchmark",
        "preset",
        "division",
        "framework",
        "status",
        "seed",
        "ranks",
        "nodes",
        "global_batch_size",
    )
    return {key: value for key in keys if (value := getattr(result, key)) is not None}


def _csv(run: RunDirectory, result: Result, out: Path) -> None:
    rows = metrics_of(result)
    names = list(dict.fromkeys(name for row in rows for name in row))
    with (out / "epochs.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows(rows)
    facts = {**_facts(run, result), "time_to_train_s": result.time_to_train_s}
    with (out / "run.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("key", "value"), *facts.items()])


def _tensorboard(run: RunDirectory, result: Result, out: Path) -> None:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    began = (run.log.run.start_ms / 1e3) if run.log and run.log.run else 0.0
    writer = EventFileWriter(str(out))
    at = began
    for row in metrics_of(result):
        at += row.get("train_s", 0.0) + row.get("eval_s", 0.0)
        values = [
            Summary.Value(tag=name, simple_value=value) for name, value in row.items() if name != "epoch"
        ]
        writer.add_event(Event(wall_time=at, step=int(row["epoch"]), summary=Summary(value=values)))
    writer.close()


_WRITERS: dict[str, tuple[str, Callable[[RunDirectory, Result, Path], None]]] = {
    "csv": ("csv", _csv),
    "tensorboard": ("tensorboard", _tensorboard),
}
"""By the name of the tool: the package it needs, and what writes for it."""
