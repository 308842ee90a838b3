"""What fails on one rank fails on all, in one line per run."""

import math
import socket
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from helpers.thread_world import ThreadWorld, on_ranks
from hypothesis import given
from hypothesis import strategies as st

from mlhpc.common.ranks.collectives import on_all_ranks, on_each_rank, on_rank0
from mlhpc.common.ranks.socket_world import Tree, load_mpi, neighbours
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


@contextmanager
def trees(size: int) -> Iterator[list[Tree]]:
    """The tree of each rank, with the sockets of one process."""
    pairs = {child: socket.socketpair() for rank in range(size) for child in neighbours(rank, size)[1]}
    try:
        yield [
            Tree(pairs[rank][0] if rank else None, tuple(pairs[c][1] for c in neighbours(rank, size)[1]))
            for rank in range(size)
        ]
    finally:
        for near, far in pairs.values():
            near.close()
            far.close()


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7, 16, 33])
def test_collectives_over_the_tree_are_those_of_numpy(size: int) -> None:
    values = np.random.default_rng(size).normal(size=(size, 2, 3))
    data = [bytes([rank]) * (rank * 1000 % 7000) for rank in range(size)]

    def work(rank: int, tree: Tree) -> list[Any]:
        tree.barrier()
        reduced = [tree.reduce(how, values[rank]) for how in (np.add, np.maximum)]
        return [
            *reduced,
            tree.reduce(np.add, 1.0),
            tree.broadcast(data[-1] if rank == 0 else b""),
            tree.gather(data[rank]),
        ]

    with trees(size) as tree, ThreadPoolExecutor(size) as pool:
        results = list(pool.map(work, range(size), tree, timeout=60))
    for total, largest, ranks, sent, gathered in results:
        np.testing.assert_allclose(total, values.sum(axis=0), rtol=1e-12, atol=1e-12)
        assert total.tobytes() == results[0][0].tobytes()  # on all ranks, to the last bit
        assert np.array_equal(largest, values.max(axis=0))
        assert ranks.shape == () and ranks == size
        assert sent == data[-1] and gathered == data


@given(st.integers(1, 5000))
def test_every_rank_has_a_short_way_to_rank_0_and_few_connections(size: int) -> None:
    for rank in {0, size - 1, size // 2, size // 3, min(1, size - 1)}:
        steps, above = 0, rank
        while above:
            next_above = neighbours(above, size)[0]
            assert next_above is not None and above in neighbours(next_above, size)[1]
            steps, above = steps + 1, next_above
        assert steps <= math.ceil(math.log2(size + 1))
        assert len(neighbours(rank, size)[1]) <= 2


def test_a_tree_of_a_node_crosses_to_others_seldom() -> None:
    """128 nodes of 8 ranks: fewer than three connections a node to others."""
    ways = [(rank, below) for rank in range(1024) for below in neighbours(rank, 1024)[1]]
    assert len(ways) == 1023
    assert sum(one // 8 != other // 8 for one, other in ways) < 3 * 128


def test_an_mpi_library_that_cannot_be_loaded_is_one_line(tmp_path, monkeypatch):
    (tmp_path / "mpi4py").mkdir()
    (tmp_path / "mpi4py/__init__.py").write_text('raise RuntimeError("cannot load MPI library\\nlibmpi.so")')
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "mpi4py", raising=False)
    with pytest.raises(UserError) as caught:
        load_mpi("here")
    assert str(caught.value) == "here requires mpi4py and its MPI library: cannot load MPI library libmpi.so"
