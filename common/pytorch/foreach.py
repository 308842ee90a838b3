"""Operations on lists of tensors that do not wait for the device."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensor
from torch.autograd.function import once_differentiable
from torch.func import functional_call


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


class _Cast(torch.autograd.Function):
    """All tensors in another type, and all their gradients back, in one kernel each."""

    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.dtype = tensors[0].dtype
        return _cast(tensors, dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        there = iter(_cast([each for each in gradients if each is not None], ctx.dtype))
        return None, *(each if each is None else next(there) for each in gradients)


def _cast(tensors: Sequence[Tensor], dtype: torch.dtype) -> tuple[Tensor, ...]:
    copies = [torch.empty_like(tensor, dtype=dtype) for tensor in tensors]
    if copies:
        torch._foreach_copy_(copies, list(tensors))
    return tuple(copies)


def with_cast_weights(
    model: nn.Module, dtype: torch.dtype, at_once: float
) -> Callable[[Tensor], Tensor]:
    """``model`` for autocast with ``dtype``, with the weights of its convolutions cast together: groups of at most
    ``at_once`` bytes, so that the gradients of one can be sent while those of others are computed."""
    weights = {
        f"{name}.weight": module.weight
        for name, module in model.named_modules()
        if isinstance(module, nn.modules.conv._ConvNd)
    }
    groups = list(_groups(weights, at_once))

    def forward(x: Tensor) -> Tensor:
        cast = {
            name: copy
            for names in groups
            for name, copy in zip(names, _Cast.apply(dtype, *map(weights.get, names)), strict=True)
        }
        result: Tensor = functional_call(model, cast, (x,))
        return result

    return forward


def _groups(weights: dict[str, Tensor], at_once: float) -> Iterator[list[str]]:
    """Names of consecutive ``weights`` of at most ``at_once`` bytes together, or one larger one."""
    group: list[str] = []
    size = 0
    for name, weight in weights.items():
        if group and size + weight.nbytes > at_once:
            yield group
            group, size = [], 0
        group.append(name)
        size += weight.nbytes
    yield group
