"""``mlhpc tune``: searches for the fastest configuration, then compares it with the default in runs with new
seeds.

The search's folder is its only record, and repeating the command continues the search: finished runs are in the
journal, and the choice of the next run depends only on them.
"""

import argparse
import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

from mlhpc.common.data import manifest
from mlhpc.common.pages.terminal import print_table, say
from mlhpc.common.ranks.local import signals_as_ctrl_c, status_of
from mlhpc.common.staging.target import names_job
from mlhpc.errors import MISSED, UserError
from mlhpc.quantities import seconds_text
from mlhpc.run_processes import in_slurm, locked, require_one_process
from mlhpc.tune.journal import Journal
from mlhpc.tune.model import NOISE, Outcome, Search, finished_runs, geometric_mean
from mlhpc.tune.result import Result, configurations, save, sentences
from mlhpc.tune.runs import Runs
from mlhpc.tune.space import Axes, Config, Space
from mlhpc.tune.surface import surface_of

FRESH = 1_000_000
"""Offset of the seeds in the final comparison, so that they differ from those of the search."""


Runner = Callable[[Config, str, int, float], Outcome]
"""A function of a configuration, a run's name, its seed and a limit: it trains the configuration as that run, and
stops the run after the limit in seconds."""


def tune(options: argparse.Namespace) -> int:
    """Search, compare, write tune.json, tune.html and best.toml, and print the result. Returns the exit status: 0,
    MISSED if no configuration reached the target, or 128 plus the signal's number after an interruption. Raises
    UserError if the folder contains a different search, or if the default configuration cannot be run."""
    require_one_process("tune")
    console, name = Console(), f"{options.benchmark}-{options.preset}"
    axes = Axes(options.batch, options.ranks, options.rate, options.schedule)
    staged = options.stage is not None
    space = Space(options.benchmark, options.preset, options.set, axes, staged=staged)
    surface = surface_of(options.surface, space) if options.surface else None
    data, out = options.data or Path("data") / name, options.out or Path("results") / f"{name}-tune"
    search = Search(space, space.starts(options.machine))
    if surface is None:
        manifest.require_folder(data)
        if options.stage and in_slurm(os.environ) and not names_job(options.stage, os.environ):
            raise UserError(
                f"--stage {options.stage} must contain $SLURM_JOB_ID, so that stopped runs remove it"
            )
    about = space.content() | {"machine": options.machine, "seed": options.seed, "data": str(data)}
    about["stage"] = str(options.stage) if options.stage else None
    about["surface"] = surface and surface.model_dump(mode="json")
    with locked(out, None, "tune") as lock_fds:
        journal = Journal(out / "tune.journal", space, about)
        run = surface.run if surface else Runs(space, data, options.stage, out, lock_fds).run
        try:
            with signals_as_ctrl_c():
                spend(search, run, journal, options, console)
                winner = search.winner(journal.outcomes)
                pairs = compare(space, winner, run, options, console)
        except KeyboardInterrupt as interrupt:
            say(console, "interrupted; restart the search to continue")
            return status_of(interrupt)
        if winner is None:
            say(console, "no configuration reached the target; raise --budget or training.max_epochs")
            return MISSED
        result = Result(space, tuple(journal.outcomes), winner, pairs, surface)
        save(result, out, about)
    print_table(configurations(result), console, optional=3)
    for sentence in sentences(result, out):
        say(console, sentence)
    return 0


def spend(
    search: Search, run: Runner, journal: Journal, options: argparse.Namespace, console: Console
) -> None:
    """Add runs to the journal until their total time is ``budget`` times the time of the first run, which has the
    default configuration."""
    while True:
        done = journal.outcomes
        spent = sum(outcome.seconds for outcome in done) / done[0].seconds if done else 0.0
        if spent >= options.budget:
            return
        config = search.next(done)
        if config is None:
            return
        number = len(done) + 1
        outcome = run(config, f"run-{number:03}", options.seed + number, limit_of(config, done))
        if not done and outcome.state == "aborted":
            raise UserError(f"the default configuration failed: {outcome.why}; see run-001.out")
        journal.add(outcome)
        said = f"run {number}, {spent:.1f} of {options.budget} spent: {config}: {ended(outcome)}"
        say(console, f"{said}: {outcome.why}" if outcome.why else said)


def limit_of(config: Config, done: Sequence[Outcome]) -> float:
    """The seconds after which a run of ``config`` cannot win: two deviations above the best mean so far. A
    repeated configuration has no limit, since its mean would be too low if slow runs were stopped."""
    runs = finished_runs(done)
    if config in runs:
        return math.inf
    return math.exp(2 * NOISE) * min(map(geometric_mean, runs.values()), default=math.inf)


def compare(
    space: Space, winner: Config | None, run: Runner, options: argparse.Namespace, console: Console
) -> list[tuple[Outcome, Outcome]]:
    """Pairs of runs, winner and default, with a new seed per pair. The two alternate, so that drift of the machine
    affects both equally. No pairs if the winner is the default."""
    pairs: list[tuple[Outcome, Outcome]] = []
    if winner is None or winner == space.default:
        return pairs
    for number in range(1, options.pairs + 1):
        seed = FRESH + options.seed + number
        one = run(winner, f"winner-{number:02}", seed, math.inf)
        other = run(space.default, f"default-{number:02}", seed, math.inf)
        pairs.append((one, other))
        say(console, f"pair {number} of {options.pairs}: winner {ended(one)}, default {ended(other)}")
    return pairs


def ended(outcome: Outcome) -> str:
    """A short text on how a run ended."""
    return f"{outcome.state} after {seconds_text(outcome.seconds)}"
