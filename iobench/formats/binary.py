"""Contiguous samples without framing, as used for large sets of tokens and features."""

from collections.abc import Sequence

import numpy as np

from mlhpc.common.files.atomic import write_all
from mlhpc.iobench.definition.schema import Dataset, Extent
from mlhpc.iobench.formats.access import CountedFile
from mlhpc.iobench.formats.formats import Bytes, MakeSample, Sizes


def write(fd: int, sizes: Sizes, make_sample: MakeSample, dataset: Dataset) -> None:
    for number, size in enumerate(sizes.tolist()):
        write_all(fd, make_sample(number, size).data)


class Samples:
    def __init__(self, file: CountedFile, sizes: Sizes) -> None:
        self._file, self._sizes = file, sizes
        self._offsets = np.cumsum(sizes) - sizes

    def read(self, number: int) -> Bytes:
        return self._file.read(int(self._offsets[number]), int(self._sizes[number]))

    def close(self) -> None:
        self._file.close()


def open_samples(file: CountedFile, sizes: Sizes, dataset: Dataset) -> Samples:
    return Samples(file, sizes)


class ExtentReader:
    """Reads the ``extents`` of samples in order, like a program that knows the positions of its arrays."""

    def __init__(self, file: CountedFile, sizes: Sizes, extents: Sequence[Extent]) -> None:
        self._file, self._extents = file, extents
        self._offsets = np.cumsum(sizes) - sizes

    def read(self, number: int) -> list[Bytes]:
        start = int(self._offsets[number])
        return [self._read(start + extent.offset, extent) for extent in self._extents]

    def _read(self, start: int, extent: Extent) -> Bytes:
        out = np.empty(extent.bytes, np.uint8)
        step = extent.transfer_bytes or extent.bytes
        for at in range(0, extent.bytes, step):
            self._file.read_into(start + at, out[at : at + step])
        return out

    def close(self) -> None:
        self._file.close()
