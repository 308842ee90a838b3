"""Training-mode batch norm on a GPU, followed by an addition and a ReLU if requested: two kernels in the forward
pass and two in the backward pass.

PyTorch's own kernels read or write an activation 13 times for batch norm and ReLU, and 16 times with an addition;
the kernels below do so 8 and 12 times. Activations are in channels-last layout: a matrix [rows, channels] with a
row for each pixel of each sample. The first kernel of each pass sums over up to ``PARTS`` groups of rows, and each
program of the second kernel adds up these sums, always in the same order, so that a repeated step gives the same
result bit for bit.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlhpc.common.kernels.launch import Kernel, parts

ROWS = 64
CHANNELS = 64
"""Rows and channels of a tile."""
PARTS = 256
"""Groups of rows at most, whose sums each program of a second kernel adds up."""
SUMMING, WRITING = 512, 2048
"""Programs of a first and of a second kernel. Of nine combinations of these constants, this one was the fastest on
an H200, 2026-11-27 (Triton 3.6.0)."""


@triton.jit
def _tile(begin, first_channel, rows, channels, ROWS: tl.constexpr, CHANNELS: tl.constexpr):
    """The offsets of a tile's elements in memory, and a mask of the elements that are in the matrix."""
    row = begin + tl.arange(0, ROWS)
    channel = first_channel + tl.arange(0, CHANNELS)
    at = row.to(tl.int64)[:, None] * channels + channel[None, :]
    return at, (row < rows)[:, None] & (channel < channels)[None, :]


@triton.jit
def _added_up(sums, channel, inside, channels, PARTS: tl.constexpr):
    """Both sums of each ``channel`` over all parts; ``sums`` is [2, PARTS, channels]."""
    AT_ONCE: tl.constexpr = min(PARTS, 32)
    CHANNELS: tl.constexpr = channel.shape[0]
    first = tl.zeros((AT_ONCE, CHANNELS), tl.float32)
    second = tl.zeros((AT_ONCE, CHANNELS), tl.float32)
    for begin in range(0, PARTS, AT_ONCE):
        at = sums + (begin + tl.arange(0, AT_ONCE))[:, None] * channels + channel[None, :]
        first += tl.load(at, mask=inside[None, :], other=0.0)
        second += tl.load(at + PARTS * channels, mask=inside[None, :], other=0.0)
    return tl.sum(first, 0), tl.sum(second, 0)


@triton.jit
def _of_channels(statistics, weight, bias, channel, channels):
    """Mean, 1 / sqrt(variance + eps), weight and bias of each ``channel``; ``statistics`` is [2, channels]."""
    inside = channel < channels
    centre = tl.load(statistics + channel, mask=inside, other=0.0)
    scale = tl.load(statistics + channels + channel, mask=inside, other=0.0)
    slope = tl.load(weight + channel, mask=inside, other=0.0)
    return centre, scale, slope, tl.load(bias + channel, mask=inside, other=0.0)


@triton.jit
def _gradient_before(
    gradient, y, at, there, normalised, slope, offset, ADDED: tl.constexpr, RELU: tl.constexpr
):  # fmt: skip
    """The gradient before the ReLU. If something was added, the sign before the ReLU is that of ``y``; otherwise
    it is recomputed."""
    value = tl.load(gradient + at, mask=there, other=0.0).to(tl.float32)
    if RELU:
        if ADDED:
            value = tl.where(tl.load(y + at, mask=there, other=0.0).to(tl.float32) <= 0.0, 0.0, value)
        else:
            value = tl.where(normalised * slope[None, :] + offset[None, :] <= 0.0, 0.0, value)
    return value


@Kernel
def sum_up(
    x, gradient, y, statistics, weight, bias, sums, rows, eights, each, BACKWARD: tl.constexpr,
    ADDED: tl.constexpr, RELU: tl.constexpr, PARTS: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr
):  # fmt: skip
    """Program (channels, part): computes two sums over ``each`` rows. Forward: the sums of ``x`` minus its first
    row, and of the squares of these differences (Chan et al. 1983, shifted data). ``BACKWARD``: the sums of the
    gradient, and of its product with the normalised ``x``. ``eights``: channels / 8, which tells Triton that
    channels are aligned in groups of eight."""
    channels = eights * 8
    channel = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    inside = channel < channels
    part = tl.program_id(1)
    if BACKWARD:
        centre, scale, slope, offset = _of_channels(statistics, weight, bias, channel, channels)
    else:
        centre = tl.load(x + channel, mask=inside, other=0.0).to(tl.float32)
    first = tl.zeros((ROWS, CHANNELS), tl.float32)
    second = tl.zeros((ROWS, CHANNELS), tl.float32)
    for begin in range(part * each, tl.minimum(part * each + each, rows), ROWS):
        at, there = _tile(begin, tl.program_id(0) * CHANNELS, rows, channels, ROWS, CHANNELS)
        value = tl.load(x + at, mask=there, other=0.0).to(tl.float32) - centre[None, :]
        if BACKWARD:
            value *= scale[None, :]
            summed = _gradient_before(gradient, y, at, there, value, slope, offset, ADDED, RELU)
        else:
            value = tl.where(there, value, 0.0)
            summed = value
        first += summed
        second += summed * value
    to = sums + part * channels + channel
    tl.store(to, tl.sum(first, 0), mask=inside)
    tl.store(to + PARTS * channels, tl.sum(second, 0), mask=inside)


@Kernel
def normalise(
    x, added, sums, weight, bias, running_mean, running_var, statistics, y, rows, eights, each,
    momentum, eps, ADDED: tl.constexpr, RELU: tl.constexpr, PARTS: tl.constexpr, ROWS: tl.constexpr,
    CHANNELS: tl.constexpr
):  # fmt: skip
    """Program (channels, part of the rows): computes ``y`` from ``x`` and, if ``ADDED``, ``added``. The first part
    also writes the mean, 1 / sqrt(variance + eps), and the running statistics."""
    channels = eights * 8
    channel = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    inside = channel < channels
    first, second = _added_up(sums, channel, inside, channels, PARTS)
    mean = first / rows
    var = second / rows - mean * mean
    var = tl.where(var < 0.0, 0.0, var)  # a GPU's maximum drops NaN, and no loss would show an overflow
    mean += tl.load(x + channel, mask=inside, other=0.0).to(tl.float32)
    spread = 1.0 / tl.sqrt(var + eps)
    part = tl.program_id(1)
    if part == 0:
        tl.store(statistics + channel, mean, mask=inside)
        tl.store(statistics + channels + channel, spread, mask=inside)
        old = tl.load(running_mean + channel, mask=inside, other=0.0)
        tl.store(running_mean + channel, old + momentum * (mean - old), mask=inside)
        old = tl.load(running_var + channel, mask=inside, other=0.0)
        tl.store(running_var + channel, old + momentum * (var * (rows / (rows - 1.0)) - old), mask=inside)
    slope = spread * tl.load(weight + channel, mask=inside, other=0.0)
    offset = tl.load(bias + channel, mask=inside, other=0.0)
    for begin in range(part * each, tl.minimum(part * each + each, rows), ROWS):
        at, there = _tile(begin, tl.program_id(0) * CHANNELS, rows, channels, ROWS, CHANNELS)
        value = tl.load(x + at, mask=there, other=0.0).to(tl.float32)
        value = (value - mean[None, :]) * slope[None, :] + offset[None, :]
        if ADDED:
            value += tl.load(added + at, mask=there, other=0.0).to(tl.float32)
        if RELU:
            value = tl.where(value < 0.0, 0.0, value)
        tl.store(y + at, value.to(y.dtype.element_ty), mask=there)


@Kernel
def propagate(
    x, gradient, y, statistics, weight, bias, sums, of_x, of_added, of_weight, of_bias, rows, eights, each,
    ADDED: tl.constexpr, RELU: tl.constexpr, PARTS: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr
):  # fmt: skip
    """Program (channels, part of the rows): computes the gradients of ``x`` (Ioffe and Szegedy 2015, section 3)
    and of ``added``. The first part also writes the gradients of weight and bias."""
    channels = eights * 8
    channel = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    inside = channel < channels
    first, second = _added_up(sums, channel, inside, channels, PARTS)
    part = tl.program_id(1)
    if part == 0:
        tl.store(of_bias + channel, first, mask=inside)
        tl.store(of_weight + channel, second, mask=inside)
    centre, scale, slope, offset = _of_channels(statistics, weight, bias, channel, channels)
    for begin in range(part * each, tl.minimum(part * each + each, rows), ROWS):
        at, there = _tile(begin, tl.program_id(0) * CHANNELS, rows, channels, ROWS, CHANNELS)
        value = tl.load(x + at, mask=there, other=0.0).to(tl.float32)
        value = (value - centre[None, :]) * scale[None, :]
        back = _gradient_before(gradient, y, at, there, value, slope, offset, ADDED, RELU)
        if ADDED:
            tl.store(of_added + at, back.to(of_added.dtype.element_ty), mask=there)
        back = (back - first[None, :] / rows - value * (second[None, :] / rows)) * (slope * scale)[None, :]
        tl.store(of_x + at, back.to(of_x.dtype.element_ty), mask=there)


class _Split:
    """How a matrix [rows, channels] is divided among programs: the grids of both kernels, and the rows of each
    program, multiples of the rows of a tile. Enough programs keep all multiprocessors reading: at 64 channels,
    32 parts left three quarters of an H200 idle."""

    def __init__(self, rows: int, channels: int) -> None:
        blocks = parts(channels, CHANNELS)
        self.parts = min(PARTS, triton.next_power_of_2(parts(SUMMING, blocks)))
        self.summed = ROWS * parts(rows, ROWS * self.parts)
        self.written = ROWS * parts(rows, ROWS * parts(WRITING, blocks))
        self.summing = blocks, self.parts
        self.writing = blocks, parts(rows, self.written)
        self.constants = {"PARTS": self.parts, "ROWS": ROWS, "CHANNELS": CHANNELS}


def forward(
    x: Tensor,
    added: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    running_mean: Tensor,
    running_var: Tensor,
    momentum: float,
    eps: float,
    relu: bool,
) -> tuple[Tensor, Tensor]:
    """Returns ``y``, with the shape of ``x``, and mean and 1 / sqrt(variance + eps), [2, channels]; updates the
    running statistics. ``x`` and ``added`` are [b, channels, h, w], channels last, with a multiple of eight
    channels."""
    rows, channels = x.numel() // x.shape[1], x.shape[1]
    y = torch.empty_like(x)
    split = _Split(rows, channels)
    sums = weight.new_empty((2, split.parts, channels))
    statistics = weight.new_empty((2, channels))
    sum_up.launch(
        split.summing, x, x, x, statistics, weight, bias, sums, rows, channels // 8, split.summed,
        BACKWARD=False, ADDED=False, RELU=False, **split.constants,
    )  # fmt: skip
    normalise.launch(
        split.writing,
        x, x if added is None else added, sums, weight, bias, running_mean, running_var, statistics, y,
        rows, channels // 8, split.written, momentum, eps, ADDED=added is not None, RELU=relu, **split.constants,
    )  # fmt: skip
    return y, statistics


def backward(
    gradient: Tensor,
    x: Tensor,
    y: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    statistics: Tensor,
    relu: bool,
) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
    """Returns the gradients of ``x`` [b, channels, h, w], of ``added`` (if the output ``y`` is passed), of weight
    and of bias. ``gradient`` is laid out like ``x``; ``statistics`` [2, channels] come from ``forward``."""
    rows, channels = x.numel() // x.shape[1], x.shape[1]
    of_x = torch.empty_like(x)
    of_added = None if y is None else torch.empty_like(x)
    split = _Split(rows, channels)
    sums = weight.new_empty((2, split.parts, channels))
    of_weight, of_bias = torch.empty_like(weight), torch.empty_like(weight)
    given = x, gradient, x if y is None else y, statistics, weight, bias, sums
    kind = {"ADDED": y is not None, "RELU": relu, **split.constants}
    sum_up.launch(split.summing, *given, rows, channels // 8, split.summed, BACKWARD=True, **kind)
    written = of_x, of_x if of_added is None else of_added, of_weight, of_bias
    propagate.launch(split.writing, *given, *written, rows, channels // 8, split.written, **kind)
    return of_x, of_added, of_weight, of_bias
