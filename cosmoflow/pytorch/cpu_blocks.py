"""CosmoFlow's large convolutions in PyTorch for processors: convolution and pooling one sample at a time.

What a large block puts out before pooling is most of a step's memory (in float32 268 MB for each sample of
128³), and the gradient of pooling fills as much with zeros. Fresh memory costs more than that arithmetic: 0.6 s
of a step of 2.6 s (4 samples in bfloat16, 2 cores of an AMD EPYC). One sample after the other works in the
memory of the one before.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from mlhpc.cosmoflow.pytorch.model import Block, CosmoFlowNet

LARGE = 16 << 20
"""Bytes of a sample before pooling from which on it is worth it."""
POOL = (2, 2, 2)


def use_cpu_kernels(model: CosmoFlowNet) -> None:
    """Let the convolutions of ``model`` pool as well. Weights, names and, up to rounding, results do not
    change."""
    for module in model.modules():
        if type(module) is Block:
            module.__class__ = CpuBlock  # only how it computes differs
            module.convolution.__class__ = PooledConv3d


class PooledConv3d(nn.Conv3d):
    def forward(self, input: Tensor, pool: bool = False) -> Tensor:
        if not pool:
            return super().forward(input)
        x, weight = _cast(input), _cast(self.weight)
        size = x[0, 0].numel() * len(weight) * x.element_size()
        if size < LARGE or torch.compiler.is_compiling():
            return F.max_pool3d(super().forward(input), POOL)
        return _Pooled.apply(x, weight, self.padding[0])  # type: ignore[no-any-return, no-untyped-call]


class CpuBlock(Block):
    def convolve(self, x: Tensor, pool: bool) -> Tensor:
        return self.convolution(x, pool)  # type: ignore[no-any-return]


class _Pooled(torch.autograd.Function):
    """A convolution and the maxima of cubes of 2³ of what it puts out."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, padding: int) -> Tensor:
        maxima, places = [], []
        for sample in torch.split(x, 1):
            y = F.conv3d(sample, weight, padding=padding)
            found = torch.ops.aten.max_pool3d_with_indices(y, POOL)
            maxima.append(found[0])
            places.append(found[1])
        ctx.save_for_backward(x, weight, *places)
        ctx.padding, ctx.shape = padding, y.shape
        return torch.cat(maxima)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x, weight, *places = ctx.saved_tensors
        wants_x, wants_weight, _ = ctx.needs_input_grad
        of_x, of_weight = [], torch.zeros_like(weight, dtype=torch.promote_types(weight.dtype, torch.float32))
        for sample, of_maxima, place in zip(torch.split(x, 1), torch.split(gradient, 1), places, strict=True):
            # Of the output only shape and layout are asked for.
            like = torch.empty(ctx.shape, dtype=x.dtype, memory_format=torch.channels_last_3d)
            of_y = torch.ops.aten.max_pool3d_with_indices_backward(
                of_maxima, like, POOL, (), (0, 0, 0), (1, 1, 1), False, place
            )
            del like
            of_sample, of_filter, _ = torch.ops.aten.convolution_backward(
                of_y, sample, weight, None, (1, 1, 1), (ctx.padding,) * 3, (1, 1, 1), False, (0, 0, 0), 1,
                (wants_x, wants_weight, False),
            )  # fmt: skip
            of_x.append(of_sample)
            if wants_weight:
                of_weight += of_filter
        return (
            torch.cat(of_x) if wants_x else None,
            of_weight.to(weight.dtype) if wants_weight else None,
            None,
        )


def _cast(tensor: Tensor) -> Tensor:
    """Cast like autocast does before a convolution, but not before a custom autograd function."""
    return tensor.to(torch.get_autocast_dtype("cpu")) if torch.is_autocast_enabled("cpu") else tensor
