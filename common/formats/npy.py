"""The layout of converted data sets: ``data-*.npy`` contains the field (image) of a sample, and ``label-*.npy``
its mask."""

import io
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mlhpc.common.files import atomic
from mlhpc.common.formats.extent import Extent
from mlhpc.errors import UserError

_format: Any = np.lib.format
_HEADER = 4096  # more than the header of any array without field names


def label_path(path: Path) -> Path:
    """The mask file that belongs to the field file ``path``."""
    return path.with_name("label-" + path.name.removeprefix("data-"))


def locate(fd: int, path: Path) -> Extent:
    """Position of the array in an open .npy file. Raises UserError naming ``path`` if the file is damaged or not
    an .npy file."""
    start = io.BytesIO(os.pread(fd, _HEADER, 0))
    try:
        version = _format.read_magic(start)
        read = _format.read_array_header_1_0 if version == (1, 0) else _format.read_array_header_2_0
        shape, fortran, dtype = read(start)
        if any(n < 0 for n in shape):
            raise ValueError(f"shape {shape}")
    except Exception as error:
        # NumPy parses a header as Python source: a damaged one raises almost any exception.
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"{path}: not a .npy file ({reason}); convert the data set again") from error
    if dtype.hasobject or (fortran and len(shape) > 1):
        problem = "contains Python objects" if dtype.hasobject else "is in Fortran order"
        raise UserError(f"{path}: {problem} instead of plain values in C order; convert the data set again")
    extent = Extent(start.tell(), dtype, shape)
    if extent.end > (size := os.fstat(fd).st_size):
        raise UserError(f"{path} is truncated ({size} of {extent.end} bytes); convert the data set again")
    return extent


def write(path: Path, array: npt.NDArray[Any], modified_ns: int | None = None) -> None:
    """Write an array of any shape atomically, in C order, with ``modified_ns`` as the file's modification time if
    given.

    Raises OSError.
    """
    with atomic.writing(path) as fd:
        atomic.write_all(fd, memoryview(_header(array.dtype, array.shape)))
        atomic.write_all(fd, np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        if modified_ns is not None:
            os.utime(fd, ns=(modified_ns, modified_ns))


def size(dtype: npt.DTypeLike, shape: tuple[int, ...]) -> int:
    """Size in bytes of the .npy file that contains an array."""
    dtype = np.dtype(dtype)
    return len(_header(dtype, shape)) + dtype.itemsize * math.prod(shape)


def _header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    header = io.BytesIO()
    facts = {"descr": _format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    _format.write_array_header_1_0(header, facts)
    return header.getvalue()
