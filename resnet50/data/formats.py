"""The formats of images: JPEG files in a folder per class, TFRecord shards, LMDB, raw arrays. Each has a reader
class.

Labels start at 0. For an image, ``read`` returns the same bytes in every format except raw arrays.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from mlhpc.common.files.regular import size_to_read
from mlhpc.common.formats import tf_example, tfrecord
from mlhpc.common.formats.extent import opened, read_into
from mlhpc.common.formats.lmdb_file import LmdbFile
from mlhpc.common.formats.protobuf import fields, read_varint
from mlhpc.errors import UserError

Bytes = npt.NDArray[np.uint8]
"""A file's content ``[bytes]``, or pixels ``[height, width, 3]``."""

SUFFIXES = (".jpeg", ".jpg", ".png")
SHARD = re.compile(r"(train|validation)-(\d{5})-of-(\d{5})")
LMDB = "data.mdb"
PIXELS, INDEX = "pixels.raw", "index.npy"
ENCODED, LABEL = "image/encoded", "image/class/label"
_REMEDY = "copy or regenerate it"


class Images(Protocol):
    """The images of a split, in a fixed order. Thread-safe and picklable."""

    classes: int

    def __len__(self) -> int: ...

    def read(self, index: int) -> tuple[Bytes, int]:
        """An image in a separate writable buffer, uint8, [bytes] if encoded or [rows, columns, 3] if decoded, and
        its label. Raises UserError naming the image."""

    def name(self, index: int) -> str:
        """The image's file and its position in this file, for messages."""


class Files:
    """One file per image; ``labels`` are int ``[images]``."""

    def __init__(self, paths: Sequence[str], labels: Sequence[int], classes: int) -> None:
        self.paths, self.labels, self.classes = paths, labels, classes

    def __len__(self) -> int:
        return len(self.paths)

    def read(self, index: int) -> tuple[Bytes, int]:
        """The image, uint8 [bytes], and its label."""
        path = Path(self.paths[index])
        with opened(path) as fd:  # in one read: np.fromfile first seeks to the end, and reads twice
            data = np.empty(size_to_read(fd), np.uint8)
            read_into(fd, path, 0, data)
        return data, self.labels[index]

    def name(self, index: int) -> str:
        """The path of image ``index``."""
        return self.paths[index]


class Shards:
    """TFRecord files in TensorFlow's ImageNet layout: ``image/encoded``, and ``image/class/label``, which starts
    at 1. ``extents``: the results of ``tfrecord.record_extents``, by file.

    The first images of all files come first, then the second ones, and so on. ``convert`` distributes images to
    files in this way, so their original order is restored.
    """

    def __init__(self, extents: dict[Path, npt.NDArray[np.int64]], classes: int) -> None:
        self.paths = sorted(extents)
        self.classes = classes
        files = np.repeat(np.arange(len(self.paths)), [len(extents[path]) for path in self.paths])
        records = np.concatenate([np.arange(len(extents[path])) for path in self.paths])
        order = np.lexsort((files, records))
        self._files, self._records = files[order], records[order]
        self._extents = np.concatenate([extents[path] for path in self.paths])[order]

    def __len__(self) -> int:
        return len(self._extents)

    def read(self, index: int) -> tuple[Bytes, int]:
        """The image, uint8 [bytes], and its label."""
        offset, length = map(int, self._extents[index])
        record = tfrecord.read_record(self._file(index), offset, length)
        try:
            features = tf_example.decode_features(record, (ENCODED, LABEL))
        except UserError as error:
            raise UserError(f"{self.name(index)}: {error}") from error
        encoded, label = features.get(ENCODED), features.get(LABEL)
        if not isinstance(encoded, memoryview) or not isinstance(label, list) or len(label) != 1:
            raise UserError(
                f"{self.name(index)} must contain {ENCODED} and exactly one {LABEL}; use ImageNet shards"
            )
        if not 1 <= label[0] <= self.classes:
            raise UserError(f"{self.name(index)}: {LABEL} is {label[0]}, expected 1 to {self.classes}")
        return np.frombuffer(encoded, np.uint8), label[0] - 1

    def name(self, index: int) -> str:
        """The file and record of image ``index``, for messages."""
        return f"{self._file(index)}: record {self._records[index]}"

    def _file(self, index: int) -> Path:
        return self.paths[int(self._files[index])]


_MAX_SIDE = 1 << 20  # pixels


class Lmdb:
    """An LMDB of Caffe's Datum messages (caffe.proto: data = 4, label = 5, encoded = 7), in key order."""

    def __init__(self, folder: Path, classes: int) -> None:
        self.path, self.classes = folder / LMDB, classes
        self._file = LmdbFile(self.path)

    def __len__(self) -> int:
        return len(self._file)

    def read(self, index: int) -> tuple[Bytes, int]:
        """The image, uint8 [bytes], and its label."""
        value = self._file.value(index)
        datum: dict[int, memoryview] = {}
        try:
            datum = dict(fields(value.data))
            label, encoded = read_varint(datum[5])[0], bool(read_varint(datum.get(7, memoryview(b"\0")))[0])
            data = np.frombuffer(datum[4], np.uint8)
        except (KeyError, ValueError, IndexError) as error:
            raise UserError(f"{self.name(index)}: not a Caffe Datum ({error!r}); {_REMEDY}") from error
        if not encoded:
            raise UserError(
                f"{self.name(index)}: a Datum with raw pixels, but only encoded images are supported"
            )
        _require_class(label, self.classes, self.name(index))
        return data, label

    def name(self, index: int) -> str:
        """The file and key of image ``index``, for messages."""
        return f"{self.path}: {self._file.key(index).decode('ascii', 'replace')}"


class Raw:
    """Decoded pixels, one image after another in ``pixels.raw``, and ``index.npy``, int64 ``[images, 4]``, with
    offset, height, width and label. For small data sets, since this format takes about ten times as much space as
    JPEG."""

    def __init__(self, folder: Path, classes: int) -> None:
        self.path, self.classes = folder / PIXELS, classes
        try:
            self.index = np.load(folder / INDEX, allow_pickle=False)
            size = self.path.stat().st_size
        except Exception as error:  # NumPy's parser raises almost any exception for a damaged header
            reason = " ".join(str(error).split())[:200]
            raise UserError(f"{folder}: {PIXELS} or {INDEX} cannot be read ({reason}); {_REMEDY}") from error
        if not isinstance(self.index, np.ndarray):
            raise UserError(
                f"{folder / INDEX}: an .npz archive instead of an int64 array [images, 4]; {_REMEDY}"
            )
        if self.index.dtype != np.int64 or self.index.ndim != 2 or self.index.shape[1] != 4:
            raise UserError(f"{folder / INDEX}: not an int64 array [images, 4]; {_REMEDY}")
        if (self.index[:, :3] > (size, _MAX_SIDE, _MAX_SIDE)).any():  # before a product can overflow
            raise UserError(f"{folder / INDEX} lists images beyond the {size} bytes of {PIXELS}; {_REMEDY}")
        offset, height, width, label = self.index.T
        end = int((offset + 3 * height * width).max(initial=0))
        if size != end or (self.index[:, :3] < (0, 1, 1)).any():
            raise UserError(f"{self.path}: {size} bytes, expected {end} according to {INDEX}; {_REMEDY}")
        for wrong in np.flatnonzero((label < 0) | (label >= classes))[:1]:
            _require_class(int(label[wrong]), classes, self.name(int(wrong)))

    def __len__(self) -> int:
        return len(self.index)

    def read(self, index: int) -> tuple[Bytes, int]:
        """The image, uint8 [rows, columns, 3], and its label."""
        offset, height, width, label = map(int, self.index[index])
        try:
            pixels = np.fromfile(self.path, np.uint8, 3 * height * width, offset=offset)
            return pixels.reshape(height, width, 3), label
        except (OSError, ValueError) as error:
            raise UserError(f"{self.name(index)} cannot be read ({error}); {_REMEDY}") from error

    def name(self, index: int) -> str:
        """The file and number of image ``index``, for messages."""
        return f"{self.path}: image {index}"


def _require_class(label: int, classes: int, name: str) -> None:
    if not 0 <= label < classes:
        raise UserError(f"{name}: label {label} is not one of the {classes} classes, 0 to {classes - 1}")
