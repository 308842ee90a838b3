"""Batch norm with its activation, over one rank or a group of ranks."""

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from mlhpc.common.errors import UserError
from mlhpc.common.ranks.world import World


class BatchNorm(nn.BatchNorm2d):
    """``BatchNorm2d``, followed by a ReLU where ``relu`` says so; in training over the batches of all ranks
    of ``group`` where there is one (``group_batchnorm``)."""

    group: dist.ProcessGroup | None = None

    def __init__(self, features: int, *, relu: bool = False) -> None:
        super().__init__(features)
        self.relu = relu

    def forward(self, input: Tensor) -> Tensor:
        x = self._over_group(input) if self.group and self.training else super().forward(input)
        return F.relu(x, inplace=True) if self.relu else x

    def _over_group(self, x: Tensor) -> Tensor:
        y, mean, variance, count = _Grouped.apply(x, self.weight, self.bias, self.eps, self.group)
        with torch.no_grad():
            self.running_mean.lerp_(mean, self.momentum)
            self.running_var.lerp_(variance * (count / (count - 1)), self.momentum)
            self.num_batches_tracked += 1
        return y


class _Grouped(torch.autograd.Function):
    """Batch norm over the ranks of a group, each with as many samples (Ioffe and Szegedy 2015, algorithm 1;
    its gradient: section 3). ``nn.SyncBatchNorm`` does the same, and refuses tensors of a CPU."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float, group: dist.ProcessGroup
    ) -> tuple[Tensor, Tensor, Tensor, int]:
        variance, mean = torch.var_mean(_precise(x), (0, 2, 3), correction=0)
        parts = [torch.empty_like(torch.stack((mean, variance))) for _ in range(group.size())]
        dist.all_gather(parts, torch.stack((mean, variance)), group=group)
        means, variances = torch.stack(parts).unbind(1)
        mean = means.mean(0)
        # Of equal parts: their mean variance plus the variance of their means; no difference of squares.
        variance = variances.mean(0) + (means - mean).square().mean(0)
        inverse = torch.rsqrt(variance + eps)
        count = x.numel() // x.shape[1] * group.size()
        y = torch.addcmul(_wide(bias - mean * inverse * weight), x, _wide(inverse * weight)).to(x.dtype)
        ctx.save_for_backward(x, weight, mean, inverse)
        ctx.group, ctx.count = group, count
        ctx.mark_non_differentiable(mean, variance)
        return y, mean, variance, count

    @staticmethod
    def backward(ctx: Any, dy: Tensor, *unused: object) -> tuple[Tensor | None, ...]:
        x, weight, mean, inverse = ctx.saved_tensors
        normal = (x - _wide(mean)) * _wide(inverse)
        dweight, dbias = (dy * normal).sum((0, 2, 3)), _precise(dy).sum((0, 2, 3))
        sums = torch.stack((dweight, dbias))
        dist.all_reduce(sums, group=ctx.group)  # what the other ranks' losses owe to this rank's samples
        along, across = (sums / ctx.count).unbind(0)
        dx = (dy - _wide(across) - normal * _wide(along)) * _wide(inverse * weight)
        return dx.to(x.dtype), dweight, dbias, None, None


def _precise(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _wide(of_channels: Tensor) -> Tensor:
    return of_channels.view(1, -1, 1, 1)


def group_batchnorm(model: nn.Module, world: World, group_size: int) -> None:
    """Have every batch norm of ``model`` share its statistics in training among ``group_size`` ranks that
    follow each other (the rules' ``batchnorm_group_size``). Called by all ranks.

    Raises UserError when the ranks do not make whole groups.
    """
    if world.size % group_size:
        raise UserError(
            f"hyperparameters.batchnorm_group_size {group_size} does not divide the {world.size} ranks; "
            "take a divisor, or another number of ranks"
        )
    if group_size == 1:
        return
    from mlhpc.common.ranks.torch_world import TorchWorld

    assert isinstance(world, TorchWorld)
    starts = range(0, world.size, group_size)
    groups = [world.group(range(start, start + group_size)) for start in starts]
    for module in model.modules():
        if isinstance(module, BatchNorm):
            module.group = groups[world.rank // group_size]


@torch.no_grad()
def average_statistics(model: nn.Module, world: World) -> None:
    """Give every rank the mean over ranks of the running means and variances, as the reference does before an
    evaluation (mlcommons/hpc, deepcam/src/deepCam/utils/bnstats.py), in one all-reduce. Called by all."""
    if world.size == 1:
        return
    running = [
        tensor
        for module in model.modules()
        if isinstance(module, BatchNorm)
        for tensor in (module.running_mean, module.running_var)
        if tensor is not None
    ]
    flat = torch.cat(running)
    dist.all_reduce(flat)
    flat /= world.size
    for tensor, part in zip(running, flat.split([tensor.numel() for tensor in running]), strict=True):
        tensor.copy_(part)
