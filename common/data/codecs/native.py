"""The compiled decoding and normalisation of samples (``_decode.c``), if available; they run without holding the
interpreter lock."""

import ctypes
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from mlhpc.common.files.compiled import compiled_library

KINDS = {"float32": 0, "float16": 1, "bfloat16": 2}
"""The number of each sample type in ``_decode.c``."""


class Delta(ctypes.Structure):
    """The struct ``delta`` of ``_decode.c``."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("rows", "columns", "channels")),
        *(
            (name, ctypes.c_void_p)
            for name in (
                "kinds", "first", "coded", "pivots", "units", "codes", "raw", "differences", "shift", "scale",
            )
        ),
    ]  # fmt: skip


@cache
def library() -> Any:
    """The compiled library; None if it was not compiled, in which case NumPy decodes."""
    compiled = compiled_library(__file__, "_decode")
    if compiled is not None:
        compiled.mlhpc_gather.restype = ctypes.c_int64
        compiled.mlhpc_gather.argtypes = [
            ctypes.c_void_p, ctypes.c_int, ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int,
            ctypes.c_void_p,
        ]  # fmt: skip
        compiled.mlhpc_delta.restype = None
        compiled.mlhpc_delta.argtypes = [
            ctypes.POINTER(Delta), ctypes.c_int64, ctypes.c_int64, ctypes.c_int, ctypes.c_int,
            ctypes.c_void_p, ctypes.c_void_p,
        ]  # fmt: skip
        compiled.mlhpc_normalise.restype = ctypes.c_int64
        compiled.mlhpc_normalise.argtypes = [
            ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int,
            ctypes.c_void_p,
        ]  # fmt: skip
    return compiled


def decoder() -> str:
    """The decoder of this machine: "compiled" or "numpy"."""
    return "compiled" if library() else "numpy"


def gather(keys: npt.NDArray[Any], table: npt.NDArray[Any], out: npt.NDArray[Any]) -> int | None:
    """``out[i] = table[keys[i]]``: ``keys`` uint8 or uint16 [n], ``table`` [groups, values], ``out`` [n, values].

    Returns the position of the first key outside the table, or None if ``out`` is complete.
    """
    item = table.itemsize * table.shape[1]
    assert (
        keys.dtype in (np.uint8, np.uint16)
        and table.dtype == out.dtype
        and out.shape == (len(keys), table.shape[1])
    )
    compiled = library()
    contiguous = all(array.flags.c_contiguous for array in (keys, table, out))
    if compiled is None or item not in (2, 4, 8, 16) or not contiguous:
        return gather_numpy(keys, table, out)
    at: int = compiled.mlhpc_gather(
        keys.ctypes.data, keys.itemsize, len(keys), table.ctypes.data, len(table), item, out.ctypes.data
    )
    return None if at < 0 else at


def gather_numpy(keys: npt.NDArray[Any], table: npt.NDArray[Any], out: npt.NDArray[Any]) -> int | None:
    """``gather`` in NumPy, the reference for the compiled version. ``keys`` [n], ``table`` [groups, values],
    ``out`` [n, values]."""
    if len(keys) and int(keys.max()) >= len(table):
        return int(np.argmax(keys >= len(table)))
    out[...] = table[keys]
    return None


def normalise(
    rows: npt.NDArray[np.float32],
    shift: npt.NDArray[np.float32],
    scale: npt.NDArray[np.float32],
    out: npt.NDArray[Any],
    sample_dtype: str,
) -> int | None:
    """``out = (rows - shift) * scale``, rounded to ``sample_dtype``: ``rows`` and ``out`` are contiguous [rows,
    n], and may share memory if both are float32; ``shift`` and ``scale`` are float32 [n].

    Returns -1 if all values are finite; otherwise the index of the first row with a value that is not, and leaves
    that row and all later ones of ``out`` unchanged. Returns None and does nothing if the library was not
    compiled.
    """
    compiled = library()
    if compiled is None:
        return None
    assert rows.flags.c_contiguous and out.flags.c_contiguous and rows.shape == out.shape
    at: int = compiled.mlhpc_normalise(
        rows.ctypes.data,
        *rows.shape,
        shift.ctypes.data,
        scale.ctypes.data,
        KINDS[sample_dtype],
        out.ctypes.data,
    )
    return at
