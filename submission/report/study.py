"""The measurements of a study: training throughput by cell, read from the run folders.

A study (Han et al. 2019, "A Quantitative Study of Deep Learning Training on Heterogeneous Supercomputers") runs
the same training under varied settings, several times each. A cell is one combination of settings; its folder
contains ``cell.json`` with the settings and one run folder per repeat. The steps after the warm-up of a run are
timed, including data wait, by the clock of rank 0, since ranks train in lockstep. The data wait covers all ranks
(``common/timing/data_wait.py``).
"""

import math
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from pydantic import ValidationError

from mlhpc.benchmarks.load import dotted, loads, toml_value
from mlhpc.benchmarks.schema import Run
from mlhpc.common.energy.counters import shared_kind
from mlhpc.common.files.untrusted import read_text
from mlhpc.common.timing.event_files import event_files
from mlhpc.errors import UserError
from mlhpc.quantities import seconds_text
from mlhpc.record.breakdown import waits_are_of_all_ranks
from mlhpc.record.energy import Energy, energies_in, whole_joules
from mlhpc.record.environment import Environment
from mlhpc.record.events import events_of_rank_0, read_events
from mlhpc.record.fields import first_problem
from mlhpc.record.series import CellRecord, ServersRecord, Value
from mlhpc.submission.report.servers import ServerFigures
from mlhpc.submission.report.spread import Spread, spread

CELL = "cell.json"
PLACES = ("codec", "batch", "ranks", "data", "storage")
"""Settings of a cell that are not in the configuration of its runs: the codec of the data set, if varied; the
local batch size (samples per rank per step); the number of ranks; the name of the data set's folder; and whether
data is read in place (shared) or staged."""
SERVERS, UPDATES = "parameter_servers", "updates"
"""Settings of a cell that is trained with parameter servers: the number of servers (0: a ring all-reduce), and
whether updates are synchronous or asynchronous. Runs do not have these settings, because a separate program
measures such cells (``Benchmark.servers_study``)."""
GLOBAL_BATCH = "hyperparameters.global_batch_size"


@dataclass(frozen=True)
class Measured:
    """The measurement of one run: ``steps`` steps in ``seconds``, including ``wait_s`` seconds of data wait.
    ``staging_s`` is None if nothing was staged, or if some files were already in place. ``checkpoint_s``: time
    taken to write a checkpoint after the steps, with ``training.checkpoint_epochs=1``. ``joules_per_sample``:
    energy of the steps per sample, by kind of counter; ``busy``: fraction of the run's time in which accelerators
    computed."""

    path: Path
    steps: int
    samples: int
    seconds: float
    wait_s: float
    staging_s: float | None
    environment: Environment | None
    servers: ServerFigures | None = None
    joules_per_sample: Mapping[str, float] = field(default_factory=dict)
    checkpoint_s: float | None = None
    busy: float | None = None

    @property
    def samples_per_s(self) -> float:
        """Throughput of the run in training samples/s."""
        return self.samples / self.seconds

    @property
    def step_s(self) -> float:
        """Mean seconds of a step."""
        return self.seconds / self.steps

    @property
    def wait_share(self) -> float:
        """Fraction of the time that was spent waiting for data."""
        return self.wait_s / self.seconds


@dataclass(frozen=True)
class Cell:
    """A cell of a study: one combination of settings, with its measured runs and its failures. ``data``,
    ``stage``: paths of the data set and the staging folder."""

    path: Path
    settings: Mapping[str, Value]
    data: str
    stage: str | None
    runs: tuple[Measured, ...]
    failures: tuple[str, ...]

    @property
    def samples_per_s(self) -> Spread | None:
        """Throughput of the measured runs in samples/s."""
        return spread(run.samples_per_s for run in self.runs)

    @property
    def variability(self) -> float | None:
        """How much longer the longest run took than the shortest, as a fraction of the shortest (Han et al. 2019,
        Fig. 4b)."""
        if len(self.runs) < 2:
            return None
        seconds = [run.step_s for run in self.runs]
        return max(seconds) / min(seconds) - 1


@dataclass(frozen=True)
class Study:
    """The cells in a study's folder. ``axes``: the settings in which the cells differ."""

    path: Path
    cells: tuple[Cell, ...]
    axes: tuple[str, ...]

    def name(self, axis: str) -> str:
        """The last part of a setting's dotted name; the whole name if the last parts of two axes are the same."""
        lasts = [other.removesuffix(".name").rpartition(".")[2] for other in (axis, *self.axes)]
        return lasts[0] if lasts[1:].count(lasts[0]) <= 1 else axis

    @property
    def counter(self) -> str:
        """The kind of counter by which the cells' energies are compared: the most comprehensive one that all runs
        with energies have; empty if there is none."""
        return shared_kind(run.joules_per_sample for cell in self.cells for run in cell.runs)

    def values(self, axis: str) -> list[Value]:
        """The values of an axis: numbers in ascending order, other values in the order of the cells."""
        by_text = {
            repr(cell.settings[axis]): cell.settings[axis] for cell in self.cells if axis in cell.settings
        }
        values = list(by_text.values())  # 1 and true are equal
        return sorted(values) if is_numeric(values) else values


def read(path: Path, running: Callable[[str], bool] = lambda name: False) -> Study:
    """The study in the folder ``path``. ``running``: a function that returns whether the run ``CELL.NUMBER`` is in
    progress; such runs are omitted. Raises UserError if the folder contains no study, or if one of its cells
    cannot be read."""
    cell_files = sorted(path.glob(f"*/{CELL}"), key=lambda cell: (cell.stat().st_mtime_ns, cell.parent.name))
    cells = _with_distinct_names([_read_cell(cell.parent, running) for cell in cell_files])
    if not cells:
        raise UserError(f"{path}: not a study; start one with mlhpc study BENCHMARK --vary KEY=A,B")
    keys = [*PLACES, *dict.fromkeys(key for cell in cells for key in cell.settings if key not in PLACES)]
    n_values = {key: len({repr(cell.settings.get(key)) for cell in cells}) for key in keys}
    # One of the two batch sizes follows from the other and the number of ranks: the local one in strong scaling.
    follows = "batch" if n_values.get(GLOBAL_BATCH, n_values["batch"]) < n_values["batch"] else GLOBAL_BATCH
    axes = [key for key in keys if n_values[key] > 1 and key != follows]
    # Network settings come first: they distinguish the curves of a figure.
    axes.sort(key=lambda key: not key.startswith("network."))
    study = Study(path, tuple(cells), tuple(axes))
    places = [{repr(value): i for i, value in enumerate(study.values(axis))} for axis in axes]

    def order(cell: Cell) -> list[int]:
        return [at.get(repr(cell.settings.get(axis)), -1) for axis, at in zip(axes, places, strict=True)]

    return Study(path, tuple(sorted(cells, key=order)), tuple(axes))


def described(folder: Path) -> CellRecord:
    """The contents of a cell's ``cell.json``. Raises UserError if the file cannot be read."""
    if record := CellRecord.read_or_none(folder / CELL):
        return record
    raise UserError(f"{folder / CELL} cannot be read; move {folder} away, and restart the study")


def flat(run: Run) -> dict[str, Value]:
    """The settings of a run by dotted name."""
    settings = dotted(run.model_dump(mode="json", exclude={"description", "division"}, exclude_none=True))
    return {key: toml_value(value) if isinstance(value, list) else value for key, value in settings}


def measured(run: Path, settings: Mapping[str, Value]) -> Measured:
    """The measurement of one run of a cell with ``settings``. Raises ValueError, with the reason, if the run did
    not finish or was made with other settings."""
    try:
        figures = _measured(run, settings)
    except (ArithmeticError, AttributeError, KeyError, OSError, RecursionError, TypeError) as error:
        raise ValueError(f"its record is damaged ({type(error).__name__}: {error})") from None
    if figures.steps < 1:
        raise ValueError("it measured no steps")
    if not (0 < figures.seconds < math.inf and math.isfinite(figures.wait_s)):
        steps, wait = seconds_text(figures.seconds), seconds_text(figures.wait_s)
        raise ValueError(f"its record is damaged (steps of {steps} in all, {wait} of them waiting)")
    return figures


def _measured(run: Path, settings: Mapping[str, Value]) -> Measured:
    if SERVERS in settings:
        return _measured_with_servers(run, settings)
    events = events_of_rank_0(run)
    begins, ends, notes, timed, marks = (
        {e["name"]: e for e in events if e["event"] == kind}
        for kind in ("begin", "end", "note", "timed", "mark")
    )
    for name in ("run", "init"):
        if "error" in ends.get(name, {}):
            raise ValueError(ends[name]["error"])
    if "run" not in ends or "train" not in ends:
        raise ValueError(last_words(run) or "it did not end: killed, or out of time or memory?")
    config = _config(run, settings, {"ranks": notes["facts"]["ranks"]})
    wait, warm = timed["data_wait"], marks.get("warm")
    # A run of an early version recorded only the data wait of rank 0.
    waited = wait["seconds"] - (warm["waited"].get("data_wait", 0.0) if warm else 0.0)
    if waits_are_of_all_ranks(events):
        loops = (e for e in events if (e["event"], e["name"]) == ("waited", "data_wait"))
        waited = sum(e["seconds"] for e in loops if not warm or e.get("after") == "warm")
    expected_steps = config.study.warmup_steps + config.study.steps
    # The number of batches is the number of steps times the gradient accumulation.
    if not expected_steps or not wait["count"] or wait["count"] % expected_steps:
        raise ValueError(
            f"it trained on {wait['count']} batch{'es' * (wait['count'] != 1)}, not {expected_steps} steps"
        )
    if warm is None and config.study.warmup_steps:
        raise ValueError("it ended before its warm-up")
    copied = "staging" in ends and not notes.get("staging", {}).get("kept")
    energies = energies_in(notes.get("energy", {}))
    samples = config.study.steps * config.hyperparameters.global_batch_size
    return Measured(
        run,
        steps=config.study.steps,
        samples=samples,
        seconds=ends["train"]["t"] - (warm or begins["train"])["t"],
        wait_s=waited,
        staging_s=ends["staging"]["seconds"] if copied else None,
        environment=Environment.read_or_none(run / "env.json"),
        checkpoint_s=ends["checkpoint"]["seconds"] if "checkpoint" in ends else None,
        joules_per_sample={kind: joules / samples for kind, joules in _joules(run, energies).items()},
        busy=energies["accelerators"].usage.get("busy") if "accelerators" in energies else None,
    )


def _joules(run: Path, energies: Mapping[str, Energy]) -> dict[str, float]:
    """The energy of the steps after the warm-up, by kind of counter, interpolated between each rank's readings.
    Without kinds that a rank read fewer than twice in these steps, that Slurm reads (only at the start and end of
    a run), or for which counters are missing."""
    kinds = {kind for kind in whole_joules(energies) if "Slurm" not in energies[kind].source}
    joules = dict.fromkeys(kinds, 0.0)
    for path in event_files(run).values() if kinds else ():
        events = read_events(path)
        starts = [e["t"] for e in events if (e["event"], e["name"]) in (("begin", "train"), ("mark", "warm"))]
        ends = [e["t"] for e in events if (e["event"], e["name"]) == ("end", "train")]
        for kind in kinds:
            readings = [(e["t"], e["joules"]) for e in events if (e["event"], e["name"]) == ("energy", kind)]
            if not readings:
                continue  # another rank of the node reads its counters
            times, counted = zip(*readings, strict=True)
            begin, end = (starts[-1], ends[-1]) if starts and ends else (0.0, 0.0)
            if sum(begin <= t <= end for t in times) < 2:
                joules.pop(kind, None)
            elif kind in joules:
                joules[kind] += float(np.interp(end, times, counted) - np.interp(begin, times, counted))
    return {kind: value for kind, value in joules.items() if value}


def _measured_with_servers(run: Path, settings: Mapping[str, Value]) -> Measured:
    if not (run / "servers.json").exists():
        raise ValueError(last_words(run) or "it did not end: killed, or out of time or memory?")
    try:
        record = ServersRecord.read(run / "servers.json")
    except ValidationError as error:
        raise ValueError(f"its servers.json is damaged ({first_problem(error)})") from None
    run_with: dict[str, Value] = {"ranks": record.workers, SERVERS: record.servers, UPDATES: record.updates}
    config = _config(run, settings, run_with)
    if record.steps != config.study.steps:
        raise ValueError(f"it took {record.steps} steps, not {config.study.steps}")
    return Measured(
        run,
        steps=config.study.steps,
        samples=config.study.steps * config.hyperparameters.global_batch_size,
        seconds=record.seconds,
        wait_s=record.wait_s,
        staging_s=None,
        environment=Environment.read_or_none(run / "env.json"),
        servers=ServerFigures.of(record),
    )


def _config(run: Path, settings: Mapping[str, Value], placed: Mapping[str, Value]) -> Run:
    """The configuration of a run. Raises ValueError if the configuration, or the placement ``placed``, differs
    from the ``settings`` of the run's cell."""
    try:
        config = loads(read_text(run / "config.toml", flags=os.O_NOFOLLOW))
    except (ValueError, RecursionError):
        raise ValueError("its config.toml is damaged, or of another version") from None
    run_with = flat(config) | dict(placed)
    other = next((key for key, value in run_with.items() if settings.get(key, value) != value), None)
    if other:
        raise ValueError(f"it was run with {other} {run_with[other]}, not the cell's {settings[other]}")
    return config


def _read_cell(folder: Path, running: Callable[[str], bool]) -> Cell:
    cell = described(folder)
    # A run that failed before its folder was created has left only its output.
    matches = (re.fullmatch(r"run-(\d+)(\.out)?", path.name) for path in folder.iterdir())
    runs, failures = [], []
    for number in sorted({int(name[1]) for name in matches if name}):
        if running(f"{folder.name}.{number}"):
            continue
        try:
            runs.append(measured(folder / f"run-{number}", cell.settings))
        except ValueError as why:
            failures.append(f"run-{number}: {why}")
    return Cell(folder, cell.settings, cell.data, cell.stage, tuple(runs), tuple(failures))


def _with_distinct_names(cells: Sequence[Cell]) -> list[Cell]:
    """The cells with distinct names in their settings: each data set is named by the shortest distinguishing part
    of its path and, if there are several staging folders, staging by its folder."""
    of = {cell.data: family(cell.data, str(cell.settings.get("codec", ""))) for cell in cells}
    data = _names(set(of.values()))
    stages = _names({cell.stage for cell in cells if cell.stage})
    separate = []
    for cell in cells:
        places: dict[str, Value] = {"data": data[of[cell.data]]}
        if cell.stage and len(stages) > 1:
            places["storage"] = f"staged in {stages[cell.stage]}"
        separate.append(replace(cell, settings={**cell.settings, **places}))
    return separate


def family(data: str, codec: str) -> str:
    """The common path of data sets that differ only in the codec: ``DIR`` for the data set ``DIR-CODEC``."""
    return data.removesuffix(f"-{codec}") if codec else data


def _names(paths: set[str]) -> dict[str, str]:
    """The shortest suffixes that distinguish the paths, all with the same number of components: usually only the
    last component."""
    names: dict[str, str] = {}
    for length in range(1, 1 + max((len(Path(path).parts) for path in paths), default=0)):
        names = {path: "/".join(Path(path).parts[-length:]) for path in paths}
        if len(set(names.values())) == len(paths):
            break
    return names


def accuracy(cell: Cell) -> float | None:
    """The mean accuracy of a cell's runs; None if no accuracy was measured."""
    mean_accuracy = spread(run.servers.accuracy for run in cell.runs if run.servers)
    return mean_accuracy.mean if mean_accuracy else None


def accuracy_loss(study: Study, cell: Cell) -> float | None:
    """The accuracy lost by asynchronous updates: the accuracy of the cell with synchronous updates and otherwise
    the same settings, minus that of ``cell``; None if ``cell`` is synchronous or the study has no such cell."""
    if cell.settings.get(UPDATES) != "asynchronous":
        return None
    synchronous = {**cell.settings, UPDATES: "synchronous"}
    same = [accuracy(other) for other in study.cells if other.settings == synchronous]
    own_accuracy, other_accuracy = accuracy(cell), next((each for each in same if each is not None), None)
    return None if own_accuracy is None or other_accuracy is None else other_accuracy - own_accuracy


def is_numeric(values: Iterable[Value]) -> bool:
    """Return whether all values are numbers above zero, suitable for a logarithmic axis."""
    return all(isinstance(v, int | float) and not isinstance(v, bool) and v > 0 for v in values)


def grouped(cells: Iterable[Cell], axes: Sequence[str]) -> dict[tuple[Value | None, ...], list[Cell]]:
    """The cells grouped by the values of their settings ``axes``; the order of the cells is kept."""
    groups: dict[tuple[Value | None, ...], list[Cell]] = {}
    for cell in cells:
        groups.setdefault(tuple(cell.settings.get(axis) for axis in axes), []).append(cell)
    return groups


def last_words(run: Path) -> str:
    """The last line that a failed run printed, for a run whose record states no reason."""
    try:
        lines = read_text(run.with_suffix(".out"), errors="replace", flags=os.O_NOFOLLOW).splitlines()
    except (OSError, ValueError):
        return ""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")
