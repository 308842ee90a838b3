"""tf.train.Example by hand; test_tfrecord_tensorflow.py compares it with TensorFlow's."""

import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from mlhpc.common.formats.tf_example import decode_example, encode_example, read_examples
from mlhpc.common.formats.tfrecord import write_records
from mlhpc.errors import UserError

X = np.arange(24, dtype=np.int16).reshape(2, 3, 4) - 5
Y = np.array([0.25, -1, 3e-9, 1], dtype=np.float32)


@given(
    hnp.arrays(np.int16, hnp.array_shapes(max_dims=4, max_side=6)),
    hnp.arrays(np.float32, st.integers(0, 40)),
)
def test_an_example_round_trips_bit_for_bit(x: np.ndarray, y: np.ndarray) -> None:
    got_x, got_y = decode_example(encode_example(x, y))
    assert bytes(got_x) == x.astype("<i2").tobytes()
    assert got_y.dtype == np.float32 and got_y.tobytes() == y.tobytes()


def test_big_endian_and_strided_arrays_are_written_little_endian_in_c_order() -> None:
    x, _ = decode_example(encode_example(X.astype(">i2").transpose(2, 0, 1), Y))
    assert np.array_equal(np.frombuffer(x, "<i2").reshape(4, 2, 3), X.transpose(2, 0, 1))


def test_x_is_a_view_of_the_record() -> None:
    record = bytearray(encode_example(X, Y))
    x, _ = decode_example(memoryview(record))
    before = bytes(x)
    record[record.index(before)] ^= 0xFF
    assert bytes(x) != before


def test_unpacked_floats_other_features_and_any_order_are_read() -> None:
    # The message by hand: y first, its floats one field each; an int64 list named z between.
    one_float = [b"\x0d" + struct.pack("<f", value) for value in (1.5, -2)]
    y = b"\x12" + bytes([10]) + b"".join(one_float)
    y_entry = b"\x0a\x01y\x12" + bytes([len(y)]) + y
    z_entry = b"\x0a\x01z\x12\x05\x1a\x03\x0a\x01\x07"
    x_entry = b"\x0a\x01x\x12\x06\x0a\x04\x0a\x02\x07\x00"
    features = b"".join(b"\x0a" + bytes([len(entry)]) + entry for entry in (y_entry, z_entry, x_entry))
    got_x, got_y = decode_example(b"\x0a" + bytes([len(features)]) + features)
    assert bytes(got_x) == b"\x07\x00" and got_y.tolist() == [1.5, -2.0]


def test_a_missing_feature_is_named_with_those_that_are_there() -> None:
    record = encode_example(X, Y).replace(b"\x0a\x01y", b"\x0a\x01q")
    with pytest.raises(UserError, match=r"example without feature b'y'; .* found q, x"):
        decode_example(record)


@given(st.binary(max_size=80))
def test_the_decoder_raises_only_user_errors_for_any_bytes(junk: bytes) -> None:
    try:
        decode_example(junk)
    except UserError:
        return
    assert b"x" in junk and b"y" in junk


def test_an_invalid_example_names_file_and_record(tmp_path: Path) -> None:
    path = tmp_path / "odd.tfrecord"
    write_records(path, [encode_example(X, Y), b"\xff\xff"], gzip=False)
    examples = read_examples(path)
    assert np.array_equal(next(examples)[1], Y)
    with pytest.raises(UserError, match=r"odd\.tfrecord: record 1: not a readable"):
        next(examples)
