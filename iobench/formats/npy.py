"""NumPy's ``.npy``: a header and the bytes of one array. The sample's bytes are its uint8 values."""

import io
from typing import Any

import numpy as np

from mlhpc.common.files.atomic import write_all
from mlhpc.errors import UserError
from mlhpc.iobench.definition.schema import Dataset
from mlhpc.iobench.formats import formats
from mlhpc.iobench.formats.formats import Bytes, MakeSample, Sizes

_format: Any = np.lib.format


def header(size: int) -> bytes:
    """The header of an array of ``size`` bytes."""
    out = io.BytesIO()
    facts = {"descr": "|u1", "fortran_order": False, "shape": (size,)}
    _format.write_array_header_1_0(out, facts)
    return out.getvalue()


def write(fd: int, sizes: Sizes, make_sample: MakeSample, dataset: Dataset) -> None:
    """Write the one sample."""
    (size,) = sizes.tolist()
    write_all(fd, memoryview(header(size)))
    write_all(fd, make_sample(0, size).data)


class Samples(formats.Samples):
    """Reads the array of a file."""

    def read(self, number: int) -> Bytes:
        """The array's values. Raises UserError for another header."""
        size = int(self._sizes[0])
        expected = header(size)
        data = self._file.read(0, len(expected) + size)
        if data[: len(expected)].tobytes() != expected:
            raise UserError(f"{self._file.path} is not a .npy file of {size} bytes; regenerate it")
        return data[len(expected) :]
