r"""Figs. 8, 10 and 11 of Ibrahim and Oliker 2022 at the size of a laptop: samples/s by codec, storage, batch
and set size.

    python tests/perf/codec_study.py --work data/codec-study [--benchmarks cosmoflow deepcam] [--rounds 2] \
        [--step-s 0.001] [--set KEY=VALUE ...]

Makes the smoke preset's data sets and their codecs below ``--work``, unless they are there, runs ``mlhpc study``
on them in the memory of the node (``--memory``) and on the disk of ``--work``, and prints samples/s of each codec
relative to the base's (plain TFRecord, HDF5) of the same storage, batch and set size, round by round: a round
runs all cells once. Figs. 9 and 12, the time of a sample by what it is spent on, are "Time per sample" of the
studies' pages. Started again with more rounds, it continues.
"""

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table


class Figure(NamedTuple):
    """What a benchmark's study varies; the first codec is the published format."""

    codecs: tuple[str, ...]
    set_sizes: tuple[int, int]
    settings: tuple[str, ...]


FIGURES = {
    "cosmoflow": Figure(("plain", "gzip", "lut"), (128, 1024), ("training.framework=pytorch",)),
    "deepcam": Figure(("hdf5", "delta"), (64, 256), ()),
}
PUBLISHED = ("gzip", "hdf5")  # the formats that mlhpc data make writes
BATCHES = (1, 4)
STORAGES = ("shared", "disk", "memory")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, required=True, help="folder of the data sets and studies")
    parser.add_argument("--memory", type=Path, default=Path("/dev/shm/codec-study"))
    parser.add_argument("--benchmarks", nargs="+", choices=FIGURES, default=list(FIGURES))
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--batches", type=int, nargs="+", default=BATCHES)
    parser.add_argument("--storages", nargs="+", choices=STORAGES, default=STORAGES)
    parser.add_argument("--set", action="append", default=[], help="a setting of the data set and the runs")
    parser.add_argument("--set-sizes", type=int, nargs="+", help="training samples (default: by benchmark)")
    parser.add_argument(
        "--steps", type=int, default=12, help="measured steps of a run (default: %(default)s)"
    )
    parser.add_argument(
        "--step-s", type=float, help="emulate: steps wait for this time, as if an accelerator computed them"
    )
    options = parser.parse_args()
    for name in options.benchmarks:
        figure = FIGURES[name]
        data = make(name, figure.codecs, options.work, options.set)
        emulated = options.step_s is not None
        out = options.work / (f"{name}-study-{options.step_s:g}-s" if emulated else f"{name}-study")
        places = {"shared": "shared", "disk": options.work / "stage", "memory": options.memory}
        axes = {
            "codec": ",".join(figure.codecs),
            "storage": ",".join(str(places[storage]) for storage in options.storages),
            "batch": ",".join(map(str, options.batches)),
            "data.train_samples": ",".join(map(str, options.set_sizes or figure.set_sizes)),
        }
        settings = ("loading.sample_dtype=float16", "study.earlier_epochs=1", *figure.settings, *options.set)
        settings += (f"emulation.step_s={options.step_s}",) if emulated else ()
        mlhpc(
            "study", name, "--preset", "smoke", "--data", data, "--out", out,
            "--repeats", options.rounds, "--warmup", 4, "--steps", options.steps,
            *words("--vary", (f"{key}={values}" for key, values in axes.items())), *words("--set", settings),
        )  # fmt: skip
        show(name, figure.codecs[0], json.loads((out / "study.json").read_text()), out)


def make(name: str, codecs: tuple[str, ...], work: Path, settings: list[str]) -> Path:
    """The data set of ``name`` and, beside it, one for each other codec."""
    data = work / name
    if not (data / "manifest.json").exists():
        mlhpc("data", "make", name, "--preset", "smoke", "--out", data, *words("--set", settings))
    for codec in codecs:
        converted = work / f"{name}-{codec}"
        if codec not in PUBLISHED and not (converted / "manifest.json").exists():
            mlhpc("data", "convert", name, data, converted, "--codec", codec)
    return data


def words(option: str, values: Iterable[str]) -> list[str]:
    return [word for value in values for word in (option, value)]


def mlhpc(*words: object) -> None:
    done = subprocess.run([sys.executable, "-m", "mlhpc", *map(str, words)])
    if done.returncode:
        raise SystemExit(f"mlhpc {' '.join(map(str, words))}: status {done.returncode}")


def show(name: str, published: str, study: dict[str, Any], out: Path) -> None:
    rates: dict[tuple[str, ...], dict[str, dict[str, float]]] = {}
    waits: dict[tuple[str, ...], dict[str, float]] = {}
    for cell in study["cells"]:
        settings = {key: str(value) for key, value in cell["settings"].items()}
        codec = settings.pop("codec")
        place = (cell["stage"] or "shared", *(settings[key] for key in ("batch", "data.train_samples")))
        runs = {run["run"]: run for run in cell["runs"]}
        rates.setdefault(place, {})[codec] = {key: run["samples_per_s"] for key, run in runs.items()}
        if runs:
            wait = statistics.median(run["data_wait_s"] / run["seconds"] for run in runs.values())
            waits.setdefault(place, {})[codec] = wait
    table = Table("storage", "batch", "set", "codec", "samples/s", f"× {published} [min–max]", "data wait")
    for place, codecs in sorted(rates.items()):
        for codec, by_round in codecs.items():
            base = codecs.get(published, {})
            ratios = [by_round[key] / base[key] for key in by_round.keys() & base.keys()]
            if ratios:
                spread = f"{statistics.median(ratios):.2f} [{min(ratios):.2f}–{max(ratios):.2f}]"
                rate = f"{statistics.median(by_round.values()):.1f}"
                table.add_row(*place, codec, rate, spread, f"{waits[place][codec]:.0%}")
    Console(width=120).print(f"{name}: {out / 'study.html'}", table)


if __name__ == "__main__":
    main()
