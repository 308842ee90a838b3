"""LAMB (You et al. 2020, arXiv:1904.00962), computed as in NVIDIA Apex's FusedLAMB."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from mlhpc.common.pytorch.foreach import GroupOptimizer, multiply_each, on_cpu

CACHE = 2**20
"""Number of weights that a CPU updates at a time, so that they, their gradients and state stay in its caches."""


@dataclass(frozen=True)
class Moments:
    """How the gradients and their squares are averaged: the decay rates b1 and b2, whether there is bias
    correction, and whether a new gradient has the weight 1 - b1 in the average."""

    betas: tuple[float, float] = (0.9, 0.999)
    bias_correction: bool = True
    grad_averaging: bool = True


class Lamb(GroupOptimizer):
    """LAMB over the tensors of ``parameters``, which are on one device and in float32.

    As in Apex (apex/optimizers/fused_lamb.py, csrc/multi_tensor_lamb.cu, ``adam_w_mode``, not ``use_nvlamb``), the
    gradients g are divided by max(1, |g| / max_grad_norm), where |g| is the norm over all tensors. Then m = b1 m +
    b3 g and v = b2 v + (1 - b2) g^2, where b3 is 1 - b1 with gradient averaging and 1 without it (``moments``).
    With bias correction, m' = m / (1 - b1^t) and v' = v / (1 - b2^t). The update of a tensor is u = m' / (sqrt(v')
    + eps) + weight_decay w, and w = w - lr |w| / |u| u. If a norm is zero, or ``weight_decay`` is zero, the ratio
    |w| / |u| is replaced by 1.

    ``step`` overwrites the gradients, as Apex does, and never waits for a GPU: everything that depends on values
    stays on the device, including loss scaling (``torch.amp.GradScaler``), with which a step with non-finite
    gradients changes nothing. A learning rate that is a tensor on the device may be changed in place, even with a
    captured graph. With ``compiled``, the update is compiled (for GPUs).
    """

    def __init__(
        self,
        parameters: Iterable[torch.nn.Parameter],
        lr: float | Tensor,
        *,
        moments: Moments = Moments(),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        max_grad_norm: float = 1.0,
        compiled: bool = False,
    ) -> None:
        defaults = {
            "lr": lr,
            **asdict(moments),
            "eps": eps,
            "weight_decay": weight_decay,
            "max_grad_norm": max_grad_norm,
        }
        super().__init__(parameters, defaults)
        self._update: Callable[..., None] = torch.compile(update, dynamic=False) if compiled else update
        for group in self.param_groups:
            first = group["params"][0]
            group["step"] = torch.zeros((), dtype=torch.float64, device=first.device)
            for parameter in group["params"]:
                zeros = (torch.zeros_like(parameter, memory_format=torch.preserve_format) for _ in range(2))
                self.state[parameter] = dict(zip(("exp_avg", "exp_avg_sq"), zeros, strict=True))

    def step_group(self, group: dict[str, Any], weights: list[Tensor], gradients: list[Tensor]) -> None:
        scale: Tensor | None = getattr(self, "grad_scale", None)
        found_inf: Tensor | None = getattr(self, "found_inf", None)
        beta1, beta2 = group["betas"]
        beta3 = 1 - beta1 if group["grad_averaging"] else 1.0
        step: Tensor = group["step"]
        go = torch.ones_like(step) if found_inf is None else 1 - found_inf.to(step).reshape(())
        unscale = torch.ones_like(step) if scale is None else 1 / scale.to(step).reshape(())
        step += go
        norm = torch.stack(torch._foreach_norm(gradients)).to(step).norm() * unscale
        shrink = (norm / group["max_grad_norm"]).clamp(min=1)
        correction1 = 1 - beta1**step if group["bias_correction"] else torch.ones_like(step)
        correction2 = 1 - beta2**step if group["bias_correction"] else torch.ones_like(step)
        factors = [
            (value if found_inf is None else torch.where(go > 0, value, idle)).float()
            for value, idle in (
                (beta3 * unscale / shrink, 0.0),
                (torch.full_like(step, beta1), 1.0),
                (torch.full_like(step, beta2), 1.0),
                (correction1 / correction2.sqrt(), 1.0),
                (group["eps"] * correction1, 1.0),
                (torch.as_tensor(group["lr"], dtype=step.dtype, device=step.device), 0.0),
            )
        ]
        for part in _parts(weights, CACHE if on_cpu(step) else None):
            self._update(
                weights[part],
                gradients[part],
                [self.state[weight]["exp_avg"] for weight in weights[part]],
                [self.state[weight]["exp_avg_sq"] for weight in weights[part]],
                factors,
                square=(1 - beta2) / beta3**2,
                weight_decay=group["weight_decay"],
                go=None if found_inf is None else go.int(),
            )


def update(
    weights: list[Tensor],
    gradients: list[Tensor],
    means: list[Tensor],
    squares: list[Tensor],
    factors: list[Tensor],
    *,
    square: float,
    weight_decay: float,
    go: Tensor | None,
) -> None:
    """Update these tensors once, in place; ``gradients`` are overwritten, and taken to be 0 if ``go`` is 0.

    ``factors`` are scalars, in this order: the factor of the gradients, which includes b3 (``square`` makes up for
    it in v); b1; b2; the factor of sqrt(v) and the term added to it, which both include the bias correction of m;
    and the learning rate.
    """
    of_gradient, beta1, beta2, of_root, to_root, rate = factors
    torch._foreach_mul_(gradients, of_gradient)
    if go is not None:  # multiply their bits, since 0 times infinity is not 0
        torch._foreach_mul_([gradient.view(torch.int32) for gradient in gradients], go)
    torch._foreach_mul_(means, beta1)
    torch._foreach_add_(means, gradients)
    torch._foreach_mul_(squares, beta2)
    torch._foreach_addcmul_(squares, gradients, gradients, square)
    roots = torch._foreach_sqrt(squares)
    torch._foreach_mul_(roots, of_root)
    # Without alpha the factor is converted to a number, which waits for a GPU.
    torch._foreach_add_(roots, to_root, alpha=1)
    torch._foreach_copy_(gradients, means)
    torch._foreach_div_(gradients, roots)
    if weight_decay:
        torch._foreach_add_(gradients, weights, alpha=weight_decay)
        of_weights = torch.stack(torch._foreach_norm(weights))
        of_updates = torch.stack(torch._foreach_norm(gradients))
        ratios = torch.where((of_weights > 0) & (of_updates > 0), of_weights / of_updates, 1.0)
        multiply_each(gradients, rate * ratios)
    else:
        torch._foreach_mul_(gradients, rate)
    torch._foreach_sub_(weights, gradients)


def _parts(parameters: list[Tensor], limit: int | None) -> Iterator[slice]:
    """Slices of consecutive parameters that have at most ``limit`` elements in total; a larger parameter is a
    slice by itself. Without a limit, one slice of all parameters."""
    begin, size = 0, 0
    for end, parameter in enumerate(parameters):
        size += parameter.numel()
        if limit is not None and size > limit and end > begin:
            yield slice(begin, end)
            begin, size = end, parameter.numel()
    yield slice(begin, len(parameters))
