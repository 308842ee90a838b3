"""Our TFRecord and tf.train.Example against TensorFlow's, both ways."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from mlhpc.common.formats.tf_example import encode_example, encode_features, read_examples  # noqa: E402
from mlhpc.common.formats.tfrecord import packer_of, write_records  # noqa: E402

RNG = np.random.default_rng(7)
X = RNG.poisson(1.5, (8, 8, 8, 4)).astype(np.int16)
Y = RNG.normal(size=4).astype(np.float32)


def tensorflow_example(x: np.ndarray, y: np.ndarray) -> Any:
    feature = {
        "x": tf.train.Feature(bytes_list=tf.train.BytesList(value=[x.tobytes()])),
        "y": tf.train.Feature(float_list=tf.train.FloatList(value=y)),
    }
    return tf.train.Example(features=tf.train.Features(feature=feature))


def test_tensorflow_parses_our_message() -> None:
    assert tf.train.Example.FromString(encode_example(X, Y)) == tensorflow_example(X, Y)


@pytest.mark.parametrize("size", [0, 100, 20_000])
def test_features_are_tensorflows_deterministic_bytes(size: int) -> None:
    encoded, numbers = RNG.bytes(size), [0, 1, 127, 128, 1 << 40]
    feature = {
        "image/encoded": tf.train.Feature(bytes_list=tf.train.BytesList(value=[encoded])),
        "image/format": tf.train.Feature(bytes_list=tf.train.BytesList(value=[b"JPEG"])),
        "image/class/label": tf.train.Feature(int64_list=tf.train.Int64List(value=numbers)),
    }
    theirs = tf.train.Example(features=tf.train.Features(feature=feature))
    ours = {"image/encoded": encoded, "image/format": b"JPEG", "image/class/label": numbers}
    assert encode_features(ours) == theirs.SerializeToString(deterministic=True)


@pytest.mark.parametrize("compression", ["", "GZIP"])
def test_tensorflow_reads_our_files(tmp_path: Path, compression: str) -> None:
    path = tmp_path / "ours.tfrecord"
    write_records(path, [encode_example(X, Y), encode_example(X + 1, -Y)], gzip=compression == "GZIP")
    records = list(tf.data.TFRecordDataset(str(path), compression_type=compression))
    assert len(records) == 2
    spec = {"x": tf.io.FixedLenFeature([], tf.string), "y": tf.io.FixedLenFeature([4], tf.float32)}
    for record, x, y in zip(records, (X, X + 1), (Y, -Y), strict=True):
        parsed = tf.io.parse_single_example(record, spec)
        assert np.array_equal(tf.io.decode_raw(parsed["x"], tf.int16).numpy(), x.ravel())
        assert np.array_equal(parsed["y"].numpy(), y)


def test_packed_files_are_tensorflows_byte_for_byte(tmp_path: Path) -> None:
    """Packed data sets therefore have the size of the official preparation, which uses this writer."""
    x = np.random.default_rng(1).poisson(0.7, (32, 32, 32, 4)).astype(np.int16)
    with tf.io.TFRecordWriter(str(tmp_path / "theirs"), "GZIP") as writer:
        writer.write(tensorflow_example(x, Y).SerializeToString(deterministic=True))
    write_records(tmp_path / "zlib", [encode_example(x, Y)], gzip=True)
    write_records(tmp_path / "isal", [encode_example(x, Y)], gzip=True, packer="isal")
    theirs, zlib, isal = ((tmp_path / name).read_bytes() for name in ("theirs", "zlib", "isal"))
    assert zlib == theirs
    assert len(isal) > 1.1 * len(zlib)
    assert packer_of(theirs) == packer_of(zlib) == "zlib" and packer_of(isal) == "isal"


@pytest.mark.parametrize("compression", ["", "GZIP"])
def test_we_read_tensorflows_files(tmp_path: Path, compression: str) -> None:
    path = tmp_path / "theirs.tfrecord"
    with tf.io.TFRecordWriter(str(path), compression) as writer:
        for k in range(3):
            writer.write(tensorflow_example(X + np.int16(k), Y * k).SerializeToString())
    for k, (x, y) in enumerate(read_examples(path)):
        assert np.array_equal(np.frombuffer(x, "<i2"), X.ravel() + k)
        assert np.array_equal(y, Y * k)
    assert k == 2


def test_a_plain_file_is_byte_for_byte_tensorflows(tmp_path: Path) -> None:
    record = encode_example(X, Y)
    write_records(tmp_path / "ours", [record], gzip=False)
    with tf.io.TFRecordWriter(str(tmp_path / "theirs")) as writer:
        writer.write(record)
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()
