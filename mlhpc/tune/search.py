"""``mlhpc tune``: searches, then runs the winner against the default with fresh seeds.

The folder is the record, and the same command continues: finished runs are in the journal, and the choice of the
next one depends only on them.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from rich.console import Console

from mlhpc.common.data import manifest
from mlhpc.common.pages.terminal import print_table, say
from mlhpc.common.ranks.local import signals_as_ctrl_c, status_of
from mlhpc.errors import MISSED, UserError
from mlhpc.quantities import seconds_text
from mlhpc.run_processes import locked, require_one_process
from mlhpc.tune.journal import Journal
from mlhpc.tune.model import NOISE, Outcome, Search, finished_runs, geometric_mean
from mlhpc.tune.result import Result, configurations, save, sentences
from mlhpc.tune.runs import Runs
from mlhpc.tune.space import Config, Space
from mlhpc.tune.surface import Surface

FRESH = 1_000_000
"""Added to the seeds of the last comparison, so that they are none of the search's."""


class Runner(Protocol):
    """Trains ``config`` as the run ``name``, and stops it after ``limit`` seconds."""

    def __call__(self, config: Config, name: str, seed: int, limit: float) -> Outcome: ...


@dataclass(frozen=True)
class Plan:
    """What was requested. ``budget``: of the search, in runs of the default. ``pairs``: of the comparison."""

    data: Path
    stage: Path | None
    out: Path
    budget: int
    pairs: int
    seed: int
    machine: str | None = None
    surface: Surface | None = None


def tune(space: Space, plan: Plan, console: Console) -> int:
    """Search, compare, write tune.json, tune.html and best.toml, and print the result. Returns the exit status: 0,
    MISSED if no run reached the target, or 128 plus the number of the signal that interrupted it. Raises UserError
    if the folder has another search in it, or if the default cannot be run."""
    require_one_process("tune")
    starts = space.starts(plan.machine)
    if plan.surface is None:
        manifest.require_folder(plan.data)
    about = {
        **{"benchmark": space.benchmark, "preset": space.preset, "settings": list(space.settings)},
        **{"batches": space.batches, "ranks": space.ranks, "rates": list(space.rates)},
        **{"schedules": space.schedules, "machine": plan.machine, "seed": plan.seed},
        "surface": plan.surface and plan.surface.model_dump(mode="json"),
    }
    with locked(plan.out, None, "tune") as lock_fds:
        journal = Journal(plan.out / "tune.journal", space, about)
        run: Runner = Runs(space, plan.data, plan.stage, plan.out, lock_fds).run
        if plan.surface:
            run = plan.surface.run
        search = Search(space, starts)
        try:
            with signals_as_ctrl_c():
                _search(search, run, journal, plan, console)
                winner = search.winner(journal.outcomes)
                pairs = _compare(space, winner, run, plan, console)
        except KeyboardInterrupt as interrupt:
            say(console, "interrupted; restart it to continue")
            return status_of(interrupt)
        if winner is None:
            say(
                console,
                "no choice reached the target in each of its runs; raise --budget or training.max_epochs",
            )
            return MISSED
        result = Result(space, tuple(journal.outcomes), winner, tuple(pairs), plan.surface)
        save(result, plan.out, about)
    print_table(configurations(result), console, optional=3)
    for sentence in sentences(result, plan.out):
        say(console, sentence)
    return 0


def _search(search: Search, run: Runner, journal: Journal, plan: Plan, console: Console) -> None:
    """Add runs to the journal until their seconds are ``budget`` times those of the first, the default's."""
    while True:
        done = journal.outcomes
        spent = sum(outcome.seconds for outcome in done) / done[0].seconds if done else 0.0
        if spent >= plan.budget:
            return
        config = search.next(done, np.random.default_rng([plan.seed, len(done)]))
        if config is None:
            return
        number = len(done) + 1
        outcome = run(config, f"run-{number:03}", plan.seed + number, limit_of(config, done))
        if not done and outcome.state == "aborted":
            raise UserError(f"the default cannot be run: {outcome.why}; see {plan.out / 'run-001.out'}")
        journal.add(outcome)
        words = (
            f"{outcome.state} after {seconds_text(outcome.seconds)}{f': {outcome.why}' * bool(outcome.why)}"
        )
        say(console, f"run {number}, {spent:.1f} of {plan.budget} spent: {config}: {words}")


def limit_of(config: Config, done: Sequence[Outcome]) -> float:
    """The seconds after which a run of ``config`` cannot win: two deviations above the best mean so far. A repeat
    has none, since the mean of runs of which the slow ones are stopped would be too low."""
    runs = finished_runs(done)
    if config in runs:
        return math.inf
    return math.exp(2 * NOISE) * min(map(geometric_mean, runs.values()), default=math.inf)


def _compare(
    space: Space, winner: Config | None, run: Runner, plan: Plan, console: Console
) -> list[tuple[Outcome, Outcome]]:
    """Runs of the winner and of the default with the same fresh seeds, in turns, so that drift of the machine
    affects both alike; none if the winner is the default."""
    pairs: list[tuple[Outcome, Outcome]] = []
    if winner is None or winner == space.default:
        return pairs
    for number in range(1, plan.pairs + 1):
        seed, ours = FRESH + plan.seed + number, {"winner": winner, "default": space.default}
        one, other = (run(each, f"{name}-{number:02}", seed, math.inf) for name, each in ours.items())
        pairs.append((one, other))
        texts = (f"{name} {each.state} after {seconds_text(each.seconds)}"
                 for name, each in zip(ours, (one, other), strict=True))  # fmt: skip
        say(console, f"pair {number} of {plan.pairs}: {', '.join(texts)}")
    return pairs
