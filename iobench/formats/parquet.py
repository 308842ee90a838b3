"""Parquet: one binary column ``sample``, a row group for each sample, so that samples can be read individually."""

import os
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from mlhpc.errors import UserError
from mlhpc.iobench.definition.schema import Dataset
from mlhpc.iobench.formats import formats
from mlhpc.iobench.formats.access import CountedFile, FileObject
from mlhpc.iobench.formats.formats import MakeSample, Sizes

COLUMN = "sample"


def write(fd: int, sizes: Sizes, make_sample: MakeSample, dataset: Dataset) -> None:
    """Write a row group for each sample."""
    schema = pa.schema([(COLUMN, pa.large_binary())])
    with (
        os.fdopen(os.dup(fd), "wb", buffering=0) as raw,
        pq.ParquetWriter(raw, schema, compression="none", use_dictionary=False) as writer,
    ):
        for number, size in enumerate(sizes.tolist()):
            column = pa.array([make_sample(number, size).tobytes()], pa.large_binary())
            writer.write_table(pa.table([column], schema=schema))


class Samples(formats.Samples):
    """Reads row groups."""

    def __init__(self, file: CountedFile, sizes: Sizes, dataset: Dataset) -> None:
        """Raises UserError for a file without a row group for each of ``sizes``."""
        super().__init__(file, sizes, dataset)
        try:
            self._groups = pq.ParquetFile(FileObject(file))
        except (pa.ArrowException, OSError) as error:
            raise UserError(f"{file.path}: not a readable Parquet file ({error}); regenerate it") from error
        if self._groups.num_row_groups != len(sizes):
            raise UserError(f"{file.path} must have {len(sizes)} row groups; regenerate it")

    def read(self, number: int) -> Any:
        """The content of sample ``number`` as an Arrow buffer."""
        try:
            buffer = self._groups.read_row_group(number).column(COLUMN).chunk(0)[0].as_buffer()
        except (pa.ArrowException, OSError) as error:
            raise UserError(f"{self._file.path}: sample {number}: {error}; regenerate it") from error
        if buffer.size != self._sizes[number]:
            raise UserError(f"{self._file.path}: sample {number} has {buffer.size} bytes; regenerate it")
        return buffer

    def close(self) -> None:
        """Close the reader and the file."""
        self._groups.close()
        super().close()
