"""What ranks send each other: all types that they need, and nothing that runs code."""

import contextlib
import os
import pickle
import struct
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlhpc.common.data.manifest import File, Manifest
from mlhpc.common.data.sharding import Pool
from mlhpc.common.files.filesystem import FileSystem
from mlhpc.common.ranks.wire import decode, decode_all, encode

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
keys = st.integers() | st.text() | st.tuples(st.integers(), st.text())
files = st.builds(File, st.text(), st.integers(0), st.none() | st.integers(0, 2**32 - 1))
values = st.recursive(
    scalars | st.binary() | files | st.builds(Pool, st.integers(), st.integers()) | st.sets(st.integers()),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(keys, inner) | st.lists(files),
    max_leaves=20,
)


def same(one, other):
    return type(one) is type(other) and one == other


@given(values)
def test_values_round_trip(value):
    assert same(decode(encode(value)), value)


@given(st.lists(values))
def test_many_messages_are_decoded_like_each(several):
    assert same(decode_all([encode(value) for value in several]), several)


def test_a_damaged_one_of_many_messages_is_refused():
    with pytest.raises(ValueError, match="not a message"):
        decode_all([encode([1, 2]), encode([1, 2])[:-1]])


@pytest.mark.parametrize("data", [bytes(1 << 18), os.urandom(1 << 17), os.urandom(5) * 30_000])
def test_long_bytes_are_the_same_after_compression_and_never_longer(data):
    sent = encode([data, np.frombuffer(data, np.uint8)])
    assert len(sent) < 2 * len(data) + 200
    assert decode(sent)[0] == data and decode(sent)[1].tobytes() == data
    with pytest.raises(ValueError, match="not a message"):
        decode(sent[:-9])


@given(
    st.lists(st.sampled_from([[], [1.5, -0.0], [[1, 2], [3, 4]], 7])),
    st.sampled_from(["<f4", ">i2", "<f8", "?"]),
)
def test_arrays_round_trip_bit_for_bit_and_are_writable(contents, dtype):
    arrays = [np.array(content, dtype) for content in contents]
    received = decode(encode({"arrays": arrays, "last": np.float32(0.1)}))
    assert same(received["last"], np.float32(0.1))
    for sent, array in zip(arrays, received["arrays"], strict=True):
        assert (array.dtype, array.shape, array.tobytes()) == (sent.dtype, sent.shape, sent.tobytes())
        array[...] = 0


def test_values_exchanged_in_a_run_round_trip():
    manifest = Manifest(Path("/data"), (File("a", 1, None), File("b", 2, 3)), {"samples": {"train": 2}})
    node = FileSystem("ext4", Path("/"), False, 2**63)
    for value in (manifest, [(manifest, node)], [float("inf"), -float("inf")], Path("/a\udc80b"), {"x", "y"}):
        assert same(decode(encode(value)), value)
    assert np.isnan(decode(encode(float("nan"))))


@pytest.mark.parametrize(
    "value", [object(), threading.Lock(), print, int, ValueError("x"), np.array([None]), np.zeros(2, "i4,i4")]
)
def test_an_unsupported_type_is_named_in_the_error(value):
    with pytest.raises(TypeError, match=f"a {type(value).__name__} cannot be sent"):
        encode(value)


@pytest.mark.parametrize(
    "text",
    [
        b'{"record": ["subprocess:Popen", [["true"]]]}',
        b'{"record": ["mlhpc.common.ranks.launch:end_with", [3]]}',
        b'{"record": ["mlhpc.common.ranks.launch:subprocess", []]}',
        b'{"rows": ["os:system", [["true"]]]}',
        b'{"record": ["mlhpc.not.loaded:X", []]}',
        b'{"array": ["|O", [1], 0, 8]}',
        b'{"array": ["<f4", [1000], 0, 4000]}',
        b'{"bytes": [-1, 1]}',
        b'{"unknown": 1}',
        b'{"a": 1, "b": 2}',
        b"[" * 100_000,
        b"not JSON",
    ],
)
def test_messages_of_another_format_are_refused(text):
    with pytest.raises(ValueError, match="not a message between ranks"):
        decode(struct.pack("<Q", len(text)) + text)


@given(st.binary(max_size=200))
def test_foreign_bytes_are_refused_or_plain_values(data):
    with contextlib.suppress(ValueError):
        assert isinstance(decode(data), int | float | str | list | None)


@given(values, st.data())
def test_a_truncated_message_is_refused(value, data):
    message = encode(value)
    with pytest.raises(ValueError, match="not a message"):
        decode(message[: data.draw(st.integers(0, len(message) - 1))])


def test_a_pickle_is_not_loaded():
    with pytest.raises(ValueError, match="not a message"):
        decode(pickle.dumps([1, 2]))
