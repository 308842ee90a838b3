"""TFRecord files of ``tf.train.Example`` with one bytes feature, ``sample``; plain, or one gzip stream per file.
In DLIO's layout the feature is ``image``, next to an integer ``size``.

The positions of records follow from the sizes of the samples or, in DLIO's layout, whose records have equal
lengths, from the size of the file, so any record can be read without an index.
"""

import math
import struct
from functools import cached_property
from typing import Any

import numpy as np

from mlhpc.common.files import atomic
from mlhpc.common.formats import tf_example, tfrecord
from mlhpc.errors import UserError
from mlhpc.iobench.definition.schema import Dataset
from mlhpc.iobench.formats import formats
from mlhpc.iobench.formats.access import CountedFile
from mlhpc.iobench.formats.formats import Bytes, MakeSample, Sizes, equal_sizes

FEATURE, DLIO_FEATURE = "sample", "image"
HEADER = 12  # bytes of the length and its checksum before a record


def write(fd: int, sizes: Sizes, make_sample: MakeSample, dataset: Dataset) -> None:
    """Write a record for each sample, in one gzip stream if the data set is compressed."""
    if dataset.compression == "gzip":
        return _write_gzip(fd, sizes, make_sample, dataset.compression_level)
    for number, size in enumerate(sizes.tolist()):
        content = make_sample(number, size).data
        features: dict[str, Any] = {FEATURE: content}
        if dataset.layout == "dlio":
            features = {DLIO_FEATURE: content, "size": [math.isqrt(size)]}
        tfrecord.write_record(fd, tf_example.feature_pieces(features))


def _write_gzip(fd: int, sizes: Sizes, make_sample: MakeSample, level: int) -> None:
    import zlib

    # zlib, because the workload's levels are zlib's, and its output depends on the input only.
    deflate = zlib.compressobj(level, wbits=31)
    for number, size in enumerate(sizes.tolist()):
        record = b"".join(tf_example.feature_pieces({FEATURE: make_sample(number, size).data}))
        length = struct.pack("<Q", len(record))
        for part in (length, tfrecord.checksum(length), record, tfrecord.checksum(record)):
            atomic.write_all(fd, memoryview(deflate.compress(part)))
    atomic.write_all(fd, memoryview(deflate.flush()))


def record_sizes(sizes: Sizes) -> Sizes:
    """Bytes of each record without its framing, [samples]: the content inside five nested protocol buffer messages
    (bytes list, feature, map entry with its key, features, example), each with a tag and a length."""
    value = 1 + _varint_size(sizes) + sizes
    feature = 1 + _varint_size(value) + value
    entry = 2 + len(FEATURE) + 1 + _varint_size(feature) + feature
    features = 1 + _varint_size(entry) + entry
    return np.asarray(1 + _varint_size(features) + features, np.int64)


def _varint_size(values: Sizes) -> Sizes:
    """Bytes of each number as a base-128 varint, which has 7 bits per byte."""
    bits = np.frexp(values.astype(np.float64))[1]  # exact below 2^53
    return np.maximum(1, -(-bits // 7)).astype(np.int64)


class Samples(formats.Samples):
    """Reads records by their positions; a gzip stream is inflated when the first record is requested."""

    def __init__(self, file: CountedFile, sizes: Sizes, dataset: Dataset) -> None:
        dlio = dataset.layout == "dlio"
        records = equal_sizes(file, len(sizes)) if dlio else record_sizes(sizes) + tfrecord.RECORD_OVERHEAD
        super().__init__(file, records, dataset)
        self._feature, self._records, self._sizes = DLIO_FEATURE if dlio else FEATURE, records, sizes.copy()
        file.whole_buffers = True

    def read(self, number: int) -> memoryview:
        """The content of record ``number``, with verified checksums."""
        start, size = int(self._offsets[number]), int(self._records[number])
        if self._dataset.compression == "gzip":
            framed = self._inflated[start : start + size]
        else:
            framed = self._file.read(start, size)
        content = decode(framed, f"{self._file.path}: record {number}", self._feature)
        self._sizes[number] = len(content)
        return content

    @cached_property
    def _inflated(self) -> Bytes:
        from isal import igzip

        try:
            inflate: Any = igzip.decompress
            data = np.frombuffer(inflate(self._file.read(0, self._file.size)), np.uint8)
        except Exception as error:  # isal raises its own exceptions
            raise UserError(f"{self._file.path}: corrupt gzip file: {error}; regenerate it") from error
        if len(data) != self._records.sum():
            raise UserError(
                f"{self._file.path}: unpacks to {len(data)} bytes, expected {self._records.sum()}; regenerate it"
            )
        return data


def decode(framed: Bytes, where: str, feature: str = FEATURE) -> memoryview:
    """The content of a framed record, uint8 [bytes], with verified checksums. Raises UserError if the record is
    damaged."""
    length = int.from_bytes(framed[:8], "little")
    body = framed[HEADER:-4]
    if length != len(body) or tfrecord.checksum(framed[:8]) != framed[8:HEADER].tobytes():
        raise UserError(f"{where}: no record at the expected position; regenerate the data set")
    if tfrecord.checksum(body) != framed[-4:].tobytes():
        raise UserError(f"{where}: wrong checksum; regenerate the data set")
    content = tf_example.decode_features(body.data, (feature,)).get(feature)
    if not isinstance(content, memoryview):
        raise UserError(f"{where} has no feature {feature!r}; regenerate the data set")
    return content
