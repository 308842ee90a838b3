"""The differential codec of Ibrahim and Oliker 2022, section V-A: its format and its decoding.

A field, float32 [rows, columns, channels], is divided into lines along the columns, which is the smoothest
direction; lines are numbered ``channel · rows + row``. Every line has a kind (uint8), and can be decoded
independently of the others:

===== =====================================================================================================
kind  line
===== =====================================================================================================
0     one value for all columns: a pivot
1     raw float32 values
2 s   segments of 2ˢ columns (4 ≤ s ≤ 16; the last may be shorter), each with a pivot, an exponent (2 to which is
      the segment's *unit*), and a byte per column, the difference to the previous one in the logarithmic code
2 s+1 as 2 s, with differences in the linear code
===== =====================================================================================================

A logarithmic byte has 1 sign bit, 3 bits of exponent e and 4 bits of mantissa m, and represents ±(16 + m)·2ᵉ
units; byte 0 represents no difference. A linear byte is a signed number of units. Differences are integers, so
their sum up to a column does not depend on the order of additions, and value = float32(pivot + float32(sum) ·
unit), rounded once, is the same in every decoder. The paper does not specify the length of segments, the code of
zero, or which lines are stored raw.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mlhpc.common.data.codecs import dtypes, native
from mlhpc.common.data.codecs.frame import Frame

CONSTANT, RAW = 0, 1
LEAST_UNIT, MOST_UNIT = -126, 98  # sums stay below 2^28 units, so no product is denormal or above 2^126
MOST_PIVOT = np.float32(2.0**126)  # so no sum with a pivot is infinite
LEAST_LOG2, MOST_LOG2 = 4, 16  # log2 of the columns in a segment
_byte = np.arange(256)
_magnitude = (16 + (_byte & 15)) << ((_byte >> 4) & 7)
_logarithmic = np.where(_byte < 128, _magnitude, -_magnitude)
_logarithmic[0] = 0
DIFFERENCES: npt.NDArray[np.int32] = np.stack([_logarithmic, _byte.astype(np.int8)]).astype(np.int32)
"""The values of all logarithmic and all linear bytes, [2, 256]."""


@dataclass(frozen=True)
class Lines:
    """The sections of a frame, which have been checked: everything that ``kinds`` requires is present.

    ``kinds``: [channels, rows]. ``first``, int64 [channels, rows]: the index of each line's first pivot, or the
    row of its values in ``raw``; ``coded``, int64 [channels, rows]: the row of its codes in ``codes``. ``pivots``
    and ``units``: one per segment. ``codes``: [coded lines, columns]; ``raw``: [raw lines, columns].
    """

    shape: tuple[int, int, int]
    kinds: npt.NDArray[np.uint8]
    first: npt.NDArray[np.int64]
    coded: npt.NDArray[np.int64]
    pivots: npt.NDArray[np.float32]
    units: npt.NDArray[np.int8]
    codes: npt.NDArray[np.uint8]
    raw: npt.NDArray[np.float32]

    def shares(self) -> dict[str, float]:
        """The share of lines of each kind, by the kind's name."""
        kinds, counts = np.unique(self.kinds, return_counts=True)
        return {kind_name(int(k)): float(n) / self.kinds.size for k, n in zip(kinds, counts, strict=True)}


def kind_name(kind: int) -> str:
    """The name of a kind of line, for tables."""
    if kind < 2:
        return ("constant", "raw")[kind]
    return f"{'linear' if kind & 1 else 'logarithmic'} {1 << (kind >> 1)}"


def segments_of(kinds: npt.NDArray[np.uint8], columns: int) -> npt.NDArray[np.int64]:
    """The number of pivots, [lines], of lines of these ``kinds`` [lines] with ``columns`` columns."""
    lengths = np.int64(1) << (kinds >> 1).astype(np.int64)
    return np.where(kinds == CONSTANT, 1, np.where(kinds == RAW, 0, -(-columns // lengths)))


def parse(frame: Frame) -> Lines:
    """The lines of a frame. Raises UserError if the frame's sections are inconsistent with each other or with its
    shape."""
    frame.require(frame.codec, np.float32, frame.shape)
    if len(frame.shape) != 3 or not 0 < frame.shape[1] <= 1 << MOST_LOG2:
        raise frame.error(f"shape {list(frame.shape)} is not that of a field")
    rows, columns, channels = frame.shape
    kinds: npt.NDArray[Any] = frame.array("kinds", "u1", rows * channels)
    log2 = kinds >> 1
    if ((kinds > RAW) & ((log2 < LEAST_LOG2) | (log2 > MOST_LOG2))).any():
        raise frame.error("contains an unknown kind of line", "kinds")
    segments, is_raw, is_coded = segments_of(kinds, columns), kinds == RAW, kinds > RAW
    pivots: npt.NDArray[Any] = frame.array("pivots", "<f4", int(segments.sum()))
    units: npt.NDArray[Any] = frame.array("units", "i1", int(segments.sum()))
    if len(units) and not LEAST_UNIT <= int(units.min()) <= int(units.max()) <= MOST_UNIT:
        raise frame.error(f"contains an exponent outside [{LEAST_UNIT}, {MOST_UNIT}]", "units")
    if not (np.abs(pivots) < MOST_PIVOT).all():  # also fails for NaN
        raise frame.error("contains a pivot that is not finite or too large", "pivots")
    codes: npt.NDArray[Any] = frame.array("codes", "u1", int(is_coded.sum()) * columns)
    raw: npt.NDArray[Any] = frame.array("raw", "<f4", int(is_raw.sum()) * columns)
    first = np.where(is_raw, np.cumsum(is_raw) - 1, np.cumsum(segments) - segments)
    coded = np.where(is_coded, np.cumsum(is_coded) - 1, 0)
    return Lines(
        (rows, columns, channels),
        kinds.reshape(channels, rows),
        first.reshape(channels, rows),
        coded.reshape(channels, rows),
        pivots,
        units,
        codes.reshape(-1, columns),
        raw.reshape(-1, columns),
    )


def decode_line(lines: Lines, channel: int, row: int) -> npt.NDArray[np.float32]:
    """Decode a line [columns] in the slow and obvious way; other decoders are compared with this reference."""
    kind, first, columns = int(lines.kinds[channel, row]), lines.first[channel, row], lines.shape[1]
    if kind == RAW:
        return np.array(lines.raw[first])
    if kind == CONSTANT:
        return np.full(columns, lines.pivots[first], np.float32)
    length = 1 << (kind >> 1)
    differences = DIFFERENCES[kind & 1][lines.codes[lines.coded[channel, row]]]
    parts = []
    for number, start in enumerate(range(0, columns, length)):
        sums = np.cumsum(differences[start : start + length], dtype=np.int32)
        unit = np.float32(2.0 ** int(lines.units[first + number]))
        with np.errstate(all="ignore"):
            parts.append(lines.pivots[first + number] + sums.astype(np.float32) * unit)
    return np.concatenate(parts)


Normalisation = tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]
"""Shift and scale of each channel, [channels]: values are normalised to (value - shift) · scale in float32, as in
the reference."""


def decode_slowly(lines: Lines, normalise: Normalisation | None = None) -> npt.NDArray[np.float32]:
    """All lines, decoded by ``decode_line``: float32 [rows, columns, channels]."""
    rows, columns, channels = lines.shape
    out = np.empty((rows, columns, channels), np.float32)
    for channel in range(channels):
        for row in range(rows):
            out[row, :, channel] = decode_line(lines, channel, row)
    if normalise:
        with np.errstate(all="ignore"):
            out -= normalise[0]
            out *= normalise[1]
    return out


def decode(
    lines: Lines,
    out: npt.NDArray[Any],
    normalise: Normalisation | None = None,
    sample_dtype: str = "float32",
    channels_first: bool = False,
) -> None:
    """Fill ``out``, C-contiguous [rows, columns, channels] or [channels, rows, columns] in the type
    ``dtypes.NUMPY[sample_dtype]``; values are decoded, normalised, rounded and transposed in one pass over each
    row.

    With the compiled decoder, this runs without holding the interpreter lock.
    """
    rows, columns, channels = lines.shape
    shape = (channels, rows, columns) if channels_first else lines.shape
    assert out.flags.c_contiguous and out.shape == shape and out.dtype == dtypes.NUMPY[sample_dtype]
    library = native.library()
    if library is None:
        values = decode_slowly(lines, normalise)
        out[...] = dtypes.cast(values.transpose(2, 0, 1) if channels_first else values, sample_dtype)
        return
    arrays: list[npt.NDArray[Any]] = [
        lines.kinds,
        lines.first,
        lines.coded,
        lines.pivots,
        lines.units,
        lines.codes,
        lines.raw,
    ]
    arrays += [DIFFERENCES, *(normalise or ())]
    arrays = [np.ascontiguousarray(array) for array in arrays]
    scratch = np.empty((channels + 2) * columns, np.float32)
    call = native.Delta(rows, columns, channels, *(array.ctypes.data for array in arrays))
    library.mlhpc_delta(
        call, 0, rows, native.KINDS[sample_dtype], channels_first, out.ctypes.data, scratch.ctypes.data
    )
