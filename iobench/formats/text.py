"""CSV: a sample is a row of ``columns`` numbers, with enough digits to fill its bytes; in DLIO's layout a row of
as many numbers below 256 as the sample has bytes, after its number, below a row of names, as pandas writes."""

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
"""Bytes that pandas asks for at once (parsers/tokenizer.c, chunksize)."""
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


class Samples(formats.Samples):
    """Parses the rows."""

    def read(self, number: int) -> npt.NDArray[np.float32]:
        """The numbers of row ``number``, [columns]. Raises UserError if it has others."""
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
        """All rows, [rows, 1 + columns], read in the chunks of pandas.read_csv (its C parser)."""
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
                f"{self._file.path}: expected {len(self._sizes)} rows with a number per column name, found "
                f"{len(rows)}; regenerate the data set"
            )
        self._sizes = np.full(len(table), table.shape[1] - 1)
        return table
