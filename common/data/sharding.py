"""Which samples a rank reads, and when.

Ranks that see the same files share a *pool*: all ranks of the run where every node holds all data, the ranks
of one node where each node holds a part of it. The rules here are the same for both. They work on indices
into the pool's sorted file list, so that an epoch of half a million samples is a few megabytes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mlhpc.errors import UserError, count

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Pool:
    """``samples`` files that ``ranks`` ranks share. ``number`` tells the pools of a run apart."""

    samples: int
    ranks: int
    number: int = 0


def local_batch_size(global_batch_size: int, ranks: int) -> int:
    """Samples a rank takes in a step. Raises ``UserError`` when the ranks cannot share a batch equally."""
    if global_batch_size % ranks:
        raise UserError(
            f"a global batch of {count(global_batch_size, 'sample')} cannot be shared equally by "
            f"{ranks} ranks; take a multiple of {ranks}, or another number of ranks"
        )
    return global_batch_size // ranks


def steps_per_epoch(pools: Sequence[Pool], local_batch: int) -> int:
    """Training steps of an epoch, the same on every rank: as many as the scarcest pool can fill.

    Ranks train in lockstep, so one rank with a step more than another would wait for ever. Raises
    ``UserError`` when a pool cannot fill one step.
    """
    for pool in pools:
        if pool.samples < pool.ranks * local_batch:
            raise UserError(
                f"{count(pool.samples, 'training sample')} for {count(pool.ranks, 'rank')} cannot fill a "
                f"step of {count(local_batch, 'sample')} a rank; use more samples, a smaller batch "
                "or fewer ranks"
            )
    return min(pool.samples // (pool.ranks * local_batch) for pool in pools)


def samples_left_out(pools: Sequence[Pool], local_batch: int) -> int:
    """Training samples that an epoch does not use, over all pools. Which ones changes from epoch to epoch."""
    used = steps_per_epoch(pools, local_batch) * local_batch
    return sum(pool.samples - used * pool.ranks for pool in pools)


def train_batches(pool: Pool, place: int, local_batch: int, steps: int, seed: int, epoch: int) -> Indices:
    """Sample indices ``[steps, local_batch]`` for the rank at ``place`` (0 to ``pool.ranks - 1``).

    The pool is permuted by ``(seed, epoch)``; step k of the whole pool is the k-th stretch of the
    permutation and each rank takes its contiguous slice of it. Hence N ranks at batch B train on exactly the
    batches of one rank at batch N·B, and results at different rank counts can be compared.
    """
    order = np.random.default_rng([seed, epoch, pool.number]).permutation(pool.samples)
    return order[: steps * pool.ranks * local_batch].reshape(steps, pool.ranks, local_batch)[:, place]


def eval_batches(pool: Pool, place: int, batch: int) -> list[range]:
    """Sample indices for the rank at ``place``, in batches of ``batch``; the last may be smaller.

    Every sample of the pool is in exactly one batch of one rank. Ranks may have different numbers of
    batches, none included: evaluation must not wait for other ranks between batches.
    """
    mine = range(place, pool.samples, pool.ranks)
    return [mine[start : start + batch] for start in range(0, len(mine), batch)]
