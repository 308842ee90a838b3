"""The CosmoFlow network in PyTorch: the same function and weights as ``cosmoflow/tf/model.py``."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from mlhpc.benchmarks.cosmoflow import Network
from mlhpc.common.kernels.operators import define, run_on
from mlhpc.common.pytorch.spatial import SpatialGroup, gather, with_halo
from mlhpc.cosmoflow.network import LEAK, SCALE, require_divisible

ConvolveAndPool = Callable[[Tensor, nn.Conv3d], Tensor]


def convolve_and_pool(x: Tensor, convolution: nn.Conv3d) -> Tensor:
    """The largest of every 2³ outputs of ``convolution``, ``[b, filters, d/2, h/2, w/2]``, for ``x`` [b, channels,
    d, h, w]."""
    outputs = convolution(x)
    with torch.autocast(outputs.device.type, enabled=False):  # with autocast, CPUs would pool in float32
        return nn.functional.max_pool3d(outputs, 2)


class CosmoFlowNet(nn.Module):
    """Maps voxels ``[b, n, n, n, redshifts]`` to ``[b, targets]`` in (-1.2, 1.2), float32.

    Voxels are either particle counts as stored, int16, which are converted to log(1 + x) here, on the device, or
    log(1 + x) in float32. ``channels_last``: keep the voxels in the order in which they are stored; otherwise they
    are copied to channels first. Under autocast, the last layer is computed in float32, as in the TensorFlow
    network. With a ``group``, the voxels are this rank's slab of the volume, and every rank of the group returns
    the prediction.

    ``convolve_and_pool``: computes convolution and pooling in every block. ``cosmoflow/cpu/pooled.py`` has the
    same function with faster gradients for CPUs.

    ``halvings`` may be set between steps. In training mode, counts are then averaged over cubes of 2 **
    ``halvings`` voxels per side, and the last ``halvings`` blocks do not pool, so that every weight keeps its
    shape (multi-resolution training, arXiv 2510.25170, whose authors' code instead keeps only the weights of
    convolutions).
    """

    def __init__(
        self,
        network: Network,
        sample_shape: tuple[int, ...],
        *,
        dropout: float = 0.5,
        channels_last: bool = True,
        group: SpatialGroup | None = None,
        convolve_and_pool: ConvolveAndPool = convolve_and_pool,
    ) -> None:
        super().__init__()
        self.group = group
        self.halvings = 0
        self.input_mean: Tensor
        self.input_spread: Tensor
        require_divisible(network, sample_shape)
        *sides, channels = sample_shape
        self.channels_last = channels_last
        self.register_buffer("input_mean", _per_channel(network.input_mean), persistent=False)
        self.register_buffer("input_spread", _per_channel(network.input_spread), persistent=False)
        self.blocks = nn.ModuleList()
        for block in range(network.conv_layers):
            filters = network.conv_filters * 2**block
            split = group is not None and block < group.plan.split_levels
            self.blocks.append(Block(channels, filters, network.conv_kernel, convolve_and_pool, split=split))
            channels = filters
        features = channels * torch.Size(side // 2**network.conv_layers for side in sides).numel()
        self.hidden = nn.ModuleList()
        for units in network.dense_units:
            self.hidden.append(nn.Linear(features, units))
            features = units
        self.last = nn.Linear(features, network.targets)
        self.dropout = nn.Dropout(dropout)
        for module in self.modules():
            if isinstance(module, nn.Conv3d | nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def forward(self, voxels: Tensor) -> Tensor:
        halvings = self.halvings if self.training else 0
        counts = not voxels.is_floating_point() and voxels.numel() % 8 == 0
        if counts and halvings == 0 and run_on(voxels):
            autocast = torch.is_autocast_enabled(voxels.device.type)
            dtype = torch.get_autocast_dtype(voxels.device.type) if autocast else torch.float32
            x = _log_counts(voxels, self.input_mean, self.input_spread, dtype)
        else:
            # In place, because allocating arrays of this size takes longer than their arithmetic.
            x = voxels if voxels.is_floating_point() else coarse(voxels.float(), halvings).add_(1.0).log_()
            if self.input_mean.numel():
                x = (x - self.input_mean) / self.input_spread
        x = x.permute(0, 4, 1, 2, 3)  # a view: data stored channels last is channels_last_3d in PyTorch
        if not self.channels_last:
            x = x.contiguous()
        group = self.group
        for level, block in enumerate(self.blocks):
            if group and level == group.plan.split_levels:
                x = self._in_layout(gather(x, level, group))
                group = None
            x = block(x, group, pool=level < len(self.blocks) - halvings)
        if group:
            x = gather(x, len(self.blocks), group)
        x = x.permute(0, 2, 3, 4, 1).flatten(1)  # TensorFlow's order of features
        for dense in self.hidden:
            x = self.dropout(nn.functional.leaky_relu(dense(x), LEAK))
        with torch.autocast(x.device.type, enabled=False):
            return SCALE * torch.tanh(self.last(x.float()))

    def _in_layout(self, x: Tensor) -> Tensor:
        # On a processor without bfloat16 instructions, PyTorch's convolution in bfloat16 returns channels first.
        return x.contiguous(memory_format=torch.channels_last_3d) if self.channels_last else x

    def decayed_weights(self) -> list[Tensor]:
        """The weights that have weight decay: the kernels, of any shape, of all dense layers except the last."""
        return [dense.weight for dense in self.hidden if isinstance(dense, nn.Linear)]


class Block(nn.Module):
    """Convolution, max pooling, bias and leaky ReLU.

    The reference adds the bias and activates before it pools. Both are monotonic, so function and gradients are
    the same, but bias and activation take an eighth of the work here.
    """

    def __init__(
        self, channels: int, filters: int, kernel: int, convolve_and_pool: ConvolveAndPool, *, split: bool
    ) -> None:
        super().__init__()
        self._convolve_and_pool = convolve_and_pool
        padding = 0 if split or kernel % 2 == 0 else kernel // 2
        self.convolution = nn.Conv3d(channels, filters, kernel, padding=padding, bias=False)
        self.bias = nn.Parameter(torch.zeros(filters))

    def forward(self, x: Tensor, group: SpatialGroup | None, pool: bool = True) -> Tensor:
        kernel = self.convolution.kernel_size[0]
        if group:
            x = with_halo(x, kernel, group)
        elif kernel % 2 == 0:  # padded at the end as in TensorFlow; PyTorch's own "same" warns of a copy
            x = nn.functional.pad(x, ((kernel - 1) // 2, kernel // 2) * 3)
        if pool and self._convolve_and_pool is convolve_and_pool and run_on(x):
            outputs = self.convolution(x)
            if _can_pool(outputs):
                pooled: Tensor = _Pooled.apply(outputs, self.bias)
                return pooled
        x = self._convolve_and_pool(x, self.convolution) if pool else self.convolution(x)
        return nn.functional.leaky_relu(x + self.bias.to(x.dtype).view(-1, 1, 1, 1), LEAK)


class _Pooled(torch.autograd.Function):
    """Max pooling, bias and leaky ReLU."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor) -> Tensor:
        y: Tensor
        y, places = _pool(x, bias, LEAK)
        ctx.save_for_backward(places)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        gradient = gradient.contiguous(memory_format=torch.channels_last_3d)
        of_x, of_bias = _pool_backward(gradient, *ctx.saved_tensors, LEAK)
        return of_x, of_bias


def _can_pool(x: Tensor) -> bool:
    """Return whether the kernels support ``x``, the output of a convolution [b, channels, d, h, w]."""
    even = all(side % 2 == 0 for side in x.shape[2:])
    return even and x.shape[1] % 8 == 0 and x.is_contiguous(memory_format=torch.channels_last_3d)


def _pooled_shapes(x: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    y = x[:, :, ::2, ::2, ::2].contiguous(memory_format=torch.channels_last_3d)
    return y, torch.empty_like(y, dtype=torch.uint8)


def _unpooled_shapes(gradient: Tensor, places: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    samples, channels, *sides = places.shape
    shape = (samples, channels, *(2 * side for side in sides))
    of_x = gradient.new_empty(shape).contiguous(memory_format=torch.channels_last_3d)
    return of_x, gradient.new_empty(channels, dtype=torch.float32)


_KERNELS = "mlhpc.cosmoflow.pytorch.kernels"
_log_counts = define(
    "log_counts",
    "(Tensor counts, Tensor mean, Tensor spread, ScalarType dtype) -> Tensor",
    f"{_KERNELS}:log_counts",
    lambda counts, mean, spread, dtype: torch.empty_like(counts, dtype=dtype),
)
_pool = define(
    "pool",
    "(Tensor x, Tensor bias, float leak) -> (Tensor, Tensor)",
    f"{_KERNELS}:pool_forward",
    _pooled_shapes,
)
_pool_backward = define(
    "pool_backward",
    "(Tensor gradient, Tensor places, float leak) -> (Tensor, Tensor)",
    f"{_KERNELS}:pool_backward",
    _unpooled_shapes,
)


def coarse(counts: Tensor, halvings: int) -> Tensor:
    """Counts ``[b, n, n, n, channels]`` averaged over cubes of 2 ** ``halvings`` voxels per side, which yields
    fewer, larger voxels with values in the same range."""
    if not halvings:
        return counts
    channels_first = counts.permute(0, 4, 1, 2, 3)
    return nn.functional.avg_pool3d(channels_first, 2**halvings).permute(0, 2, 3, 4, 1)


def _per_channel(values: tuple[float, ...]) -> Tensor:
    return torch.tensor(values, dtype=torch.float32)
