"""Commands that train: run, campaign, study."""

import argparse
import os
import sys
from pathlib import Path

from mlhpc.commands.parser import Commands, add_benchmark, add_command
from mlhpc.errors import UserError


def add(commands: Commands) -> None:
    run = add_command(commands, "run", _run, "train a benchmark to its target, staging included")
    add_benchmark(run)
    run.add_argument("--data", type=Path, help="the data set (default: data/BENCHMARK-PRESET)")
    run.add_argument("--stage", type=Path, help="node-local folder to copy the data set to, inside the clock")
    run.add_argument(
        "--out", type=Path, help="folder for the results (default: results/BENCHMARK-PRESET-NUMBER)"
    )
    run.add_argument("--ranks", type=int, default=0, help="start so many ranks on this machine")
    run.add_argument("--seed", type=int, help="default: drawn anew for every run, and logged")
    run.add_argument(
        "--evict", action="store_true", help="drop the data set from the page cache before the run"
    )
    run.add_argument("--resume", type=Path, metavar="DIR", help="go on from the checkpoint of another run")

    campaign = add_command(commands, "campaign", _campaign, "make the runs that one score is made from")
    add_benchmark(campaign)
    campaign.add_argument("--data", type=Path, help="the data set (default: data/BENCHMARK-PRESET)")
    campaign.add_argument("--stage", type=Path, help="as for run; runs at the same time share it")
    campaign.add_argument(
        "--out", type=Path, help="folder for the runs (default: results/BENCHMARK-PRESET-campaign)"
    )
    campaign.add_argument("--ranks", type=int, default=0, help="ranks of each run")
    campaign.add_argument("--runs", type=int, help="how many in all (default: what a score needs)")
    campaign.add_argument(
        "--instances", type=int, default=1, help="how many at the same time: throughput, not time to solution"
    )
    campaign.add_argument("--number", type=int, help="make only this run: for the tasks of a job array")

    study = add_command(
        commands, "study", _study, "measure throughput under varied settings, several runs each"
    )
    add_benchmark(study)
    study.add_argument(
        "--vary",
        action="append",
        default=[],
        metavar="KEY=A,B",
        help="batch (local), ranks, data (folders), storage (shared,staged), or a setting; all combinations",
    )
    study.add_argument("--data", type=Path, help="the data set (default: data/BENCHMARK-PRESET)")
    study.add_argument(
        "--stage", type=Path, help="node-local folder to copy the data set to, before the steps"
    )
    study.add_argument(
        "--out", type=Path, help="folder of the study, which grows (default: results/BENCHMARK-PRESET-study)"
    )
    study.add_argument("--repeats", type=int, default=5, help="runs of each combination (default: 5)")
    study.add_argument("--steps", type=int, default=20, help="steps that are measured (default: 20)")
    study.add_argument("--warmup", type=int, default=5, help="steps before them (default: 5)")
    study.add_argument("--number", type=int, help="make only this run: for the tasks of a job array")


def _run(options: argparse.Namespace) -> int:
    from mlhpc.benchmarks import load, rules
    from mlhpc.common.ranks.local import run_local

    run = load.load(options.benchmark, options.preset, options.set)
    rules.enforce(rules.RunContext(run, resumed=options.resume is not None))
    if options.ranks < 0:
        raise UserError(f"--ranks {options.ranks}: give a number of ranks of 1 or more")
    if options.ranks > 1 and "MLHPC_RANK" not in os.environ:
        return run_local(options.ranks, [sys.executable, "-m", "mlhpc", *options.argv])
    from mlhpc.run import RunPaths, execute

    places = RunPaths(
        data=options.data or Path("data") / f"{options.benchmark}-{options.preset}",
        stage=options.stage,
        out=options.out,
        resume=options.resume,
    )
    return execute(run, places, options.seed, options.evict)


def _campaign(options: argparse.Namespace) -> int:
    from rich.console import Console

    from mlhpc.benchmarks import load, rules
    from mlhpc.campaign import make
    from mlhpc.campaign_record import Campaign

    run = load.load(options.benchmark, options.preset, options.set)
    words = ["--preset", options.preset]
    for setting in options.set:
        words += ["--set", setting]
    runs = max(rules.runs_needed(options.benchmark), options.instances)
    campaign = Campaign(
        run,
        tuple(words),
        data=options.data or Path("data") / f"{options.benchmark}-{options.preset}",
        stage=options.stage,
        out=options.out or Path("results") / f"{options.benchmark}-{options.preset}-campaign",
        runs=runs if options.runs is None else options.runs,
        instances=options.instances,
        ranks=options.ranks,
    )
    return make(campaign, options.number, Console())


def _study(options: argparse.Namespace) -> int:
    from rich.console import Console

    from mlhpc.study import make
    from mlhpc.study_plan import Sweep, parse_axes

    sweep = Sweep(
        options.benchmark,
        options.preset,
        tuple(options.set),
        parse_axes(options.vary),
        data=options.data or Path("data") / f"{options.benchmark}-{options.preset}",
        stage=options.stage,
        out=options.out or Path("results") / f"{options.benchmark}-{options.preset}-study",
        repeats=options.repeats,
        warmup_steps=options.warmup,
        steps=options.steps,
    )
    return make(sweep, options.number, Console())
