"""Headers of .npy files that are damaged or malformed."""

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlhpc.common.formats import npy
from mlhpc.common.formats.extent import Extent
from mlhpc.errors import UserError


def located(path: Path, content: bytes) -> Extent:
    path.write_bytes(content)
    fd = os.open(path, os.O_RDONLY)
    try:
        return npy.locate(fd, path)
    finally:
        os.close(fd)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("npy") / "a.npy"


@pytest.fixture(scope="module")
def whole(path: Path) -> bytes:
    np.save(path, np.arange(24, dtype=np.float32).reshape(2, 3, 4))
    return path.read_bytes()


def test_the_array_is_located_where_numpy_wrote_it(path: Path, whole: bytes) -> None:
    extent = located(path, whole)
    assert (extent.dtype, extent.shape, extent.end) == (np.dtype("<f4"), (2, 3, 4), len(whole))


@given(st.integers(0, 127), st.binary(min_size=1, max_size=8))
def test_a_damaged_header_is_a_one_line_error_with_the_path(
    path: Path, whole: bytes, start: int, damage: bytes
) -> None:
    try:
        extent = located(path, whole[:start] + damage + whole[start + len(damage) :])
    except UserError as error:
        assert str(error).startswith(f"{path}: ") and "\n" not in str(error)
    else:
        assert 0 <= extent.offset <= extent.end <= len(whole) + len(damage)


@pytest.mark.parametrize(
    "header",
    [
        b"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3",
        b"{'descr': '<f4', 'fortran_order': False, 'shape': (-1, 3)}",
        b"(" * 500,
        b"\"\"\"",
        b"0x",
    ],
)  # fmt: skip
def test_a_header_that_does_not_parse_is_refused(path: Path, header: bytes) -> None:
    """These were TokenError, SyntaxError and MemoryError with a traceback."""
    text = header.ljust(117) + b"\n"
    with pytest.raises(UserError, match=r"a\.npy: not a \.npy file"):
        located(path, b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + bytes(96))
