"""The position of an array stored contiguously in a file, and how to read it without a library."""

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mlhpc.common.files.filesystem import as_user_error
from mlhpc.common.files.regular import open_regular
from mlhpc.errors import UserError


@dataclass(frozen=True)
class Extent:
    """``shape`` values of ``dtype``, in C order, starting at byte ``offset`` of a file."""

    offset: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def end(self) -> int:
        """Offset of the first byte after the array."""
        return self.offset + self.dtype.itemsize * math.prod(self.shape)


@contextmanager
def opened(path: Path) -> Iterator[int]:
    """A descriptor for reading ``path``. Raises UserError if it cannot be opened or if reading fails."""
    with as_user_error(path, "cannot be read", "check the data set and the file system"):
        fd = open_regular(path)
        try:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_SEQUENTIAL)  # larger readahead
            yield fd
        finally:
            os.close(fd)


def read_into(fd: int, path: Path, offset: int, out: npt.NDArray[Any]) -> None:
    """Fill ``out``, contiguous and of any shape, with the file's bytes from ``offset`` on. Raises UserError if the
    file is too short."""
    remaining = out.reshape(-1).view(np.uint8).data
    while remaining:
        count = os.preadv(fd, [remaining], offset)
        if count == 0:
            raise UserError(f"{path} is truncated: it ends at byte {offset}; download or regenerate it")
        remaining, offset = remaining[count:], offset + count
