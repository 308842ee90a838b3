"""CSV: a sample is a row of ``columns`` numbers, with enough digits to fill the sample's bytes. In DLIO's layout,
as written by pandas, a row of names comes first, and a sample is a row with its number and one number below 256
for each of its bytes."""

from functools import cached_property

import numpy as np
import numpy.typing as npt

from mlhpc.common.files.atomic import write_all
from mlhpc.errors import UserError
from mlhpc.iobench.definition.schema import Dataset
from mlhpc.iobench.formats import formats
from mlhpc.iobench.formats.access import buffered
from mlhpc.iobench.formats.formats import Bytes, MakeSample, Sizes

PANDAS_CHUNK = 262_144
"""Bytes that pandas requests at once (parsers/tokenizer.c, chunksize)."""
DIGITS = 17
"""Maximum number of digits: more than a float has (IEEE 754 binary64)."""


def write(fd: int, sizes: Sizes, make_sample: MakeSample, dataset: Dataset) -> None:
    """Write a row for each sample."""
    if dataset.layout == "dlio":
        names = ",".join(["", *map(str, range(int(sizes[0])))])
        write_all(fd, memoryview(names.encode() + b"\n"))
        for number, size in enumerate(sizes.tolist()):
            values = ",".join(map(str, [number, *make_sample(number, size).tolist()]))
            write_all(fd, memoryview(values.encode() + b"\n"))
        return
    for number, size in enumerate(sizes.tolist()):
        write_all(fd, row(make_sample(number, size), dataset.columns).data)


def row(content: Bytes, columns: int) -> Bytes:
    """A row of ``columns`` numbers between 0 and 1 (such as ``.27``), generated from ``content``, uint8 [bytes],
    and of the same length. Numbers have at most DIGITS digits, padded with spaces."""
    text = content % np.uint8(10) + np.uint8(ord("0"))
    ends = (np.arange(1, columns + 1) * len(text)) // columns - 1
    starts = np.concatenate([[0], ends[:-1] + 1])
    text[starts[ends - starts >= 2]] = ord(".")
    # Columns wider than a number's digits are padded with spaces.
    at = np.arange(len(text)) - np.repeat(starts, ends + 1 - starts)
    text[at > DIGITS] = ord(" ")
    text[ends] = ord(",")
    text[-1] = ord("\n")
    return text


class Samples(formats.Samples):
    """Parses the rows."""

    def read(self, number: int) -> npt.NDArray[np.float32]:
        """The numbers in row ``number``, [columns]. Raises UserError if they are not as expected."""
        if self._dataset.layout == "dlio":
            return self._table[number, 1:]
        text = super().read(number).tobytes()
        where = f"{self._file.path}: row {number}"
        try:
            values = np.array(text.split(b","), dtype=np.float32)
        except ValueError as error:
            raise UserError(f"{where}: {error}; regenerate the data set") from error
        if len(values) != self._dataset.columns or text[-1:] != b"\n":
            raise UserError(f"{where}: expected {self._dataset.columns} numbers; regenerate the data set")
        return values

    @cached_property
    def _table(self) -> npt.NDArray[np.float32]:
        """All rows, [rows, 1 + columns], read in the same chunks in which the C parser of pandas.read_csv
        reads."""
        if source := buffered(self._file):
            text = b"".join(iter(lambda: source.read(PANDAS_CHUNK), b""))
        else:
            text = self._file.read(0, self._file.size).tobytes()
        names, *rows = text.splitlines() or [b""]
        try:
            table = np.array([row.split(b",") for row in rows], dtype=np.float32)
        except ValueError as error:
            raise UserError(f"{self._file.path}: {error}; regenerate the data set") from error
        if table.shape != (len(self._sizes), names.count(b",") + 1):
            raise UserError(
                f"{self._file.path}: expected {len(self._sizes)} rows with one number per column name, found "
                f"{len(rows)}; regenerate the data set"
            )
        self._sizes = np.full(len(table), table.shape[1] - 1)
        return table
