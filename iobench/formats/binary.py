"""Contiguous samples without framing, as used for large sets of tokens and features. In DLIO's layout, two files
next to each file contain the positions and sizes of its samples as 64-bit integers."""

from collections.abc import Sequence

import numpy as np

from mlhpc.common.files.atomic import write_all
from mlhpc.errors import UserError
from mlhpc.iobench.definition.schema import Dataset, Extent
from mlhpc.iobench.formats import formats
from mlhpc.iobench.formats.access import CountedFile, buffered
from mlhpc.iobench.formats.formats import Bytes, MakeSample, Sizes, equal_sizes

INDEX = (".off.idx", ".sz.idx")
"""Suffixes that DLIO's index files add to the name of the file."""


def write(fd: int, sizes: Sizes, make_sample: MakeSample, dataset: Dataset) -> None:
    """Write the samples, one after the other."""
    for number, size in enumerate(sizes.tolist()):
        write_all(fd, make_sample(number, size).data)


def index(sizes: Sizes) -> dict[str, bytes]:
    """The contents of the index files of a file with samples of ``sizes`` bytes, [samples], by suffix."""
    values = (np.cumsum(sizes) - sizes, sizes)
    return {suffix: array.astype("<i8").tobytes() for suffix, array in zip(INDEX, values, strict=True)}


def read_index(file: CountedFile, samples: int) -> Sizes:
    """The values in an index file, [samples]. Raises UserError if their number is not ``samples``."""
    if file.size != 8 * samples:
        raise UserError(f"{file.path}: {file.size} bytes do not match {samples} samples; regenerate it")
    values, source = np.empty(samples, np.int64), buffered(file)
    if source:
        source.readinto(values.data.cast("B"))
    else:
        file.read_into(0, values.view(np.uint8))
    return values


class Samples(formats.Samples):
    """Reads samples by their positions."""

    def __init__(self, file: CountedFile, sizes: Sizes, dataset: Dataset) -> None:
        """Raises UserError if one of DLIO's files has a different number of samples."""
        self._images = dataset.layout == "dlio"
        super().__init__(file, equal_sizes(file, len(sizes)) if self._images else sizes, dataset)

    def read(self, number: int) -> Bytes:
        """Read the content of sample ``number``; in DLIO's layout, with the same requests as DLIO's reader."""
        source = buffered(self._file) if self._images else None
        if source is None:
            sample: Bytes = super().read(number)
            return sample
        out = np.empty(self.size(number), np.uint8)
        source.seek(int(self._offsets[number]))
        source.readinto(out.data)
        return out


class ExtentReader(formats.Samples):
    """Reads the ``reader.extents`` of samples in order, like a program that knows the positions of its arrays."""

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
