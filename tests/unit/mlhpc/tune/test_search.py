"""Searches on response surfaces: their quality, their budget, and what they run."""

import argparse
import math
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from mlhpc.tune.model import Outcome, Search, finished_runs, promoted
from mlhpc.tune.search import limit_of, spend
from mlhpc.tune.space import Axes, Config, Space
from mlhpc.tune.surface import Surface, surface_of

SURFACES = Path(__file__).parents[3] / "data/tune"
QUIET = Console(quiet=True)


@cache
def space() -> Space:
    return Space("cosmoflow", "smoke", [], Axes(ranks=(1, 2, 4)))


@cache
def search() -> Search:
    return Search(space(), [])


def surface(name: str) -> Surface:
    return surface_of(SURFACES / f"{name}.toml", space())


class Journal:
    """In memory."""

    def __init__(self) -> None:
        self.outcomes: list[Outcome] = []
        self.add = self.outcomes.append


def searched(on: Surface, seed: int = 1, budget: int = 24) -> list[Outcome]:
    journal: Any = Journal()
    spend(search(), on.run, journal, argparse.Namespace(budget=budget, seed=seed), QUIET)
    return journal.outcomes


def optimum(on: Surface) -> float:
    """By trying everything, with a learning rate in each of 400 steps."""
    rates = np.geomspace(0.2, 5, 400)
    places = {(c.batch, c.ranks, c.schedule) for c in space().candidates}
    return min(on.seconds_of(Config(b, r, rate, s)) for b, r, s in places for rate in rates)


@pytest.mark.parametrize("name", ["small_batches", "steep_rate", "large_batches", "near_the_default"])
def test_36_of_40_seeds_end_within_5_percent_of_the_optimum(name):
    on = surface(name)
    best = optimum(on)
    assert on.seconds_of(space().default) > 1.3 * best
    found = [on.seconds_of(search().winner(searched(on, seed))) / best for seed in range(40)]
    assert sum(ratio <= 1.05 for ratio in found) >= 36, found


def test_the_budget_is_counted_in_runs_of_the_default():
    done = searched(surface("small_batches"), budget=8)
    unit, spent = done[0].seconds, sum(outcome.seconds for outcome in done)
    assert done[0].config == space().default
    assert 8 * unit <= spent < 8 * unit + max(outcome.seconds for outcome in done)


def test_what_cannot_win_is_stopped_and_costs_no_more_than_that():
    done = searched(surface("small_batches"))
    stopped = [n for n, outcome in enumerate(done) if outcome.state == "stopped"]
    assert stopped
    for n in stopped:
        before = finished_runs(done[:n])
        best = min(math.prod(times) ** (1 / len(times)) for times in before.values())
        assert best < done[n].seconds < 1.25 * best
        assert done[n].config not in before


def test_a_repeat_is_never_stopped():
    """The mean would be that of its fast runs only."""
    one, other = Config(16, 1), Config(32, 1)
    done = [Outcome(one, "converged", 100.0, 10, 10), Outcome(other, "converged", 80.0, 10, 8)]
    assert limit_of(one, done) == limit_of(other, done) == math.inf
    assert 80 < limit_of(Config(64, 1), done) < 100
    assert limit_of(one, []) == math.inf


def test_the_better_half_is_repeated():
    configs = [Config(batch, 1) for batch in (8, 16, 32, 64)]
    done = [Outcome(c, "converged", t, 10, t / 10) for c, t in zip(configs, (40, 10, 20, 30), strict=True)]
    assert promoted(done[:1]) is None
    assert promoted(done) == configs[1]
    done.append(Outcome(configs[1], "converged", 11.0, 10, 1.1))
    assert promoted(done) == configs[2]
    done.append(Outcome(configs[2], "converged", 19.0, 10, 1.9))
    assert promoted(done) == configs[1]  # of the two with two runs the better one
    done.append(Outcome(configs[1], "aborted", 5.0))
    assert promoted(done) is None  # and not again and again


def test_a_choice_that_missed_its_target_once_does_not_win():
    on = surface("small_batches")
    done = searched(on, budget=12)
    winner = search().winner(done)
    done.append(Outcome(winner, "missed", 100.0, 24, 4.0))
    assert search().winner(done) not in (winner, None)


def test_batch_and_ranks_that_aborted_twice_are_not_tried_again():
    """As those that need too much memory."""
    on = surface("small_batches")

    def run(config, name, seed, limit):
        if config.ranks == 4:
            return Outcome(config, "aborted", 1.0, why="killed")
        return on.run(config, name, seed, limit)

    journal = Journal()
    spend(search(), run, journal, argparse.Namespace(budget=12, seed=1), QUIET)
    aborted = [outcome.config for outcome in journal.outcomes if outcome.state == "aborted"]
    assert aborted and max(aborted.count(each) for each in aborted) <= 2
    places = [each[:2] for each in aborted]
    assert max(places.count(each) for each in places) == 2
    assert search().winner(journal.outcomes).ranks < 4


def test_published_points_are_run_first():
    closed = Space("cosmoflow", "closed", [], Axes(ranks=(8, 64)))
    starts = closed.starts(None)
    done = []
    for n in range(1 + len(starts)):
        config = Search(closed, starts).next(done)
        done.append(Outcome(config, "converged", 100.0 + n, 10, 10.0))
    assert [outcome.config for outcome in done] == [closed.default, *starts]
