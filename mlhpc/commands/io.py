"""Commands that emulate a training run's I/O: io run, generate, sweep, simulate, and those of ``io_results``."""

import argparse
import json
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlhpc.commands import io_results
from mlhpc.commands.parser import (
    CORES,
    Commands,
    Parser,
    add_command,
    add_set,
    folder,
    positives,
    print_help,
)
from mlhpc.errors import UserError
from mlhpc.quantities import bytes_text

if TYPE_CHECKING:
    from mlhpc.iobench.definition.schema import Workload


def add(commands: Commands) -> None:
    io = add_command(commands, "io", print_help, "emulate the I/O of a training job")
    actions = io.add_subparsers(title="commands", metavar="", parser_class=Parser)
    run = add_command(actions, "run", _run, "emulate a workload on its data")
    _add_workload(run)
    run.add_argument("--data", type=_place, help="data folder or s3://... (default: data/io-WORKLOAD)")
    run.add_folder("--out", "folder for the result (default: results/io-WORKLOAD-NUMBER)")
    run.add_folder("--checkpoints", "where checkpoints are written (default: OUT/checkpoints)")
    run.add_count("--ranks", "number of local ranks", default=0)
    run.add_argument(
        "--cache",
        choices=("each", "first", "warm", "keep"),
        default="each",
        help="page cache: drop the data before each epoch or only the first, fill it (warm), or leave it as it is "
        "(keep) (default: each)",
    )
    run.add_count("--null-steps", "steps to repeat with files in memory (default: 50)", default=50, least=0)
    run.add_argument(
        "--loader-cost", type=Path, help="file from io calibrate (default: costs are measured before the run)"
    )
    run.add_argument("--like", choices=("dlio",), help="read ahead past the last step, as DLIO does")
    run.add_flag("--trace", "write trace.json, for Perfetto or chrome://tracing")
    run.add_flag("--json", "print the result as JSON")
    generate = add_command(actions, "generate", _generate, "generate the data of a workload")
    _add_workload(generate)
    generate.add_argument("--data", type=_place, help="output folder or s3://... (default: data/io-WORKLOAD)")
    generate.add_count("--ranks", "number of local ranks", default=0)
    generate.add_count("--workers", "processes per rank (default: %(default)s)", default=CORES)
    calibrate = add_command(
        actions, "calibrate", _calibrate, "measure what the loaders of PyTorch and TensorFlow cost"
    )
    calibrate.add_out_file(".json", "the costs, for io run --loader-cost")
    calibrate.add_flag("--json", "print the costs as JSON")
    sweep = add_command(actions, "sweep", _sweep, "find the fastest settings for a workload on this machine")
    _add_workload(sweep)
    sweep.add_repeatable("--vary", "KEY=A,B", "a setting and its values; all combinations are run")
    sweep.add_folder("--out", "folder for the runs and their data", required=True)
    sweep.add_count("--ranks", "number of local ranks", default=1)
    sweep.add_count("--repeats", "runs of each combination (default: 3)", default=3)
    sweep.add_folder("--confirm", "also measure in mlhpc run, on this data set", metavar="DATA")
    sweep.add_argument("--preset", default="smoke", help="preset for --confirm (default: smoke)")
    sweep.add_flag("--json", "print sweep.json")
    _add_simulate(actions)
    io_results.add(actions)


def _add_simulate(actions: Commands) -> None:
    simulate = add_command(actions, "simulate", _simulate, "simulate a workload on many ranks")
    _add_workload(simulate)
    simulate.add_argument(
        "--runs", type=Path, nargs=2, required=True, metavar="RUN",
        help="output folders of two io runs of the workload, on one rank and on two ranks",
    )  # fmt: skip
    ranks = "1,2,4,8,64,512,4096,8192"
    simulate.add_argument(
        "--ranks", type=positives, default=ranks, metavar="N,...", help="ranks (default: %(default)s)"
    )
    simulate.add_count("--targets", "number of storage targets like the measured one (default: 1)", default=1)
    simulate.add_count("--metadata", "metadata servers (default: 1)", default=1)
    simulate.add_count("--ranks-per-node", "default: 2", default=2)
    simulate.add_count("--steps", "steps per rank (default: 20)", default=20)
    simulate.add_flag("--json", "print JSON")


def _add_workload(parser: Parser) -> None:
    parser.add_argument(
        "workload", metavar="WORKLOAD", help="a name (see mlhpc io list), a .toml file or a DLIO .yaml file"
    )
    add_set(parser)
    parser.set_defaults(parse_rest=_overrides)


def _overrides(options: argparse.Namespace, words: list[str]) -> list[str]:
    """Add DLIO's overrides (``++workload.reader.batch_size=4``) to the settings, and return the other
    ``words``."""
    options.set += [word for word in words if word.startswith("++")]
    return [word for word in words if not word.startswith("++")]


def _place(text: str) -> str:
    """The value of an option that is the location of a data set: a folder or a URL. An empty location is
    refused."""
    folder(text)
    return text


def _in_ranks(options: argparse.Namespace) -> int | None:
    """Start the ranks that ``--ranks`` requests and return their exit status; None if this process is itself to
    continue as a rank."""
    from mlhpc.common.ranks.local import program, run_local

    if options.ranks > 1 and "MLHPC_RANK" not in os.environ:
        return run_local(options.ranks, program(options.argv))
    return None


def _loaded(options: argparse.Namespace) -> "Workload":
    """The workload selected by ``options``. Keys of the workload that have no effect are printed, once for all
    ranks."""
    from mlhpc.iobench.definition import load

    workload = load.load(options.workload, options.set)
    if workload.without_effect and "MLHPC_RANK" not in os.environ:
        print(
            f"{options.workload}: these keys have no effect here: {', '.join(workload.without_effect)}",
            file=sys.stderr,
        )
    return workload


def _run(options: argparse.Namespace) -> int:
    workload = _loaded(options)
    from mlhpc.iobench.emulate.plan import require_enough

    require_enough(workload, max(1, options.ranks))  # before the ranks are started
    if (status := _in_ranks(options)) is not None:
        return status
    from mlhpc.common.ranks import launch
    from mlhpc.common.ranks.collectives import on_rank0
    from mlhpc.common.ranks.local import signals_as_ctrl_c
    from mlhpc.history.reading import remember
    from mlhpc.iobench.dataset.generate import generate_if_new
    from mlhpc.iobench.emulate.emulation import Settings
    from mlhpc.iobench.emulate.loader_cost import with_cost
    from mlhpc.iobench.run import Paths, data_of, default_out, run

    settings = Settings(options.cache, options.null_steps, options.trace, options.like == "dlio")
    with signals_as_ctrl_c(), launch.joined("sockets") as world:
        out = options.out or on_rank0(world, lambda: default_out(workload))
        data = data_of(options.data, workload, world.rank)
        if workload.generate_data and workload.dataset:
            generate_if_new(workload.dataset, data, world, CORES)
        checkpoints = options.checkpoints or out / "checkpoints"
        workload = with_cost(workload, options.loader_cost, world)
        result = run(workload, Paths(data, out, checkpoints), settings, ["mlhpc", *options.argv], world)
        if world.rank == 0:
            _print_result(result, out, options.json)
    if world.rank == 0:
        remember(out)
    return 0


def _calibrate(options: argparse.Namespace) -> int:
    from rich.console import Console

    from mlhpc.common.files import atomic
    from mlhpc.common.host.progress import progress
    from mlhpc.iobench.emulate.loader_cost import FRAMEWORKS, calibrate
    from mlhpc.iobench.report.console import print_costs

    costs, reasons = {}, []
    with progress(len(FRAMEWORKS), "measuring loaders", "loaders") as advance:
        for kind in FRAMEWORKS:
            try:
                costs[kind] = calibrate(kind)
            except UserError as error:
                reasons.append(str(error))
            advance(1)
    if not costs:
        raise UserError("; ".join(reasons))
    if options.out:
        atomic.write_bytes(options.out, (json.dumps(costs, indent=1) + "\n").encode())
    if options.json:
        print(json.dumps(costs))
        return 0
    print_costs(costs, Console())
    for reason in reasons:
        print(reason)
    return 0


def _print_result(result: dict[str, Any], out: Path, as_json: bool) -> None:
    if as_json:
        print(json.dumps(result))
        return
    from rich.console import Console

    from mlhpc.iobench.report.console import print_result

    print_result(result, Console())
    print(out)


def _generate(options: argparse.Namespace) -> int:
    workload = _loaded(options)
    if workload.dataset is None:
        raise UserError(f"{workload.name} reads no data, so there is nothing to generate")
    if (status := _in_ranks(options)) is not None:
        return status
    from mlhpc.common.ranks import launch
    from mlhpc.common.ranks.local import signals_as_ctrl_c
    from mlhpc.iobench.dataset.generate import generate
    from mlhpc.iobench.run import data_of

    with signals_as_ctrl_c(), launch.joined("sockets") as world:
        data = data_of(options.data, workload, world.rank)
        made = generate(workload.dataset, data, world, options.workers)
        if world.rank == 0:
            there = f"; {made.files - made.made} existed already" if made.made < made.files else ""
            damaged = f", {made.damaged} of them replacing damaged files" if made.damaged else ""
            print(f"{data}: {made.made} files written, {bytes_text(made.bytes)}{damaged}{there}")
    return 0


def _sweep(options: argparse.Namespace) -> int:
    from rich.console import Console

    from mlhpc.common.ranks.local import signals_as_ctrl_c
    from mlhpc.iobench.sweep import Sweep, advise, in_a_run, print_sweep, require_counterparts, write

    axes: dict[str, list[str]] = {}
    for text in options.vary:
        key, equals, values = text.partition("=")
        if not equals or not all(values.split(",")):
            raise UserError(f"--vary {text} must be KEY=VALUE,VALUE, such as reader.threads=1,4")
        if key in axes:
            raise UserError(f"--vary {key} is repeated; list all its values in one option")
        axes[key] = values.split(",")
    if not axes:
        raise UserError("nothing to vary; add --vary KEY=A,B, such as --vary reader.threads=1,4")
    from mlhpc.common.files.filesystem import require_new

    require_new(options.out)
    sweep = Sweep(options.workload, tuple(options.set), axes, options.out, options.repeats, options.ranks)
    if options.confirm:
        require_counterparts(sweep, options.confirm)  # before the sweep, which takes a long time
    with signals_as_ctrl_c():
        try:
            points, again = advise(sweep)
            comparisons = {"again": again}
            write(options.out, sweep, points, comparisons)  # before the confirming run, which may fail
        except BaseException:
            shutil.rmtree(options.out, ignore_errors=True)
            raise
        if again and options.confirm:
            settings = again.recommended.settings
            comparisons["in_a_run"] = in_a_run(sweep, settings, options.confirm, options.preset)
            write(options.out, sweep, points, comparisons)
    if options.json:
        print((options.out / "sweep.json").read_text(), end="")
    else:
        print_sweep(points, comparisons, Console())
    return 0


def _simulate(options: argparse.Namespace) -> int:
    from dataclasses import asdict

    from rich.console import Console

    from mlhpc.iobench.definition import load
    from mlhpc.iobench.definition.schema import Workload
    from mlhpc.iobench.emulate.loader_cost import with_loader_cost
    from mlhpc.iobench.report.check import read_result
    from mlhpc.iobench.report.console import FITS, print_simulated
    from mlhpc.iobench.simulate.measured import fit
    from mlhpc.iobench.simulate.simulation import System, simulate

    workload = load.load(options.workload, options.set)
    if workload.dataset is None:
        raise UserError(f"{workload.name} reads no data, so there is nothing to simulate")
    if workload.reader.preprocess_threads:
        raise UserError(
            "reader.preprocess_threads cannot be simulated; set it to 0, here and in the measured runs"
        )
    results = [read_result(path) for path in options.runs]
    fitted = fit(workload, results)
    cost = Workload(**results[0]["workload"]).reader.loader_cost  # may be a measurement of these runs
    workload = with_loader_cost(workload, cost)
    system = System(options.targets, options.metadata, fitted.system.cores, options.ranks_per_node)
    runs = [simulate(workload, fitted.service, system, number, options.steps) for number in options.ranks]
    if options.json:
        simulated = [asdict(each) | {"binding": each.binding} for each in runs]
        verdict = {"error": fitted.error, "agrees": fitted.error < FITS, "told_apart": fitted.told_apart}
        facts = {"fit": asdict(fitted) | verdict, "system": asdict(system), "simulated": simulated}
        print(json.dumps(facts))
    else:
        print_simulated(fitted, system, runs, Console())
    return 0
