"""The published layout: one HDF5 file per sample with ``climate/data`` and ``climate/labels_0``, and ``stats.h5``.

The HDF5 library serialises threads, and its handles do not survive a fork. It is therefore used only to locate the
two arrays, which are read by offset after the file has been closed.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
import numpy.typing as npt

from mlhpc.common.files import atomic
from mlhpc.common.formats.extent import Extent, opened
from mlhpc.common.formats.hdf5 import reading, require_own_values
from mlhpc.errors import UserError

DATA, LABELS = "climate/data", "climate/labels_0"
_KEPT = 1 << 16  # bytes of metadata kept to recognise a layout; published files have 2 KiB


class Statistics(NamedTuple):
    """The smallest and largest values of the channels, ``[channels]``, over the training samples."""

    minimum: npt.NDArray[Any]
    maximum: npt.NDArray[Any]


@dataclass(frozen=True)
class Layout:
    """The positions of a file's arrays, and what identifies this layout: the file's size and all its other bytes.

    A file with the same size and the same bytes outside the arrays has the same layout, since HDF5 stores it
    nowhere else.
    """

    data: Extent
    labels: Extent
    size: int
    metadata: tuple[tuple[int, bytes], ...]

    def is_that_of(self, fd: int) -> bool:
        """Return whether the open file ``fd`` has this layout: the same size and metadata."""
        return os.fstat(fd).st_size == self.size and all(
            os.pread(fd, len(content), offset) == content for offset, content in self.metadata
        )


def locate(path: Path) -> Layout | None:
    """The layout of a sample; None if its arrays are chunked, compressed, in other files, or in a number format
    that NumPy does not support.

    Raises UserError naming the file if it is not an HDF5 file, is truncated, or lacks one of the two arrays.
    """
    with reading(path) as file:
        extents = [_extent(_dataset(file, path, name), path) for name in (DATA, LABELS)]
    data, labels = extents
    if data is None or labels is None:
        return None
    with opened(path) as fd:
        size = os.fstat(fd).st_size
        first, last = sorted((data, labels), key=lambda extent: extent.offset)
        gaps = [(0, first.offset), (first.end, last.offset), (last.end, size)]
        kept = sum(end - start for start, end in gaps) <= _KEPT
        metadata = tuple((start, os.pread(fd, end - start, start)) for start, end in gaps if kept)
    # Size -1 matches no file, so this layout is not reused for the next file.
    return Layout(data, labels, size if kept else -1, metadata)


def sample_shape(path: Path) -> tuple[int, int, int]:
    """The shape of a sample: rows, columns, channels. Raises UserError like ``locate``."""
    with reading(path) as file:
        shape: tuple[int, ...] = _dataset(file, path, DATA).shape
    if len(shape) != 3:
        raise UserError(f"{path}: {DATA} must be [rows, columns, channels], not {list(shape)}")
    return shape[0], shape[1], shape[2]


def read(path: Path) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """The field [rows, columns, channels] and the labels [rows, columns], read by the HDF5 library, which is
    slower; for files for which ``locate`` returns None."""
    with reading(path) as file:
        return _dataset(file, path, DATA)[...], _dataset(file, path, LABELS)[...]


def find_statistics(root: Path) -> Path:
    """The path of ``stats.h5``: in the data set's root, where the public reference reads it, or in ``train/``.

    Raises UserError if there is none.
    """
    for path in (root / "stats.h5", root / "train" / "stats.h5"):
        if path.exists():
            return path
    raise UserError(
        f"{root / 'stats.h5'} is missing, and is not in train/ either; copy it from the original data set"
    )


def read_statistics(root: Path, channels: int) -> Statistics:
    """The statistics of the data set at ``root``.

    Raises UserError if ``stats.h5`` is missing or damaged, has a different number of channels, or has values that
    cannot be used for normalisation: values that are not finite, or a maximum that is not above the minimum.
    """
    path = find_statistics(root)
    with reading(path) as file:
        datasets = [_dataset(file, path, name) for name in ("climate/minval", "climate/maxval")]
        for values in datasets:
            if values.shape != (channels,) or values.dtype.kind != "f":
                raise UserError(
                    f"{path}: {values.name[1:]} is {values.dtype} {list(values.shape)}, expected "
                    f"{channels} floating-point channels"
                )
        minimum, maximum = (values[...] for values in datasets)
    for channel, (low, high) in enumerate(zip(minimum, maximum, strict=True)):
        with np.errstate(all="ignore"):
            scale = np.float32(1 / (high - low))
        if not (high > low and 0 < scale < np.inf):
            raise UserError(
                f"{path}: the range of {channel_name(channel, channels)} from {low} to {high} cannot be "
                "normalised; recompute the statistics from the training samples"
            )
    return Statistics(minimum, maximum)


def write_statistics(path: Path, statistics: Statistics) -> None:
    """Write ``stats.h5`` atomically. Raises OSError."""
    with atomic.writing(path) as fd, open(fd, "r+b", closefd=False) as stream, h5py.File(stream, "w") as file:
        file["climate/minval"], file["climate/maxval"] = statistics


CHANNELS = (
    "TMQ", "U850", "V850", "UBOT", "VBOT", "QREFHT", "PS", "PSL",
    "T200", "T500", "PRECT", "TS", "TREFHT", "Z1000", "Z200", "ZBOT",
)  # fmt: skip
"""The channels of the published data set, in order."""


def channel_name(channel: int, channels: int) -> str:
    """The name of ``channel``, counted from 0, for messages; it includes the published name if there are sixteen
    channels."""
    return f"channel {channel}" + (f" ({CHANNELS[channel]})" if channels == len(CHANNELS) else "")


def _extent(dataset: Any, path: Path) -> Extent | None:
    # HDF5 has number formats that NumPy lacks (other mantissas, exponents, biases); dtype is the nearest type.
    if not dataset.id.get_type().equal(h5py.h5t.py_create(dataset.dtype)):
        return None
    offset = dataset.id.get_offset()
    return None if offset is None else Extent(offset, dataset.dtype, dataset.shape)


def _dataset(file: Any, path: Path, name: str) -> Any:
    dataset = file.get(name)
    if not isinstance(dataset, h5py.Dataset):
        raise UserError(f"{path} has no dataset {name}; pass a file of a DeepCAM data set")
    if dataset.size and not dataset.id.get_storage_size() and not dataset.external and not dataset.is_virtual:
        raise UserError(f"{path}: {name} was never written; download or regenerate the file")
    require_own_values(dataset, path)
    return dataset
