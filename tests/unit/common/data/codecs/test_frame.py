"""The frame of encoded samples: what is read is what was packed, and damage is one line with file and offset."""

import struct
import tracemalloc
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlhpc.common.data.codecs import frame
from mlhpc.errors import UserError

SECTIONS = {"keys": bytes(range(200)), "empty": b"", "table": b"\1\2\3"}
PACKED = frame.pack("lut", "<i2", (3, 4, 5), SECTIONS)


def resealed(data: bytearray) -> bytes:
    """``data`` with a header whose checksum is right, as a hostile writer makes it."""
    end = 64 + 32 * data[11]
    data[48:52] = struct.pack("<I", zlib.crc32(bytes(data[:48]) + bytes(data[52:end])))
    return bytes(data)


def test_the_header_is_as_documented() -> None:
    """Byte by byte, with ``struct`` and zlib only."""
    assert PACKED[:8] == b"\x89MLC\r\n\x1a\n"
    assert struct.unpack("<HBB16s4s4I", PACKED[8:48]) == (
        1, 3, 3, b"lut" + bytes(13), b"<i2\0", 3, 4, 5, 0,
    )  # fmt: skip
    assert struct.unpack("<I", PACKED[48:52]) == (zlib.crc32(PACKED[:48] + PACKED[52 : 64 + 3 * 32]),)
    rows = [struct.unpack("<8sQQI4x", PACKED[64 + 32 * i : 96 + 32 * i]) for i in range(3)]
    for (name, content), (stored, offset, length, crc) in zip(SECTIONS.items(), rows, strict=True):
        assert stored.rstrip(b"\0").decode() == name and offset % 64 == 0
        assert PACKED[offset : offset + length] == content and crc == zlib.crc32(content)


def test_sections_come_back_in_place() -> None:
    read = frame.unpack(PACKED)
    assert (read.codec, read.dtype, read.shape) == ("lut", np.dtype("<i2"), (3, 4, 5))
    assert {name: bytes(content) for name, content in read.sections.items()} == SECTIONS
    assert frame.peek(PACKED[:64]) == ("lut", (3, 4, 5))
    assert np.shares_memory(read.array("keys", "u1"), np.frombuffer(PACKED, np.uint8))


@given(
    st.dictionaries(st.text("abcdefgh123", min_size=1, max_size=8), st.binary(max_size=300), max_size=8),
    st.lists(st.integers(0, 2**16), min_size=1, max_size=4),
    st.sampled_from(["<i2", "<f4"]),
)
def test_any_sections_come_back(sections: dict[str, bytes], shape: list[int], dtype: str) -> None:
    if np.prod([float(side) for side in shape]) > 2**36:
        shape = [1]
    read = frame.unpack(frame.pack("x", dtype, tuple(shape), sections))
    assert read.shape == tuple(shape) and {k: bytes(v) for k, v in read.sections.items()} == sections


def test_a_file_is_whole_at_its_own_length_only(tmp_path: Path) -> None:
    path = tmp_path / "sample.mlc"
    for sections in ({}, {"empty": b""}, SECTIONS, {f"s{n}": b"x" for n in range(64)}):
        data = frame.pack("lut", "<i2", (3, 4, 5), sections)
        for length in range(0, len(data) + 2, 1 if len(data) < 1000 else 31):
            path.write_bytes((data + b"\0")[:length])
            assert frame.is_whole(path) == (length == len(data))
        path.write_bytes(data)
        assert frame.is_whole(path)


@pytest.mark.parametrize("length", range(0, len(PACKED), 7))
def test_a_truncated_file_is_refused_with_its_name(length: int) -> None:
    with pytest.raises(UserError, match=r"train/a\.mlc: ") as said:
        frame.unpack(PACKED[:length], "train/a.mlc")
    assert "\n" not in str(said.value)


def test_no_flipped_bit_goes_unnoticed() -> None:
    """But those of the padding, which nobody reads."""
    used = np.zeros(len(PACKED), bool)
    used[: 64 + 3 * 32] = True
    read = frame.unpack(PACKED)
    assert read.offsets is not None
    for name, content in read.sections.items():
        used[read.offsets[name] : read.offsets[name] + len(content)] = True
    for at in range(len(PACKED)):
        damaged = bytearray(PACKED)
        damaged[at] ^= 1 << at % 8
        if used[at]:
            with pytest.raises(UserError):
                frame.unpack(bytes(damaged))
        else:
            assert frame.unpack(bytes(damaged)).sections == read.sections


def test_a_wrong_checksum_names_section_and_offset() -> None:
    read = frame.unpack(PACKED)
    assert read.offsets is not None
    damaged = bytearray(PACKED)
    damaged[read.offsets["table"]] ^= 1
    with pytest.raises(
        UserError, match=f"a.mlc: wrong checksum of section 'table' at byte {read.offsets['table']};"
    ):
        frame.unpack(bytes(damaged), "a.mlc")
    assert bytes(frame.unpack(bytes(damaged), checksums=False).sections["table"]) == b"\0\2\3"


@pytest.mark.parametrize(
    ("at", "content", "words"),
    [
        (8, struct.pack("<H", 9), "version 9"),
        (10, b"\5", "impossible array"),
        (10, b"\0", "impossible array"),
        (28, b"<f8\0", "impossible array"),
        (28, b"O\0\0\0", "impossible array"),
        (32, struct.pack("<4I", *[2**32 - 1] * 4), "impossible array"),
        (64, b"\0" * 8, "impossible section"),
        (72, struct.pack("<Q", 0), "impossible section"),
        (72, struct.pack("<Q", 2**64 - 64), "impossible section"),
        (80, struct.pack("<Q", 2**63), "'keys' would end at byte .*, the file ends at byte"),
        (80, struct.pack("<Q", 2**64 - 1), "'keys' would end at byte .*, the file ends at byte"),
        (96, b"keys\0\0\0\0", "impossible section"),
    ],
)
def test_a_hostile_header_is_refused_before_anything_is_allocated(
    at: int, content: bytes, words: str
) -> None:
    data = bytearray(PACKED)
    data[at : at + len(content)] = content
    tracemalloc.start()
    with pytest.raises(UserError, match=words):
        frame.unpack(resealed(data))
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


def test_bytes_after_the_last_section_are_refused() -> None:
    with pytest.raises(UserError, match="extra bytes after the last section at byte"):
        frame.unpack(PACKED + b"more")


def test_a_section_of_another_length_is_refused() -> None:
    read = frame.unpack(PACKED, "a.mlc")
    for name, length, words in (("none", 1, "section 'none' is missing"), ("table", 2, "'table' at byte")):
        with pytest.raises(UserError, match=words):
            read.array(name, "<u2", length)
