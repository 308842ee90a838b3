"""Reads a sample from its files into the arrays of a batch, and checks and normalises it in the same pass.

A sample consists of a field ``[rows, columns, channels]`` and a mask ``[rows, columns]`` of classes. If they are
stored contiguously, a block of rows at a time is read, and checked and normalised while it is in the processor's
cache. All expensive operations release the interpreter lock, so threads run in parallel.
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mlhpc.common.data.codecs import dtypes, frame, native
from mlhpc.common.data.codecs.codec import Codec, find_stated, require
from mlhpc.common.data.codecs.frame import Frame
from mlhpc.common.data.loader import Parts
from mlhpc.common.data.manifest import NAME, Manifest
from mlhpc.common.files.regular import size_to_read
from mlhpc.common.formats import archive, npy
from mlhpc.common.formats.archive import Member, Sample, file_of
from mlhpc.common.formats.extent import Extent, opened, read_into
from mlhpc.deepcam.data import delta, hdf5
from mlhpc.deepcam.data.codec import CODECS, Delta, decode_mask
from mlhpc.deepcam.data.delta import Lines
from mlhpc.deepcam.data.hdf5 import Statistics, channel_name
from mlhpc.errors import UserError

_SUFFIXES = (".h5", ".npy", ".mlc")
CLASSES = 3  # background, tropical cyclone, atmospheric river
UNENCODED = ("hdf5", "npy", "npy-float16")
"""The formats without a codec, as manifests name them."""
_NPY_MAGIC = b"\x93NUMPY"
_BLOCK = 1 << 20  # bytes in a block of rows; the blocks of two threads fit in a core's level-2 cache


def is_sample(path: str) -> bool:
    """Return whether a file of a data set represents a sample: ``data-*.h5``, ``data-*.npy`` (which has a mask
    file), or ``data-*.mlc``, which a codec has encoded."""
    return path.rpartition("/")[2].startswith("data-") and path.endswith(_SUFFIXES)


def list_samples(folder: Path, expected: int | None = None) -> list[Sample]:
    """The samples in ``folder``, which are files or members of archives, sorted by name; sample indices refer to
    this list.

    Raises ``UserError`` if there are none, fewer than ``expected``, or files of both layouts; samples beyond
    ``expected`` are left out.
    """
    kinds = "data-*.h5, .npy, .mlc or archived"
    samples = archive.list_samples(folder, is_sample, kinds, expected)
    if len(suffixes := sorted({file_of(sample).suffix for sample in samples})) > 1:
        raise UserError(f"{folder} has samples in several formats, {' and '.join(suffixes)}; keep only one")
    return samples


def require_layout(dataset: Manifest) -> None:
    """Raise UserError if samples are pairs of .npy files but no manifest states their type, or if a manifest names
    an unknown codec or calls a lossy codec lossless."""
    if dataset.facts.get("codec", "hdf5") not in UNENCODED:
        require(dataset.facts, CODECS, dataset.root / NAME)
    if "dtype" not in dataset.facts and any(file.path.endswith(".npy") for file in dataset.files):
        raise UserError(f"{dataset.root}: its .npy files have no manifest; convert the HDF5 samples again")


def sample_shape(path: Sample) -> tuple[int, int, int]:
    """The shape of a sample in any format: rows, columns, channels. Raises UserError if the file is not a
    sample."""
    if isinstance(path, Member):
        rows, columns, channels = frame.unpack(archive.read(path), path).shape
        return rows, columns, channels
    with opened(path) as fd:
        head = os.pread(fd, frame.HEAD_BYTES, 0)
        if head.startswith(_NPY_MAGIC) or path.suffix == ".npy":
            shape = npy.locate(fd, path).shape
        elif header := frame.peek(head):
            shape = header[1]
        else:
            return hdf5.sample_shape(path)
    if len(shape) != 3:
        raise UserError(f"{path} has shape {list(shape)}, but a sample is [rows, columns, channels]")
    return shape[0], shape[1], shape[2]


def shift_and_scale(
    statistics: Statistics, columns: int
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """The shift and scale, [columns · channels], that normalise a row of a field: (row - shift) · scale.

    Both cover a whole row because a loop over 16 channels is too short to be efficient.
    """
    scale = 1 / (statistics.maximum - statistics.minimum)
    shift, scale = (np.tile(values.astype(np.float32), columns) for values in (statistics.minimum, scale))
    return shift, scale


def sample_bytes(sample_shape: Sequence[int], sample_dtype: str) -> int:
    """Size in bytes of a sample, with its mask, in a batch."""
    rows, columns, channels = sample_shape
    return rows * columns * (dtypes.NUMPY[sample_dtype].itemsize * channels + 1)


class CachedReader:
    """Reads every sample from its files once, and after that from memory. Thread-safe."""

    def __init__(self, reader: "Reader") -> None:
        self.parts, self.finish = reader.parts, reader.finish
        self._reader = reader
        self._cache: dict[Sample, tuple[npt.NDArray[Any], npt.NDArray[np.uint8]]] = {}

    def read(self, path: Sample, x: npt.NDArray[Any], y: npt.NDArray[np.uint8]) -> int:
        """Like ``Reader.read``, for ``x`` [rows, columns, channels] and ``y`` [rows, columns]; returns 0 if the
        sample comes from memory."""
        if path in self._cache:
            x[...], y[...] = self._cache[path]
            return 0
        size = self._reader.read(path, x, y)
        self._cache[path] = x.copy(), y.copy()
        return size


class Reader:
    """Reads samples of shape [rows, columns, channels]. Thread-safe.

    With ``statistics``, fields are normalised to (x - minimum) · (1 / (maximum - minimum)), in float32 and in the
    order of operations of the public reference (mlcommons/hpc, deepcam/src/deepCam/data/cam_hdf5_dataset.py), so
    that values are equal bit for bit; without ``statistics``, they are returned as stored. They are rounded once,
    to ``sample_dtype`` (a key of ``dtypes.NUMPY``). ``codec``: the codec in the data set's manifest; None: the
    manifest names none.
    """

    def __init__(
        self,
        shape: Sequence[int],
        statistics: Statistics | None,
        codec: str | None = None,
        sample_dtype: str = "float32",
    ) -> None:
        rows, columns, channels = shape
        self.shape = (rows, columns, channels)
        self.sample_dtype = sample_dtype
        self.parts: Parts = (self.shape, sample_dtype), (self.shape[:2], "uint8")
        self._block_rows = max(1, _BLOCK // (4 * columns * channels))
        self._layout: hdf5.Layout | None = None  # of the last HDF5 file read
        self._shift_and_scale = shift_and_scale(statistics, columns) if statistics else None
        self.normalisation = shift_and_scale(statistics, 1) if statistics else None
        self._codec = codec if isinstance(codec, str) and codec in CODECS else None

    def read(self, path: Sample, x: npt.NDArray[Any], y: npt.NDArray[np.uint8]) -> int:
        """Read a sample into ``x`` [rows, columns, channels], of type ``sample_dtype``, and ``y`` [rows, columns],
        both contiguous. Returns the size of its files in bytes.

        Raises ``UserError`` naming the file if it is missing, truncated or damaged, its arrays have other shapes,
        a value is not finite, or a label is not a class.
        """
        if isinstance(path, Member):
            return self._read_encoded(archive.read(path), path, x, y)
        with opened(path) as fd:
            head = os.pread(fd, 8, 0)
            if head == frame.MAGIC:
                return self._read_encoded(_content(fd, path), path, x, y)
            # The suffix matters only for a damaged file, so that the error message is the one for its format.
            if head.startswith(_NPY_MAGIC) or path.suffix == ".npy":
                mask = npy.label_path(path)
                with opened(mask) as labels:
                    self._read_field(fd, path, "the field", npy.locate(fd, path), x)
                    self._read_mask(labels, mask, "the mask", npy.locate(labels, mask), y)
                    return os.fstat(fd).st_size + os.fstat(labels).st_size
            layout = self._layout
            if layout is None or not layout.is_that_of(fd):
                self._layout = layout = hdf5.locate(path)
            if layout:
                self._read_field(fd, path, hdf5.DATA, layout.data, x)
                self._read_mask(fd, path, hdf5.LABELS, layout.labels, y)
            else:
                field, classes = hdf5.read(path)
                self._require(path, hdf5.DATA, field, "f", self.shape)
                self._require(path, hdf5.LABELS, classes, "iu", self.shape[:2])
                for rows, block in self._blocks(x):
                    _convert(field[rows], block)
                    self._finish(block, x[rows], path, hdf5.DATA, rows.start)
                _take_mask(classes, y, path, hdf5.LABELS, 0)
            return os.fstat(fd).st_size

    def finish(self, arrays: Sequence[Any], results: list[int]) -> tuple[tuple[Any, Any], int]:
        """``x`` [b, rows, columns, channels] and ``y`` [b, rows, columns], with axes in memory order, and the
        total size of the samples' files in bytes."""
        x, y = arrays
        return (x, y), sum(results)

    def read_lines(self, path: Sample, y: npt.NDArray[np.uint8]) -> tuple[Lines, int]:
        """Read a sample of the differential codec without decoding its field: returns the lines and the size of
        its file in bytes, and fills ``y`` [rows, columns] as ``read`` does. Raises UserError like ``read``."""
        encoded, codec, size = self._unpack(archive.read(path), path, y)
        assert isinstance(codec, Delta)
        return codec.finite_lines(encoded), size

    def _unpack(
        self, content: memoryview, path: Sample, y: npt.NDArray[np.uint8]
    ) -> tuple[Frame, Codec, int]:
        """An encoded sample, its codec and its size in bytes. Its mask is decoded into ``y`` [rows, columns]."""
        encoded = frame.unpack(content, path)
        codec = find_stated(encoded, CODECS, self._codec, path)
        encoded.require(codec.name, np.float32, self.shape)
        decode_mask(encoded, y)
        _take_mask(y, y, path, "the mask", 0)
        return encoded, codec, content.nbytes

    def _read_encoded(
        self, content: memoryview, path: Sample, x: npt.NDArray[Any], y: npt.NDArray[np.uint8]
    ) -> int:
        encoded, codec, size = self._unpack(content, path, y)
        if isinstance(codec, Delta):
            delta.decode(codec.finite_lines(encoded), x, self.normalisation, self.sample_dtype)
        else:
            field = x if self.sample_dtype == "float32" else np.empty(x.shape, np.float32)
            codec.decode(encoded, field)
            for rows, _ in self._blocks(x):
                self._finish(field[rows], x[rows], path, "the field", rows.start)
        return size

    def _blocks(self, x: npt.NDArray[Any]) -> Iterator[tuple[slice, npt.NDArray[np.float32]]]:
        """Blocks of rows of ``x`` that fit in the cache, each with float32 memory for its stored values. This is
        scratch memory if values are normalised or rounded, so that ``x`` is written only once."""
        step = self._block_rows
        as_stored = self.sample_dtype == "float32" and not self._shift_and_scale
        scratch = None if as_stored else np.empty((step, *x.shape[1:]), np.float32)
        for start in range(0, len(x), step):
            rows = slice(start, min(start + step, len(x)))
            yield rows, x[rows] if scratch is None else scratch[: rows.stop - start]

    def _read_field(self, fd: int, path: Path, name: str, extent: Extent, x: npt.NDArray[Any]) -> None:
        self._require(path, name, extent, "f", self.shape)
        in_float32 = extent.dtype == np.dtype("<f4")
        as_stored = None if in_float32 else np.empty((self._block_rows, *x.shape[1:]), extent.dtype)
        row_bytes = (extent.end - extent.offset) // len(x)
        for rows, block in self._blocks(x):
            stored = block if as_stored is None else as_stored[: len(block)]
            read_into(fd, path, extent.offset + rows.start * row_bytes, stored)
            if stored is not block:
                _convert(stored, block)
            self._finish(block, x[rows], path, name, rows.start)

    def _finish(
        self, block: npt.NDArray[np.float32], out: npt.NDArray[Any], path: Sample, name: str, first_row: int
    ) -> None:
        """Check the rows of the field in ``block``, normalise them, and round them into ``out`` of the same shape,
        which may be ``block`` itself."""
        flat, flat_out = block.reshape(len(block), -1), out.reshape(len(out), -1)
        bad = None
        if self._shift_and_scale:
            bad = native.normalise(flat, *self._shift_and_scale, flat_out, self.sample_dtype)
        if bad == -1:
            return
        # NaN propagates to both maximum and minimum, infinity to one of them: faster than testing every value.
        if not (np.isfinite(block.max()) and np.isfinite(block.min())):
            row, column, channel = np.argwhere(~np.isfinite(block))[0]
            raise UserError(
                f"{path}: {name} is {block[row, column, channel]} in "
                f"{channel_name(channel, block.shape[2])} at row {first_row + row}, column {column}; "
                "remove or fix the file"
            )
        if self._shift_and_scale:
            shift, scale = self._shift_and_scale
            np.subtract(flat, shift, out=flat)
            np.multiply(flat, scale, out=flat)
        if not np.may_share_memory(block, out):
            _convert(block, out, self.sample_dtype)

    def _read_mask(self, fd: int, path: Path, name: str, extent: Extent, y: npt.NDArray[np.uint8]) -> None:
        self._require(path, name, extent, "iu", y.shape)
        row_bytes = (extent.end - extent.offset) // len(y)
        step = max(1, _BLOCK // row_bytes)
        stored = np.empty((step, y.shape[1]), extent.dtype)
        for start in range(0, len(y), step):
            block = y[start : start + step]
            read_into(fd, path, extent.offset + start * row_bytes, stored[: len(block)])
            _take_mask(stored[: len(block)], block, path, name, start)

    def _require(self, path: Path, name: str, array: Any, kinds: str, shape: tuple[int, ...]) -> None:
        if array.shape == shape and array.dtype.kind in kinds:
            return
        if len(array.shape) == len(shape) == 3 and array.shape[:2] == shape[:2] and array.shape != shape:
            raise UserError(f"{path}: {name} has {array.shape[2]} channels, not {shape[2]}; remove the file")
        kind = "floating point" if kinds == "f" else "integers"
        raise UserError(
            f"{path}: {name} is {array.dtype} {list(array.shape)}, expected {kind} {list(shape)}; "
            "choose another preset or data set"
        )


def _content(fd: int, path: Path) -> memoryview:
    content = np.empty(size_to_read(fd), np.uint8)
    read_into(fd, path, 0, content)
    return content.data


def _convert(stored: npt.NDArray[Any], out: npt.NDArray[Any], sample_dtype: str = "float32") -> None:
    """Convert rows to ``out``, of the same shape and type ``sample_dtype``, rounding to nearest even."""
    halves = stored.dtype == np.float16 and stored.dtype.isnative
    if halves or sample_dtype != "float32":
        # PyTorch uses vector instructions that NumPy's loop does not, so it is 30 times as fast. A single row is
        # too little work for it to start threads.
        import torch

        dtype = getattr(torch, sample_dtype)
        for row, target in zip(stored, out, strict=True):
            torch.from_numpy(target).view(dtype).copy_(torch.from_numpy(row))
    else:
        with np.errstate(over="ignore"):  # values beyond float32 become infinite, which is detected
            out[...] = stored


def _take_mask(
    stored: npt.NDArray[Any], y: npt.NDArray[np.uint8], path: Sample, name: str, first_row: int
) -> None:
    if stored.max() >= CLASSES or stored.min() < 0:
        row, column = np.argwhere((stored >= CLASSES) | (stored < 0))[0]
        raise UserError(
            f"{path}: {name} is {stored[row, column]} at row {first_row + row}, column {column}, but "
            f"classes are 0 to {CLASSES - 1}; remove or fix the file"
        )
    np.copyto(y, stored, casting="unsafe")
