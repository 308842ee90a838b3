"""What fails on one rank fails on all, in one line per run."""

import threading
from typing import Any

import pytest
from helpers.thread_world import ThreadWorld, on_ranks

from mlhpc.common.ranks.collectives import on_all_ranks, on_each_rank, on_rank0
from mlhpc.errors import AlreadyReported, UserError


def failing_on(*ranks: int, message: str = "disk full") -> Any:
    def work(world: ThreadWorld, on: Any) -> Any:
        def one() -> int:
            if world.rank in ranks:
                raise UserError(message)
            return world.rank

        return on(world, one)

    return work


@pytest.mark.parametrize("on", [on_all_ranks, on_each_rank])
@pytest.mark.parametrize(
    ("ranks", "message"),
    [((1,), "rank 1: disk full"), ((1, 2), "rank 1: disk full"), ((0, 1, 2), "disk full")],
)
def test_an_error_is_raised_on_all_ranks_and_printed_by_one(
    on: Any, ranks: tuple[int, ...], message: str
) -> None:
    outcomes = on_ranks(1, 3, lambda world: failing_on(*ranks)(world, on))
    assert [type(outcome) for outcome in outcomes] == [UserError, AlreadyReported, AlreadyReported]
    assert {str(outcome) for outcome in outcomes} == {message}


def test_an_error_of_rank_0_is_raised_on_all_ranks() -> None:
    outcomes = on_ranks(1, 3, lambda world: failing_on(0)(world, on_rank0))
    assert [type(outcome) for outcome in outcomes] == [UserError, AlreadyReported, AlreadyReported]
    assert {str(outcome) for outcome in outcomes} == {"disk full"}


def test_results_are_gathered_in_order_of_rank() -> None:
    assert on_ranks(1, 3, lambda world: on_all_ranks(world, lambda: world.rank)) == [[0, 1, 2]] * 3
    assert on_ranks(1, 3, lambda world: on_rank0(world, lambda: world.rank)) == [0, 0, 0]


def test_on_each_rank_returns_results_that_cannot_be_sent() -> None:
    """An open LMDB, say."""
    locks = on_ranks(1, 2, lambda world: on_each_rank(world, threading.Lock))
    assert len({id(lock) for lock in locks}) == 2
    assert not any(isinstance(lock, Exception) for lock in locks)
