"""The optimizers that the rules allow: SGD with momentum, and LARS."""

from functools import partial
from typing import Any

import torch
from torch import nn

from mlhpc.benchmarks.resnet50 import Hyperparameters
from mlhpc.common.training.schedules import polynomial_learning_rate
from mlhpc.resnet50.optim.lars import Lars

Group = dict[str, Any]


def make_optimizer(hyperparameters: Hyperparameters, model: nn.Module) -> torch.optim.Optimizer:
    """The optimizer of ``opt_name`` over ``model``: weights of more than one dimension in its first group;
    biases and batch norm's factors and summands in the second, without weight decay or trust ratio (as in the
    MLPerf reference, whose LARS skips "batch_normalization" and "bias").

    SGD is PyTorch's: v = momentum v + g and w = w - lr v.
    """
    parameters = list(model.parameters())
    facts = hyperparameters
    decayed: Group = {"params": [p for p in parameters if p.ndim > 1]}
    others: Group = {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0}
    if facts.opt_name == "lars":
        return Lars(
            [decayed, others | {"adapt": False}],
            facts.lars_opt_base_learning_rate,
            momentum=facts.lars_opt_momentum,
            weight_decay=facts.lars_opt_weight_decay,
            eps=facts.lars_epsilon,
        )
    return torch.optim.SGD(
        [decayed, others],
        facts.sgd_opt_base_learning_rate,
        momentum=facts.sgd_opt_momentum,
        weight_decay=facts.sgd_opt_weight_decay,
        fused=True,
    )


def rate_at(hyperparameters: Hyperparameters, update: int, updates_per_epoch: int) -> float:
    """The learning rate of ``update``, counted from 0, by the schedule of the optimizer in use."""
    facts = hyperparameters
    rate = partial(polynomial_learning_rate, update)
    if facts.opt_name == "lars":
        return rate(
            base=facts.lars_opt_base_learning_rate,
            end=facts.lars_opt_end_learning_rate,
            warmup_steps=facts.lars_opt_learning_rate_warmup_epochs * updates_per_epoch,
            decay_steps=facts.lars_opt_learning_rate_decay_steps,
            power=facts.lars_opt_learning_rate_decay_poly_power,
        )
    return rate(
        base=facts.sgd_opt_base_learning_rate,
        end=facts.sgd_opt_end_learning_rate,
        warmup_steps=facts.opt_learning_rate_warmup_epochs * updates_per_epoch,
        decay_steps=facts.sgd_opt_learning_rate_decay_steps,
        power=facts.sgd_opt_learning_rate_decay_poly_power,
    )


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate
