"""NumPy's ``.npz``: a zip file, stored, with one array ``x`` of all samples of the file, uint8.

``np.load`` reads the file's directory at its end, then the array, and checks its CRC-32. Without a transfer size
NumPy itself reads, in many calls; with one, this does the same in reads of that size. The samples of a file are
read together, since they are one array.
"""

import io
import zipfile
from functools import cached_property

import numpy as np
from isal import isal_zlib

from mlhpc.common.files.atomic import write_all
from mlhpc.errors import UserError
from mlhpc.iobench.definition.schema import Dataset
from mlhpc.iobench.formats import formats
from mlhpc.iobench.formats.access import FileObject, buffered
from mlhpc.iobench.formats.formats import Bytes, MakeSample, Sizes
from mlhpc.iobench.formats.npy import header

MEMBER = "x.npy"
_LOCAL_HEADER = 30  # bytes before the name (APPNOTE.TXT 6.3.10, 4.3.7)


def write(fd: int, sizes: Sizes, make_sample: MakeSample, dataset: Dataset) -> None:
    """Write the samples as one array, to a file that need not be seekable."""
    with zipfile.ZipFile(_Unseekable(fd), "w", zipfile.ZIP_STORED) as archive:
        # A fixed date: the same samples give the same bytes.
        info = zipfile.ZipInfo(MEMBER, (1980, 1, 1, 0, 0, 0))
        with archive.open(info, "w", force_zip64=True) as member:
            member.write(header(int(sizes.sum())))
            for number, size in enumerate(sizes.tolist()):
                member.write(make_sample(number, size).data)


class _Unseekable(io.RawIOBase):
    """Output of zipfile: not seekable, so that sizes are written after the data; writes are complete."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        view = memoryview(data).cast("B")  # type: ignore[arg-type]
        write_all(self._fd, view)
        return len(view)


class Samples(formats.Samples):
    """The array is read with the first requested sample; the others are then in memory."""

    def read(self, number: int) -> Bytes:
        """The part of the array that is sample ``number``."""
        start = int(self._offsets[number])
        return self._array[start : start + int(self._sizes[number])]

    @cached_property
    def _array(self) -> Bytes:
        source = buffered(self._file)
        return self._loaded(source) if source else self._transferred()

    def _loaded(self, source: io.BufferedReader) -> Bytes:
        """The array as ``np.load`` gives it, through Python's buffer of a file."""
        path, total = self._file.path, int(self._sizes.sum())
        try:
            with np.load(source) as arrays:
                array: Bytes = arrays["x"]
        except (zipfile.BadZipFile, KeyError, ValueError, EOFError) as error:
            raise UserError(f"{path} is damaged, or not a .npz file ({error}); regenerate it") from error
        if array.dtype != np.uint8 or array.size != total:
            raise UserError(f"{path}: an array of {array.nbytes} bytes, not {total}; regenerate it")
        return array.reshape(-1)

    def _transferred(self) -> Bytes:
        path = self._file.path
        try:
            with zipfile.ZipFile(FileObject(self._file)) as archive:
                info = archive.getinfo(MEMBER)
            local = self._file.read(info.header_offset, _LOCAL_HEADER)
            names = int.from_bytes(local[26:28], "little") + int.from_bytes(local[28:30], "little")
            data = self._file.read(info.header_offset + _LOCAL_HEADER + names, info.file_size)
        except (zipfile.BadZipFile, KeyError, ValueError) as error:
            raise UserError(f"{path}: not the .npz file expected ({error}); regenerate it") from error
        expected = header(int(self._sizes.sum()))
        if isal_zlib.crc32(data) != info.CRC or data[: len(expected)].tobytes() != expected:
            raise UserError(f"{path}: its array is damaged; regenerate it")
        return data[len(expected) :]
