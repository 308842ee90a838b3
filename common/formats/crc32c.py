"""CRC-32C, the checksum of TFRecord files: as fast as memory where ``_crc32c.c`` was compiled and the processor
multiplies vectors of 64 bytes, elsewhere by Google's library."""

import ctypes
from functools import cache
from typing import Any

import google_crc32c
import numpy as np
import numpy.typing as npt

from mlhpc.common.host.compiled import compiled_library


@cache
def library() -> Any:
    """The compiled library; None where it is missing or this processor cannot run it."""
    compiled = compiled_library(__file__, "_crc32c")
    if compiled is None or not compiled.mlhpc_has_crc32c():
        return None
    compiled.mlhpc_crc32c.restype = ctypes.c_uint32
    compiled.mlhpc_crc32c.argtypes = [ctypes.c_uint32, ctypes.c_void_p, ctypes.c_int64]
    return compiled


def extend(crc: int, data: bytes | memoryview | npt.NDArray[np.uint8]) -> int:
    """The checksum of bytes whose beginning has the checksum ``crc`` (0: none) and which end with ``data``."""
    array = data if isinstance(data, np.ndarray) else np.frombuffer(data, np.uint8)
    compiled = library()
    if compiled is None:
        checksum: int = google_crc32c.extend(crc, array)  # it rejects memoryviews
    else:
        checksum = compiled.mlhpc_crc32c(crc, array.ctypes.data, array.nbytes)
    return checksum
