"""Contiguous samples without framing, as used for large sets of tokens and features. In DLIO's layout two files
beside each have the positions and the sizes of its samples, 64-bit integers."""

from collections.abc import Sequence

import numpy as np

from mlhpc.common.files.atomic import write_all
from mlhpc.errors import UserError
from mlhpc.iobench.definition.schema import Dataset, Extent
from mlhpc.iobench.formats import formats
from mlhpc.iobench.formats.access import CountedFile, buffered
from mlhpc.iobench.formats.formats import Bytes, MakeSample, Sizes, equal_sizes

INDEX = (".off.idx", ".sz.idx")
"""Suffixes of DLIO's index files, after the name of the file."""


def write(fd: int, sizes: Sizes, make_sample: MakeSample, dataset: Dataset) -> None:
    """Write the bytes of the samples."""
    for number, size in enumerate(sizes.tolist()):
        write_all(fd, make_sample(number, size).data)


def index(sizes: Sizes) -> dict[str, bytes]:
    """The files beside one with samples of ``sizes`` bytes, [samples], by their suffixes."""
    values = (np.cumsum(sizes) - sizes, sizes)
    return {suffix: array.astype("<i8").tobytes() for suffix, array in zip(INDEX, values, strict=True)}


def read_index(file: CountedFile, samples: int) -> Sizes:
    """The values of one of the index files, [samples]. Raises UserError if it is not of this number."""
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
        """Raises UserError if a file of DLIO has not as many samples."""
        self._images = dataset.layout == "dlio"
        super().__init__(file, equal_sizes(file, len(sizes)) if self._images else sizes, dataset)

    def read(self, number: int) -> Bytes:
        """The bytes of sample ``number``; those of DLIO's file as its reader asks for them."""
        source = buffered(self._file) if self._images else None
        if source is None:
            sample: Bytes = super().read(number)
            return sample
        out = np.empty(self.size(number), np.uint8)
        source.seek(int(self._offsets[number]))
        source.readinto(out.data)
        return out


class ExtentReader(formats.Samples):
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
