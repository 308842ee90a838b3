"""A batch of the lookup-table codec to be decoded on the device: keys and tables are transferred instead of
voxels."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt


class Encoded(NamedTuple):
    """Samples of ``shape`` [b, n, n, n, channels]. If the voxels of all samples are numbered in C order, voxel i,
    in block k, has the values ``tables[starts[k] + keys[i]]``. Symmetry ``symmetries[j]`` is then applied to
    sample j (``augment.apply_symmetry``).

    ``keys``: uint16 [voxels]. ``tables``: [rows, channels], in the type in which samples are delivered
    (``loading.sample_dtype``). ``starts``: int32 [blocks], the row of ``tables`` at which each block's table
    starts. ``voxels``: int64 [blocks], the number of voxels in each block.
    """

    shape: tuple[int, ...]
    keys: npt.NDArray[np.uint16]
    tables: npt.NDArray[Any]
    starts: npt.NDArray[np.int32]
    voxels: npt.NDArray[np.int64]
    symmetries: tuple[int, ...]


class EncodedSample(NamedTuple):
    """One sample: the size of its file in bytes, its symmetry, and the ``tables`` and numbers of ``voxels`` of its
    blocks. The keys are stored in the batch."""

    size: int
    symmetry: int
    tables: list[npt.NDArray[Any]]
    voxels: list[int]


def assemble(
    shape: tuple[int, ...], keys: npt.NDArray[np.uint16], samples: Sequence[EncodedSample]
) -> Encoded:
    """Combine ``samples`` and their ``keys`` [b, voxels] into a batch."""
    tables = [table for sample in samples for table in sample.tables]
    rows = np.cumsum([0, *map(len, tables)])[:-1]
    return Encoded(
        (len(samples), *shape),
        keys.reshape(-1),
        np.concatenate(tables),
        rows.astype(np.int32),
        np.array([voxels for sample in samples for voxels in sample.voxels], np.int64),
        tuple(int(sample.symmetry) for sample in samples),
    )
