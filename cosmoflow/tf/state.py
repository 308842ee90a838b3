"""Broadcasts, saves and restores a run's weights, optimizer and random state."""

from pathlib import Path

import keras
import numpy as np

from mlhpc.common.ranks.world import World
from mlhpc.common.training import checkpoint


def broadcast_weights(model: keras.Model, optimizer: keras.optimizers.Optimizer, world: World) -> None:
    """Copy the weights and optimizer state of rank 0 to every rank. Random states are not changed."""
    if world.size > 1:
        from mlhpc.common.ranks.horovod_world import broadcast_variables

        broadcast_variables([v.value for v in [*model.weights, *optimizer.variables]])


def save(
    folder: Path,
    config: str,
    seed: int,
    epoch: int,
    model: keras.Model,
    optimizer: keras.optimizers.Optimizer,
    world: World,
) -> None:
    """Write a checkpoint after ``epoch``. ``config`` is the run's resolved configuration, as TOML text. Called by
    all ranks; rank 0 writes."""
    of_rank = world.gather([np.array(v) for v in _random_state(model)])
    if world.rank == 0:
        shared = [np.array(v) for v in [*model.weights, *optimizer.variables]]
        checkpoint.save(folder, checkpoint.Checkpoint(epoch, seed, config, shared, of_rank))
    world.barrier()


def restore(folder: Path, model: keras.Model, optimizer: keras.optimizers.Optimizer, world: World) -> int:
    """Restore the checkpoint in ``folder``; returns its epoch.

    Raises UserError if it is missing, damaged, from a different network, or written by a different number of
    ranks.
    """
    saved = checkpoint.load(folder)
    checkpoint.require_ranks(saved, folder, world.size)
    with checkpoint.reading(folder / "checkpoint.npz"):
        variables = [*model.weights, *optimizer.variables, *_random_state(model)]
        for variable, array in zip(variables, [*saved.shared, *saved.of_rank[world.rank]], strict=True):
            variable.assign(array)
    return saved.epoch


def _random_state(model: keras.Model) -> list[keras.Variable]:
    weights = {id(v) for v in model.weights}
    return [v for v in model.variables if id(v) not in weights]
