"""Published results as rows: MLPerf HPC 0.7 to 3.0, ``published.csv``, or a file with the same columns.

Each row is a set of runs of one configuration: throughput, epochs and times, computed from the logs that the
submitters published at github.com/mlcommons (hpc_results_v0.7 to _v3.0), without republished copies.
``use`` is ``fit`` if the model may be fitted to the row, ``test`` if the model is only tested on the row, ``seen``
for round 3.0, whose results were not looked at before the model was finished and to which a separate fit was then
made (``calibration.recent``), and ``blind`` if its prediction was committed before its result was read:
``blind.csv``, ResNet-50 of MLPerf Training.
"""

import csv
import io
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import resources
from pathlib import Path
from typing import Any

from mlhpc.benchmarks.load import load
from mlhpc.benchmarks.schema import Run
from mlhpc.errors import UserError, few
from mlhpc.perf.machines import Machine, known, machine
from mlhpc.perf.networks.layer import Network, Precision
from mlhpc.perf.networks.registry import KNOWN, network_of
from mlhpc.perf.scaling import Triple

SOURCE = "MLPerf HPC 0.7, 1.0 and 2.0, computed from the published logs"
_FRAMEWORKS = {"torch": "PyTorch", "mxnet": "MXNet", "tensorflow": "TensorFlow"}
_WANTED = {"use", "round", "benchmark", "framework", "accelerators_per_instance", "global_batch_size",
           "train_samples", "train_samples_per_s_per_accel", "epochs_to_converge_mean"}  # fmt: skip
USES = ("fit", "test", "seen", "blind")
_YEARS = {"v0.7": 2020, "v1.0": 2021, "v2.0": 2022, "v3.0": 2023}


@dataclass(frozen=True)
class Published:
    """One set. Times in seconds; None where the logs lack them. ``local_batch_size`` below 1: several accelerators
    per sample. ``samples_per_s``: training samples/s of one accelerator. ``epochs``: mean, minimum and maximum."""

    use: str
    round: str
    submitter: str
    system: str
    division: str
    benchmark: str
    metric: str
    nodes: int
    accelerators: int
    model: str
    software: str
    batch: int
    local_batch_size: float
    train_samples: int
    epochs: tuple[float, float, float]
    epoch_s: float
    excess_s: float
    samples_per_s: float
    total_s: float | None
    staging_s: float | None
    eval_fraction: float | None
    where: str
    committed: tuple[Triple, Triple] | None = None
    """The committed predictions of a blind row with their intervals: ``samples_per_s`` and epochs."""

    @property
    def name(self) -> str:
        """Round, submitter and system."""
        return f"{self.round} {self.submitter} {self.system}"

    @property
    def is_early(self) -> bool:
        """Return whether the row was known when the model was made."""
        return self.use in ("fit", "test")

    @property
    def framework(self) -> str:
        """The framework named in the log's software entry; the whole entry if it names no known framework."""
        return next(
            (name for key, name in _FRAMEWORKS.items() if key in self.software.lower()), self.software
        )

    @property
    def generation(self) -> str:
        """Framework, kind of build and year, which determine the speed of a network on given hardware."""
        build = " NGC" if "NVIDIA Release" in self.software else " Mesh" if "Mesh" in self.software else ""
        return f"{self.framework}{build} {self.year}"

    @property
    def precision(self) -> Precision:
        """The precision of training, which is not in the logs. The TensorFlow reference trains CosmoFlow in
        float32 by default, which the submissions' scripts do not change; MXNet and PyTorch submissions use
        automatic mixed precision."""
        return "float32" if self.framework == "TensorFlow" else "mixed_float16"

    @property
    def year(self) -> int:
        """The year of the round."""
        return _YEARS.get(self.round, max(_YEARS.values()))

    @property
    def spatial(self) -> int:
        """Accelerators per sample."""
        return max(1, round(1 / self.local_batch_size))

    @property
    def step_s(self) -> float:
        """Seconds of a training step."""
        return self.local_batch_size / self.samples_per_s

    @property
    def preset(self) -> str:
        """The name of a preset with this set's network and data."""
        return "v07" if self.benchmark == "cosmoflow" and self.round == "v0.7" else "closed"

    @property
    def run(self) -> Run:
        """The configuration of its preset."""
        return _run(self.benchmark, self.preset)

    @property
    def network(self) -> Network:
        """The layers of its network."""
        return _network(self.benchmark, self.preset)

    @cached_property
    def machine(self) -> Machine:
        """The machine whose ``systems`` include the beginning of this set's system_desc_id. Raises UserError if
        there is none."""
        named = re.sub(r"\W", "", self.system.lower())
        for system in _machines():
            names = (re.sub(r"\W", "", name.lower()) for name in system.facts.get("systems", ()))
            if any(named.startswith(name) for name in names):
                return system
        raise UserError(f"{self.where}: no machine file for the system {self.system!r}; pass --machine")


@cache
def _run(benchmark: str, preset: str) -> Run:
    return load(benchmark, preset)


@cache
def _network(benchmark: str, preset: str) -> Network:
    return network_of(_run(benchmark, preset))


@cache
def published() -> tuple[Published, ...]:
    """The rows of the suite's files."""
    folder = resources.files("mlhpc.perf")
    names = ("published.csv", "blind.csv")
    return tuple(row for name in names for row in parse(folder.joinpath(name).read_text("utf-8"), name))


def read(path: Path) -> list[Published]:
    """The rows of a file with the columns of ``published.csv``. Raises UserError that names the invalid line."""
    try:
        return list(parse(path.read_text("utf-8"), str(path)))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UserError(f"{path} cannot be read ({reason}); pass a CSV file of measured sets") from None


def parse(text: str, where: str) -> Iterable[Published]:
    """Parse the rows of a file. Raises UserError that names the invalid line."""
    reader = csv.DictReader(io.StringIO(text))
    if missing := sorted(_WANTED - set(reader.fieldnames or ())):
        raise UserError(f"{where}, line 1: --against requires the column {missing[0]!r}")  # fmt: skip
    try:
        rows = [_row(row, f"{where}, line {reader.line_num}") for row in reader]
    except csv.Error as error:
        raise UserError(f"{where}, line {reader.line_num + 1}: invalid CSV ({error})") from None
    if not rows:
        raise UserError(f"{where}: no rows after the header; add one per measured set")
    return rows


class _Cells:
    """The numeric cells of a row; ``where`` names the row in error messages."""

    def __init__(self, row: dict[str, Any], where: str) -> None:
        self._row, self._where = row, where

    def number(self, key: str, *, optional: bool = False) -> float:
        """A number above 0. If ``optional``, 0 is allowed as well, and an empty cell gives NaN."""
        text = (self._row.get(key) or "").strip()
        if not text and optional:
            return math.nan
        try:
            value = float(text)
        except ValueError:
            raise UserError(f"{self._where}: {key} is {text!r}, not a number") from None
        if not (math.isfinite(value) and value >= 0) or (value == 0 and not optional):
            raise UserError(f"{self._where}: {key} is {text}; expected a number above 0")
        return value

    def maybe(self, key: str, factor: float = 1.0) -> float | None:
        """The cell's number, multiplied by ``factor``; None for an empty cell."""
        value = self.number(key, optional=True) * factor
        return None if math.isnan(value) else value

    def whole(self, key: str) -> int:
        """A whole number above 0."""
        value = self.number(key)
        if value != int(value):
            raise UserError(f"{self._where}: {key} is {self._row[key]}; expected a whole number")
        return int(value)


def _row(row: dict[str, Any], where: str) -> Published:
    cells = _Cells(row, where)
    if row["benchmark"] not in KNOWN:
        raise UserError(
            f"{where}: benchmark {row['benchmark']!r} has no performance model; choose from {', '.join(KNOWN)}"
        )
    if row.get("use") not in USES:
        raise UserError(
            f"{where}: the column use is {row.get('use')!r}; expected {few(USES[:-1], 9)} or {USES[-1]}"
        )
    mean, rate = cells.number("epochs_to_converge_mean"), cells.number("train_samples_per_s_per_accel")
    accelerators, batch = cells.whole("accelerators_per_instance"), cells.whole("global_batch_size")
    return Published(
        use=row["use"],
        round=row["round"],
        submitter=row.get("submitter") or "",
        system=row.get("system_desc_id") or "",
        division=row.get("division") or "",
        benchmark=row["benchmark"],
        metric=row.get("metric") or "strong",
        nodes=int(cells.maybe("number_of_nodes") or 0),
        accelerators=accelerators,
        model=row.get("accelerator_model_name") or "",
        software=row["framework"],
        batch=batch,
        local_batch_size=batch / accelerators,
        train_samples=cells.whole("train_samples"),
        epochs=(mean, cells.maybe("epochs_min") or mean, cells.maybe("epochs_max") or mean),
        epoch_s=cells.number("train_samples") / rate / accelerators,
        excess_s=cells.maybe("epoch1_excess_min", 60.0) or 0.0,
        samples_per_s=rate,
        total_s=cells.maybe("score_min", 60.0),
        staging_s=cells.maybe("staging_min", 60.0),
        eval_fraction=cells.maybe("eval_fraction"),
        where=where,
        committed=_committed(cells) if row["use"] == "blind" else None,
    )


def _committed(cells: _Cells) -> tuple[Triple, Triple]:
    rate, low, high = (cells.number(f"predicted_{name}") for name in ("samples_per_s", "low", "high"))
    epochs = tuple(cells.number(f"predicted_epochs{end}") for end in ("", "_low", "_high"))
    return (rate, low, high), (epochs[0], epochs[1], epochs[2])


@cache
def _machines() -> tuple[Machine, ...]:
    return tuple(machine(name) for name in known())
