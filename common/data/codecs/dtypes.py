"""The sample types (``loading.sample_dtype``), and rounding to them."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

NUMPY: Mapping[str, np.dtype[Any]] = {
    "int16": np.dtype("<i2"),
    "float32": np.dtype("<f4"),
    "float16": np.dtype("<f2"),
    "bfloat16": np.dtype("<u2"),
}
"""NumPy type of arrays for each sample type. NumPy has no bfloat16; its 16 bits are stored as uint16."""


def cast(values: npt.NDArray[np.float32], sample_dtype: str) -> npt.NDArray[Any]:
    """``values``, of any shape, rounded to nearest even, as an array of ``NUMPY[sample_dtype]``. Values beyond the
    type's largest become infinite, and NaN stays NaN."""
    if sample_dtype == "float32":
        return values
    if sample_dtype == "float16":
        with np.errstate(over="ignore"):
            return values.astype(np.float16)
    assert sample_dtype == "bfloat16"
    bits = np.ascontiguousarray(values).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    quiet = (bits >> 16) | 0x40
    return np.where(np.isnan(values), quiet, rounded).astype(np.uint16)


def as_float32(values: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """An exact float32 copy, of the same shape, of samples in any of the types in which a loader delivers them."""
    if values.dtype == NUMPY["bfloat16"]:
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values.astype(np.float32)
