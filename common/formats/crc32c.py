"""CRC-32C, the checksum of TFRecord files: computed by ``_crc32c.c``, as fast as memory can be read, if that was
compiled and the processor multiplies 64-byte vectors; otherwise by Google's library."""

import ctypes
import os
from functools import cache
from typing import Any

import google_crc32c
import numpy as np
import numpy.typing as npt

from mlhpc.common.files.compiled import compiled_library


@cache
def library() -> Any:
    """The compiled library; None if it is missing or this processor cannot run it."""
    compiled = compiled_library(__file__, "_crc32c")
    if compiled is None or not compiled.mlhpc_has_crc32c():
        return None
    compiled.mlhpc_crc32c.restype = ctypes.c_uint32
    compiled.mlhpc_crc32c.argtypes = [ctypes.c_uint32, ctypes.c_void_p, ctypes.c_int64]
    compiled.mlhpc_read_crc32c.restype = ctypes.c_int64
    compiled.mlhpc_read_crc32c.argtypes = [
        ctypes.c_int, ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64, ctypes.POINTER(ctypes.c_uint32)
    ]  # fmt: skip
    return compiled


def extend(crc: int, data: bytes | memoryview | npt.NDArray[np.uint8]) -> int:
    """Extend the checksum ``crc`` of the preceding bytes (0 if there are none) by ``data``, [n]."""
    array = data if isinstance(data, np.ndarray) else np.frombuffer(data, np.uint8)
    compiled = library()
    if compiled is None:
        checksum: int = google_crc32c.extend(crc, array)  # it rejects memoryviews
    else:
        checksum = compiled.mlhpc_crc32c(crc, array.ctypes.data, array.nbytes)
    return checksum


def read_into(fd: int, offset: int, out: npt.NDArray[np.uint8], crc: int) -> int | None:
    """Fill ``out``, contiguous [bytes], from ``offset`` of an open file; returns ``crc`` extended by these bytes,
    or None if not all of them can be read."""
    compiled = library()
    if compiled is None:
        return extend(crc, out) if os.preadv(fd, [out.data], offset) == out.nbytes else None
    checksum = ctypes.c_uint32(crc)
    count = compiled.mlhpc_read_crc32c(fd, offset, out.ctypes.data, out.nbytes, checksum)
    return checksum.value if count == out.nbytes else None
