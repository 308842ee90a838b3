"""Alternative implementations of convolutions whose gradients PyTorch's CPU library computes slowly, or wrongly.

They compute the same functions, up to rounding. Measured with oneDNN 3.11 (torch 2.12) on one core of an AMD EPYC
9004: the weight gradient of a dilated depthwise convolution (1536 channels, 48 x 72, batch 2) takes 600 ms, its
forward pass 6 ms; the input gradient of a depthwise convolution with stride 2 in bfloat16 takes 20 times as long
as its forward pass; the weight gradient of a deconvolution takes twice as long. The gradient of a 1 x 1
convolution with stride 2 writes out of bounds for some shapes in float32 (8 channels to 16, 5 samples of 16 x 24,
channels last, two threads: the process aborts in free()). The weight gradient of a dilated convolution over all
channels (2048 to 256, 48 x 72, dilations 12 and 18) takes twice as long as the matrix products of which it
consists.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

from mlhpc.deepcam.cpu.winograd import winograd
from mlhpc.deepcam.layers.convolution import Conv3x3, Deconvolution, Depthwise, Pointwise, Separable

Gradients = tuple[Tensor | None, Tensor | None]


class CpuDepthwise(Depthwise):
    def forward(self, input: Tensor) -> Tensor:
        """Maps ``input`` [b, channels, h, w] to [b, channels, h / stride, w / stride]."""
        if self.stride == self.dilation == (1, 1):
            return super().forward(input)
        x, weight = _cast(input), _cast(self.weight)
        if self.stride == (1, 1):
            return _depthwise(x, weight, self.dilation[0])
        if x.dtype == torch.bfloat16:
            return _Downsampled.apply(x, weight)  # type: ignore[no-any-return]
        return super().forward(input)


class CpuSeparable(Separable):
    """Like ``Separable``, but with ``stride`` 1, the activation between the two convolutions is not kept for the
    backward pass: it is recomputed, which takes about as long as allocating fresh memory for it would."""

    def forward(self, input: Tensor) -> Tensor:
        """Maps ``input`` [b, inputs, h, w] to [b, outputs, h / stride, w / stride]."""
        if self.stride > 1 or torch.compiler.is_compiling():
            return super().forward(input)  # type: ignore[no-any-return]
        of_depth, of_point = (_cast(weight) for weight in self.parameters())
        return _RecomputedSeparable.apply(_cast(input), of_depth, of_point, self.dilation)  # type: ignore[no-any-return]


class CpuConv3x3(Conv3x3):
    def forward(self, input: Tensor) -> Tensor:
        """Maps ``input`` [b, inputs, h, w] to [b, outputs, h, w]."""
        if torch.compiler.is_compiling():
            return super().forward(input)
        x, weight = _cast(input), _cast(self.weight)
        if self.dilation != (1, 1):
            return _Dilated.apply(x, weight, self.dilation[0])  # type: ignore[no-any-return]
        # Measured: Winograd takes four fifths of PyTorch's time at this size, and half of it at full size.
        pays = min(self.in_channels, self.out_channels) >= 128 and x.shape[2] * x.shape[3] >= 48 * 72
        return winograd(x, weight) if pays and x.dtype != torch.bfloat16 else super().forward(input)


class CpuPointwise(Pointwise):
    def forward(self, input: Tensor) -> Tensor:
        """Maps ``input`` [b, inputs, h, w] to [b, outputs, h / stride, w / stride]."""
        if self.stride == (1, 1):
            return super().forward(input)
        # Slice with channels last, so that the gradient has that layout too, and copy, since a view that is kept
        # for the backward pass would keep the whole tensor in memory.
        sliced = input.permute(0, 2, 3, 1)[:, :: self.stride[0], :: self.stride[1]].contiguous()
        return F.conv2d(sliced.permute(0, 3, 1, 2), self.weight)


class CpuDeconvolution(Deconvolution):
    def forward(self, input: Tensor, output_size: list[int] | None = None) -> Tensor:
        """Maps ``input`` [b, inputs, h, w] to [b, outputs, 2·h, 2·w]."""
        if self.out_channels < 16:
            return super().forward(input, output_size)
        return _Upsampled.apply(_cast(input), _cast(self.weight))  # type: ignore[no-any-return]


class _Downsampled(torch.autograd.Function):
    """A depthwise convolution with stride 2. Its input gradient is a depthwise convolution with stride 1, over the
    output's gradient with zeros inserted."""

    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return F.conv2d(x, weight, None, 2, 1, 1, len(weight))

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, gradient: Tensor) -> Gradients:
        x, weight = ctx.saved_tensors  # type: ignore[attr-defined]
        wants_x, wants_weight = ctx.needs_input_grad  # type: ignore[attr-defined]
        of_x = of_weight = None
        if wants_weight:
            of_weight = torch.ops.aten.convolution_backward(
                gradient,
                x,
                weight,
                None,
                (2, 2),
                (1, 1),
                (1, 1),
                False,
                (0, 0),
                len(weight),
                (False, True, False),
            )[1]
        if wants_x:
            spread = torch.zeros_like(x)
            spread[:, :, ::2, ::2] = gradient
            of_x = F.conv2d(spread, weight.flip(2, 3), None, 1, 1, 1, len(weight))
        return of_x, of_weight


class _RecomputedSeparable(torch.autograd.Function):
    """A depthwise convolution with stride 1 followed by a pointwise one; keeps only its input."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, of_depth: Tensor, of_point: Tensor, dilation: int) -> Tensor:
        ctx.save_for_backward(x, of_depth, of_point)
        ctx.dilation = dilation
        return F.conv2d(_depthwise(x, of_depth, dilation), of_point)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, of_depth, of_point = ctx.saved_tensors
        wants_x, wants_depth, wants_point, _ = ctx.needs_input_grad
        x, of_depth = x.detach().requires_grad_(wants_x), of_depth.detach().requires_grad_(wants_depth)
        with torch.enable_grad():
            between = _depthwise(x, of_depth, ctx.dilation)
        inputs = [tensor for tensor in (x, of_depth) if tensor.requires_grad]
        gradient, of_point, _ = torch.ops.aten.convolution_backward(
            gradient,
            between.detach(),
            of_point,
            None,
            (1, 1),
            (0, 0),
            (1, 1),
            False,
            (0, 0),
            1,
            (bool(inputs), wants_point, False),
        )
        further = iter(torch.autograd.grad(between, inputs, gradient) if inputs else ())
        return next(further) if wants_x else None, next(further) if wants_depth else None, of_point, None


class _Dilated(torch.autograd.Function):
    """A dilated convolution over all channels. The gradient of a tap's weights is one matrix product of the input
    and the output's gradient, over those pixels that the tap reads inside the image."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, dilation: int) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.dilation = dilation
        return F.conv2d(x, weight, None, 1, dilation, dilation)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x, weight = ctx.saved_tensors
        wants_x, wants_weight, _ = ctx.needs_input_grad
        of_x = (
            F.conv_transpose2d(gradient, weight, None, 1, ctx.dilation, 0, 1, ctx.dilation)
            if wants_x
            else None
        )
        return of_x, _dilated_taps(x, gradient, weight, ctx.dilation) if wants_weight else None, None


def _dilated_taps(x: Tensor, gradient: Tensor, weight: Tensor, dilation: int) -> Tensor:
    """The gradient of the weights [outputs, inputs, 3, 3] of a convolution with this dilation."""
    outputs, inputs = weight.shape[:2]
    rows, columns = x.shape[2:]
    # Rows first, then samples, so that a range of rows of all samples is one block of memory.
    x, gradient = x.permute(2, 0, 3, 1), gradient.permute(2, 0, 3, 1)
    taps = weight.new_empty(3, 3, outputs, inputs)
    for j in range(3):
        of_x, of_gradient = _overlap(columns, (j - 1) * dilation)
        columns_of_x = x[:, :, of_x].contiguous()
        columns_of_gradient = gradient[:, :, of_gradient].contiguous()
        for i in range(3):
            of_x, of_gradient = _overlap(rows, (i - 1) * dilation)
            pixels = columns_of_gradient[of_gradient].view(-1, outputs)
            torch.mm(pixels.t(), columns_of_x[of_x].view(-1, inputs), out=taps[i, j])
    return taps.permute(2, 3, 0, 1)


def _overlap(size: int, shift: int) -> tuple[slice, slice]:
    """The parts of input and output, along a side of length ``size``, that a tap with the offset ``shift``
    connects."""
    length = max(0, size - abs(shift))
    first = min(size, max(0, shift))
    other = min(size, max(0, -shift))
    return slice(first, first + length), slice(other, other + length)


class _Upsampled(torch.autograd.Function):
    """A deconvolution. Row i of the input contributes to rows 2i - 1, 2i and 2i + 1 of the output, and likewise
    for columns, so the gradient of a tap's weights is one matrix product of the input and every other pixel of the
    output's gradient. In row-major order with a border of zeros, taps are constant shifts."""

    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return F.conv_transpose2d(x, weight, None, 2, 1, 1)

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, gradient: Tensor) -> Gradients:
        x, weight = ctx.saved_tensors  # type: ignore[attr-defined]
        wants_x, wants_weight = ctx.needs_input_grad  # type: ignore[attr-defined]
        of_x = F.conv2d(gradient, weight, None, 2, 1) if wants_x else None
        return of_x, _taps(x, gradient, weight) if wants_weight else None


def _taps(x: Tensor, gradient: Tensor, weight: Tensor) -> Tensor:
    """The gradient of a deconvolution's weights [inputs, outputs, 3, 3]."""
    inputs, outputs = weight.shape[:2]
    columns = x.shape[3] + 1
    rows_of_x = _bordered(x.permute(0, 2, 3, 1), 1, 1).view(-1, inputs)
    taps = weight.new_empty(3, 3, inputs, outputs)
    for row in (0, 1):  # 0: the output's odd rows, for taps 0 and 2; 1: its even rows, for tap 1
        for column in (0, 1):
            pixels = gradient.permute(0, 2, 3, 1)[:, 1 - row :: 2, 1 - column :: 2]
            pixels = _bordered(pixels, row, column).view(-1, outputs)
            for i in range(row, 3, 2):
                for j in range(column, 3, 2):
                    shift = (i // 2) * columns + j // 2
                    torch.mm(rows_of_x[: len(pixels) - shift].t(), pixels[shift:], out=taps[i, j])
    return taps.permute(2, 3, 0, 1)


def _bordered(pixels: Tensor, below: int, right: int) -> Tensor:
    """``pixels`` [b, h, w, c] with a row and a column of zeros added: at the end if ``below`` or ``right`` is 1,
    and at the beginning if it is 0."""
    batch, rows, columns, channels = pixels.shape
    bordered = pixels.new_empty(batch, rows + 1, columns + 1, channels)
    bordered[:, rows if below else 0] = 0
    bordered[:, :, columns if right else 0] = 0
    bordered[:, 1 - below : 1 - below + rows, 1 - right : 1 - right + columns] = pixels
    return bordered


def _depthwise(x: Tensor, weight: Tensor, dilation: int) -> Tensor:
    """A 3 x 3 depthwise convolution with this dilation and "same" padding."""
    if dilation > 1 and not (x.shape[2] % dilation or x.shape[3] % dilation):
        return _from_grids(F.conv2d(_grids(x, dilation), weight, None, 1, 1, 1, len(weight)), dilation)
    return F.conv2d(x, weight, None, 1, dilation, dilation, len(weight))


def _grids(x: Tensor, dilation: int) -> Tensor:
    """``x`` [b, c, h, w] as grids of every ``dilation``-th row and column, on which a convolution with that
    dilation is an undilated one: [b dilation^2, c, h / dilation, w / dilation]."""
    batch, channels, rows, columns = x.shape
    rows, columns = rows // dilation, columns // dilation
    grids = x.permute(0, 2, 3, 1).reshape(batch, rows, dilation, columns, dilation, channels)
    grids = grids.permute(0, 2, 4, 1, 3, 5).reshape(-1, rows, columns, channels)
    return grids.permute(0, 3, 1, 2)


def _from_grids(grids: Tensor, dilation: int) -> Tensor:
    """The inverse of ``_grids``."""
    _, channels, rows, columns = grids.shape
    x = grids.permute(0, 2, 3, 1).reshape(-1, dilation, dilation, rows, columns, channels)
    x = x.permute(0, 3, 1, 4, 2, 5).reshape(-1, rows * dilation, columns * dilation, channels)
    return x.permute(0, 3, 1, 2)


def _cast(tensor: Tensor) -> Tensor:
    """Cast ``tensor``, of any shape, as autocast does before a convolution but not before a custom autograd
    function."""
    return tensor.to(torch.get_autocast_dtype("cpu")) if torch.is_autocast_enabled("cpu") else tensor
