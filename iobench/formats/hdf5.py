"""HDF5: the samples of a file in one dataset ``samples`` of bytes, contiguous or in chunks with a filter. In
DLIO's layout the dataset is ``records``, [samples, rows, columns], next to ``labels``.

HDF5 itself decides which chunks and metadata to read, and reads them through the counted file. The library is not
thread-safe: h5py's lock admits one thread of a process at a time.
"""

import math
import os
from typing import Any

import h5py
import numpy as np

from mlhpc.common.files import atomic
from mlhpc.errors import UserError
from mlhpc.iobench.definition.schema import Dataset
from mlhpc.iobench.formats import formats
from mlhpc.iobench.formats.access import CountedFile, FileObject
from mlhpc.iobench.formats.formats import Bytes, MakeSample, Sizes, rows_and_columns
from mlhpc.iobench.formats.mpi_io import MpiFile

NAME, DLIO_NAME = "samples", "records"


def write(fd: int, sizes: Sizes, make_sample: MakeSample, dataset: Dataset) -> None:
    """Write the dataset. Raises the file system's first error."""
    total = int(sizes.sum())
    options: dict[str, Any] = {}
    images: tuple[int, ...] = ()  # size of each sample
    if dataset.layout == "dlio":
        images = rows_and_columns(int(sizes[0]))
    if images and dataset.chunk_bytes:  # squares, as in DLIO
        options["chunks"] = (1, *(min(math.ceil(math.sqrt(dataset.chunk_bytes)), side) for side in images))
    elif not images and (dataset.chunk_bytes or dataset.compression != "none"):
        options["chunks"] = (min(dataset.chunk_bytes or dataset.sample_bytes, total),)
    if dataset.compression != "none":
        options["compression"] = dataset.compression
        if dataset.compression == "gzip":
            options["compression_opts"] = dataset.compression_level
    output = _Output(fd)
    try:
        with h5py.File(output, "w") as file:
            # Without creation times (h5py's default), the same samples give the same bytes.
            shape = (len(sizes), *images) if images else (total,)
            written = file.create_dataset(DLIO_NAME if images else NAME, shape, np.uint8, **options)
            at = 0
            for number, size in enumerate(sizes.tolist()):
                sample = make_sample(number, size)
                if images:
                    written[number] = sample.reshape(images)
                else:
                    written[at : at + size] = sample
                at += size
            if images:
                file["labels"] = np.zeros(len(sizes), np.int64)
    except Exception:
        # HDF5 continues after a failed write and fails again elsewhere, so the first error is reported.
        if output.error:
            raise output.error from None
        raise
    if output.error:
        raise output.error


class _Output:
    """The file that HDF5 writes to. Remembers the first write error."""

    def __init__(self, fd: int) -> None:
        self._fd, self._at = fd, 0
        self.error: OSError | None = None

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = os.lseek(self._fd, offset, whence)
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, length: int = -1) -> bytes:
        """Required by h5py, which however calls ``readinto``."""
        raise NotImplementedError

    def readinto(self, buffer: memoryview) -> int:
        count = os.preadv(self._fd, [buffer], self._at)
        self._at += count
        return count

    def write(self, data: memoryview) -> int:
        try:
            os.lseek(self._fd, self._at, os.SEEK_SET)
            atomic.write_all(self._fd, memoryview(data).cast("B"))
        except OSError as error:
            self.error = self.error or error
            raise
        self._at += memoryview(data).nbytes
        return memoryview(data).nbytes

    def truncate(self, size: int) -> int:
        os.ftruncate(self._fd, size)
        return size

    def flush(self) -> None:
        pass


class Samples(formats.Samples):
    """Reads from the dataset."""

    def __init__(self, file: CountedFile, sizes: Sizes, dataset: Dataset) -> None:
        """Raises UserError if the file does not contain these samples, or stores them in other files."""
        super().__init__(file, sizes, dataset)
        try:
            self._opened = file.open() if isinstance(file, MpiFile) else h5py.File(FileObject(file), "r")
            self._images = dataset.layout == "dlio"
            self._bytes = self._opened[DLIO_NAME if self._images else NAME]
            shape = self._bytes.shape
            if self._images and len(shape) == 3 and shape[0] == len(sizes) and self._bytes.dtype == np.uint8:
                self._sizes = np.full(len(sizes), math.prod(shape[1:]))
            elif self._images or shape != (sizes.sum(),):
                raise UserError(f"{file.path} must have {sizes.sum()} bytes of samples; regenerate it")
            if self._bytes.external or self._bytes.is_virtual:
                raise UserError(
                    f"{file.path}: its samples are stored in other files; regenerate the data set"
                )
        except (OSError, KeyError) as error:
            raise UserError(
                f"{file.path}: not a valid HDF5 file of this workload ({error}); regenerate it"
            ) from error

    def read(self, number: int) -> Bytes:
        """The bytes of sample ``number``."""
        start = number * self.size(0) if self._images else int(self._offsets[number])
        out = np.empty(self.size(number), np.uint8)
        part: Any = np.s_[start : start + len(out)]
        if self._images:
            part, out = number, out.reshape(self._bytes.shape[1:])
        try:
            if isinstance(self._file, MpiFile):
                self._file.read_dataset(self._bytes, part, start, out)
            else:
                self._bytes.read_direct(out, part)
        except OSError as error:
            raise UserError(f"{self._file.path}: sample {number}: {error}; regenerate it") from error
        return out

    def close(self) -> None:
        """Close the library's file and the counted file."""
        self._opened.close()
        super().close()
