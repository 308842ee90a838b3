"""The compiled CRC-32C against Google's library, and the constants in its source against their definition."""

import re
from itertools import pairwise
from pathlib import Path

import google_crc32c
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlhpc.common.files.compiled import compiled_library
from mlhpc.common.formats import crc32c

POLYNOMIAL = 0x11EDC6F41  # Castagnoli et al. 1993


def power(n: int) -> int:
    """x^n modulo the polynomial."""
    rest = 1
    for _ in range(n):
        rest <<= 1
        rest ^= POLYNOMIAL * (rest >> 32)
    return rest


@pytest.mark.parametrize("bits", [2048, 512, 128])
def test_the_constants_are_the_powers_that_fold(bits: int) -> None:
    source = Path(crc32c.__file__).with_name("_crc32c.c").read_text()
    found = re.search(rf"#define FOLD_{bits} (\w+), (\w+)\n", source)
    assert found
    expected = [int(f"{power(bits + half):032b}"[::-1], 2) << 1 for half in (32, -32)]
    assert [int(number, 16) for number in found.groups()] == expected


def test_the_library_was_compiled() -> None:
    """Where the tests run there is a compiler: otherwise only Google's library would be tested."""
    assert compiled_library(crc32c.__file__, "_crc32c")


@given(
    st.integers(0, 3000), st.integers(0, 63), st.lists(st.integers(0, 3000), max_size=3), st.integers(0, 99)
)
def test_any_bytes_in_any_pieces_have_googles_checksum(
    size: int, offset: int, cuts: list[int], seed: int
) -> None:
    data = np.random.default_rng(seed).integers(0, 256, offset + size, np.uint8)[offset:]
    checksum = 0
    for start, stop in pairwise([0, *sorted(cut for cut in cuts if cut < size), size]):
        checksum = crc32c.extend(checksum, data[start:stop].data)
    assert checksum == google_crc32c.value(data.tobytes())


def test_without_the_library_googles_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crc32c, "library", lambda: None)
    assert crc32c.extend(0, b"123456789") == 0xE3069283  # the published check value
