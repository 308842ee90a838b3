"""GPU kernels in Triton: one that converts counts to the network's input, and others for the operations after the
convolution in a block (pooling, bias, leaky ReLU)."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlhpc.common.kernels.launch import Kernel, parts

ROWS = 16
CHANNELS = 64
"""Channels in a tile of pooled voxels."""
GROUP = 8
"""Tiles per program, whose sums over rows are added up."""
ELEMENTS = 2048
WARPS = 2 if torch.version.hip else 4
"""Warps per program: 128 threads, each of which moves 16 bytes of a tile."""


@Kernel
def logarithm(counts, mean, spread, out, eights, channels, NORMALISE: tl.constexpr, ELEMENTS: tl.constexpr):
    """Fill ``out`` with log(1 + counts); if ``NORMALISE``, subtract ``mean`` and divide by ``spread``, both per
    channel. ``channels``: number of channels, the innermost axis in memory."""
    at = tl.program_id(0).to(tl.int64) * ELEMENTS + tl.arange(0, ELEMENTS)
    inside = at < eights * 8
    value = tl.log(tl.load(counts + at, mask=inside, other=0).to(tl.float32) + 1.0)
    if NORMALISE:
        channel = at % channels
        value -= tl.load(mean + channel, mask=inside, other=0.0)
        value /= tl.load(spread + channel, mask=inside, other=1.0)
    tl.store(out + at, value.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _corner(pooled, depth, height, width):
    """For each index ``pooled`` of a pooled voxel, the index of the first of the eight voxels from which it is
    pooled. ``depth``, ``height`` and ``width`` are the sides of the pooled volume."""
    across = pooled % width
    down = pooled // width % height
    rest = pooled // (width * height)
    return ((rest * 2 * height + down) * 2 * 2 * width + across * 2).to(tl.int64)


@Kernel
def pool(
    x, bias, y, places, rows, depth, height, width, eights, LEAK: tl.constexpr, ROWS: tl.constexpr,
    CHANNELS: tl.constexpr
):  # fmt: skip
    """Compute ``y``, the largest of 2³ voxels of ``x``, plus ``bias``, passed through a leaky ReLU; one program
    computes a tile of rows and channels. In ``places``, three bits say which of the eight voxels is the largest,
    and one bit says whether ``y`` is above 0."""
    channels = eights * 8
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    inside = (row < rows)[:, None] & (channel < channels)[None, :]
    first = _corner(row, depth, height, width)
    best = tl.load(x + first[:, None] * channels + channel[None, :], mask=inside, other=0.0).to(tl.float32)
    place = tl.zeros((ROWS, CHANNELS), tl.int32)
    for other in tl.static_range(1, 8):
        step = ((other // 4) * 2 * height + (other // 2) % 2) * 2 * width + other % 2
        at = (first + step)[:, None] * channels + channel[None, :]
        value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
        larger = (value > best) | (value != value)
        best = tl.where(larger, value, best)
        place = tl.where(larger, other, place)
    best += tl.load(bias + channel, mask=channel < channels, other=0.0)[None, :]
    to = row.to(tl.int64)[:, None] * channels + channel[None, :]
    tl.store(places + to, (place + tl.where(best > 0.0, 8, 0)).to(tl.uint8), mask=inside)
    tl.store(y + to, tl.where(best > 0.0, best, best * LEAK).to(y.dtype.element_ty), mask=inside)


@Kernel
def spread_back(
    gradient, places, of_x, sums, rows, depth, height, width, eights, LEAK: tl.constexpr, GROUP: tl.constexpr,
    ROWS: tl.constexpr, CHANNELS: tl.constexpr
):  # fmt: skip
    """Compute the gradient of every voxel (the gradient of its pooled voxel, or 0) and the ``sums`` of the pooled
    voxels' gradients, [rows / (ROWS · GROUP), channels]. The pooled volumes do not overlap, so no gradients have
    to be added in memory."""
    channels = eights * 8
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    total = tl.zeros((ROWS, CHANNELS), tl.float32)
    for tile in range(GROUP):
        row = (tl.program_id(0) * GROUP + tile) * ROWS + tl.arange(0, ROWS)
        inside = (row < rows)[:, None] & (channel < channels)[None, :]
        at = row.to(tl.int64)[:, None] * channels + channel[None, :]
        place = tl.load(places + at, mask=inside, other=0).to(tl.int32)
        value = tl.load(gradient + at, mask=inside, other=0.0).to(tl.float32)
        value = tl.where(place >= 8, value, value * LEAK)
        total += value
        first = _corner(row, depth, height, width)
        for other in tl.static_range(8):
            step = ((other // 4) * 2 * height + (other // 2) % 2) * 2 * width + other % 2
            to = (first + step)[:, None] * channels + channel[None, :]
            here = tl.where((place & 7) == other, value, 0.0)
            tl.store(of_x + to, here.to(of_x.dtype.element_ty), mask=inside)
    tl.store(sums + tl.program_id(0) * channels + channel, tl.sum(total, 0), mask=channel < channels)


def log_counts(counts: Tensor, mean: Tensor, spread: Tensor, dtype: torch.dtype) -> Tensor:
    """log(1 + counts) in the type ``dtype``; unless ``mean`` and ``spread`` [channels] are empty, ``mean`` is
    subtracted and the result divided by ``spread``. ``counts`` [..., channels] must be contiguous."""
    out = torch.empty_like(counts, dtype=dtype)
    logarithm.launch(
        (parts(counts.numel(), ELEMENTS), 1), counts, mean, spread, out, counts.numel() // 8, counts.shape[-1],
        NORMALISE=mean.numel() > 0, ELEMENTS=ELEMENTS,
    )  # fmt: skip
    return out


def pool_forward(x: Tensor, bias: Tensor, leak: float) -> tuple[Tensor, Tensor]:
    """Compute ``y`` and ``places`` [b, channels, d/2, h/2, w/2] for ``x`` [b, channels, d, h, w], all in
    channels-last memory layout."""
    pooled = [x.shape[0], x.shape[1], *(side // 2 for side in x.shape[2:])]
    y = torch.empty(pooled, dtype=x.dtype, device=x.device, memory_format=torch.channels_last_3d)
    places = torch.empty_like(y, dtype=torch.uint8)
    rows = y.numel() // x.shape[1]
    grid = parts(rows, ROWS), parts(x.shape[1], CHANNELS)
    pool.launch(
        grid, x, bias, y, places, rows, *pooled[2:], x.shape[1] // 8,
        LEAK=leak, ROWS=ROWS, CHANNELS=CHANNELS, num_warps=WARPS,
    )  # fmt: skip
    return y, places


def pool_backward(gradient: Tensor, places: Tensor, leak: float) -> tuple[Tensor, Tensor]:
    """The gradients of ``x`` [b, channels, d, h, w] and of the bias [channels], from the gradient of the pooled
    voxels."""
    samples, channels, *sides = places.shape
    of_x = torch.empty(
        (samples, channels, *(2 * side for side in sides)),
        dtype=gradient.dtype, device=gradient.device, memory_format=torch.channels_last_3d,
    )  # fmt: skip
    rows = places.numel() // channels
    programs = parts(rows, ROWS * GROUP)
    sums = torch.empty((programs, channels), dtype=torch.float32, device=gradient.device)
    grid = programs, parts(channels, CHANNELS)
    spread_back.launch(
        grid, gradient, places, of_x, sums, rows, *sides, channels // 8,
        LEAK=leak, GROUP=GROUP, num_warps=WARPS, ROWS=ROWS, CHANNELS=CHANNELS,
    )  # fmt: skip
    return of_x, sums.sum(0)
