"""``mlhpc export`` writes a run's epochs and facts for other tools: CSV, TensorBoard, MLflow."""

import os
import re
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from importlib.util import find_spec
from itertools import accumulate
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from mlhpc.benchmarks.load import dotted
from mlhpc.common.files.filesystem import as_user_error, require_new
from mlhpc.common.pages.blocks import csv_text
from mlhpc.errors import UserError, install
from mlhpc.record.energy import in_order
from mlhpc.record.result import Result
from mlhpc.record.run_directory import RunDirectory, read


def export(folder: Path, to: str, out: Path) -> Path:
    """Write the run in ``folder`` into the new folder ``out``, in the format of the tool ``to``, and return the
    new folder's path.

    Raises UserError if the run has no result, ``out`` exists, or the tool's package is not installed.
    """
    run = read(folder)
    if run.result is None:
        raise UserError(f"{folder}: no readable result.json; only completed runs can be exported")
    require_new(out)
    package, writer = _WRITERS[to]
    if find_spec(package) is None:
        raise UserError(f"--to {to} needs the package {package}: {install(to)}")
    with as_user_error(out, "cannot be created", "choose another --out"):
        out.mkdir(parents=True)
    try:
        writer(run, run.result, out)
    except BaseException as error:
        shutil.rmtree(out, ignore_errors=True)
        if isinstance(error, ModuleNotFoundError):  # mlflow-skinny lacks the dependencies of its database
            raise UserError(f"--to {to} needs the package {error.name}: {install(to)}") from None
        if isinstance(error, OSError):
            raise UserError(f"{out} cannot be written ({error.strerror}); choose another --out") from None
        raise
    return out


def metrics_of(result: Result) -> list[dict[str, float]]:
    """The numbers of each epoch by name, starting with ``epoch``; missing and non-finite numbers are omitted."""
    rows = []
    for epoch in result.epochs:
        numbers = epoch.model_dump()
        rows.append({k: v for k, v in numbers.items() if isinstance(v, int | float) and abs(v) < 1e300})
    return rows


def _ends(result: Result, began_ms: float) -> list[float]:
    """The end of each epoch in milliseconds since 1970, computed from the seconds of training and evaluation so
    far."""
    seconds = accumulate((epoch.train_s or 0.0) + (epoch.eval_s or 0.0) for epoch in result.epochs)
    return [began_ms + 1e3 * each for each in seconds]


def _facts(result: Result) -> dict[str, Any]:
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


def _energy(result: Result) -> dict[str, float | None]:
    """The joules of the run by kind of counter; None for a kind with missing values."""
    return {f"energy_{kind}_j": energy.whole_joules for kind, energy in in_order(result.energy).items()}


def _csv(run: RunDirectory, result: Result, out: Path) -> None:
    rows = metrics_of(result)
    names = list(dict.fromkeys(name for row in rows for name in row))
    epochs = csv_text(names, ([row.get(name, "") for name in names] for row in rows))
    (out / "epochs.csv").write_text(epochs, "utf-8", newline="")
    facts = {**_facts(result), "time_to_train_s": result.time_to_train_s, **_energy(result)}
    (out / "run.csv").write_text(csv_text(("key", "value"), facts.items()), "utf-8", newline="")


def _tensorboard(run: RunDirectory, result: Result, out: Path) -> None:
    # TensorBoard loads TensorFlow if it is installed; TensorFlow's messages about its build are suppressed.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    began = run.log.run.start_ms if run.log and run.log.run else 0.0
    writer = EventFileWriter(str(out))
    for row, at in zip(metrics_of(result), _ends(result, began), strict=True):
        values = [
            Summary.Value(tag=name, simple_value=value) for name, value in row.items() if name != "epoch"
        ]
        writer.add_event(Event(wall_time=at / 1e3, step=int(row["epoch"]), summary=Summary(value=values)))
    writer.close()


def _mlflow(run: RunDirectory, result: Result, out: Path) -> None:
    """Write the run as an SQLite database for MLflow, whose file store has been in maintenance mode since 3.13.

    The database is written in a temporary folder and copied, because some shared file systems lack the locks that
    SQLite needs, and MLflow cannot open paths with ``?`` or ``%``.
    """
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"  # telemetry is enabled by default
    from mlflow.tracking import MlflowClient

    with TemporaryDirectory(prefix="mlhpc-") as folder:
        client = MlflowClient(f"sqlite:///{folder}/mlflow.db")
        experiment = client.create_experiment(result.benchmark, (out.resolve() / "artifacts").as_uri())
        _mlflow_run(client, experiment, run, result)
        with (
            closing(sqlite3.connect(f"{folder}/mlflow.db")) as database,
            closing(sqlite3.connect(f"{folder}/whole.db")) as whole,
        ):
            database.backup(whole)
        shutil.copyfile(f"{folder}/whole.db", out / "mlflow.db")


def _mlflow_run(client: Any, experiment: str, run: RunDirectory, result: Result) -> None:
    from mlflow.entities import Param, RunTag

    clock = run.log.run if run.log else None
    began, ended = (int(clock.start_ms), int(clock.stop_ms)) if clock else (0, 0)
    of_run = client.create_run(experiment, began, run_name=run.path.resolve().name).info.run_id
    settings = dotted(run.config.model_dump(mode="json")) if run.config else ()
    params = [Param(_mlflow_name(key), str(value)[:6000]) for key, value in settings]
    tags = [RunTag(f"mlhpc.{key}", str(value)) for key, value in _facts(result).items()]
    metrics = _mlflow_metrics(result, began)
    client.log_batch(of_run, tags=tags)
    for start in range(0, len(params), 100):  # MLflow's maximum per call
        client.log_batch(of_run, params=params[start : start + 100])
    for start in range(0, len(metrics), 1000):
        client.log_batch(of_run, metrics=metrics[start : start + 1000])
    complete = result.status in ("success", "failed", "emulated")  # target missed, but finished
    client.set_terminated(of_run, "FINISHED" if complete else "KILLED", ended)


def _mlflow_metrics(result: Result, began_ms: float) -> list[Any]:
    """Metrics of every epoch, with the epoch's number and end time. Metrics of the whole run have the number and
    end time of the last epoch."""
    from mlflow.entities import Metric

    metrics, at, step = [], began_ms, 0
    for row, at in zip(metrics_of(result), _ends(result, began_ms), strict=True):
        step = int(row.pop("epoch"))
        metrics += [Metric(_mlflow_name(key), value, int(at), step) for key, value in row.items()]
    whole = {
        "time_to_train_s": result.time_to_train_s,
        "time_to_train_without_staging_s": result.time_to_train_without_staging_s,
        **_energy(result),
    }
    return metrics + [Metric(key, value, int(at), step) for key, value in whole.items() if value is not None]


def _mlflow_name(name: str) -> str:
    """``name`` with every character that MLflow does not allow replaced by _HEX_, its code in hexadecimal. MLflow
    allows letters, digits, _ - . and a few more."""
    return re.sub(r"[^\w.-]|^[.]", lambda character: f"_{ord(character[0]):x}_", name)[:250]


_WRITERS: dict[str, tuple[str, Callable[[RunDirectory, Result, Path], None]]] = {
    "csv": ("csv", _csv),
    "tensorboard": ("tensorboard", _tensorboard),
    "mlflow": ("mlflow", _mlflow),
}
"""The package that each tool requires, and the function that exports for it."""
