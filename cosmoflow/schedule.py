"""The learning rate of a run."""

from mlhpc.benchmarks.cosmoflow import Hyperparameters
from mlhpc.common.training.schedules import learning_rate


def rate_at(hyperparameters: Hyperparameters, epoch: int, max_epochs: int) -> float:
    """The learning rate during ``epoch``, counted from 0."""
    return learning_rate(
        epoch,
        peak=hyperparameters.opt_base_learning_rate,
        warmup_epochs=hyperparameters.opt_learning_rate_warmup_epochs,
        warmup_factor=hyperparameters.opt_learning_rate_warmup_factor,
        decay_boundary_epochs=hyperparameters.opt_learning_rate_decay_boundary_epochs,
        decay_factors=hyperparameters.opt_learning_rate_decay_factor,
        schedule=hyperparameters.opt_learning_rate_schedule,
        max_epochs=max_epochs,
    )
