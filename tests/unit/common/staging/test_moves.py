"""The order of transfers: in a step a node sends at most one file and receives at most one."""

from collections import Counter

import numpy as np
import pytest
from helpers.node_network import Network, efficiency, shards_of
from hypothesis import given
from hypothesis import strategies as st

from mlhpc.common.data.partition import Shards
from mlhpc.common.staging import moves as module
from mlhpc.common.staging.exchange import AT_ONCE, ROUND
from mlhpc.common.staging.moves import Moves, extra_space, in_steps, moves_between, of_rank, rounds


def permuted(files: list[tuple[int, int]]) -> st.SearchStrategy:
    """Sizes, senders and receivers: each file goes where another one leaves."""
    senders, sizes = [node for node, _ in files], [size for _, size in files]
    return st.permutations(senders).map(lambda receivers: (sizes, senders, receivers))


EXCHANGES = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 100)), min_size=1, max_size=50).flatmap(
    permuted
)


def by_step(steps, *columns):
    """The values of each step."""
    values_of: dict[int, list] = {}
    for step, *values in zip(steps, *columns, strict=True):
        values_of.setdefault(int(step), []).append(tuple(map(int, values)))
    return values_of


@given(EXCHANGES)
def test_in_a_step_a_node_sends_one_file_and_receives_one_or_does_neither(made):
    sizes, senders, receivers = (np.array(of, np.int64) for of in made)
    order, steps = in_steps(sizes, senders, receivers)
    assert sorted(order.tolist()) == list(range(len(sizes)))
    assert (np.diff(steps) >= 0).all()
    for ends in by_step(steps, senders[order], receivers[order]).values():
        sending, receiving = ([end[at] for end in ends] for at in (0, 1))
        assert len(set(sending)) == len(ends) and sorted(sending) == sorted(receiving)
    largest = max(Counter(made[1]).values(), default=1)
    assert steps.max(initial=0) < (largest if largest & (largest - 1) == 0 else 2 * largest)


@given(EXCHANGES)
def test_both_halves_of_the_steps_have_half_of_the_bytes_that_each_node_sends_and_receives(made):
    """Taking one of each pair of neighbours in a list sorted by size differs by one file at most."""
    sizes, senders, receivers = (np.array(of, np.int64) for of in made)
    order, steps = in_steps(sizes, senders, receivers)
    half = 1 << max(0, int(max(Counter(made[1]).values(), default=1) - 1).bit_length() - 1)
    for ends in (senders[order], receivers[order]):
        for node in set(made[1]):
            first, second = (sizes[order][(ends == node) & of].sum() for of in (steps < half, steps >= half))
            if Counter(made[1])[node] > 1:
                assert abs(first - second) <= sizes.max()


@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=40),
    st.integers(0, 2**31),
    st.integers(0, 6),
    st.integers(0, 6),
)
def test_every_epoch_holds_each_file_once_and_leaves_every_node_its_number_of_files(
    at_first, seed, before, after
):
    shards = Shards(np.array(at_first), seed)
    held = Counter(at_first)
    assert shards.nodes(0).tolist() == at_first
    assert Counter(shards.nodes(after).tolist()) == held
    moves = moves_between(np.arange(len(at_first)), shards, before, after)
    start, end = shards.nodes(before), shards.nodes(after)
    assert sorted(moves.numbers.tolist()) == np.flatnonzero(start != end).tolist()
    assert (moves.sizes == moves.numbers).all()
    assert (moves.senders == start[moves.numbers]).all() and (moves.receivers == end[moves.numbers]).all()


@given(EXCHANGES, st.integers(0, 250))
def test_a_node_receives_no_more_in_a_round_than_allowed_or_one_file(made, most):
    sizes, senders, receivers = (np.array(of, np.int64) for of in made)
    order, steps = in_steps(sizes, senders, receivers)
    moves = Moves(order, sizes[order], senders[order], receivers[order], steps)
    parts = list(rounds(moves, most))
    assert [number for part in parts for number in part.numbers] == order.tolist()
    for part, following in zip(parts, [*parts[1:], None], strict=True):
        for node in set(made[1]):
            received = part.sizes[part.receivers == node]
            assert received.sum() <= most or len(received) == 1
        assert following is None or part.steps[-1] < following.steps[0]  # whole steps
        if following is not None:  # and as many as are allowed
            more = Counter(part.receivers.tolist())
            first = following.steps == following.steps[0]
            of_node = Counter()
            for columns in (part, following.part(first)):
                for node, size in zip(columns.receivers.tolist(), columns.sizes.tolist(), strict=True):
                    of_node[node] += size
            assert max(of_node.values()) > most and more


@pytest.mark.parametrize("local_size", [1, 3, 4])
def test_the_ranks_of_a_node_share_its_files_and_meet_those_of_their_number(local_size):
    shards, sizes = shards_of(8, 40)
    moves = moves_between(sizes, shards, 0, 1)
    parts = [of_rank(moves, local_rank, local_size) for local_rank in range(local_size)]
    assert sorted(n for part in parts for n in part.numbers) == sorted(moves.numbers)
    for part in parts:  # the same for both ends, in steps of their own
        ends = by_step(part.steps, part.senders, part.receivers).values()
        assert all(len({end[0] for end in of}) == len({end[1] for end in of}) == len(of) for of in ends)
    sent = [np.bincount(part.senders, minlength=8) for part in parts]
    assert np.ptp(sent, axis=0).max() <= 40 / local_size


@pytest.mark.parametrize("ranks", [1, 4])
@pytest.mark.parametrize(
    ("nodes", "files", "spread"),
    [(64, 128, 0.0), (64, 132, 0.15), (256, 48, 0.15), (256, 34, 0.0)],
)
def test_cards_are_busy_for_most_of_an_exchange(nodes, files, spread, ranks):
    """Of files of a node that are a power of two every step has one; of 34 in 64 steps only every other."""
    shards, sizes = shards_of(nodes, files, spread)
    reached, most_flows = efficiency(moves_between(sizes, shards, 0, 1), ROUND, ranks, AT_ONCE)
    assert reached >= 0.85
    assert most_flows <= AT_ONCE * ranks


def test_a_network_takes_what_its_busiest_card_needs_and_waits_in_order():
    assert Network([(6, 0, 1, 0), (6, 1, 0, 0)], rate=2.0).seconds() == 3.0
    assert Network([(6, 0, 1, 0), (4, 2, 1, 1)], rate=1.0).seconds() == 10.0  # two ranks share a card
    # The first rank's two files to different nodes, one of which receives another file first.
    files = [(4, 2, 1, 0), (3, 0, 1, 0), (5, 0, 2, 0)]
    assert Network(files, rate=1.0).seconds() == 12.0
    assert Network(files, rate=1.0, window=2).seconds() == 8.0


def test_planning_goes_through_all_files_at_once_and_a_logarithm_of_times(monkeypatch):
    """Counted: arrays that are searched for cycles, one for each halving."""
    looks = []
    alternating = module._alternating
    monkeypatch.setattr(
        module, "_alternating", lambda received: looks.append(len(received)) or alternating(received)
    )
    for files in (64, 128, 256):
        looks.clear()
        shards, sizes = shards_of(32, files)
        moves_between(sizes, shards, 0, 1)
        assert len(looks) == np.log2(files) and max(looks) <= 32 * files


def test_disk_space_counts_what_has_arrived_and_not_yet_left():
    """Two rounds by hand; a file takes a block more than its size."""
    moves = Moves(
        *(
            np.array(of, np.int64)
            for of in ([0, 1, 2, 3], [10, 30, 20, 5], [0, 1, 0, 1], [1, 0, 1, 0], [0, 0, 1, 1])
        )
    )
    assert extra_space(moves, 3, most=30).tolist() == [30 + 4096, 10 + 4096, 0]
