"""Commands that train: run, campaign, study, tune."""

import argparse
import json
import os
from pathlib import Path

from mlhpc.commands.parser import (
    Commands,
    add_benchmark,
    add_command,
    add_data_set,
    add_hyperparameters_from,
    add_json,
    add_machine,
    positives,
    print_json,
    quantities,
    seed,
    texts,
)
from mlhpc.errors import UserError


def add(commands: Commands) -> None:
    _add_run(commands)
    weights = add_command(
        commands,
        "weights",
        "mlhpc.weights:main",
        "write the weights of a run's last checkpoint as safetensors",
    )
    weights.add_argument("run", type=Path, metavar="RUN", help="folder of a run with a checkpoint")
    weights.add_out_file(".safetensors", "the file to write", required=True)
    _add_campaign(commands)
    _add_study(commands)
    _add_tune(commands)


def _add_run(commands: Commands) -> None:
    run = add_command(commands, "run", _run, "train a benchmark to its target, including staging")
    add_benchmark(run)
    add_hyperparameters_from(run)
    add_data_set(run)
    run.add_folder("--stage", "node-local folder to copy the data set to, inside the timed region")
    run.add_folder("--out", "folder for the results (default: results/BENCHMARK-PRESET-NUMBER)")
    run.add_argument("--config", type=Path, metavar="FILE", help="a run's config.toml, instead of a preset")
    run.add_count("--ranks", "number of local ranks", default=0)
    run.add_argument(
        "--bind",
        metavar="CORES",
        help="cores (equal shares for local ranks), a list such as 0-3:4-7, or none (default: $MLHPC_BIND)",
    )
    run.add_argument("--seed", type=seed, help="random seed (default: random per run, and logged)")
    run.add_flag("--evict", "drop the data set from the page cache before the run")
    run.add_argument(
        "--compute",
        metavar="SECONDS|RUN|MACHINE",
        help="emulate: each step waits SECONDS, the step time of RUN, or the one predicted for MACHINE",
    )
    run.add_folder(
        "--resume", "continue from another run's checkpoint; raise training.max_epochs to extend it"
    )
    run.add_flag("--dry-run", "print steps, files, memory, rules and settings without starting the run")
    run.add_flag("--json", "with --dry-run: print JSON (docs/reference/json.md)")


def _add_campaign(commands: Commands) -> None:
    campaign = add_command(commands, "campaign", _campaign, "run all repeats needed for a score")
    add_benchmark(campaign)
    add_hyperparameters_from(campaign)
    add_data_set(campaign)
    campaign.add_folder("--stage", "node-local folder to copy the data set to; concurrent runs share it")
    campaign.add_folder("--out", "folder for the runs (default: results/BENCHMARK-PRESET-campaign)")
    campaign.add_count("--ranks", "ranks of each run", default=0)
    campaign.add_count("--runs", "number of runs (default: as many as a score requires)")
    campaign.add_count("--instances", "concurrent runs: throughput instead of time to solution", default=1)
    campaign.add_count("--number", "start only the run with this number, for job arrays")


def _add_study(commands: Commands) -> None:
    study = add_command(commands, "study", _study, "measure throughput for combinations of settings")
    add_benchmark(study)
    study.add_repeatable(
        "--vary",
        "KEY=A,B",
        "codec, batch (local), ranks, data (folders), storage (shared, staged, or folders to stage "
        "to), or a setting, with its values; all combinations are run",
    )
    add_data_set(study)
    study.add_folder("--stage", "node-local folder to copy the data set to before the steps")
    study.add_folder("--out", "new or existing folder (default: results/BENCHMARK-PRESET-study)")
    study.add_count("--repeats", "runs of each combination (default: 5)", default=5)
    study.add_count("--steps", "measured steps (default: 20)", default=20)
    study.add_count("--warmup", "warm-up steps before the measured ones (default: 5)", default=5, least=0)
    study.add_count("--number", "start only the run with this number, for job arrays")
    add_json(study)


def _add_tune(commands: Commands) -> None:
    tune = add_command(commands, "tune", "mlhpc.tune.search:tune", "find the settings that train fastest")
    add_benchmark(tune)
    add_data_set(tune)
    tune.add_folder("--stage", "node-local folder to copy the data set to")
    tune.add_folder("--out", "new or existing folder (default: results/BENCHMARK-PRESET-tune)")
    tune.add_argument("--batch", type=positives, default=[], metavar="A,B", help="global batch sizes")
    tune.add_argument(
        "--ranks",
        type=positives,
        default=[1],
        metavar="A,B",
        help="numbers of ranks; the default configuration uses the first",
    )
    about = (
        "range of multiples of the preset's learning rate times √(batch / preset's batch) (default: 0.25,4)"
    )
    tune.add_argument("--rate", type=quantities, default=[], metavar="LOW,HIGH", help=about)
    about = (
        "factors for the preset's schedule, or published presets (default: 0.5,0.7,1,1.4 and all published)"
    )
    tune.add_argument("--schedule", type=texts, default=[], metavar="A,B", help=about)
    add_machine(tune, "start where mlhpc predict expects the published presets to be fastest")
    tune.add_count(
        "--budget", "search budget, in multiples of a default run's time (default: 24)", default=24
    )
    tune.add_count("--pairs", "pairs of runs, winner and default, with fresh seeds (default: 10)", default=10)
    tune.add_argument("--seed", type=seed, default=1, help="random seed (default: 1)")
    tune.add_argument(
        "--surface",
        type=Path,
        metavar="FILE",
        help="compute times from this response surface instead of running",
    )


def _run(options: argparse.Namespace) -> int:
    if options.json and not options.dry_run:
        raise UserError("--json requires --dry-run; a run writes its result to OUT/result.json")
    if options.dry_run:
        from rich.console import Console

        from mlhpc.preview.dry_run import content, dry_run

        if options.json:
            print_json("run --dry-run", content(options))
        else:
            dry_run(options, Console())
        return 0
    from mlhpc.common.host.binding import bind_this_rank
    from mlhpc.common.ranks.environment import identify
    from mlhpc.common.ranks.local import outlive

    if options.ranks <= 1:
        bind_this_rank(options.bind)
    if options.is_program and options.ranks <= 1 and identify(os.environ).launcher == "none":
        outlive(lambda: _killed_hint(options))
    from mlhpc.run import main

    return main(options)


def _killed_hint(options: argparse.Namespace) -> str:
    from mlhpc.doctor.memory import killed_hint
    from mlhpc.run import requested

    return killed_hint(requested(options)[0], 1)


def _campaign(options: argparse.Namespace) -> int:
    from rich.console import Console

    from mlhpc.benchmarks import load
    from mlhpc.campaign.record import Campaign
    from mlhpc.campaign.runs import make
    from mlhpc.common.ranks.local import set_words
    from mlhpc.emulated_step import refuse
    from mlhpc.record.hyperparameters import load_run

    run = load_run(options.benchmark, options.preset, options.set, log=options.hyperparameters_from)
    refuse(run, "a score")
    for name in ("overlap", "exchange"):
        if getattr(run.staging, name) and options.instances > 1:
            remedy = f"set staging.{name}=false or --instances 1"
            raise UserError(f"concurrent runs share a staging folder; {remedy}")
    words = ["--preset", options.preset, *set_words(options.set)]
    if log := options.hyperparameters_from:
        words += ["--hyperparameters-from", str(log.absolute())]
    runs = max(load.runs_of_a_score(options.benchmark), options.instances)
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
    status = make(sweep, options.number, Console(stderr=options.json))
    if options.json:
        print_json("study", json.loads((sweep.out / "study.json").read_text()))
    return status
