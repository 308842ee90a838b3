"""tf.train.Example, the message in each record of the published TFRecord files, without TensorFlow.

The format (tensorflow/core/example/{example,feature}.proto; field numbers in parentheses): Example has features
(1); Features is a map (1) with entries of key (1) and value (2); a Feature is one of bytes_list (1), float_list
(2), int64_list (3); each list has the repeated field value (1). Functions called ``*_example`` handle the features
``x``, an array, and ``y``, floats; those called ``*_features``, any bytes and integers by name.
"""

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from mlhpc.common.formats import crc32c
from mlhpc.common.formats.archive import Sample
from mlhpc.common.formats.protobuf import field, fields, head, read_varint, varint
from mlhpc.common.formats.tfrecord import (
    CHECKSUM_BYTES,
    LENGTH_BYTES,
    MAX_BYTES,
    REMEDY,
    masked,
    read_records,
)
from mlhpc.errors import UserError


def read_examples(
    path: Sample, max_bytes: int = MAX_BYTES, raw: bytes | memoryview | None = None
) -> Iterator[tuple[memoryview, npt.NDArray[np.float32]]]:
    """``x`` and ``y`` of every example in a file, from ``read_records`` and ``decode_example``. ``y`` is [values].

    Raises UserError naming the file, like these functions.
    """
    for number, record in enumerate(read_records(path, max_bytes, raw)):
        try:
            yield decode_example(record)
        except UserError as error:
            raise UserError(f"{path}: record {number}: {error}") from error


def encode_example(x: npt.NDArray[np.int16], y: npt.NDArray[np.float32]) -> bytes:
    """A serialised tf.train.Example with the features ``x``, one bytes value with the array as little-endian int16
    in C order, and ``y``, a float list. The arrays may have any shapes, which the message does not store."""
    values = np.ascontiguousarray(x, dtype="<i2").tobytes()
    floats = np.ascontiguousarray(y, dtype="<f4").tobytes()
    features = [(b"x", field(1, field(1, values))), (b"y", field(2, field(1, floats)))]
    return field(1, b"".join(field(1, field(1, key) + field(2, value)) for key, value in features))


def decode_example(record: bytes | memoryview) -> tuple[memoryview, npt.NDArray[np.float32]]:
    """``x`` and ``y`` of a serialised tf.train.Example: the bytes of ``x`` as a view of ``record``, and ``y`` as
    float32 [values], which is also a view if its floats are contiguous.

    Other features are skipped. Raises UserError if the message is malformed or a feature is missing.
    """
    values_of: dict[bytes, memoryview] = {}
    try:
        for number, features in fields(memoryview(record)):
            if number == 1:
                for _, entry in fields(features):
                    parts = dict(fields(entry))
                    values_of[bytes(parts[1])] = parts[2]
        x = [
            value for number, values in fields(values_of[b"x"]) if number == 1 for _, value in fields(values)
        ]
        # Writers may pack all floats into one field or write one field per float: their bytes are the same.
        y = [v for number, values in fields(values_of[b"y"]) if number == 2 for _, v in fields(values)]
        if len(x) != 1 or not y:
            raise ValueError("x must be one bytes value and y a list of floats")
        floats = np.frombuffer(y[0] if len(y) == 1 else b"".join(y), "<f4")
        return x[0], floats.astype(np.float32, copy=False)
    except KeyError as error:
        has = ", ".join(sorted(name.decode("utf-8", "replace") for name in values_of)) or "none"
        raise UserError(
            f"example without feature {error}; expected x (bytes) and y (floats), found {has}"
        ) from error
    except (ValueError, IndexError) as error:
        raise UserError(f"not a readable tf.train.Example: {error}; {REMEDY}") from error


@dataclass(frozen=True)
class Layout:
    """Byte ranges of ``x`` and ``y`` in an uncompressed file with one example. ``around``: all bytes of the file
    except ``x``, with zeros in place of ``y`` and the checksum. A file with the same ``around`` has this layout,
    and its ``x`` is read without a copy."""

    x: slice
    y: slice
    around: npt.NDArray[np.uint8]

    @classmethod
    def of(cls, raw: memoryview, x: memoryview, y: npt.NDArray[np.float32]) -> Self | None:
        """The layout of a file whose content is ``raw``; None unless ``x`` and ``y`` [values] are views of
        ``raw``."""
        content, voxels = np.frombuffer(raw, np.uint8), np.frombuffer(x, np.uint8)
        places = []
        for part in (voxels, y):
            start = part.ctypes.data - content.ctypes.data
            places.append(slice(start, start + part.nbytes))
        if any(place.start < 0 or place.stop > len(content) for place in places):
            return None
        at, values = places
        if values.start > at.start:
            values = slice(values.start - len(voxels), values.stop - len(voxels))
        around = np.concatenate([content[: at.start], content[at.stop :]])
        around[values] = around[-CHECKSUM_BYTES:] = 0
        return cls(at, values, around)

    def read(self, fd: int, x: npt.NDArray[Any]) -> npt.NDArray[np.float32] | None:
        """Read an open file of this layout into ``x``, which is contiguous and of any shape; returns ``y``
        [values], or None, with ``x`` undefined, if the file has a different layout or a wrong checksum;
        ``read_examples`` then finds out which."""
        into, start, stop = x.reshape(-1).view(np.uint8), self.x.start, self.x.stop
        size = len(self.around) + stop - start
        if into.nbytes != stop - start or os.fstat(fd).st_size != size:
            return None
        before, after = os.pread(fd, start, 0), os.pread(fd, size - stop, stop)
        checksum = crc32c.read_into(fd, start, into, crc32c.extend(0, before[LENGTH_BYTES:]))
        around = np.frombuffer(bytearray(before + after), np.uint8)
        if checksum is None or len(around) != len(self.around):
            return None
        checksum = crc32c.extend(checksum, after[:-CHECKSUM_BYTES])
        stored, y = around[-CHECKSUM_BYTES:].tobytes(), around[self.y].view("<f4").astype(np.float32)
        around[self.y] = around[-CHECKSUM_BYTES:] = 0
        return y if masked(checksum) == stored and (around == self.around).all() else None


def encode_features(features: Mapping[str, bytes | Sequence[int]]) -> bytes:
    """A serialised tf.train.Example whose features are either one bytes value or a list of non-negative integers,
    sorted by name as in TensorFlow's deterministic serialisation."""
    return b"".join(feature_pieces(features))


def feature_pieces(features: Mapping[str, bytes | memoryview | Sequence[int]]) -> list[bytes | memoryview]:
    """What ``encode_features`` returns, in pieces, so that bytes values need not be copied."""
    pieces: list[bytes | memoryview] = []
    for name, value in sorted(features.items()):
        key = field(1, name.encode())
        if isinstance(value, bytes | memoryview):
            feature = head(1, len(value))
            feature = head(1, len(feature) + len(value)) + feature
            feature = head(2, len(feature) + len(value)) + feature
            pieces += [head(1, len(key) + len(feature) + len(value)) + key + feature, value]
        else:
            numbers = b"".join(map(varint, value))
            pieces.append(field(1, key + field(2, field(3, field(1, numbers)))))
    return [head(1, sum(map(len, pieces))), *pieces]


def decode_features(record: bytes | memoryview, names: Collection[str]) -> dict[str, memoryview | list[int]]:
    """The features ``names`` of a serialised tf.train.Example, by name: each is either one bytes value or
    integers.

    Reading stops once all of these features are found. Raises UserError if the message is malformed before that
    point.
    """
    values_of: dict[str, memoryview | list[int]] = {}
    requested = {name.encode() for name in names}
    try:
        for number, features in fields(memoryview(record)):
            for _, entry in fields(features) if number == 1 else ():
                parts = dict(fields(entry))
                if (key := bytes(parts[1])) not in requested:
                    continue
                for kind, values in fields(parts[2]):
                    items = [value for number, value in fields(values) if number == 1]
                    if kind == 1 and len(items) == 1:
                        values_of[key.decode()] = items[0]
                    elif kind == 3:
                        values_of[key.decode()] = [n for item in items for n in _varints(item)]
                if len(values_of) == len(requested):
                    return values_of
    except (KeyError, ValueError, IndexError) as error:
        raise UserError(f"not a readable tf.train.Example: {error}; {REMEDY}") from error
    return values_of


def _varints(data: memoryview) -> Iterator[int]:
    at = 0
    while at < len(data):
        value, at = read_varint(data, at)
        yield value
