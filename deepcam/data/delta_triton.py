"""Decodes the differential codec on a GPU: sections are transferred, and each program decodes a row of all
channels.

All kinds of lines go through one kernel without diverging inside a program; the sum along segments is a scan of
integers, so that every value has the bits of ``delta.decode_line``. Triton's interpreter (``TRITON_INTERPRET=1``)
runs the kernel without a GPU.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import triton
import triton.language as tl

from mlhpc.common.kernels.launch import Kernel
from mlhpc.common.pytorch.buffers import page_lock
from mlhpc.deepcam.data.delta import Lines, Normalisation


@triton.jit
def _add_within_segment(sum_a, starts_a, sum_b, starts_b):
    return tl.where(starts_b != 0, sum_b, sum_a + sum_b), starts_a | starts_b


BLOCK = 128
"""Columns that a program decodes at once, of all channels."""


@Kernel
def decode_row(
    kinds, first, coded, pivots, units, codes, raw, shift, scale, out, rows, columns, channels, row_stride,
    column_stride, channel_stride, NORMALISE: tl.constexpr, BFLOAT16: tl.constexpr, CHANNELS: tl.constexpr,
    BLOCK: tl.constexpr
):  # fmt: skip
    """Each program decodes one row of all channels into ``out``; its strides, in elements, allow any memory
    layout. ``CHANNELS``: a power of two of at least ``channels``. ``BFLOAT16``: ``out`` contains the bits of
    bfloat16 values as int16."""
    row = tl.program_id(0)
    channel = tl.arange(0, CHANNELS)
    there = channel < channels
    line = channel * rows + row
    kind = tl.load(kinds + line, mask=there, other=0).to(tl.int32)[:, None]
    begin = tl.load(first + line, mask=there, other=0)[:, None]
    own_codes = codes + tl.load(coded + line, mask=there, other=0)[:, None] * columns
    own_raw = raw + begin * columns
    is_raw = kind == 1
    is_coded = kind > 1
    log2 = tl.where(is_coded, kind >> 1, 20)
    to = out + row.to(tl.int64) * row_stride + channel.to(tl.int64)[:, None] * channel_stride
    if NORMALISE:
        offset = tl.load(shift + channel, mask=there, other=0.0)[:, None]
        factor = tl.load(scale + channel, mask=there, other=0.0)[:, None]
    before = tl.zeros((CHANNELS,), tl.int32)
    for begin_column in range(0, columns, BLOCK):
        column = begin_column + tl.arange(0, BLOCK)[None, :]
        inside = there[:, None] & (column < columns)
        code = tl.load(own_codes + column, mask=inside & is_coded, other=0).to(tl.int32)
        magnitude = (16 + (code & 15)) << ((code >> 4) & 7)
        logarithmic = tl.where(code == 0, 0, tl.where(code >= 128, -magnitude, magnitude))
        linear = (code ^ 128) - 128
        difference = tl.where((kind & 1) == 1, linear, logarithmic)
        starts = ((column & ((1 << log2) - 1)) == 0).to(tl.int32)
        sums, started = tl.associative_scan((difference, starts), 1, _add_within_segment)
        sums += tl.where(started != 0, 0, before[:, None])  # a segment that began in an earlier block
        before = tl.sum(tl.where(column == begin_column + BLOCK - 1, sums, 0), 1)

        segment = begin + (column >> log2)
        not_raw = inside & (kind != 1)
        pivot = tl.load(pivots + segment, mask=not_raw, other=0.0)
        exponent = tl.load(units + segment, mask=not_raw, other=0).to(tl.int32)
        unit = ((exponent + 127) << 23).to(tl.float32, bitcast=True)
        value = tl.where(is_coded, pivot + sums.to(tl.float32) * unit, pivot)
        value = tl.where(is_raw, tl.load(own_raw + column, mask=inside & is_raw, other=0.0), value)
        if NORMALISE:
            value = (value - offset) * factor
        target = to + column.to(tl.int64) * column_stride
        if BFLOAT16:  # rounded here: in a conversion, Triton's interpreter would truncate
            bits = value.to(tl.uint32, bitcast=True)
            rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
            rounded = tl.where(value != value, (bits >> 16) | 0x40, rounded)
            tl.store(target, rounded.to(tl.int16), mask=inside)
        else:
            tl.store(target, value.to(out.dtype.element_ty), mask=inside)


def decode(
    batch: Sequence[Lines],
    out: torch.Tensor,
    normalise: Normalisation | None = None,
    move: Callable[[torch.Tensor], torch.Tensor] | None = None,
) -> None:
    """Decode ``batch`` into ``out`` [b, rows, columns, channels], float32, float16 or bfloat16, on a GPU. ``out``
    may have any strides; for channels-first memory, pass a view of it. ``move`` transfers the sections to the GPU
    (``devices.mover``: from page-locked memory, during the previous step); None: an ordinary copy."""
    rows, _, channels = shape = batch[0].shape
    assert tuple(out.shape) == (len(batch), *shape)
    device = out.device

    arrays: list[npt.NDArray[Any]] = [*(normalise or (np.zeros(1, np.float32), np.ones(1, np.float32)))]
    for lines in batch:
        arrays += [lines.kinds, lines.first, lines.coded]
        arrays += [lines.pivots, lines.units, lines.codes, lines.raw]
    # All arrays go in one copy. Each begins at a multiple of 16 bytes, for which Triton compiles, and has some
    # bytes even if it is empty, so that its pointer is valid.
    starts = np.cumsum([0, *(16 * (array.nbytes // 16 + 1) for array in arrays)]).tolist()
    host = torch.empty(starts[-1], dtype=torch.uint8, pin_memory=move is not None and device.type != "cpu")
    for start, array in zip(starts, arrays, strict=False):
        host.numpy()[start : start + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    moved = host.to(device) if move is None else move(host)
    by, scale, *sections = (
        moved[start:end].view(torch.from_numpy(np.empty(0, array.dtype)).dtype)
        for start, end, array in zip(starts, starts[1:], arrays, strict=False)
    )
    each = len(sections) // len(batch)
    for n, sample in enumerate(out.view(torch.int16) if out.dtype == torch.bfloat16 else out):
        decode_row.launch(
            (rows, 1), *sections[n * each : (n + 1) * each], by, scale, sample, *shape, *sample.stride(),
            NORMALISE=normalise is not None, BFLOAT16=out.dtype == torch.bfloat16,
            CHANNELS=triton.next_power_of_2(channels), BLOCK=BLOCK, enable_fp_fusion=False,
        )  # fmt: skip


def warm_up(samples: int, shape: tuple[int, int, int], dtype: torch.dtype, device: torch.device) -> None:
    """Compile the kernel for samples of ``shape`` by decoding one that has only pivots, and page-lock memory for
    the sections of up to ``samples`` samples; called before the clock starts."""
    lines, one = np.zeros((shape[2], shape[0]), np.int64), np.zeros(1, np.float32)
    sections = one, one.astype(np.int8), one.astype(np.uint8), one
    sample = Lines(shape, lines.astype(np.uint8), lines, lines, *sections)
    channel = np.zeros(shape[2], np.float32)
    decode([sample], torch.empty((1, *shape), dtype=dtype, device=device), (channel, channel))
    # Sections take up to a byte per value and a few per line. One piece is filled while another is copied.
    page_lock(samples * (math.prod(shape) + 32 * lines.size), 3)
