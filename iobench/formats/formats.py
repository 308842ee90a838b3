"""The formats by name. A format writes files and reads their samples; libraries are imported when they are
used."""

import math
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from mlhpc.common.formats.tfrecord import RECORD_OVERHEAD
from mlhpc.errors import UserError, install
from mlhpc.iobench.definition.schema import Dataset
from mlhpc.iobench.formats.access import CountedFile
from mlhpc.iobench.formats.counting import ReadStatistics

Bytes = npt.NDArray[np.uint8]
Sizes = npt.NDArray[np.int64]
MakeSample = Callable[[int, int], Bytes]
"""A function that generates the content of a sample from its number in the file and its size in bytes."""


class Samples:
    """Reads the samples of a file. Each format's module has a subclass; this base is for contiguous samples."""

    def __init__(self, file: CountedFile, sizes: Sizes, dataset: Dataset) -> None:
        """``sizes``: content size in bytes of each sample, [samples]."""
        self._file, self._sizes, self._dataset = file, sizes, dataset
        self._offsets = np.cumsum(sizes) - sizes

    def size(self, number: int) -> int:
        """Content size in bytes of sample ``number``, which must have been read."""
        return int(self._sizes[number])

    def read(self, number: int) -> Any:
        """Sample ``number`` of the file, decoded. Raises UserError if it is damaged."""
        return self._file.read(int(self._offsets[number]), int(self._sizes[number]))

    def close(self) -> None:
        """Close the file."""
        self._file.close()


@dataclass(frozen=True)
class Format:
    """A format. ``module``: the module with ``write(fd, sizes, make_sample, dataset)`` and ``Samples(file, sizes,
    dataset)``. ``package``: the package that the module needs besides NumPy, ``import_name``: its import name,
    ``extra``: the extra that installs it. ``dlio_suffix``: the suffix of DLIO's files, if it differs from the
    format's name.
    """

    name: str
    suffix: str
    module: str
    package: str = ""
    import_name: str = ""
    extra: str = "io"
    dlio_suffix: str = ""

    def load(self) -> ModuleType:
        """The format's module. Raises UserError if the format's library is not installed or cannot be loaded, for
        example because a system library is missing."""
        if self.import_name:
            try:
                import_module(self.import_name)
            except ImportError as error:
                absent = isinstance(error, ModuleNotFoundError) and error.name == self.import_name
                reason = "is not installed" if absent else f"cannot be loaded ({error})"
                raise UserError(f"{self.name}: {self.package} {reason}; {install(self.extra)}") from None
        return import_module(f"mlhpc.iobench.formats.{self.module}")

    def write(self, fd: int, sizes: Sizes, make_sample: MakeSample, dataset: Dataset) -> None:
        """Write samples of ``sizes`` bytes, [samples], to an empty file. Raises the file system's OSError."""
        self.load().write(fd, sizes, make_sample, dataset)

    def is_whole(self, path: Path, sizes: Sizes, dataset: Dataset) -> bool:
        """Return whether a file written by ``write`` is complete, judging by its length if the sizes determine the
        length, otherwise by opening the file. Raises OSError."""
        lengths = {
            "npy": lambda: len(self.load().header(sizes, dataset)) + sizes.sum(),
            "tfrecord": lambda: self.load().record_sizes(sizes).sum() + RECORD_OVERHEAD * len(sizes),
        }
        length = path.stat().st_size
        if self.name == "binary" and dataset.layout == "dlio":
            beside = [path.with_name(path.name + suffix) for suffix in self.load().INDEX]
            if not all(other.exists() and other.stat().st_size == 8 * len(sizes) for other in beside):
                return False
            return length == int(np.fromfile(beside[1], np.int64).sum())
        if self.name == "npz":
            return zipfile.is_zipfile(path)
        opened = self.name in ("hdf5", "parquet") or dataset.compression != "none"
        if opened or (dataset.layout == "dlio" and self.name != "npy"):
            file = CountedFile(path, ReadStatistics())
            try:
                samples = self.open_samples(file, sizes, dataset)
                if not opened:
                    samples.read(dataset.samples_per_file - 1)
            except UserError:
                return False
            finally:
                file.close()
            return length > 0
        return length == int(lengths.get(self.name, sizes.sum)())

    def open_samples(self, file: CountedFile, sizes: Sizes, dataset: Dataset) -> Samples:
        """A reader of the samples of ``file``, which have ``sizes`` bytes, [samples]. Raises UserError if the
        format's library is missing or the file is invalid."""
        reader: Samples = self.load().Samples(file, sizes, dataset)
        return reader


FORMATS = {
    each.name: each
    for each in (
        Format("tfrecord", "tfrecord", "tfrecord"),
        Format("npz", "npz", "npz"),
        Format("npy", "npy", "npy"),
        Format("binary", "bin", "binary", dlio_suffix="indexed_binary"),
        Format("csv", "csv", "text"),
        Format("hdf5", "h5", "hdf5", "h5py", "h5py"),
        Format("jpeg", "jpg", "jpeg", "pillow", "PIL"),
        Format("parquet", "parquet", "parquet", "pyarrow", "pyarrow", "parquet"),
    )
}


def equal_sizes(file: CountedFile, samples: int) -> Sizes:
    """Bytes of each sample in a file of ``samples`` equal samples, [samples]. Raises UserError if the samples are
    not of equal size."""
    if not file.size or file.size % samples:
        raise UserError(
            f"{file.path}: {file.size} bytes cannot be {samples} samples of equal size; regenerate it"
        )
    return np.full(samples, file.size // samples, np.int64)


def rows_and_columns(size: int) -> tuple[int, int]:
    """Rows and columns of a sample of ``size`` bytes as a picture in DLIO's layout; their product is at most
    ``size``."""
    rows = math.isqrt(size)
    return rows, size // rows
