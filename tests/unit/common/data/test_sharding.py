"""Which samples which rank reads: nothing twice, nothing lost, equal numbers of steps."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlhpc.common.data.sharding import (
    Pool,
    divide_batch,
    eval_batches,
    steps_per_epoch,
    train_batches,
)
from mlhpc.errors import UserError

ranks = st.integers(1, 7)
batch = st.integers(1, 5)
seed = st.integers(0, 2**31)
epoch = st.integers(0, 500)


@given(ranks, batch, st.integers(0, 60), seed, epoch)
def test_an_epoch_has_no_duplicates_and_leaves_out_less_than_a_step(ranks, batch, spare, seed, epoch):
    pool = Pool(ranks * batch + spare, ranks)
    steps = steps_per_epoch([pool], batch)
    read = [train_batches(pool, pool_rank, batch, steps, seed, epoch) for pool_rank in range(ranks)]
    assert {part.shape for part in read} == {(steps, batch)}
    indices = np.concatenate(read, axis=None)
    assert len(set(indices.tolist())) == indices.size
    assert set(indices.tolist()) <= set(range(pool.samples))
    assert pool.samples - indices.size < ranks * batch


@given(ranks, batch, st.integers(0, 60), seed, epoch)
def test_n_ranks_read_the_batches_of_one(ranks, batch, spare, seed, epoch):
    samples = ranks * batch + spare
    alone, shared = Pool(samples, 1), Pool(samples, ranks)
    steps = steps_per_epoch([alone], ranks * batch)
    assert steps == steps_per_epoch([shared], batch)
    together = [train_batches(shared, pool_rank, batch, steps, seed, epoch) for pool_rank in range(ranks)]
    np.testing.assert_array_equal(
        np.concatenate(together, axis=1), train_batches(alone, 0, ranks * batch, steps, seed, epoch)
    )


@given(st.lists(st.tuples(st.integers(0, 90), ranks), min_size=1, max_size=5), batch)
def test_the_smallest_pool_determines_the_number_of_steps(nodes, batch):
    pools = [Pool(n * batch + spare, n, number) for number, (spare, n) in enumerate(nodes)]
    steps = steps_per_epoch(pools, batch)
    needed = [steps * batch * pool.ranks for pool in pools]
    assert all(need <= pool.samples for need, pool in zip(needed, pools, strict=True))
    assert any(need + batch * pool.ranks > pool.samples for need, pool in zip(needed, pools, strict=True)), (
        "another step would have been possible"
    )


@given(st.integers(0, 200), ranks, batch)
def test_evaluation_reads_every_sample_once(samples, ranks, batch):
    batches = [b for pool_rank in range(ranks) for b in eval_batches(Pool(samples, ranks), pool_rank, batch)]
    assert sorted(index for b in batches for index in b) == list(range(samples))
    assert all(0 < len(b) <= batch for b in batches)


@given(st.integers(1, 200), ranks, batch)
def test_no_rank_evaluates_more_than_one_sample_more_than_another(samples, ranks, batch):
    counts = [
        sum(map(len, eval_batches(Pool(samples, ranks), pool_rank, batch))) for pool_rank in range(ranks)
    ]
    assert max(counts) - min(counts) <= 1


def test_the_order_depends_only_on_seed_epoch_and_pool():
    def order(seed, epoch, number):
        return tuple(train_batches(Pool(1000, 1, number), 0, 1000, 1, seed, epoch)[0])

    assert order(1, 2, 3) == order(1, 2, 3)
    different = {order(*key) for key in [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (2, 1, 0), (1, 2, 0)]}
    assert len(different) == 6


def test_which_samples_are_left_out_changes_from_epoch_to_epoch():
    pool = Pool(10, 1)
    left_out = {
        frozenset(range(10)) - frozenset(train_batches(pool, 0, 4, 2, seed=5, epoch=e).ravel().tolist())
        for e in range(20)
    }
    assert len(left_out) > 5


def test_an_epoch_of_the_official_data_set_is_megabytes():
    pool = Pool(524_288, 512)
    assert train_batches(pool, 3, 1, 1024, seed=0, epoch=0).base.nbytes <= 8 * 524_288


@pytest.mark.parametrize(("global_batch", "ranks", "local"), [(64, 1, 64), (64, 16, 4), (3, 3, 1)])
def test_the_local_batch(global_batch, ranks, local):
    assert divide_batch(global_batch, ranks) == local


def test_a_batch_that_ranks_cannot_share_is_a_user_error():
    with pytest.raises(UserError, match=r"64 must be a multiple of the number of ranks, 3"):
        divide_batch(64, 3)


def test_too_few_samples_for_a_step_are_a_user_error():
    with pytest.raises(UserError, match=r"7 training samples .* 4 samples on each of 2 ranks"):
        steps_per_epoch([Pool(100, 2), Pool(7, 2)], 4)


def test_messages_use_singular_and_plural():
    with pytest.raises(UserError, match=r"^1 training sample cannot .* 2 samples on each of 1 rank"):
        steps_per_epoch([Pool(1, 1)], 2)
    with pytest.raises(UserError, match=r"batch of 1 must be a multiple of the number of ranks, 2"):
        divide_batch(1, 2)
