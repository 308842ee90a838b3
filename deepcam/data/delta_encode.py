"""Encodes with the differential codec in a closed loop: each difference is taken from the value that the decoder
will have, so that errors do not accumulate along a line. Lines are decoded to decide which kind they become.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from mlhpc.deepcam.data.delta import CONSTANT, DIFFERENCES, LEAST_LOG2, LEAST_UNIT, MOST_PIVOT, MOST_UNIT, RAW

Floats = npt.NDArray[np.float32]
Accept = Callable[[Floats, Floats, npt.NDArray[np.intp]], npt.NDArray[np.bool_]]
"""(values [lines, columns], decoded [lines, columns], line numbers [lines]) -> whether each line satisfies the
error bound, [lines]."""

_LARGEST = {0: 31 << 7, 1: 127}  # the largest difference of each code, in units
_SHORTER = (8, 6, LEAST_LOG2)  # log2 of the columns in a segment, if one segment per line fails
_AT_ONCE = 1 << 21  # values processed at a time, about as many as fit in the caches


def encode(field: Floats, accept: Accept, linear_unit: Callable[..., Any] | None = None) -> dict[str, bytes]:
    """Encode ``field`` [rows, columns, channels] as sections. Every line becomes the smallest kind that ``accept``
    accepts: constant, coded in one segment, coded in segments of 256, 64 or 16 columns, or else raw.

    ``linear_unit(values [lines, segments, columns], line numbers)`` returns the largest unit (float64, [lines,
    segments]) that the linear code may use; None: use only the logarithmic code.
    """
    columns = field.shape[1]
    lines = np.ascontiguousarray(field.transpose(2, 0, 1)).reshape(-1, columns)
    whole = max(LEAST_LOG2, int(columns - 1).bit_length())
    shorter = [log2 for log2 in _SHORTER if log2 < whole]
    kinds = np.full(len(lines), RAW, np.uint8)
    pivots: list[Any] = [np.empty(0, np.float32)] * len(lines)
    units: list[Any] = [np.empty(0, np.int8)] * len(lines)
    codes: list[Any] = [None] * len(lines)

    finite = (np.abs(lines) < MOST_PIVOT).all(axis=1)  # false for NaN
    left = np.flatnonzero(finite)
    constant = np.broadcast_to(lines[left, :1], (len(left), columns))
    taken = accept(lines[left], constant, left)
    for line in left[taken]:
        kinds[line], pivots[line], units[line] = CONSTANT, lines[line, :1], np.zeros(1, np.int8)
    left = left[~taken]
    for log2 in (whole, *shorter):
        for code in (1, 0) if linear_unit else (0,):
            rest = []
            for numbers in _chunks(left, columns):
                made = _coded(lines[numbers], log2, code, linear_unit, numbers)
                taken = accept(lines[numbers], made.decoded, numbers)
                for i in np.flatnonzero(taken):
                    line = numbers[i]
                    kinds[line] = 2 * log2 + code
                    pivots[line], units[line], codes[line] = made.pivots[i], made.units[i], made.codes[i]
                rest.append(numbers[~taken])
            left = np.concatenate([np.empty(0, np.intp), *rest])
    return {
        "kinds": kinds.tobytes(),
        "pivots": np.concatenate([np.empty(0, np.float32), *pivots]).astype("<f4").tobytes(),
        "units": np.concatenate([np.empty(0, np.int8), *units]).tobytes(),
        "codes": b"".join(code.tobytes() for code in codes if code is not None),
        "raw": lines[kinds == RAW].astype("<f4").tobytes(),
    }


class _Coded:
    """Lines coded with segments of one length: ``pivots`` and ``units`` [lines, segments], ``codes`` [lines,
    columns], and the values that these decode to, ``decoded`` [lines, columns]."""

    def __init__(self, pivots: Floats, units: Any, codes: Any, decoded: Floats) -> None:
        self.pivots, self.units, self.codes, self.decoded = pivots, units, codes, decoded


def _coded(lines: Floats, log2: int, code: int, linear_unit: Any, numbers: Any) -> _Coded:
    count, columns = lines.shape
    length = min(1 << log2, columns)
    segments = -(-columns // length)
    padding = segments * length - columns
    values = np.pad(lines, ((0, 0), (0, padding)), mode="edge").reshape(count, segments, length)
    pivots = values[:, :, 0].copy()
    exact = values.astype(np.float64)
    if code:
        wanted = linear_unit(exact, numbers)
        with np.errstate(divide="ignore"):
            exponents = np.floor(np.log2(wanted))
    else:
        steps = np.abs(np.diff(exact, axis=2)).max(axis=2, initial=0)
        with np.errstate(divide="ignore"):
            exponents = np.ceil(np.log2(steps / _LARGEST[0]))
    units = np.clip(exponents, LEAST_UNIT, MOST_UNIT).astype(np.int8)
    unit = np.exp2(units.astype(np.float64))
    targets = (exact - exact[:, :, :1]) / unit[:, :, None]
    targets = np.ascontiguousarray(targets.reshape(-1, length).T)
    sums = np.zeros(count * segments)
    coded = np.empty((length, count * segments), np.uint8)
    quantise = _linear if code else _logarithmic
    table = DIFFERENCES[code].astype(np.float64)
    all_sums = np.empty_like(targets)
    for i in range(length):
        coded[i] = quantise(targets[i] - sums)
        sums = sums + table[coded[i]]
        all_sums[i] = sums
    scaled = all_sums.T.reshape(count, segments, length).astype(np.float32) * unit[:, :, None].astype(
        np.float32
    )
    with np.errstate(all="ignore"):
        decoded = (pivots[:, :, None] + scaled).reshape(count, -1)[:, :columns]
    codes = coded.T.reshape(count, -1)[:, :columns]
    return _Coded(pivots, units, np.ascontiguousarray(codes), decoded)


def _logarithmic(difference: npt.NDArray[np.float64]) -> npt.NDArray[np.uint8]:
    """The logarithmic byte nearest to each ``difference``, which is in units; of the same shape."""
    magnitude = np.minimum(np.abs(difference), _LARGEST[0])
    # magnitude = mantissa · 2^exponent, 0.5 ≤ mantissa < 1
    mantissa, exponent = np.frexp(np.maximum(magnitude, 16))
    steps = np.rint(mantissa * 32).astype(np.int64)  # 16 to 32, in sixteenths of the binade
    code = (exponent - 5) * 16 + steps - 16  # 32 carries over into the next exponent
    # Byte 0 means no difference, so +16 becomes +17.
    code = np.where(magnitude < 8, 0, np.maximum(code, difference > 0))
    return np.where((difference < 0) & (magnitude >= 8), code + 128, code).astype(np.uint8)


def _linear(difference: npt.NDArray[np.float64]) -> npt.NDArray[np.uint8]:
    return np.rint(np.clip(difference, -_LARGEST[1], _LARGEST[1])).astype(np.int8).view(np.uint8)


def _chunks(numbers: npt.NDArray[np.intp], columns: int) -> Iterator[npt.NDArray[np.intp]]:
    step = max(1, _AT_ONCE // columns)
    for start in range(0, len(numbers), step):
        yield numbers[start : start + step]
