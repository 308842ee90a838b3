"""CSV: a sample is a row of ``columns`` numbers, with enough digits to fill its bytes."""

import numpy as np
import numpy.typing as npt

from mlhpc.common.files.atomic import write_all
from mlhpc.errors import UserError
from mlhpc.iobench.definition.schema import Dataset
from mlhpc.iobench.formats.access import CountedFile
from mlhpc.iobench.formats.formats import Bytes, MakeSample, Sizes

DIGITS = 17
"""Maximum number of digits: more than a float has (IEEE 754 binary64)."""


def write(fd: int, sizes: Sizes, make_sample: MakeSample, dataset: Dataset) -> None:
    for number, size in enumerate(sizes.tolist()):
        write_all(fd, row(make_sample(number, size), dataset.columns).data)


def row(content: Bytes, columns: int) -> Bytes:
    """A row of ``columns`` numbers between 0 and 1 (``.27`` and so on), as long as ``content``, from its
    bytes. Numbers of more than DIGITS digits are padded with spaces instead."""
    text = content % np.uint8(10) + np.uint8(ord("0"))
    ends = (np.arange(1, columns + 1) * len(text)) // columns - 1
    starts = np.concatenate([[0], ends[:-1] + 1])
    text[starts[ends - starts >= 2]] = ord(".")
    # The width of a column beyond the digits of a number, blank.
    at = np.arange(len(text)) - np.repeat(starts, ends + 1 - starts)
    text[at > DIGITS] = ord(" ")
    text[ends] = ord(",")
    text[-1] = ord("\n")
    return text


class Samples:
    def __init__(self, file: CountedFile, sizes: Sizes, columns: int) -> None:
        self._file, self._sizes, self._columns = file, sizes, columns
        self._offsets = np.cumsum(sizes) - sizes

    def read(self, number: int) -> npt.NDArray[np.float32]:
        text = self._file.read(int(self._offsets[number]), int(self._sizes[number])).tobytes()
        where = f"{self._file.path}: row {number}"
        try:
            values = np.array(text.split(b","), dtype=np.float32)
        except ValueError as error:
            raise UserError(f"{where}: {error}; regenerate the data set") from error
        if len(values) != self._columns or text[-1:] != b"\n":
            raise UserError(f"{where}: not a row of {self._columns} numbers; regenerate the data set")
        return values

    def close(self) -> None:
        self._file.close()


def open_samples(file: CountedFile, sizes: Sizes, dataset: Dataset) -> Samples:
    return Samples(file, sizes, dataset.columns)
