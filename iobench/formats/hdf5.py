"""HDF5: the samples of a file in one dataset ``samples`` of bytes, contiguous or in chunks with a filter.

HDF5 itself decides which bytes to read, and reads them through the counted file: chunk by chunk, and its own
metadata. The library is not thread-safe: h5py's lock admits one thread of a process at a time.
"""

import os
from typing import Any

import h5py
import numpy as np

from mlhpc.errors import UserError
from mlhpc.iobench.definition.schema import Dataset
from mlhpc.iobench.formats.access import CountedFile, FileObject
from mlhpc.iobench.formats.formats import Bytes, MakeSample, Sizes

NAME = "samples"


def write(fd: int, sizes: Sizes, make_sample: MakeSample, dataset: Dataset) -> None:
    total = int(sizes.sum())
    options: dict[str, Any] = {}
    if dataset.chunk_bytes or dataset.compression != "none":
        options["chunks"] = (min(dataset.chunk_bytes or dataset.sample_bytes, total),)
    if dataset.compression != "none":
        options["compression"] = dataset.compression
        if dataset.compression == "gzip":
            options["compression_opts"] = dataset.compression_level
    with os.fdopen(os.dup(fd), "r+b", buffering=0) as raw, h5py.File(raw, "w") as file:
        # Without times of creation the same samples give the same bytes (h5py's default).
        written = file.create_dataset(NAME, (total,), np.uint8, **options)
        at = 0
        for number, size in enumerate(sizes.tolist()):
            written[at : at + size] = make_sample(number, size)
            at += size


class Samples:
    def __init__(self, file: CountedFile, sizes: Sizes) -> None:
        self._counted, self._sizes = file, sizes
        self._offsets = np.cumsum(sizes) - sizes
        try:
            self._file = h5py.File(FileObject(file), "r")
            self._dataset = self._file[NAME]
            if self._dataset.shape != (sizes.sum(),):
                raise UserError(
                    f"{file.path}: has {self._dataset.shape} bytes of samples, {sizes.sum()} are expected; "
                    "generate the data set again"
                )
        except (OSError, KeyError) as error:
            raise UserError(
                f"{file.path}: not the HDF5 file expected ({error}); generate it again"
            ) from error

    def read(self, number: int) -> Bytes:
        start = int(self._offsets[number])
        out = np.empty(int(self._sizes[number]), np.uint8)
        try:
            self._dataset.read_direct(out, np.s_[start : start + len(out)])
        except OSError as error:
            raise UserError(f"{self._counted.path}: sample {number}: {error}; generate it again") from error
        return out

    def close(self) -> None:
        self._file.close()
        self._counted.close()


def open_samples(file: CountedFile, sizes: Sizes, dataset: Dataset) -> Samples:
    return Samples(file, sizes)
