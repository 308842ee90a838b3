"""``mlhpc study``: training throughput under varied settings, several runs each.

The folder is the record, and grows: a second call with other settings adds cells to it, one with the same goes
on where the first was. ``study.json`` and ``study.html`` are made anew from the directories every time.
"""

import csv
import hashlib
import json
import math
import os
import re
import shutil
import signal
import time
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

import mlhpc
from mlhpc.benchmarks import load
from mlhpc.benchmarks.schema import Run
from mlhpc.common.data import manifest
from mlhpc.common.data.sharding import local_batch_size
from mlhpc.common.files import atomic
from mlhpc.common.host.progress import progress
from mlhpc.common.ranks.local import end, sigterm_as_ctrl_c
from mlhpc.errors import UserError, did_you_mean
from mlhpc.run_processes import GRACE_S, check_alone, in_slurm, is_locked, locked, one_at_a_time, start
from mlhpc.submission.report.spread import Spread
from mlhpc.submission.report.study import (
    CELL,
    GLOBAL_BATCH,
    PLACES,
    Study,
    Value,
    described,
    flat,
    measured,
    read,
)
from mlhpc.submission.report.summary import plain

STORAGE = ("shared", "staged")
LONGEST_NAME = 200
"""Characters of what a cell's folder tells of its settings; file systems end at 255, with what goes around it."""


@dataclass(frozen=True)
class Sweep:
    """What was asked for. ``axes``: the values of each setting that is varied; every combination is a cell."""

    benchmark: str
    preset: str
    settings: tuple[str, ...]
    axes: dict[str, list[Value]]
    data: Path
    stage: Path | None
    out: Path
    repeats: int
    warmup_steps: int
    steps: int


@dataclass(frozen=True)
class Planned:
    """One cell before it is run."""

    run: Run
    words: tuple[str, ...]
    data: Path
    stage: str | None
    ranks: int
    settings: dict[str, Value]
    name: str
    """Of its folder: what is varied, and a digest of all that it is. One that another call made, which varied
    other settings, keeps its name."""


def parse_axes(texts: Sequence[str]) -> dict[str, list[Value]]:
    """``KEY=A,B`` to the values of a key. Raises UserError for one that is not of this form, or comes twice."""
    axes: dict[str, list[Value]] = {}
    for text in texts:
        key, equals, listed = text.partition("=")
        key = key.strip()
        if not equals or not key or not listed.strip():
            raise UserError(f"--vary {text!r} is not of the form KEY=A,B, such as batch=8,16")
        if key not in PLACES and "." not in key:
            settings = "or any setting as --set names it, such as network.width"
            raise UserError(f"--vary {key}: {did_you_mean(key, PLACES)}; {settings}")
        if key in axes:
            raise UserError(f"--vary {key} is given twice; name all its values in one")
        words = [word.strip() for word in next(csv.reader([listed], skipinitialspace=True))]
        try:
            values = tomllib.loads(f"v = [{listed}]")["v"]
        except tomllib.TOMLDecodeError:
            values = [_scalar(word) for word in words]  # bare words are strings
        known = str if key == "data" else Value | list  # a folder may be called 007; a date is a word
        if not all(isinstance(value, known) for value in values):
            values = words
        axes[key] = list({repr(value): value for value in values if value != ""}.values())
        if not axes[key]:
            raise UserError(f"--vary {text!r} names no value; it is of the form KEY=A,B, such as batch=8,16")
    return axes


def plan(sweep: Sweep) -> list[Planned]:
    """The cells, all checked: what cannot run is found before anything does.

    Raises UserError for a setting that does not exist or is not valid, a batch that the ranks cannot share,
    a data set that is not there or too small for the steps.
    """
    for option, given in (("--repeats", sweep.repeats), ("--steps", sweep.steps)):
        if given < 1:
            raise UserError(f"{option} {given}: give 1 or more")
    if sweep.warmup_steps < 0:
        raise UserError(f"--warmup {sweep.warmup_steps}: give 0 or more")
    for key in ("batch", "ranks"):
        for value in sweep.axes.get(key, ()):
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise UserError(f"--vary {key}={value}: give whole numbers of 1 or more")
    if "batch" in sweep.axes and GLOBAL_BATCH in sweep.axes:
        raise UserError(
            f"--vary batch and {GLOBAL_BATCH}: one follows from the other and the ranks; vary one"
        )
    for value in sweep.axes.get("storage", ()):
        if value not in STORAGE:
            raise UserError(f"--vary storage={value}: {did_you_mean(str(value), STORAGE)}")
    cells = []
    for values in product(*sweep.axes.values()):
        chosen = dict(zip(sweep.axes, values, strict=True))
        try:
            cells.append(_cell(sweep, chosen))
        except UserError as error:
            where = ", ".join(f"{key}={value}" for key, value in chosen.items())
            raise UserError(f"{where}: {error}" if where else str(error)) from None
    facts: dict[Path, dict[str, Any]] = {}
    for cell in cells:
        if cell.data not in facts:
            facts[cell.data] = _facts(cell.data)
        of = facts[cell.data].get("benchmark")
        if of not in (None, sweep.benchmark):
            raise UserError(f"{cell.data}: holds a data set of {of}, not {sweep.benchmark}; choose another")
    return list({cell.name: cell for cell in cells}.values())  # values may be two ways to write one


def make(sweep: Sweep, number: int | None, console: Console) -> int:
    """Make the runs that are not made yet, or the one of ``number`` alone (a task of a job array), write
    study.json and study.html and print the table. Returns 0 when all runs were measured, 1 when not, 130 when
    it was ended from outside. Raises UserError as ``plan`` does, and when another study is at work there."""
    check_alone("studies")
    cells = plan(sweep)
    # A round makes every cell once: what changes on the machine with time falls on all of them alike.
    runs = [(cell, repeat) for repeat in range(1, sweep.repeats + 1) for cell in cells]
    if number is not None and not 1 <= number <= len(runs):
        raise UserError(f"--number {number}: this study has the runs 1 to {len(runs)}")
    mine = runs if number is None else [runs[number - 1]]
    name = f"{mine[0][0].name}.{mine[0][1]}" if number is not None else None
    with locked(sweep.out, name, "study") as locks:
        _check_benchmark(sweep)
        for cell, _ in mine:
            _describe(sweep, cell)
        interrupted = False
        try:
            with sigterm_as_ctrl_c(), progress(len(mine), "study", "runs") as advance:
                failed: dict[str, str] = {}
                for cell, repeat in mine:
                    if cell.name not in failed and (why := _run(sweep, cell, repeat, locks, console)):
                        failed[cell.name] = why
                    advance(1)
        except KeyboardInterrupt:
            interrupted = True
        with one_at_a_time(sweep.out):
            study = read(sweep.out, lambda run: run != name and is_locked(sweep.out, run))
            save(study)
    show(study, console)
    if interrupted:
        console.print("ended from outside; start it again to go on")
        return 130
    return 1 if failed else 0


def _run(sweep: Sweep, cell: Planned, repeat: int, locks: list[int], console: Console) -> str:
    """Make one run, unless it is made. Returns why it was not measured; empty when it was."""
    out = sweep.out / cell.name / f"run-{repeat}"
    try:
        measured(out, cell.settings)
        return ""
    except ValueError:
        pass
    if out.exists():  # an attempt that came to no end
        shutil.rmtree(out)
    printed = out.with_suffix(".out")
    printed.unlink(missing_ok=True)
    # The samples of a repeat come in the same order in every cell: its seed is the repeat's number.
    words = [*cell.words, "--data", str(cell.data), "--out", str(out), "--seed", str(repeat), "--evict"]
    words += ["--stage", cell.stage] if cell.stage else []
    step = _step(cell.ranks, os.environ) if in_slurm(os.environ) else []
    process = start(words, ranks=cell.ranks, step=step, output=printed, keep=locks)
    try:
        process.wait()
    finally:
        end([process], GRACE_S)
    if process.returncode < 0:  # by the kernel, for want of memory, perhaps: then it could not say so
        with printed.open("a") as lines:
            lines.write(f"ended by {signal.Signals(-process.returncode).name}, perhaps for want of memory\n")
    told = f"{cell.name} run {repeat} of {sweep.repeats}"
    try:
        found = measured(out, cell.settings)
    except ValueError as why:
        console.print(Text(f"{told}: failed: {why}; all it printed: {printed}", style="red"), soft_wrap=True)
        return str(why)
    console.print(Text(f"{told}: {plain(found.samples_per_s)} samples/s"), soft_wrap=True)
    return ""


def _step(ranks: int, env: Mapping[str, str]) -> list[str]:
    """What tells srun to fill nodes one after the other: with ranks of few nodes, few nodes are measured."""
    return [f"--ntasks={ranks}", f"--nodes={math.ceil(ranks / _ranks_per_node(ranks, env))}"]


def _ranks_per_node(ranks: int, env: Mapping[str, str]) -> int:
    """Of a Slurm job, at most."""
    return math.ceil(int(env.get("SLURM_NTASKS", ranks)) / int(env.get("SLURM_JOB_NUM_NODES", 1)))


def _cell(sweep: Sweep, chosen: dict[str, Value]) -> Planned:
    settings = [*sweep.settings, "division=open", f"study.steps={sweep.steps}"]
    settings.append(f"study.warmup_steps={sweep.warmup_steps}")
    settings += [f"{key}={load.toml_value(value)}" for key, value in chosen.items() if key not in PLACES]
    in_all = int(os.environ.get("SLURM_NTASKS", 1)) if in_slurm(os.environ) else None
    ranks = int(chosen.get("ranks", in_all or 1))
    if in_all and ranks > in_all:
        raise UserError(f"--vary ranks={ranks}: this job has {in_all} tasks; ask sbatch for more")
    if "batch" in chosen:
        settings.append(f"hyperparameters.global_batch_size={int(chosen['batch']) * ranks}")
    run = load.load(sweep.benchmark, sweep.preset, settings)
    if not run.study.steps:
        raise UserError("a run of 0 steps would be one to the target; give 1 or more")
    batch = local_batch_size(run.hyperparameters.global_batch_size, ranks)
    run.study.cut(run.data.train_samples // run.hyperparameters.global_batch_size)
    staged = chosen.get("storage", "staged" if sweep.stage else "shared") == "staged"
    if staged and sweep.stage is None:
        raise UserError("--vary storage=staged wants a node-local folder to stage to; give --stage")
    data = Path(os.path.abspath(str(chosen["data"]) if "data" in chosen else sweep.data))
    stage = os.path.abspath(sweep.stage) if sweep.stage and staged else None
    places: dict[str, Value] = {
        "batch": batch,
        "ranks": ranks,
        "data": data.name,
        "storage": "staged" if staged else "shared",
    }
    if in_slurm(os.environ):  # the same ranks on more nodes are another cell
        places["ranks_per_node"] = _ranks_per_node(ranks, os.environ)
    facts = {**places, **flat(run)}
    identity = json.dumps([facts, str(data), stage], sort_keys=True)
    digest = hashlib.sha256(identity.encode()).hexdigest()[:8]
    known = next((path.parent.name for path in sweep.out.glob(f"*{digest}/{CELL}")), None)
    shown = [
        re.sub(r"[^\w.=+-]+", "_", f"{key.rpartition('.')[2]}={facts[key]}", flags=re.A) for key in sweep.axes
    ]
    name = known or f"{'-'.join(shown or [sweep.preset])[:LONGEST_NAME]}-{digest}"
    words = [sweep.benchmark, "--preset", sweep.preset]
    for setting in settings:
        words += ["--set", setting]
    return Planned(run, tuple(words), data, stage, ranks, facts, name)


def _scalar(word: str) -> Value:
    try:
        value: Value = tomllib.loads(f"v = {word}")["v"]
        return value
    except tomllib.TOMLDecodeError:
        return word


def _facts(data: Path) -> dict[str, Any]:
    if not data.is_dir():
        raise UserError(f"{data}: no data set is there; make one with mlhpc data make, or give --data")
    return manifest.load(data).facts if (data / manifest.NAME).exists() else {}


def _check_benchmark(sweep: Sweep) -> None:
    """A folder holds the cells of one benchmark."""
    for path in sweep.out.glob(f"*/{CELL}"):
        held = described(path.parent)[0].get("benchmark")
        if held != sweep.benchmark:
            raise UserError(f"{sweep.out}: holds a study of {held}; choose another --out")


def _describe(sweep: Sweep, cell: Planned) -> None:
    """Write what a cell is, unless it is known; its folder may have been named after other axes."""
    folder = sweep.out / cell.name
    if (folder / CELL).exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    facts = {
        "settings": cell.settings,
        "data": str(cell.data),
        "stage": cell.stage,
    }
    atomic.write_bytes(folder / CELL, (json.dumps(facts, indent=1) + "\n").encode())
    now = time.time_ns()  # the order of cells is that of their files, whose own times are too coarse for it
    os.utime(folder / CELL, ns=(now, now))


def save(study: Study) -> None:
    """Write study.json and study.html."""
    content = {
        "mlhpc": mlhpc.__version__,
        "axes": study.axes,
        "cells": [
            {
                "folder": cell.path.name,
                "settings": cell.settings,
                "data": cell.data,
                "stage": cell.stage,
                "samples_per_s": _interval(cell.samples_per_s),
                "variability": cell.variability,
                "runs": [
                    {
                        "run": run.path.name,
                        "steps": run.steps,
                        "samples": run.samples,
                        "seconds": run.seconds,
                        "data_wait_s": run.wait_s,
                        "staging_s": run.staging_s,
                        "samples_per_s": run.samples_per_s,
                    }
                    for run in cell.runs
                ],
                "failures": cell.failures,
            }
            for cell in study.cells
        ],
    }
    atomic.write_bytes(study.path / "study.json", (json.dumps(content, indent=1) + "\n").encode())
    from mlhpc.submission.report.study_page import page  # Altair takes most of a second

    atomic.write_bytes(study.path / "study.html", page(study).encode())


def _interval(found: Spread | None) -> dict[str, float | None] | None:
    if found is None:
        return None
    mean, low, high = found.interval
    known = found.has_interval
    return {"mean": mean, "low95": low if known else None, "high95": high if known else None, "n": found.n}


def show(study: Study, console: Console) -> None:
    """Print the cells as a table. What a narrow terminal has no room for, the page has."""
    # In a file there is room to the right; a terminal is as wide as it is.
    wide = console if console.is_terminal else Console(file=console.file, width=max(console.width, 120))
    shown = 5 if wide.width >= 100 else 3
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for axis in study.axes or ("cell",):
        table.add_column(study.name(axis), overflow="fold")
    for name in ("runs", "samples/s", "95% interval", "step, ms", "data wait")[:shown]:
        table.add_column(name, justify="right", no_wrap=True)
    for cell in study.cells:
        values = [Text(str(cell.settings.get(axis, ""))) for axis in study.axes] or [Text(cell.path.name)]
        found = cell.samples_per_s
        figures = ["", "", "", ""]
        if found:
            mean, low, high = found.interval
            interval = f"{plain(low)} – {plain(high)}" if found.has_interval else ""
            step = sum(run.step_s for run in cell.runs) / len(cell.runs)
            wait = sum(run.wait_share for run in cell.runs) / len(cell.runs)
            figures = [plain(mean), interval, plain(step * 1e3), f"{wait:.1%}"]
        table.add_row(*values, *[str(len(cell.runs)), *figures][:shown])
    wide.print(table)
    for cell in study.cells:
        for why in cell.failures:
            console.print(Text(f"{cell.path.name} {why}", style="red"), soft_wrap=True)
    warmup, steps = (study.cells[0].settings.get(f"study.{key}") for key in ("warmup_steps", "steps"))
    told = f"steps a run: {steps}, after {warmup} of warm-up; " if "study.steps" not in study.axes else ""
    console.print(Text(f"{told}pictures: {study.path / 'study.html'}"), soft_wrap=True)
