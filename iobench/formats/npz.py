"""NumPy's ``.npz``: an uncompressed zip file with one uint8 array ``x`` of all samples of the file; in DLIO's
layout the array is [rows, columns, samples], next to labels ``y``.

``np.load`` reads the directory at the end of the file, then the array, and checks the CRC-32. Without a transfer
size, NumPy itself reads, in many calls; with one, this module does the same in reads of that size. The samples of
a file are read together, since they are one array.
"""

import io
import zipfile

import numpy as np
from isal import isal_zlib

from mlhpc.common.files.atomic import write_all
from mlhpc.iobench.definition.schema import Dataset
from mlhpc.iobench.formats import npy
from mlhpc.iobench.formats.access import FileObject, buffered
from mlhpc.iobench.formats.formats import Bytes, MakeSample, Sizes

MEMBER = "x.npy"
_LOCAL_HEADER = 30  # bytes before the name (APPNOTE.TXT 6.3.10, section 4.3.7)


def write(fd: int, sizes: Sizes, make_sample: MakeSample, dataset: Dataset) -> None:
    """Write the samples as one array, to a file that need not be seekable."""
    with zipfile.ZipFile(_Unseekable(fd), "w", zipfile.ZIP_STORED) as archive:
        # A fixed date, so that the same samples give the same bytes.
        info = zipfile.ZipInfo(MEMBER, (1980, 1, 1, 0, 0, 0))
        with archive.open(info, "w", force_zip64=True) as member:
            member.write(npy.header(sizes, dataset))
            for number, size in enumerate(sizes.tolist()):
                member.write(make_sample(number, size).data)
        if dataset.layout == "dlio":
            labels = io.BytesIO()
            np.save(labels, np.zeros(len(sizes), np.int64))
            archive.writestr(zipfile.ZipInfo("y.npy", info.date_time), labels.getvalue())


class _Unseekable(io.RawIOBase):
    """The output of zipfile. It is not seekable, so sizes are written after the data; every write is complete."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        view = memoryview(data).cast("B")  # type: ignore[arg-type]
        write_all(self._fd, view)
        return len(view)


class Samples(npy.Samples):
    """Reads the whole array when the first sample is requested; the other samples are then in memory."""

    def _loaded(self) -> Bytes:
        """The array, read as by ``np.load``: through the buffer of Python's ``open``."""
        source = buffered(self._file)
        assert source
        with np.load(source) as arrays:
            array: Bytes = arrays["x"]
            return array

    def _transferred(self) -> Bytes:
        with zipfile.ZipFile(FileObject(self._file)) as archive:
            info = archive.getinfo(MEMBER)
        local = self._file.read(info.header_offset, _LOCAL_HEADER)
        names = int.from_bytes(local[26:28], "little") + int.from_bytes(local[28:30], "little")
        data = self._file.read(info.header_offset + _LOCAL_HEADER + names, info.file_size)
        if isal_zlib.crc32(data) != info.CRC:
            raise ValueError("wrong checksum")
        return npy.parse(data)
