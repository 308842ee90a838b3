"""``mlhpc io sweep``: finds the fastest settings of a workload on this storage, and confirms them.

All combinations run ``repeats`` times, interleaved, so that drift of the storage affects all equally. The fastest
of many combinations is partly due to chance, so it is measured again alongside the workload's own settings before
it is recommended and, if the suite trains the workload, also in ``mlhpc run`` with the same settings."""

import itertools
import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from mlhpc.common.data import manifest
from mlhpc.common.data.archives import samples_per_archive
from mlhpc.common.files import atomic
from mlhpc.common.files.filesystem import filesystem_of
from mlhpc.common.pages.blocks import Cell, table
from mlhpc.common.pages.terminal import print_table, say
from mlhpc.common.ranks.local import output_of, set_words
from mlhpc.errors import UserError
from mlhpc.iobench.definition import load
from mlhpc.iobench.definition.schema import Workload
from mlhpc.iobench.emulate.plan import require_enough
from mlhpc.iobench.report.console import figure

OF_A_RUN = {"reader.threads": "loading.workers", "reader.prefetch": "loading.prefetch"}
"""Settings of a workload, and the equivalent settings of ``mlhpc run``."""
COMPRESSION = "dataset.compression"
CODECS = {"cosmoflow": {"gzip": "gzip", "none": "plain"}}
"""By benchmark: the name in ``mlhpc data convert`` for each ``dataset.compression``."""


@dataclass
class Point:
    """One combination of settings. ``rates``: samples/s of each of its runs, as in ``rate_of``."""

    settings: tuple[str, ...]
    data: Path
    rates: list[float] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Median samples/s."""
        return statistics.median(self.rates)

    @property
    def named(self) -> str:
        """The settings as text."""
        return ", ".join(self.settings) or "as the workload has it"

    def record(self) -> dict[str, Any]:
        """The point as JSON."""
        return {"settings": list(self.settings), "samples_per_s": self.rates}


@dataclass(frozen=True)
class Comparison:
    """The recommended settings and the workload's own, measured again alternately."""

    own: Point
    recommended: Point

    @property
    def gain(self) -> float:
        """The ratio of the rate with the recommended settings to that with the workload's own."""
        return self.recommended.rate / self.own.rate

    @property
    def confirmed(self) -> bool:
        """Return whether every run with the recommended settings was faster than every run with the workload's
        own."""
        return min(self.recommended.rates) > max(self.own.rates)

    def record(self) -> dict[str, Any]:
        """The comparison as JSON."""
        return {
            "own": self.own.record(), "recommended": self.recommended.record(), "gain": self.gain,
            "confirmed": self.confirmed,
        }  # fmt: skip


@dataclass(frozen=True)
class Sweep:
    """A sweep. ``source`` and ``settings`` are as for ``io run``. ``axes``: the values to try for each key.
    ``folder``: where the runs and their data go."""

    source: str
    settings: tuple[str, ...]
    axes: dict[str, list[str]]
    folder: Path
    repeats: int
    ranks: int

    def points(self) -> list[Point]:
        """The workload's own settings, then all combinations; equal data sets are shared. Raises UserError if a
        combination is invalid or has too few files for the ranks."""
        folders: dict[str, Path] = {}
        planned = []
        combinations = itertools.product(
            *([f"{key}={value}" for value in each] for key, each in self.axes.items())
        )
        seen: list[Workload] = []
        for chosen in [(), *combinations]:
            workload = self.workload(chosen)
            if workload in seen:  # for example, the workload's own settings
                continue
            seen.append(workload)
            if workload.dataset is None:
                raise UserError(f"{workload.name} reads no data, so there is nothing to sweep")
            require_enough(workload, self.ranks)
            record = workload.dataset.model_dump_json(exclude={"total_bytes"})
            data = folders.setdefault(record, self.folder / f"data-{len(folders)}")
            planned.append(Point(chosen, data))
        return planned

    def workload(self, chosen: Sequence[str] = ()) -> Workload:
        """The workload with the sweep's settings and the ``chosen`` ones."""
        return load.load(self.source, [*self.settings, *chosen])

    def measure(self, points: Sequence[Point], name: str) -> None:
        """Run each point ``repeats`` times, interleaved."""
        for number in range(self.repeats):
            for position, point in enumerate(points):
                out = self.folder / f"{name}-{position}-{number}"
                self._io("generate", point, "--workers", "1")
                self._io("run", point, "--out", str(out), "--ranks", str(self.ranks), "--null-steps", "0")
                point.rates.append(rate_of(json.loads((out / "result.json").read_text())))

    def _io(self, command: str, point: Point, *options: str) -> None:
        words = set_words([*self.settings, *point.settings])
        _mlhpc("io", command, self.source, "--data", str(point.data), *words, *options)


def rate_of(result: Mapping[str, Any]) -> float:
    """Samples/s of an emulation, counting the time in which ``reader.load_all`` reads before the first step."""
    training_s = sum(epoch["seconds"] - epoch["checkpoint_s"] for epoch in result["epochs"])
    return float(result["samples"] / (result["load_s"] + training_s))


def advise(sweep: Sweep) -> tuple[list[Point], Comparison | None]:
    """All measured points, and the comparison of the fastest with the workload's own settings; None if these are
    the fastest."""
    points = sweep.points()
    sweep.measure(points, "run")
    best = max(points, key=lambda point: point.rate)
    if best is points[0]:
        return points, None
    again = Comparison(*(Point(point.settings, point.data) for point in (points[0], best)))
    sweep.measure([again.own, again.recommended], "again")
    return points, again


def require_counterparts(sweep: Sweep, data: Path) -> None:
    """Raise UserError if ``in_a_run`` could not apply every possible recommendation to the data set ``data``."""
    workload = sweep.workload()
    if workload.suite != "mlhpc":
        raise UserError(f"mlhpc run cannot train workload {workload.name}; omit --confirm")
    codecs = CODECS.get(workload.name, {})
    for key, values in sweep.axes.items():
        if key not in OF_A_RUN and not (key == COMPRESSION and codecs.keys() >= set(values)):
            raise UserError(f"mlhpc run cannot apply {key}={','.join(values)}; omit --confirm")
    manifest.require_folder(data)
    if not any(data.iterdir()):
        raise UserError(f"--confirm {data} is empty; pass a data set of {workload.name}")
    if COMPRESSION in sweep.axes and workload.dataset:
        compressed = workload.dataset.compression != "none"
        dataset = manifest.load(data)
        facts = dataset.facts
        if samples_per_archive(dataset):
            raise UserError(
                f"{data}: its samples are packed in archives; choose an unpacked data set, or omit --confirm"
            )
        # The published files are compressed, but have no manifest.
        if facts.get("gzip", facts.get("codec", "gzip") == "gzip") is not compressed:
            kind = "GZIP" if compressed else "plain"
            raise UserError(f"{data} must contain {kind} TFRecord files; convert it, or omit --confirm")
        places = [filesystem_of(path).mount_point for path in (data, sweep.folder)]
        if places[0] != places[1]:
            raise UserError(f"{data} is on a different file system from {sweep.folder}; choose another --out")


def in_a_run(sweep: Sweep, settings: Sequence[str], data: Path, preset: str) -> Comparison:
    """Compare runs of ``mlhpc run`` for the workload's benchmark on its data set ``data``: with the workload's own
    loading settings, and with those recommended, on files converted to the recommended compression. A run has one
    epoch, steps of the workload's length, and dropped caches. Raises UserError if a setting has no counterpart in
    ``mlhpc run``."""
    require_counterparts(sweep, data)
    workload, chosen = sweep.workload(), dict(setting.split("=", 1) for setting in settings)
    converted = data
    compression = chosen.pop(COMPRESSION, None)
    if compression and workload.dataset and compression != workload.dataset.compression:
        converted = sweep.folder / "data-real"
        codec = CODECS[workload.name][compression]
        _mlhpc("data", "convert", workload.name, str(data), str(converted), "--codec", codec)
    own = Point(
        (
            f"loading.workers={max(1, workload.reader.threads)}",
            f"loading.prefetch={workload.reader.prefetch}",
        ),
        data,
    )
    other = Point((*own.settings, *(f"{OF_A_RUN[key]}={value}" for key, value in chosen.items())), converted)
    for number in range(sweep.repeats):
        for name, point in (("own", own), ("recommended", other)):
            out = sweep.folder / f"real-{name}-{number}"
            words = set_words([*point.settings, "training.max_epochs=1"])
            _mlhpc("run", workload.name, "--preset", preset, "--data", str(point.data), "--evict",
                   "--out", str(out), "--compute", str(workload.train.computation.expected), *words)  # fmt: skip
            (epoch,) = json.loads((out / "result.json").read_text())["epochs"]
            point.rates.append(epoch["samples_per_s"])
    return Comparison(own, other)


def print_sweep(
    points: Sequence[Point], comparisons: Mapping[str, Comparison | None], console: Console
) -> None:
    """Print every combination with median, minimum and maximum of its runs, and the recommendation."""
    columns: dict[str, Callable[[Point], Cell | str]] = {
        "settings": lambda point: point.named,
        "samples/s": lambda point: figure(point.rate),
        "from": lambda point: figure(min(point.rates)),
        "to": lambda point: figure(max(point.rates)),
        "of its own": lambda point: f"{point.rate / points[0].rate:.2f}",
    }
    print_table(table("sweep", points, columns), console)
    again = comparisons["again"]
    if again is None:
        return console.print("none of the settings tried is faster than the workload's own")
    say(console, f"recommended: {again.recommended.named}")
    for each, where in ((again, "measured again"), (comparisons.get("in_a_run"), "in mlhpc run")):
        if each:
            verdict = "every run was faster" if each.confirmed else "not confirmed: the runs overlap"
            say(console, f"{where}: {each.gain:.2f} times as fast; {verdict}")


def write(
    folder: Path, sweep: Sweep, points: Sequence[Point], comparisons: dict[str, Comparison | None]
) -> None:
    """Write ``sweep.json``. Raises OSError."""
    record = {
        "workload": sweep.workload().model_dump(mode="json", exclude_none=True), "ranks": sweep.ranks,
        "points": [point.record() for point in points],
        **{name: each.record() if each else None for name, each in comparisons.items()},
    }  # fmt: skip
    atomic.write_bytes(folder / "sweep.json", (json.dumps(record, indent=1) + "\n").encode())


def _mlhpc(*words: str) -> None:
    """Run a command of the suite. Raises UserError if it fails."""
    output_of(words, f"mlhpc {' '.join(words[:3])}")
