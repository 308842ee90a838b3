"""The compiled look-up against NumPy's."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlhpc.common.data.codecs import native


def test_the_decoders_were_compiled() -> None:
    """Where the tests run there is a compiler: the others would not test what users run."""
    assert native.decoder() == "compiled"


@given(
    st.integers(0, 20000),
    st.sampled_from([np.uint8, np.uint16]),
    st.sampled_from([(np.int16, 1), (np.int16, 2), (np.int16, 4), (np.float32, 4), (np.int16, 3)]),
    st.integers(0, 2**32),
)
def test_every_key_is_looked_up(n: int, key: type, item: tuple[type, int], seed: int) -> None:
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
def test_a_key_beyond_the_table_is_found_and_nothing_is_read_there(at: int, key: type) -> None:
    keys = np.full(10000, 99, key)
    keys[at] = 100
    table = np.zeros((100, 4), np.int16)
    out = np.full((10000, 4), 7, np.int16)
    assert native.gather(keys, table, out) == native.gather_numpy(keys, table, out.copy()) == at
    assert (out[at:] == 7).all()
