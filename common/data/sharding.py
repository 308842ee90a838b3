"""Determines the samples of a rank, and their order.

Ranks that see the same files share a *pool*: all ranks of the run if every node has all data, or the ranks of one
node if each node has a part of it. The same code handles both. It uses indices into the pool's sorted file list,
so an epoch of half a million samples takes a few megabytes of memory. A rank here is a data rank, since the ranks
of a spatial group (``common.ranks.mesh``) read the same samples.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mlhpc.errors import UserError
from mlhpc.quantities import count

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Pool:
    """A pool of ``samples`` samples, shared by ``ranks`` data ranks. ``number`` distinguishes the pools of a
    run."""

    samples: int
    ranks: int
    number: int = 0


def divide_batch(global_batch_size: int, ranks: int) -> int:
    """Samples per rank and step. Raises ``UserError`` if the ranks cannot share a batch equally."""
    if global_batch_size % ranks:
        raise UserError(
            f"a global batch of {global_batch_size} must be a multiple of the number of ranks, {ranks}"
        )
    return global_batch_size // ranks


def steps_per_epoch(pools: Sequence[Pool], local_batch_size: int) -> int:
    """Training steps per epoch, the same on every rank: as many as the smallest pool can fill. Ranks train in
    lockstep, so a rank with one more step than the others would wait forever. Raises ``UserError`` if a pool
    cannot fill one step.
    """
    for pool in pools:
        if pool.samples < pool.ranks * local_batch_size:
            raise UserError(
                f"{count(pool.samples, 'training sample')} cannot fill one step of "
                f"{count(local_batch_size, 'sample')} on each of {count(pool.ranks, 'rank')}; use a smaller batch "
                "or fewer ranks"
            )
    return min(pool.samples // (pool.ranks * local_batch_size) for pool in pools)


def train_batches(
    pool: Pool, pool_rank: int, local_batch_size: int, steps: int, seed: int, epoch: int
) -> Indices:
    """Sample indices ``[steps, local_batch_size]`` for rank ``pool_rank`` (0 to ``pool.ranks - 1``) of the pool.

    The pool is permuted by ``(seed, epoch)``; step k of the whole pool is the k-th slice of the
    permutation, and each rank takes a contiguous part of it. So N ranks at batch B train on exactly the
    batches of one rank at batch N·B, and results with different numbers of ranks are comparable.
    """
    order = np.random.default_rng([seed, epoch, pool.number]).permutation(pool.samples)
    return order[: steps * pool.ranks * local_batch_size].reshape(steps, pool.ranks, local_batch_size)[
        :, pool_rank
    ]


def eval_batches(pool: Pool, pool_rank: int, batch: int) -> list[range]:
    """Sample indices for rank ``pool_rank`` of the pool, in batches of ``batch``; the last may be smaller.

    Every sample of the pool is in exactly one batch of one rank. Ranks may have different numbers of
    batches, or none, so evaluation must not wait for other ranks between batches.
    """
    indices = range(pool_rank, pool.samples, pool.ranks)
    return [indices[start : start + batch] for start in range(0, len(indices), batch)]
