"""Operations on lists of tensors that do not wait for the device."""

from typing import Any

import torch
from torch import Tensor
from torch._subclasses import FakeTensor


def on_cpu(tensor: Tensor) -> bool:
    """Whether ``tensor`` is a CPU's. A fake one stands for a GPU's (``profile.launches_of``)."""
    return tensor.device.type == "cpu" and not isinstance(tensor, FakeTensor)


def unscale(optimizer: torch.optim.Optimizer, gradients: list[Tensor]) -> Tensor | None:
    """Divide by the loss scale that a GradScaler left with ``optimizer``; its ``found_inf``, None without one."""
    scale: Tensor | None = getattr(optimizer, "grad_scale", None)
    if scale is not None:
        torch._foreach_mul_(gradients, scale.reciprocal().reshape(()))
    return getattr(optimizer, "found_inf", None)


def momentum_step(
    weights: list[Tensor],
    changes: list[Tensor],
    velocities: list[Tensor],
    *,
    momentum: float,
    lr: float,
    found_inf: Tensor | None,
) -> None:
    """v = momentum v + change, w = w - lr v, in place, unless ``found_inf`` is 1. Each weight, its change and its
    velocity have the same shape."""
    if found_inf is None:
        torch._foreach_mul_(velocities, momentum)
        torch._foreach_add_(velocities, changes)
        torch._foreach_add_(weights, velocities, alpha=-lr)
        return
    fixed: Any = {
        "weight_decay": 0.0,
        "dampening": 0.0,
        "nesterov": False,
        "maximize": False,
        "is_first_step": False,
    }
    torch._fused_sgd_(weights, changes, velocities, momentum=momentum, lr=lr, found_inf=found_inf, **fixed)


def multiply_each(tensors: list[Tensor], factors: Tensor) -> None:
    """``tensors[i] *= factors[i]``, in place; ``factors`` [len(tensors)] on their device. Does not wait for the
    device.

    With a list of 0-dimensional tensors PyTorch launches a kernel per tensor on a GPU; with tensors of equal shape
    and strides a few kernels process all of them (``can_use_fast_route`` in ATen/native/ForeachUtils.h).
    """
    if on_cpu(factors) or torch.compiler.is_compiling():
        torch._foreach_mul_(tensors, list(factors.unbind()))
    else:
        torch._foreach_mul_(tensors, spread(tensors, factors))


def spread(tensors: list[Tensor], factors: Tensor) -> list[Tensor]:
    """For each of ``tensors``, dense in memory, a tensor of its shape and strides filled with its factor."""
    sizes = [tensor.numel() for tensor in tensors]
    filled = torch.cat([factor.expand(size) for factor, size in zip(factors.unbind(), sizes, strict=True)])
    parts = zip(tensors, filled.split(sizes), strict=True)
    return [part.as_strided(tensor.shape, tensor.stride()) for tensor, part in parts]
