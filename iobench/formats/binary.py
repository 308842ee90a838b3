"""Samples one after the other, nothing between them: what large sets of tokens and features are kept in."""

import numpy as np

from mlhpc.common.files.atomic import write_all
from mlhpc.iobench.definition.schema import Dataset
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
