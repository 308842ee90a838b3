"""A 3 x 3 convolution and its gradients with a quarter of the multiplications, by Winograd's minimal filtering.

F(4 x 4, 3 x 3) of Lavin & Gray, "Fast Algorithms for Convolutional Neural Networks", CVPR 2016, section 4.3: a
tile of 4 x 4 outputs is computed from a window of 6 x 6 inputs with 36 products instead of 144. Over channels
these are 36 matrix products of [tiles, inputs] and [inputs, outputs], preceded and followed by sums of few terms.
Every step is linear, so the gradients take the same steps backwards. In float32, the rounding error is about three
times that of the direct sum. In bfloat16, even the smaller F(2 x 2, 3 x 3) was no faster, and had 2.7 times the
error.
"""

from math import ceil
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

Matrix = tuple[tuple[int, ...], ...]

# The transforms of the inputs, of the filter (times 24) and of the outputs: Lavin & Gray 2016, equation 16.
INPUT: Matrix = (
    (4, 0, -5, 0, 1, 0),
    (0, -4, -4, 1, 1, 0),
    (0, 4, -4, -1, 1, 0),
    (0, -2, -1, 2, 1, 0),
    (0, 2, -1, -2, 1, 0),
    (0, 4, 0, -5, 0, 1),
)
FILTER: Matrix = ((6, 0, 0), (-4, -4, -4), (-4, 4, -4), (1, 2, 4), (1, -2, 4), (0, 0, 24))
OUTPUT: Matrix = ((1, 1, 1, 1, 1, 0), (0, 1, -1, 2, -2, 0), (0, 1, 1, 4, 4, 0), (0, 1, -1, 8, -8, 1))

TILES = 288
"""Approximate number of tiles per block: large enough for efficient matrix products, small enough for the
cache."""


def winograd(x: Tensor, weight: Tensor) -> Tensor:
    """``conv2d(x, weight, padding=1)`` for ``x`` [b, c, h, w] and ``weight`` [f, c, 3, 3], both float32 or
    float64. The result, [b, f, h, w], has the memory layout channels last."""
    return _Winograd.apply(x, weight)  # type: ignore[no-any-return]


class _Winograd(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        batch, inputs, rows, columns = x.shape
        filters = _transform_filters(weight)
        y = x.new_empty(batch, *_covered(rows, columns), len(weight))
        for sample, of_sample in zip(x.permute(0, 2, 3, 1), y, strict=True):
            for window, tile in _parts(_padded(sample), of_sample):
                of_inputs = _apply_2d(INPUT, window).view(36, -1, inputs)
                products = of_inputs @ filters
                tile.copy_(_apply_2d(OUTPUT, products.view(6, 6, -1)).view(tile.shape))
        return y[:, :rows, :columns].contiguous().permute(0, 3, 1, 2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        wants_x, wants_weight = ctx.needs_input_grad
        outputs, inputs = weight.shape[:2]
        rows, columns = x.shape[2:]
        filters = _transform_filters(weight)
        of_filters = torch.zeros_like(filters)
        of_x = x.new_empty(len(x), rows, columns, inputs)
        pairs = zip(x.permute(0, 2, 3, 1), gradient.permute(0, 2, 3, 1), of_x, strict=True)
        for sample, of_y, of_sample in pairs:
            padded = _padded(sample)
            of_padded = torch.zeros_like(padded)
            covered = _zero_padded(of_y, *_covered(rows, columns))
            parts = zip(_parts(padded, covered), _parts(of_padded, covered), strict=True)
            for (window, tile), (of_window, _) in parts:
                of_products = _apply_2d(_transposed(OUTPUT), tile).view(36, -1, outputs)
                if wants_weight:
                    of_filters.baddbmm_(_apply_2d(INPUT, window).view(36, -1, inputs).mT, of_products)
                if wants_x:
                    of_inputs = (of_products @ filters.mT).view(6, 6, -1)
                    values = _apply_2d(_transposed(INPUT), of_inputs).view(of_window.shape)
                    for i in range(6):
                        for j in range(6):  # windows overlap, so a single vectorised add would lose values
                            of_window[i, j] += values[i, j]
            of_sample.copy_(of_padded[1 : 1 + rows, 1 : 1 + columns])
        taps = _apply_2d(_transposed(FILTER), of_filters.view(6, 6, -1)) / 24**2
        of_weight = taps.view(3, 3, inputs, outputs).permute(3, 2, 0, 1) if wants_weight else None
        return of_x.permute(0, 3, 1, 2) if wants_x else None, of_weight


def _transform_filters(weight: Tensor) -> Tensor:
    """Transforms ``weight`` [f, c, 3, 3] to [36, c, f]."""
    outputs, inputs = weight.shape[:2]
    return _apply_2d(FILTER, weight.permute(2, 3, 1, 0) / 24**2).view(36, inputs, outputs)


def _apply_2d(matrix: Matrix, values: Tensor) -> Tensor:
    """Applies ``matrix`` [m, n] along the first and the second axis: [n, n, ...] becomes [m, m, product of the
    other axes]."""
    factors = values.new_tensor(matrix)
    m, n = factors.shape
    return (factors @ (factors @ values.reshape(n, n, -1)).view(n, -1)).view(m, m, -1)


def _transposed(matrix: Matrix) -> Matrix:
    return tuple(zip(*matrix, strict=True))


def _covered(rows: int, columns: int) -> tuple[int, int]:
    """The sides of an image of ``rows`` x ``columns`` after rounding up to whole tiles."""
    return ceil(rows / 4) * 4, ceil(columns / 4) * 4


def _zero_padded(sample: Tensor, rows: int, columns: int, border: int = 0) -> Tensor:
    """``sample`` [h, w, c] padded with zeros to [rows, columns, c]; ``border`` rows and columns of zeros precede
    ``sample``."""
    if sample.shape[:2] == (rows, columns):
        return sample.contiguous()
    grown = sample.new_zeros(rows, columns, sample.shape[2])
    grown[border : border + sample.shape[0], border : border + sample.shape[1]] = sample
    return grown


def _padded(sample: Tensor) -> Tensor:
    """``sample`` [h, w, c] padded with the zeros that the windows of its outer tiles need."""
    rows, columns = _covered(*sample.shape[:2])
    return _zero_padded(sample, rows + 2, columns + 2, 1)


def _parts(padded: Tensor, covered: Tensor) -> list[tuple[Tensor, Tensor]]:
    """For each block of tiles, views of their windows, [6, 6, down, across, c], which overlap, and of the tiles
    themselves, [4, 4, down, across, f]."""
    rows, columns, outputs = covered.shape
    down, across = rows // 4, columns // 4
    tiles = covered.view(down, 4, across, 4, outputs).permute(1, 3, 0, 2, 4)
    row, column, one = padded.stride()
    windows = padded.as_strided(
        (6, 6, down, across, padded.shape[2]), (row, column, 4 * row, 4 * column, one)
    )
    several = max(1, TILES // across)
    return list(zip(windows.split(several, 2), tiles.split(several, 2), strict=True))
