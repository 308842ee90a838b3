"""Keras's optimizers in PyTorch. PyTorch's differ, and the closed division requires the reference's."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from mlhpc.benchmarks.cosmoflow import Hyperparameters
from mlhpc.common.pytorch.foreach import momentum_step, unscale

_ADAM_EPSILON = 1e-7  # Keras's default, outside of the bias correction


def make_optimizer(hyperparameters: Hyperparameters, parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
    """SGD with momentum, or Adam. The caller sets the rate when an epoch starts (``set_rate``)."""
    rate = hyperparameters.opt_base_learning_rate
    if hyperparameters.opt_name == "sgd":
        return KerasSGD(parameters, rate, momentum=hyperparameters.opt_momentum)
    return KerasAdam(parameters, rate)


class KerasSGD(torch.optim.Optimizer):
    """v = momentum · v - rate · g, w = w + v (Keras 3, optimizers/sgd.py).

    PyTorch's SGD has the rate outside of v, which differs after a change of the rate. Never waits for a GPU: a
    GradScaler leaves it to this class to skip a step. The gradients are overwritten.
    """

    def __init__(self, parameters: Iterable[Tensor], lr: float, *, momentum: float) -> None:
        super().__init__(parameters, {"lr": lr, "momentum": momentum})
        self._step_supports_amp_scaling = True

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            weights = [weight for weight in group["params"] if weight.grad is not None]
            gradients = [weight.grad for weight in weights]
            velocities = [self._velocity(weight) for weight in weights]
            if (found_inf := unscale(self, gradients)) is not None:
                torch._foreach_mul_(gradients, -group["lr"])
                momentum = group["momentum"]
                momentum_step(weights, gradients, velocities, momentum=momentum, lr=-1.0, found_inf=found_inf)
                continue
            torch._foreach_mul_(velocities, group["momentum"])
            torch._foreach_add_(velocities, gradients, alpha=-group["lr"])
            torch._foreach_add_(weights, velocities)
        return loss

    def _velocity(self, weight: Tensor) -> Tensor:
        state = self.state[weight]
        if not state:
            state["velocity"] = torch.zeros_like(weight)
        velocity: Tensor = state["velocity"]
        return velocity


class KerasAdam(torch.optim.Adam):
    """Adam with Keras's epsilon, which is added to √v before the bias correction (Kingma and Ba 2015, end of
    section 2); PyTorch adds it after."""

    def __init__(self, parameters: Iterable[Tensor], lr: float) -> None:
        super().__init__(parameters, lr, eps=_ADAM_EPSILON)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        for group in self.param_groups:
            states = (self.state[weight] for weight in group["params"])
            step = 1 + max((int(state["step"]) for state in states if state), default=0)
            group["eps"] = _ADAM_EPSILON / (1 - group["betas"][1] ** step) ** 0.5
        return super().step(closure)
