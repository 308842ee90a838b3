"""What a study measured: training throughput by cell, read from the runs' own directories.

A study (Han et al. 2019, "A Quantitative Study of Deep Learning Training on Heterogeneous Supercomputers") runs
the same training under varied settings, several times each. A cell is one choice of settings; its folder holds
``cell.json``, what was chosen, and one run directory a repeat. What is measured of a run: the steps after its
warm-up, waiting for data included, on the clock of rank 0; ranks train in lockstep.
"""

import contextlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlhpc.benchmarks.load import loads
from mlhpc.common.errors import UserError
from mlhpc.common.timing.breakdown import read_events
from mlhpc.submission.entry import Spread, spread

Value = str | int | float | bool

CELL = "cell.json"
PLACES = ("batch", "ranks", "data", "storage")
"""What a cell is besides the configuration of its runs: samples a rank trains on in a step (local batch size),
ranks, the name of the data set's folder, and whether it is read where it lies (shared) or staged."""
FOLLOWS = ("hyperparameters.global_batch_size",)
"""Settings that follow from others: batch times ranks."""


@dataclass(frozen=True)
class Measured:
    """One run: ``steps`` steps in ``seconds``, of which it waited ``wait_s`` for data."""

    path: Path
    steps: int
    samples: int
    seconds: float
    wait_s: float
    staging_s: float | None
    environment: Mapping[str, Any]

    @property
    def samples_per_s(self) -> float:
        return self.samples / self.seconds

    @property
    def step_s(self) -> float:
        return self.seconds / self.steps

    @property
    def wait_share(self) -> float:
        return self.wait_s / self.seconds


@dataclass(frozen=True)
class Cell:
    """One choice of settings, the runs that measured it, and why others did not."""

    path: Path
    settings: Mapping[str, Value]
    runs: tuple[Measured, ...]
    failures: tuple[str, ...]

    @property
    def samples_per_s(self) -> Spread | None:
        return spread(run.samples_per_s for run in self.runs)

    @property
    def variability(self) -> float | None:
        """What the longest run took more than the shortest, as a share of the shortest (paper 003, Fig. 4b)."""
        if len(self.runs) < 2:
            return None
        seconds = [run.step_s for run in self.runs]
        return max(seconds) / min(seconds) - 1


@dataclass(frozen=True)
class Study:
    """The cells of a folder, and the settings in which they differ: ``axes``."""

    path: Path
    cells: tuple[Cell, ...]
    axes: tuple[str, ...]

    def values(self, axis: str) -> list[Value]:
        """What an axis takes: numbers in order, words in the order of the cells."""
        found = list(dict.fromkeys(cell.settings[axis] for cell in self.cells if axis in cell.settings))
        return sorted(found) if is_numeric(found) else found


def read(path: Path) -> Study:
    """The study in a folder. Raises UserError when there is none."""
    found = sorted(path.glob(f"*/{CELL}"), key=lambda cell: (cell.stat().st_mtime_ns, cell.parent.name))
    cells = [read_cell(cell.parent) for cell in found]
    if not cells:
        raise UserError(f"{path}: no study lies there; make one with mlhpc study BENCHMARK --vary KEY=A,B")
    keys = [*PLACES, *dict.fromkeys(key for cell in cells for key in cell.settings if key not in PLACES)]
    axes = [
        key
        for key in keys
        if key not in FOLLOWS and len({repr(cell.settings.get(key)) for cell in cells}) > 1
    ]
    # What is trained comes first: it tells the curves of a picture apart.
    axes.sort(key=lambda key: not key.startswith("network."))
    study = Study(path, tuple(cells), tuple(axes))
    places = [{repr(value): i for i, value in enumerate(study.values(axis))} for axis in axes]

    def order(cell: Cell) -> list[int]:
        return [at.get(repr(cell.settings.get(axis)), -1) for axis, at in zip(axes, places, strict=True)]

    return Study(path, tuple(sorted(cells, key=order)), tuple(axes))


def read_cell(folder: Path) -> Cell:
    """A cell as its folder tells. Raises UserError when its ``cell.json`` cannot be read."""
    try:
        settings = json.loads((folder / CELL).read_text("utf-8"))["settings"]
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"{folder / CELL}: cannot be read: {error}; move {folder} away") from None
    runs, failures = [], []
    for run in sorted(folder.glob("run-*/"), key=lambda run: int(run.name.removeprefix("run-"))):
        try:
            runs.append(measured(run))
        except ValueError as why:
            failures.append(f"{run.name}: {why}")
    return Cell(folder, settings, tuple(runs), tuple(failures))


def measured(run: Path) -> Measured:
    """What one run measured. Raises ValueError, saying why, when it has not come to its end."""
    events: list[dict[str, Any]] = []
    with contextlib.suppress(OSError):
        events = read_events(run / "events.rank0.jsonl")
    ends = {e["name"]: e for e in events if e["event"] == "end"}
    for name in ("run", "init"):
        if "error" in ends.get(name, {}):
            raise ValueError(ends[name]["error"])
    if "run" not in ends or "train" not in ends:
        raise ValueError(_last_words(run) or "it did not end: killed, or out of time or memory?")
    config = loads((run / "config.toml").read_text("utf-8"))
    begins = {e["name"]: e for e in events if e["event"] == "begin"}
    warm = next((e for e in events if e["event"] == "mark" and e["name"] == "warm"), None)
    wait = next(e for e in events if e["event"] == "timed" and e["name"] == "data_wait")
    if warm is None and config.study.warmup_steps:
        raise ValueError("it ended before its warm-up")
    started = warm["t"] if warm else begins["train"]["t"]
    environment: dict[str, Any] = {}
    with contextlib.suppress(OSError, ValueError):
        environment = json.loads((run / "env.json").read_text("utf-8"))
    return Measured(
        run,
        steps=config.study.steps,
        samples=config.study.steps * config.hyperparameters.global_batch_size,
        seconds=ends["train"]["t"] - started,
        wait_s=wait["seconds"] - (warm["waited"].get("data_wait", 0.0) if warm else 0.0),
        staging_s=ends["staging"]["seconds"] if "staging" in ends else None,
        environment=environment,
    )


def is_numeric(values: Iterable[Value]) -> bool:
    """Whether all are numbers above zero: they then have an order and a logarithm."""
    return all(isinstance(v, int | float) and not isinstance(v, bool) and v > 0 for v in values)


def grouped(cells: Iterable[Cell], axes: Sequence[str]) -> dict[tuple[Value | None, ...], list[Cell]]:
    """The cells that agree in ``axes``, by what they agree in, in their order."""
    groups: dict[tuple[Value | None, ...], list[Cell]] = {}
    for cell in cells:
        groups.setdefault(tuple(cell.settings.get(axis) for axis in axes), []).append(cell)
    return groups


def _last_words(run: Path) -> str:
    """What a run that left no reason in its record last printed."""
    try:
        lines = run.with_suffix(".out").read_text("utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")
