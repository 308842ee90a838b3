"""LARS (You et al. 2017, arXiv:1708.03888), computed as in the MLPerf reference."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from mlhpc.common.pytorch.foreach import GroupOptimizer, momentum_step, multiply_each, unscale


class Lars(GroupOptimizer):
    """SGD with momentum and, in groups with ``adapt``, a separate learning rate for every tensor.

    The rate of a tensor with weights w and gradient g is lr t |w| / (|g| + weight_decay |w| + eps), where t is
    ``trust_coefficient``; it is lr if a norm is zero, and in groups without ``adapt``. Then v = momentum v + rate
    (g + weight_decay w) and w = w - v (algorithm 1 of the paper; mlcommons/training,
    image_classification/tensorflow2/lars_optimizer.py), so a change of the learning rate does not rescale v. Norms
    are over the whole tensor. In groups without ``adapt``, the reference also omits weight decay: pass
    ``weight_decay`` 0.

    The gradients are overwritten.
    """

    def __init__(
        self,
        parameters: Iterable[Any],
        lr: float | Tensor,
        *,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust_coefficient: float = 0.001,
        eps: float = 0.0,
        adapt: bool = True,
    ) -> None:
        facts = {
            "lr": lr,
            "momentum": momentum,
            "weight_decay": weight_decay,
            "trust_coefficient": trust_coefficient,
            "eps": eps,
            "adapt": adapt,
        }
        super().__init__(parameters, facts)
        for group in self.param_groups:
            for parameter in group["params"]:
                velocity = torch.zeros_like(parameter, memory_format=torch.preserve_format)
                self.state[parameter]["velocity"] = velocity

    def step_group(self, group: dict[str, Any], weights: list[Tensor], gradients: list[Tensor]) -> None:
        velocities = [self.state[weight]["velocity"] for weight in weights]
        rate, decay = group["lr"], group["weight_decay"]
        found_inf = unscale(self, gradients)
        if group["adapt"]:
            of_weights = torch.stack(torch._foreach_norm(weights))
            of_gradients = torch.stack(torch._foreach_norm(gradients))
            below = of_gradients + decay * of_weights + group["eps"]
            trust = group["trust_coefficient"] * of_weights / below
            rates = rate * torch.where((of_weights > 0) & (of_gradients > 0), trust, 1.0)
        if decay:
            torch._foreach_add_(gradients, weights, alpha=decay)
        if group["adapt"]:
            multiply_each(gradients, rates)
        else:
            torch._foreach_mul_(gradients, rate)
        momentum = group["momentum"]
        momentum_step(weights, gradients, velocities, momentum=momentum, lr=1.0, found_inf=found_inf)
