"""TFRecord files by hand; test_tfrecord_tensorflow.py compares them with TensorFlow's."""

import gzip as stdlib_gzip
import os
import struct
import tracemalloc
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlhpc.common.formats.tf_example import encode_example
from mlhpc.common.formats.tfrecord import read_records, write_record, write_records
from mlhpc.errors import UserError

X = np.arange(24, dtype=np.int16).reshape(2, 3, 4) - 5
Y = np.array([0.25, -1, 3e-9, 1], dtype=np.float32)


def crc32c(data: bytes) -> int:
    """Bit by bit, reflected polynomial 0x82F63B78 (RFC 3720, appendix B.4)."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def framed(data: bytes) -> bytes:
    def mask(crc: int) -> bytes:
        return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)

    length = struct.pack("<Q", len(data))
    return length + mask(crc32c(length)) + data + mask(crc32c(data))


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    write_records(tmp_path / "a.tfrecord", [encode_example(X, Y)], gzip=False)
    return tmp_path / "a.tfrecord"


@given(st.lists(st.binary(max_size=300), max_size=5), st.booleans())
def test_files_have_the_specified_framing_and_round_trip(
    tmp_path_factory: pytest.TempPathFactory, records: list[bytes], gzip: bool
) -> None:
    path = tmp_path_factory.mktemp("r") / "a"
    write_records(path, records, gzip)
    content = path.read_bytes()
    assert (stdlib_gzip.decompress(content) if gzip else content) == b"".join(map(framed, records))
    assert [bytes(record) for record in read_records(path)] == records
    again = path.with_name("b")
    write_records(again, records, gzip)
    # Packed, the header is the same; of equal matches isal does not always choose the same.
    assert again.read_bytes()[: 10 if gzip else None] == content[: 10 if gzip else None]
    assert sorted(entry.name for entry in path.parent.iterdir()) == ["a", "b"]


@pytest.mark.parametrize("at_once", [1 << 30, 20, 7])
def test_a_record_in_pieces_has_the_specified_framing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    """Also where the file system takes ``at_once`` bytes and no more."""

    def short(fd: int, buffers: list[bytes]) -> int:
        return os.write(fd, b"".join(map(bytes, buffers))[:at_once])

    monkeypatch.setattr(os, "writev", short)
    pieces: list[bytes | memoryview] = [b"one", memoryview(b"piece"), b""]
    with (tmp_path / "a").open("wb", buffering=0) as file:
        write_record(file.fileno(), pieces)
        write_record(file.fileno(), [])
    assert (tmp_path / "a").read_bytes() == framed(b"onepiece") + framed(b"")


def test_gzip_of_other_writers_is_read(tmp_path: Path) -> None:
    records = [b"one" * 1000, b"two"]
    named = tmp_path / "named.tfrecord"
    with stdlib_gzip.open(named, "wb", compresslevel=9) as stream:  # header with name and time
        stream.write(b"".join(map(framed, records)))
    assert [bytes(record) for record in read_records(named)] == records
    members = tmp_path / "members.tfrecord"
    members.write_bytes(b"".join(stdlib_gzip.compress(framed(record)) for record in records))
    assert [bytes(record) for record in read_records(members)] == records


@pytest.mark.parametrize("gzip", [False, True])
def test_every_truncation_is_detected_and_names_the_file(tmp_path: Path, gzip: bool) -> None:
    path = tmp_path / "cut.tfrecord"
    write_records(path, [encode_example(X, Y)], gzip)
    whole = path.read_bytes()
    for length in range(1, len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(UserError, match=r"cut\.tfrecord: .*(truncated|not a TFRecord)"):
            list(read_records(path))


def test_truncation_reports_its_position(plain: Path) -> None:
    whole = plain.read_bytes()
    plain.write_bytes(whole[:40])
    with pytest.raises(UserError, match=f"truncated at byte 40 of {len(whole)} in record 0"):
        list(read_records(plain))
    plain.write_bytes(whole + whole[:5])
    with pytest.raises(UserError, match=f"truncated at byte {len(whole) + 5} in header of record 1"):
        list(read_records(plain))


@pytest.mark.parametrize("gzip", [False, True])
def test_every_damaged_byte_is_detected(tmp_path: Path, gzip: bool) -> None:
    path = tmp_path / "bad.tfrecord"
    write_records(path, [encode_example(X, Y)], gzip)
    whole = path.read_bytes()
    # Of a gzip header only magic and method matter: flags may announce fields, the time means nothing.
    for at in range(10 if gzip else 0, len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        with pytest.raises(UserError, match=r"bad\.tfrecord: .*; copy or regenerate the file"):
            list(read_records(path))


def test_the_damaged_record_is_numbered(tmp_path: Path) -> None:
    path = tmp_path / "two.tfrecord"
    write_records(path, [b"first", b"second"], gzip=False)
    content = path.read_bytes()
    path.write_bytes(content.replace(b"second", b"sEcond"))
    with pytest.raises(UserError, match="wrong checksum of record 1 at byte 33"):
        list(read_records(path))


def test_foreign_and_absent_files_are_named(tmp_path: Path) -> None:
    text = tmp_path / "readme"
    text.write_text("this is not a record file at all")
    with pytest.raises(UserError, match="readme: not a TFRecord"):
        list(read_records(text))
    with pytest.raises(UserError, match="gone cannot be read: No such file"):
        list(read_records(tmp_path / "gone"))


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    def records() -> object:
        yield b"fine"
        raise RuntimeError("the maker failed")

    with pytest.raises(RuntimeError):
        write_records(tmp_path / "a", records(), gzip=False)  # type: ignore[arg-type]
    with pytest.raises(FileNotFoundError):
        write_records(tmp_path / "no" / "a", [b"x"], gzip=False)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_unpacks_to_more_than_expected_is_refused_before_it_is_allocated(tmp_path: Path) -> None:
    """1 MB of gzip may contain 1 GB of zeros, and many members any amount."""
    bomb = tmp_path / "bomb.tfrecord"
    member = stdlib_gzip.compress(bytes(50_000_000), mtime=0)
    lying = member[:-4] + struct.pack("<I", 1000)  # the stated length of a member cannot be trusted
    for content in (member, member * 3, lying, stdlib_gzip.compress(b"") * 1000 + member):
        bomb.write_bytes(content)
        tracemalloc.start()
        try:
            with pytest.raises(
                UserError, match=r"bomb\.tfrecord: unpacks to more than the maximum of 1000000 bytes"
            ):
                list(read_records(bomb, max_bytes=1_000_000))
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 5_000_000


@pytest.mark.parametrize("members", [1, 2, 5])
def test_several_gzip_members_within_the_limit_are_one_file(tmp_path: Path, members: int) -> None:
    record = framed(b"x" * 1000)
    path = tmp_path / "a.tfrecord"
    path.write_bytes(stdlib_gzip.compress(record) * members + bytes(7))
    assert [bytes(r) for r in read_records(path, max_bytes=len(record) * members)] == [b"x" * 1000] * members
    with pytest.raises(UserError, match="unpacks to more than"):
        list(read_records(path, max_bytes=len(record) * members - 1))


def test_a_fifo_is_refused_as_a_record_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.tfrecord")
    with pytest.raises(UserError, match="cannot be read: not a regular file"):
        list(read_records(tmp_path / "a.tfrecord"))


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (zlib.compress(bytes(9000)), "ZLIB"),
        (b"\x89HDF\r\n\x1a\n" + bytes(99), "HDF5"),
        (b"PK\x03\x04" + bytes(99), "ZIP"),
        (b"\x28\xb5\x2f\xfd" + bytes(99), "Zstandard"),
        (b"\x93NUMPY" + bytes(99), "NumPy"),
        (b"<!DOCTYPE html>" + bytes(99), "HTML"),
        (b"version https://git-lfs" + bytes(99), "Git LFS"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_first_bytes_tell_what_a_file_is_instead(content: bytes, what: str, tmp_path: Path) -> None:
    for packed in (content, stdlib_gzip.compress(content)):
        (tmp_path / "a.tfrecord").write_bytes(packed)
        with pytest.raises(UserError, match=f"not a TFRecord, but .*{what}"):
            list(read_records(tmp_path / "a.tfrecord"))
