"""NumPy's ``.npy``: a header and one uint8 array, which is the file's only sample or, in DLIO's layout, all
samples, [rows, columns, samples].

Without a transfer size, the file is read in the same few calls as by NumPy; with one, in reads of that size.
"""

import io
import math
import zipfile
from functools import cached_property
from typing import Any

import numpy as np

from mlhpc.common.files.atomic import write_all
from mlhpc.errors import UserError
from mlhpc.iobench.definition.schema import Dataset
from mlhpc.iobench.formats import binary, formats
from mlhpc.iobench.formats.formats import Bytes, MakeSample, Sizes, rows_and_columns

_format: Any = np.lib.format
LARGEST_HEADER = 1024
"""Maximum bytes of a header; NumPy's headers have 128."""


def header(sizes: Sizes, dataset: Dataset) -> bytes:
    """The header of an array of samples of ``sizes`` bytes, [samples]. DLIO's arrays are in Fortran order, in
    which the samples are contiguous."""
    shape: tuple[int, ...] = (int(sizes.sum()),)
    if dataset.layout == "dlio":
        shape = (*rows_and_columns(int(sizes[0])), len(sizes))
    out = io.BytesIO()
    _format.write_array_header_1_0(out, {"descr": "|u1", "fortran_order": len(shape) > 1, "shape": shape})
    return out.getvalue()


def write(fd: int, sizes: Sizes, make_sample: MakeSample, dataset: Dataset) -> None:
    """Write the samples as one array."""
    write_all(fd, memoryview(header(sizes, dataset)))
    binary.write(fd, sizes, make_sample, dataset)


def parse(data: Bytes) -> Bytes:
    """The array in the content of an ``.npy`` file, uint8 [bytes], without copying. Raises ValueError if the
    content is invalid."""
    shape, fortran, kind, start = _read_header(data[:LARGEST_HEADER])
    values = data[start:]
    if kind != np.uint8 or len(values) != math.prod(shape):
        raise ValueError(f"{len(values)} bytes for {kind}{list(shape)}")
    return values.reshape(shape, order="F" if fortran else "C")


def _read_header(data: Bytes) -> tuple[tuple[int, ...], bool, Any, int]:
    """The array's shape, whether it is in Fortran order, its type, and the position of its values."""
    stream = io.BytesIO(data.tobytes())
    _format.read_magic(stream)
    return *_format.read_array_header_1_0(stream), stream.tell()


class Samples(formats.Samples):
    """Reads the whole array when the first sample is requested; the other samples are then in memory."""

    def read(self, number: int) -> Bytes:
        """The part of the array that contains sample ``number``. Raises UserError if the file's array is not as
        expected."""
        if self._array.ndim > 1:
            part: Bytes = self._array[..., number]
            return part
        start = int(self._offsets[number])
        return self._array[start : start + int(self._sizes[number])]

    @cached_property
    def _array(self) -> Bytes:
        path = self._file.path
        try:
            array = self._loaded() if self._file.block_bytes else self._transferred()
        except (zipfile.BadZipFile, KeyError, ValueError, EOFError) as error:
            raise UserError(
                f"{path}: damaged, or not a file of this workload ({error}); regenerate it"
            ) from error
        if array.dtype != np.uint8:
            raise UserError(f"{path}: its array has type {array.dtype}, not uint8; regenerate it")
        if array.ndim == 3 and array.shape[-1] == len(self._sizes):
            self._sizes = np.full(len(self._sizes), array[..., 0].size)
        elif array.ndim != 1 or array.size != self._sizes.sum():
            raise UserError(
                f"{path}: its array has {array.nbytes} bytes, expected {self._sizes.sum()}; regenerate it"
            )
        return array

    def _loaded(self) -> Bytes:
        """Read the array with the same calls as ``np.load``: a block for the header, then ``np.fromfile``, which
        positions the C stream, fills its buffer of one block, reads whole blocks, and reads the rest through the
        buffer (glibc 2.36)."""
        file, block = self._file, self._file.block_bytes
        data = np.empty((file.size // block + 2) * block, np.uint8)
        file.read_some(0, data[:block])
        *_, start = _read_header(data[:block])
        for size in (start, block):
            file.read_some(0, data[:size])
        if whole := (file.size - block) // block * block:
            file.read_some(block, data[block : block + whole])
        file.read_some(block + whole, data[block + whole :][:block])
        return parse(data[: file.size])

    def _transferred(self) -> Bytes:
        return parse(self._file.read(0, self._file.size))
