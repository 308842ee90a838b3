"""The compiled look-up against NumPy's, and both compiled decoders on arrays at any address."""

import ctypes
import itertools
import subprocess
import sys
import sysconfig
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlhpc.common.data.codecs import dtypes, frame, native
from mlhpc.deepcam.data import delta
from mlhpc.deepcam.data.codec import Delta

Key = type[np.unsignedinteger]


def test_the_decoders_were_compiled() -> None:
    """Where the tests run there is a compiler: the others would not test what users run."""
    assert native.decoder() == "compiled"


@given(
    st.integers(0, 20000),
    st.sampled_from([np.uint8, np.uint16]),
    st.sampled_from([(np.int16, 1), (np.int16, 2), (np.int16, 4), (np.float32, 4), (np.int16, 3)]),
    st.integers(0, 2**32),
)
def test_every_key_is_looked_up(n: int, key: Key, item: tuple[type[np.number], int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    dtype, values = item
    groups = int(rng.integers(1, np.iinfo(key).max + 2))
    table = rng.integers(-(2**15), 2**15, (groups, values)).astype(dtype)
    keys = rng.integers(0, groups, n).astype(key)
    out, expected = np.empty((n, values), dtype), np.empty((n, values), dtype)
    assert native.gather(keys, table, out) is None
    assert native.gather_numpy(keys, table, expected) is None
    assert out.tobytes() == expected.tobytes() == table[keys].tobytes()


@pytest.mark.parametrize("at", [0, 1, 4095, 4096, 9999])
@pytest.mark.parametrize("key", [np.uint8, np.uint16])
def test_a_key_beyond_the_table_is_found_and_nothing_is_read_there(at: int, key: Key) -> None:
    keys = np.full(10000, 99, key)
    keys[at] = 100
    table = np.zeros((100, 4), np.int16)
    out = np.full((10000, 4), 7, np.int16)
    assert native.gather(keys, table, out) == native.gather_numpy(keys, table, out.copy()) == at
    assert (out[at:] == 7).all()


def at_an_odd_address(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A copy whose items begin one byte after a multiple of 8, as in a TFRecord file."""
    memory = np.empty(array.nbytes + 16, np.uint8)
    begin = -memory.ctypes.data % 8 + 1
    copy = memory[begin : begin + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    assert copy.ctypes.data % 8 == 1
    return copy


def decode_at_odd_addresses(path: str) -> None:
    """Both decoders of the library ``path`` with every array of the caller at an odd address, against NumPy."""
    compiled, installed = ctypes.CDLL(path), native.library()
    for name in ("mlhpc_gather", "mlhpc_delta"):
        getattr(compiled, name).argtypes = getattr(installed, name).argtypes
        getattr(compiled, name).restype = getattr(installed, name).restype
    native.library = cache(lambda: compiled)
    rng = np.random.default_rng(0)
    for key, values in itertools.product((np.uint8, np.uint16), (1, 2, 4, 8)):
        table = at_an_odd_address(rng.integers(-(2**15), 2**15, (200, values)).astype(np.int16))
        keys = at_an_odd_address(rng.integers(0, 200, 5000).astype(key))
        out = at_an_odd_address(np.zeros((5000, values), np.int16))
        assert native.gather(keys, table, out) is None
        assert np.array_equal(out, table[keys])
    field = rng.normal(size=(6, 70, 3)).cumsum(axis=1).astype(np.float32)
    field[::2] *= np.float32(1e30) ** (np.arange(70)[:, None] % 2)  # lines that stay raw
    codec = Delta("delta-paper")
    lines = delta.parse(frame.unpack(frame.pack(codec.name, "<f4", field.shape, codec.encode(field))))
    assert {"raw", "logarithmic"} <= {name.split()[0] for name in lines.shares()}
    lines = replace(lines, pivots=at_an_odd_address(lines.pivots), raw=at_an_odd_address(lines.raw))
    by = np.array([[1, 2, 3], [4, 5, 6]], np.float32)
    normalise = (at_an_odd_address(by[0]), at_an_odd_address(by[1]))
    truth = delta.decode_slowly(lines, normalise)
    for dtype, first in itertools.product(("float32", "float16", "bfloat16"), (False, True)):
        expected = dtypes.cast(truth.transpose(2, 0, 1) if first else truth, dtype)
        out = at_an_odd_address(np.zeros(expected.shape, expected.dtype))
        delta.decode(lines, out, normalise, dtype, first)
        assert np.array_equal(out, expected)


def test_arrays_may_begin_at_any_address(tmp_path: Path) -> None:
    """Compiled so that a load or store that C leaves undefined (alignment, shifts, overflows) ends the process."""
    source, library = Path(native.__file__).with_name("_decode.c"), tmp_path / "checked.so"
    compiler = str(sysconfig.get_config_var("CC")).split()
    checks = ["-fsanitize=undefined,alignment", "-fsanitize-undefined-trap-on-error"]
    options = ["-O1", "-ffp-contract=off", "-shared", "-fPIC", *checks]
    subprocess.run([*compiler, *options, "-o", str(library), str(source)], check=True, timeout=120)
    ran = subprocess.run(
        [sys.executable, __file__, str(library)], capture_output=True, text=True, timeout=120
    )
    assert ran.returncode == 0, f"{ran.returncode}: {ran.stderr}"


if __name__ == "__main__":
    decode_at_odd_addresses(sys.argv[1])


@pytest.mark.parametrize("sample_dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("address", [0, 4])
def test_rows_are_normalised_bit_for_bit_as_by_numpy(sample_dtype: str, address: int) -> None:
    rng = np.random.default_rng(address)
    memory = np.empty(address + 4 * 7 * 37, np.uint8)[address:]
    rows = memory.view(np.float32).reshape(7, 37)
    rows[...] = rng.standard_normal((7, 37)) * 10.0 ** rng.integers(-30, 9, (7, 37))
    shift, scale = rng.standard_normal((2, 37)).astype(np.float32)
    expected = dtypes.cast((rows - shift) * scale, sample_dtype)
    out = np.empty((7, 37), dtypes.NUMPY[sample_dtype])
    assert native.normalise(rows, shift, scale, out, sample_dtype) == -1
    assert out.tobytes() == expected.tobytes()
    if sample_dtype == "float32":
        assert native.normalise(rows, shift, scale, rows, sample_dtype) == -1
        assert rows.tobytes() == expected.tobytes()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_rows_before_a_value_that_is_not_finite_are_normalised(value: float) -> None:
    rows = np.ones((5, 9), np.float32)
    rows[3, 8] = value
    before, ones = rows.copy(), np.ones(9, np.float32)
    assert native.normalise(rows, ones, ones, rows, "float32") == 3
    assert (rows[:3] == 0).all() and rows[3:].tobytes() == before[3:].tobytes()
