"""``mlhpc study``: measures training throughput under varied settings, in several runs per combination.

The study's folder is its only record and can be extended: a call with different settings adds cells, and a call
with the same settings continues the study. ``study.json`` and ``study.html`` are regenerated from the runs'
folders.
"""

import json
import os
import shutil
import signal
import time
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.text import Text

import mlhpc
from mlhpc.benchmarks import registry
from mlhpc.common.files import atomic
from mlhpc.common.host.progress import progress
from mlhpc.common.pages.terminal import print_table, say
from mlhpc.common.ranks.local import end, signals_as_ctrl_c, status_of
from mlhpc.errors import UserError
from mlhpc.quantities import plain
from mlhpc.record.series import CellRecord
from mlhpc.run_processes import (
    GRACE_S,
    in_slurm,
    is_locked,
    locked,
    report_lock,
    require_one_process,
    run_words,
    start_run,
)
from mlhpc.study_plan import PlannedCell, Sweep, plan, srun_options
from mlhpc.submission.report.study import CELL, SERVERS, Study, described, measured, read


def make(sweep: Sweep, number: int | None, console: Console) -> int:
    """Run the missing runs, or only run ``number`` (a task of a job array), write study.json and study.html
    and print the table. Returns 0 if all runs were measured, 1 if not, 128 plus the signal's number after an
    interruption. Raises the same UserErrors as ``plan``, and UserError if a study is already running in the
    folder."""
    require_one_process("study")
    cells = plan(sweep)
    # Every round runs each cell once, so that drift of the machine affects all cells equally.
    runs = [(cell, repeat) for repeat in range(1, sweep.repeats + 1) for cell in cells]
    if number is not None and not 1 <= number <= len(runs):
        raise UserError(f"--number {number}: the runs of this study are numbered 1 to {len(runs)}")
    own = runs if number is None else [runs[number - 1]]
    name = f"{own[0][0].name}.{own[0][1]}" if number is not None else None
    with locked(sweep.out, name, "study") as lock_fds:
        _check_benchmark(sweep)
        for cell, _ in own:
            _describe(sweep, cell)
        status = 0
        failed: dict[str, str] = {}
        try:
            with signals_as_ctrl_c(), progress(len(own), "study", "runs") as advance:
                for cell, repeat in own:
                    if cell.name not in failed and (why := _run(sweep, cell, repeat, lock_fds, console)):
                        failed[cell.name] = why
                    advance(1)
        except KeyboardInterrupt as interrupt:
            status = status_of(interrupt)
        with report_lock(sweep.out):
            study = read(sweep.out, lambda run: run != name and is_locked(sweep.out, run))
            save(study)
    show(study, console)
    if status:
        console.print("interrupted; restart the study to continue")
        return status
    return 1 if failed else 0


def _run(sweep: Sweep, cell: PlannedCell, repeat: int, lock_fds: list[int], console: Console) -> str:
    """Start one run, unless it is already measured. Returns "", or the reason if the run was not measured."""
    out = sweep.out / cell.name / f"run-{repeat}"
    try:
        measured(out, cell.settings)
        return ""
    except ValueError:
        pass
    if out.exists():  # an interrupted attempt
        shutil.rmtree(out)
    output = out.with_suffix(".out")
    output.unlink(missing_ok=True)
    # The seed is the number of the repeat, so that all cells read the samples of a repeat in the same order.
    arguments = [*cell.arguments, *run_words(cell.data, out, repeat, cell.stage)]
    options = srun_options(cell.ranks, os.environ) if in_slurm(os.environ) else []
    module = registry.find(sweep.benchmark).servers_study if SERVERS in cell.settings else ""
    process = start_run(
        arguments, ranks=cell.ranks, srun_options=options, output=output, lock_fds=lock_fds, module=module
    )
    try:
        process.wait()
    finally:
        end([process], GRACE_S)
    if process.returncode < 0:  # a killed process printed no reason
        with output.open("a") as file:
            file.write(f"killed by {signal.Signals(-process.returncode).name}; out of memory?\n")
    label = f"{cell.name} run {repeat} of {sweep.repeats}"
    try:
        run = measured(out, cell.settings)
    except ValueError as why:
        say(console, Text(f"{label} failed: {why}; full output: {output}", style="red"))
        return str(why)
    say(console, Text(f"{label}: {plain(run.samples_per_s)} samples/s"))
    return ""


def _check_benchmark(sweep: Sweep) -> None:
    """Raise UserError if the study's folder contains cells of a different benchmark."""
    for path in sweep.out.glob(f"*/{CELL}"):
        benchmark = described(path.parent).settings.get("benchmark")
        if benchmark != sweep.benchmark:
            raise UserError(f"{sweep.out}: contains a study of {benchmark}; choose another --out")


def _describe(sweep: Sweep, cell: PlannedCell) -> None:
    """Write the settings of a cell to its folder, unless they are already there."""
    folder = sweep.out / cell.name
    if (folder / CELL).exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    CellRecord(settings=cell.settings, data=str(cell.data), stage=cell.stage).write(folder / CELL)
    now = time.time_ns()  # cells are ordered by these times; the kernel's are too coarse
    os.utime(folder / CELL, ns=(now, now))


def content(study: Study) -> dict[str, Any]:
    """The content of study.json, and of ``mlhpc study --json`` (docs/reference/json.md)."""
    return {
        "mlhpc": mlhpc.__version__,
        "axes": study.axes,
        "cells": [
            {
                "folder": cell.path.name,
                "settings": cell.settings,
                "data": cell.data,
                "stage": cell.stage,
                "samples_per_s": cell.samples_per_s and cell.samples_per_s.content(),
                "variability": cell.variability,
                "runs": [
                    {
                        "run": run.path.name,
                        "steps": run.steps,
                        "samples": run.samples,
                        "seconds": run.seconds,
                        "data_wait_s": run.wait_s,
                        "staging_s": run.staging_s,
                        "checkpoint_s": run.checkpoint_s,
                        "samples_per_s": run.samples_per_s,
                        "joules_per_sample": run.joules_per_sample.get(study.counter),
                        "accelerators_busy": run.busy,
                        "servers": asdict(run.servers) if run.servers else None,
                    }
                    for run in cell.runs
                ],
                "failures": cell.failures,
            }
            for cell in study.cells
        ],
    }


def save(study: Study) -> None:
    """Write study.json and study.html."""
    text = json.dumps(content(study), indent=1) + "\n"
    atomic.write_bytes(study.path / "study.json", text.encode())
    from mlhpc.submission.report.study_page import page  # importing Altair takes most of a second

    atomic.write_bytes(study.path / "study.html", page(study).encode())


def show(study: Study, console: Console) -> None:
    """Print the tables of the study's page; on a narrow terminal, the last columns are omitted."""
    from mlhpc.submission.report.study_page import cells_table, emulated, servers_table

    print_table(cells_table(study), console, optional=6)
    if servers := servers_table(study):
        print_table(servers, console, optional=4)
    for cell in study.cells:
        for why in cell.failures:
            say(console, Text(f"{cell.path.name} {why}", style="red"))
    if sentence := emulated(study):
        say(console, Text(sentence, style="yellow"))
    warmup, steps = (study.cells[0].settings.get(f"study.{key}") for key in ("warmup_steps", "steps"))
    line = f"{steps} steps per run, after {warmup} of warm-up; " if "study.steps" not in study.axes else ""
    say(console, Text(f"{line}charts: {study.path / 'study.html'}"))
