"""The optimizers that the rules allow: SGD with momentum, and LARS."""

from functools import partial
from typing import Any, Literal

import torch
from torch import nn

from mlhpc.benchmarks.resnet50 import Hyperparameters
from mlhpc.common.training.schedules import polynomial_learning_rate
from mlhpc.resnet50.optim.lars import Lars

Group = dict[str, Any]

_KERAS_EPSILON = 1e-7  # used by the reference if epsilon is 0, the value that it logs and the rules require


def make_optimizer(
    hyperparameters: Hyperparameters, model: nn.Module, sgd: Literal["mlperf", "pytorch"] = "pytorch"
) -> torch.optim.Optimizer:
    """The optimizer that ``opt_name`` names, for ``model``. The learning rate is a tensor on its device; set it
    with ``set_rate``.

    LARS, and SGD if ``sgd`` is "pytorch" (v = momentum v + g, w = w - lr v), apply weight decay, and LARS its
    trust ratio, only to weights with more than one dimension, and neither to biases nor to batch norm's
    parameters.

    If ``sgd`` is "mlperf", SGD is the reference's (mlcommons/training, image_classification/tensorflow2): v =
    momentum v + lr g, w = w - v, with a loss of weight_decay · w² over all weights except batch norm's, but
    including the dense layer's bias. The gradient of weight decay is therefore 2 · weight_decay · w.
    """
    facts = hyperparameters
    parameters = list(model.parameters())
    on_device = partial(torch.tensor, device=parameters[0].device)
    decayed: Group = {"params": [p for p in parameters if p.ndim > 1]}
    rest: Group = {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0}
    if facts.opt_name == "lars":
        return Lars(
            [decayed, rest | {"adapt": False}],
            on_device(facts.lars_opt_base_learning_rate),
            momentum=facts.lars_opt_momentum,
            weight_decay=facts.lars_opt_weight_decay,
            eps=facts.lars_epsilon or _KERAS_EPSILON,
        )
    rate, momentum = on_device(facts.sgd_opt_base_learning_rate), facts.sgd_opt_momentum
    if sgd == "mlperf":
        norms = [p for m in model.modules() if isinstance(m, nn.BatchNorm2d) for p in m.parameters()]
        norm_ids = set(map(id, norms))
        decayed = {"params": [p for p in parameters if id(p) not in norm_ids]}
        rest = {"params": norms, "weight_decay": 0.0}
        # LARS without a trust ratio is this update.
        decay = 2 * facts.sgd_opt_weight_decay
        return Lars([decayed, rest], rate, momentum=momentum, weight_decay=decay, adapt=False)
    decay = facts.sgd_opt_weight_decay
    return torch.optim.SGD([decayed, rest], rate, momentum=momentum, weight_decay=decay, fused=True)


def rate_at(hyperparameters: Hyperparameters, step: int, steps_per_epoch: int) -> float:
    """The learning rate in ``step``, counted from 0, by the schedule of the chosen optimizer."""
    facts = hyperparameters
    rate = partial(polynomial_learning_rate, step)
    if facts.opt_name == "lars":
        return rate(
            base=facts.lars_opt_base_learning_rate,
            end=facts.lars_opt_end_learning_rate,
            warmup_steps=facts.lars_opt_learning_rate_warmup_epochs * steps_per_epoch,
            decay_steps=facts.lars_opt_learning_rate_decay_steps,
            power=facts.lars_opt_learning_rate_decay_poly_power,
        )
    return rate(
        base=facts.sgd_opt_base_learning_rate,
        end=facts.sgd_opt_end_learning_rate,
        warmup_steps=facts.opt_learning_rate_warmup_epochs * steps_per_epoch,
        decay_steps=facts.sgd_opt_learning_rate_decay_steps,
        power=facts.sgd_opt_learning_rate_decay_poly_power,
    )
