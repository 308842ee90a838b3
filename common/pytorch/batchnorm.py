"""Batch norm and its activation, with statistics over the batch of one rank or the batches of a group of ranks."""

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from mlhpc.common.kernels.operators import define, run_on
from mlhpc.common.ranks.torch_world import TorchWorld
from mlhpc.common.ranks.world import World


class BatchNorm(nn.BatchNorm2d):
    """``BatchNorm2d``, which also takes volumes, followed by a ReLU if ``relu``.

    ``group``: the ranks that share statistics in training (None: each rank has its own). ``frozen``: the module
    stays in evaluation mode, with the running statistics, while the rest of the network is trained. ``recompute``:
    the modules that use the output recompute it in their backward pass instead of keeping it.
    """

    def __init__(self, features: int, *, relu: bool = False, momentum: float = 0.1) -> None:
        super().__init__(features, momentum=momentum)
        self.relu = relu
        self.group: dist.ProcessGroup | None = None
        self.frozen = False
        self.recompute = False

    def train(self, mode: bool = True) -> "BatchNorm":
        """As in ``nn.Module``, but a frozen module stays in evaluation mode."""
        super().train(mode and not self.frozen)
        return self

    def _check_input_dim(self, input: Tensor) -> None:
        if input.dim() not in (4, 5):
            raise ValueError(f"batch norm: expected 4 or 5 axes, got {input.dim()}")

    def forward(self, input: Tensor, added: Tensor | None = None, relu: bool | None = None) -> Tensor:
        """The normalised ``input``, [b, channels, h, w] or a volume. ``added``, of the same shape as ``input``, is
        added before the ReLU. ``relu`` overrides the module's own setting."""
        self._check_input_dim(input)
        relu = self.relu if relu is None else relu
        if self.training and self.group is None and input.numel() == input.shape[1]:
            raise ValueError("batch norm: one value per channel has no variance")
        if self.training and self.recompute and not torch.compiler.is_compiling():
            trained: Tensor = _Trained.apply(input, self.weight, self.bias, self, self.relu)
            return trained
        if self.training and self.group is None and _can_fuse(input):
            fused: Tensor = _Fused.apply(input, added, self.weight, self.bias, self, relu)
            return fused
        if self.training and self.group is not None:
            x = _Trained.apply(input, self.weight, self.bias, self, False)
        else:  # not the parent's forward, which launches a kernel to count batches
            own = self.running_mean, self.running_var, self.weight, self.bias
            x = F.batch_norm(input, *own, self.training, self.momentum or 0.0, self.eps)
        if added is not None:
            x += added
        return F.relu(x, inplace=True) if relu else x

    def statistics(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Mean and variance [channels] of ``x`` over its pixels or voxels; updates the running statistics. In a
        group, mean and variance cover all ranks of the group, and the third value returned is the number of
        elements; without a group, that is None."""
        assert self.running_mean is not None and self.running_var is not None
        assert self.momentum is not None
        if self.group is None:
            mean, var = torch.batch_norm_update_stats(x, self.running_mean, self.running_var, self.momentum)
            return mean, var, None
        pixels = x.movedim(1, -1).flatten(0, -2).to(torch.promote_types(x.dtype, torch.float32))
        own_var, own_mean = torch.var_mean(pixels, 0, correction=0)
        own = torch.cat((own_mean, own_var, own_mean.new_full((1,), len(pixels))))
        gathered = [torch.empty_like(own) for _ in range(self.group.size())]
        dist.all_gather(gathered, own, group=self.group)
        of_ranks = torch.stack(gathered)
        counts = of_ranks[:, -1:]
        means, variances = of_ranks[:, :-1].chunk(2, 1)
        count = counts.sum()
        # Chan et al. 1983, equation 2.1: the variance of the whole from the variances of its parts.
        mean = (counts * means).sum(0) / count
        var = (counts * (variances + (means - mean) ** 2)).sum(0) / count
        self.running_mean.lerp_(mean, self.momentum)
        self.running_var.lerp_(var * count / (count - 1), self.momentum)
        return mean, var, count


class _Trained(torch.autograd.Function):
    """Training-mode batch norm, with a ReLU if ``relu``. Over a group of ranks it costs one all-gather of means
    and variances in the forward pass and one all-reduce of two sums per channel in the backward pass. It also runs
    on CPUs, which PyTorch's ``SyncBatchNorm`` does not support. It keeps its input, and recomputes its output from
    the input on demand."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, norm: BatchNorm, relu: bool) -> Tensor:
        mean, var, count = norm.statistics(x)
        ctx.save_for_backward(x, weight, bias, mean, var, count)
        ctx.eps, ctx.group, ctx.relu = norm.eps, norm.group, relu
        ctx.output = None
        return _normalised(x, mean, var, weight, bias, norm.eps, relu)

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, gradient: Tensor
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None, None, None]:
        x, weight, _, mean, var, count = ctx.saved_tensors
        needs_gradient = ctx.needs_input_grad[:3]
        if ctx.relu:
            output = recompute_output(ctx)
            # The output is no longer needed: its memory is reused for the gradient.
            gradient = torch.ops.aten.threshold_backward.grad_input(gradient, output, 0, grad_input=output)
        ctx.output = None
        spread = (var + ctx.eps).rsqrt()
        if ctx.group is None:
            return *torch.ops.aten.native_batch_norm_backward(
                gradient, x, weight, None, None, mean, spread, True, ctx.eps, needs_gradient
            ), None, None  # fmt: skip
        # Two sums over this rank's pixels: of gradient times normalised input, and of the gradient. The GPU kernel
        # requires the batch's statistics in place of the saved ones, although it does not use them.
        _, of_weight, of_bias = torch.ops.aten.native_batch_norm_backward(
            gradient, x, weight, mean, var, mean, spread, False, ctx.eps, (False, True, True)
        )
        sums = torch.stack((of_weight, of_bias))
        dist.all_reduce(sums, group=ctx.group)
        # Ioffe and Szegedy 2015, section 3, solved for the input's gradient. The three terms nearly cancel; in
        # bfloat16 each would be rounded first, so they are added in the statistics' precision.
        of_means = sums / count
        slope = weight * spread**2 * of_means[0]
        offset = weight * spread * of_means[1] - slope * mean
        shape = (-1, *[1] * (x.dim() - 2))  # per channel
        of_x = torch.addcmul((-offset).view(shape), x, (-slope).view(shape))
        of_x.addcmul_(gradient, (weight * spread).view(shape))
        return of_x.to(x.dtype), of_weight, of_bias, None, None


def _can_fuse(x: Tensor) -> bool:
    """Return whether the kernels in ``common/kernels/batchnorm.py`` support ``x`` in training."""
    fits = x.dim() == 4 and x.shape[1] % 8 == 0 and x.is_contiguous(memory_format=torch.channels_last)
    return fits and run_on(x)


def _output_shapes(x: Tensor, _: Any, weight: Tensor, *__: Any) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), weight.new_empty((2, len(weight)))


def _gradient_shapes(
    _: Tensor, x: Tensor, y: Tensor | None, weight: Tensor, *__: Any
) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
    added = None if y is None else torch.empty_like(x)
    return torch.empty_like(x), added, torch.empty_like(weight), torch.empty_like(weight)


_batch_norm = define(
    "batch_norm",
    "(Tensor x, Tensor? added, Tensor weight, Tensor bias, Tensor(a!) running_mean, Tensor(b!) running_var, "
    "float momentum, float eps, bool relu) -> (Tensor, Tensor)",
    "mlhpc.common.kernels.batchnorm:forward",
    _output_shapes,
)
_batch_norm_backward = define(
    "batch_norm_backward",
    "(Tensor gradient, Tensor x, Tensor? y, Tensor weight, Tensor bias, Tensor statistics, bool relu) -> "
    "(Tensor, Tensor?, Tensor, Tensor)",
    "mlhpc.common.kernels.batchnorm:backward",
    _gradient_shapes,
)


class _Fused(torch.autograd.Function):
    """Training-mode batch norm, the addition of ``added`` and a ReLU, in four kernels."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, added: Tensor | None, weight: Tensor, bias: Tensor, norm: BatchNorm, relu: bool
    ) -> Tensor:
        if added is not None:
            added = added.to(x.dtype).contiguous(memory_format=torch.channels_last)
        y: Tensor
        y, statistics = _batch_norm(
            x, added, weight, bias, norm.running_mean, norm.running_var, norm.momentum, norm.eps, relu
        )
        ctx.relu, ctx.added = relu, added is not None
        ctx.save_for_backward(x, y if ctx.added else None, weight, bias, statistics)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        gradient = gradient.contiguous(memory_format=torch.channels_last)
        return *_batch_norm_backward(gradient, *ctx.saved_tensors, ctx.relu), None, None


def recompute_output(node: Any) -> Tensor:
    """The output of a batch norm, [b, channels, h, w] like its input, recomputed bit for bit from the input.
    ``node``: the output's ``grad_fn``, before its backward pass has ended. The output is recomputed once and kept
    until the backward pass of the batch norm itself, which follows those of the modules that use the output."""
    if node.output is None:
        x, weight, bias, mean, var, _ = node.saved_tensors
        node.output = _normalised(x, mean, var, weight, bias, node.eps, node.relu)
    output: Tensor = node.output
    return output


def _normalised(
    x: Tensor, mean: Tensor, var: Tensor, weight: Tensor, bias: Tensor, eps: float, relu: bool
) -> Tensor:
    y = F.batch_norm(x, mean, var, weight, bias, False, 0.0, eps)
    return y.relu_() if relu else y


def group_batchnorm(model: nn.Module, world: World, group_size: int) -> None:
    """Let groups of ``group_size`` neighbouring ranks share batch-norm statistics. Does nothing if a group or the
    world has only one rank. All ranks call it."""
    if 1 in (group_size, world.size):
        return
    assert isinstance(world, TorchWorld), "ranks that share statistics are connected by torch.distributed"
    group = world.neighbours(group_size)
    for module in model.modules():
        if isinstance(module, BatchNorm):
            module.group = group
