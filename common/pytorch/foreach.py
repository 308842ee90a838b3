"""Operations on lists of tensors that do not wait for the device."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.func import functional_call

from mlhpc.common.kernels.operators import stands_in


def on_cpu(tensor: Tensor) -> bool:
    """Return whether ``tensor``, of any shape, is on a CPU. A fake tensor (``profile.fake_tensors``) represents
    one on a GPU."""
    return tensor.device.type == "cpu" and not stands_in(tensor)


class GroupOptimizer(torch.optim.Optimizer, ABC):
    """The base class of optimizers that update each group of parameters with operations on lists. They never wait
    for a GPU: with a GradScaler, they unscale gradients and skip steps with non-finite ones on the device."""

    _step_supports_amp_scaling = True  # so GradScaler leaves grad_scale and found_inf to it

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update the parameters once; returns the loss if there is a ``closure``."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            if weights := [weight for weight in group["params"] if weight.grad is not None]:
                self.step_group(group, weights, [weight.grad for weight in weights])
        return loss

    @abstractmethod
    def step_group(self, group: dict[str, Any], weights: list[Tensor], gradients: list[Tensor]) -> None:
        """Update the ``weights`` of ``group`` that have ``gradients``."""


def unscale(optimizer: torch.optim.Optimizer, gradients: list[Tensor]) -> Tensor | None:
    """Divide ``gradients``, of any shapes, by the loss scale that a GradScaler has set on ``optimizer``. Returns
    the scaler's ``found_inf``, a scalar; None without a scaler."""
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
    """Update velocities and weights in place, unless ``found_inf`` is 1: v = momentum v + change, w = w - lr v.
    Each weight has the same shape as its change and its velocity."""
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
    """``tensors[i] *= factors[i]``, in place; ``factors`` [len(tensors)] are on the same device. Does not wait for
    the device.

    With a list of 0-dimensional factors, PyTorch would launch a kernel per tensor on a GPU. With factors of the
    tensors' shapes and strides, a few kernels process all of them (``can_use_fast_route`` in
    ATen/native/ForeachUtils.h).
    """
    if on_cpu(factors) or torch.compiler.is_compiling():
        torch._foreach_mul_(tensors, list(factors.unbind()))
    else:
        torch._foreach_mul_(tensors, spread(tensors, factors))


def spread(tensors: list[Tensor], factors: Tensor) -> list[Tensor]:
    """For each of ``tensors``, which must be dense in memory, a tensor of the same shape and strides, filled with
    the corresponding factor from ``factors`` [len(tensors)]."""
    sizes = [tensor.numel() for tensor in tensors]
    filled = torch.cat([factor.expand(size) for factor, size in zip(factors.unbind(), sizes, strict=True)])
    parts = zip(tensors, filled.split(sizes), strict=True)
    return [part.as_strided(tensor.shape, tensor.stride()) for tensor, part in parts]


class _Together(torch.autograd.Function):
    """Autograd function whose outputs are ``copies`` of the weights. Its backward pass converts all of their
    gradients to the weights' type with one kernel. ``in_place``: it writes the gradients into the weights'
    existing gradients, which DistributedDataParallel keeps in its buckets. Autograd then gets None, but still
    tells DistributedDataParallel that the gradients are ready."""

    @staticmethod
    def forward(ctx: Any, copies: list[Tensor], in_place: bool, *weights: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.weights, ctx.in_place = weights, in_place
        return tuple(copies)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        if ctx.in_place and any(gradient is None for gradient in gradients):
            raise RuntimeError(
                "a weight took no part in the step: its gradient would be left over from an earlier step"
            )
        held: list[Tensor] = []
        written: list[Tensor] = []
        rest: list[Tensor | None] = []
        for weight, gradient in zip(ctx.weights, gradients, strict=True):
            if ctx.in_place and gradient is not None and weight.grad is not None:
                held.append(weight.grad)
                written.append(gradient)
                gradient = None
            rest.append(gradient)
        if held:
            torch._foreach_copy_(held, written)
        new = [gradient for gradient in rest if gradient is not None]
        dtype = ctx.weights[0].dtype
        made = iter(_copied(new, dtype) if new and new[0].dtype != dtype else new)
        return None, None, *(None if gradient is None else next(made) for gradient in rest)


def _copied(tensors: list[Tensor], dtype: torch.dtype) -> list[Tensor]:
    copies = [torch.empty_like(tensor, dtype=dtype) for tensor in tensors]
    torch._foreach_copy_(copies, tensors)
    return copies


def with_weights_together(
    model: nn.Module, dtype: torch.dtype | None, at_once: float, in_place: bool
) -> Callable[[Tensor], Tensor]:
    """A function that calls ``model`` on fields [b, channels, ...] with the weights of its convolutions cast to
    ``dtype``, autocast's type, in one kernel.

    Gradients are cast back in groups of weights of at most ``at_once`` bytes, each group as soon as it is
    complete. With ``in_place``, all gradients overwrite those of the previous step: see ``_Together``.
    """
    weights = dict(model.named_parameters())
    convolutions = [
        f"{name}.weight"
        for name, module in model.named_modules()
        if isinstance(module, nn.modules.conv._ConvNd)
    ]
    trained = [name for name in weights if weights[name].requires_grad]
    groups = list(_groups([name for name in convolutions if name in trained], weights, at_once))
    others = [name for name in trained if name not in convolutions] if in_place else []

    def forward(x: Tensor) -> Tensor:
        with torch.no_grad():
            own = [weights[name].detach() for name in convolutions]
            copies = dict(zip(convolutions, _copied(own, dtype) if dtype else own, strict=True))
        copies |= {name: weights[name].detach() for name in others}
        used = dict(copies)
        for names in (*groups, others):
            if names:
                group = [copies[name] for name in names]
                made = _Together.apply(group, in_place, *(weights[name] for name in names))
                used |= zip(names, made, strict=True)
        # There are no tied weights; looking for them would take the host longer than the rest of the call.
        result: Tensor = functional_call(model, used, (x,), tie_weights=False)
        return result

    return forward


def _groups(names: Sequence[str], weights: dict[str, nn.Parameter], at_once: float) -> Iterator[list[str]]:
    """Groups of consecutive ``names`` whose weights have at most ``at_once`` bytes together; a larger weight is a
    group by itself."""
    group: list[str] = []
    size = 0
    for name in names:
        if group and size + weights[name].nbytes > at_once:
            yield group
            group, size = [], 0
        group.append(name)
        size += weights[name].nbytes
    if group:
        yield group
