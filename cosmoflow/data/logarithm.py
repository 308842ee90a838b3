"""log(1 + counts), the network's input, looked up in a table of the values for all possible counts.

A count has 16 bits, so its logarithm takes one look-up, both for voxels and for the tables of the lookup-table
codec. Both therefore yield the same bits, and no logarithm or rounding has to be computed per voxel.
"""

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from mlhpc.common.data.codecs import dtypes, native


@cache
def _table(sample_dtype: str) -> npt.NDArray[Any]:
    """The table of logarithms, [65536, 1], indexed by the count's bits as an unsigned integer."""
    counts = np.arange(1 << 16, dtype=np.uint16).view(np.int16).astype(np.float32)
    with np.errstate(divide="ignore", invalid="ignore"):  # for negative values, which are not counts
        logarithms = np.log(counts + np.float32(1))
    table = dtypes.cast(logarithms, sample_dtype).reshape(-1, 1)
    table.flags.writeable = False
    return table


def log_counts(counts: npt.NDArray[np.int16], out: npt.NDArray[Any], sample_dtype: str) -> None:
    """Fill ``out``, of the shape of ``counts`` and the type ``dtypes.NUMPY[sample_dtype]``, with log(1 + counts),
    computed in float32 and rounded once (the reference's preprocessing since round 1.0). Both arrays must be
    C-contiguous."""
    at = native.gather(counts.reshape(-1).view(np.uint16), _table(sample_dtype), out.reshape(-1, 1))
    assert at is None and out.flags.c_contiguous
