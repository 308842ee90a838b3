"""Keras's optimizers in PyTorch. PyTorch's own differ, and the closed division requires the reference's."""

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from mlhpc.benchmarks.cosmoflow import Hyperparameters
from mlhpc.common.pytorch.foreach import GroupOptimizer, momentum_step, unscale

_ADAM_EPSILON = 1e-7  # Keras's default, added outside the bias correction


def make_optimizer(hyperparameters: Hyperparameters, parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
    """SGD with momentum, or Adam, for ``parameters`` of any shape. The learning rate is a tensor on their device;
    set it with ``set_rate``."""
    parameters = list(parameters)
    rate = torch.tensor(hyperparameters.opt_base_learning_rate, device=parameters[0].device)
    if hyperparameters.opt_name == "sgd":
        return KerasSGD(parameters, rate, momentum=hyperparameters.opt_momentum)
    return KerasAdam(parameters, rate)


class KerasSGD(GroupOptimizer):
    """v = momentum · v - rate · g, w = w + v (Keras 3, optimizers/sgd.py).

    PyTorch's SGD applies the rate outside v, which makes a difference after a change of the rate. The gradients
    are overwritten.
    """

    def __init__(self, parameters: Iterable[Tensor], lr: Tensor, *, momentum: float) -> None:
        super().__init__(parameters, {"lr": lr, "momentum": momentum})
        for weight in self.param_groups[0]["params"]:  # now, not in a hole of the first step's memory
            self.state[weight]["velocity"] = torch.zeros_like(weight)

    def step_group(self, group: dict[str, Any], weights: list[Tensor], gradients: list[Tensor]) -> None:
        velocities = [self.state[weight]["velocity"] for weight in weights]
        found_inf = unscale(self, gradients)
        torch._foreach_mul_(gradients, -group["lr"])
        momentum_step(
            weights, gradients, velocities, momentum=group["momentum"], lr=-1.0, found_inf=found_inf
        )


class KerasAdam(GroupOptimizer, torch.optim.Adam):
    """Adam with epsilon as in Keras, which adds it to √v before the bias correction (Kingma and Ba 2015, end of
    section 2); PyTorch adds it after."""

    def __init__(self, parameters: Iterable[Tensor], lr: Tensor) -> None:
        super().__init__(parameters, lr, eps=_ADAM_EPSILON, fused=True)

    def step_group(self, group: dict[str, Any], weights: list[Tensor], gradients: list[Tensor]) -> None:
        states = [self._state(weight) for weight in weights]
        counts, means, squares = (
            [state[name] for state in states] for name in ("step", "exp_avg", "exp_avg_sq")
        )
        found_inf = unscale(self, gradients)
        torch._foreach_add_(counts, 1 if found_inf is None else [1 - found_inf] * len(counts))
        beta1, beta2 = group["betas"]
        step = counts[0].double()
        # The rate includes the bias corrections; the kernel's own are 1, because it is passed an
        # infinite number of steps.
        rate = (group["lr"] * (1 - beta2**step).sqrt() / (1 - beta1**step)).float()
        many = [torch.full_like(counts[0], math.inf)] * len(weights)
        fixed: Any = {"beta1": beta1, "beta2": beta2, "eps": group["eps"], "weight_decay": 0.0}
        fixed |= {"amsgrad": False, "maximize": False}
        torch._fused_adam_(
            weights, gradients, means, squares, [], many, lr=rate, found_inf=found_inf, **fixed
        )

    def _state(self, weight: Tensor) -> dict[str, Tensor]:
        state: dict[str, Tensor] = self.state[weight]
        if not state:
            means, squares = torch.zeros_like(weight), torch.zeros_like(weight)
            state.update(step=means.new_zeros(()), exp_avg=means, exp_avg_sq=squares)
        return state
