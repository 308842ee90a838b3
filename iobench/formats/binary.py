"""Contiguous samples without framing, as used for large sets of tokens and features."""

from collections.abc import Sequence

import numpy as np

from mlhpc.common.files.atomic import write_all
from mlhpc.iobench.definition.schema import Dataset, Extent
from mlhpc.iobench.formats.access import CountedFile
from mlhpc.iobench.formats.formats import Bytes, MakeSample, Samples, Sizes


def write(fd: int, sizes: Sizes, make_sample: MakeSample, dataset: Dataset) -> None:
    """Write the bytes of the samples."""
    for number, size in enumerate(sizes.tolist()):
        write_all(fd, make_sample(number, size).data)


class ExtentReader(Samples):
    """Reads ``reader.extents`` of samples in order, like a program that knows the positions of its arrays."""

    def __init__(self, file: CountedFile, sizes: Sizes, dataset: Dataset, extents: Sequence[Extent]) -> None:
        super().__init__(file, sizes, dataset)
        self._extents = extents

    def read(self, number: int) -> list[Bytes]:
        """The extents of sample ``number``."""
        start = int(self._offsets[number])
        return [self._read(start + extent.offset, extent) for extent in self._extents]

    def _read(self, start: int, extent: Extent) -> Bytes:
        out = np.empty(extent.bytes, np.uint8)
        step = extent.transfer_bytes or extent.bytes
        for at in range(0, extent.bytes, step):
            self._file.read_into(start + at, out[at : at + step])
        return out
