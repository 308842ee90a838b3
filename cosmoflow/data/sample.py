"""Reads and writes samples, each in a file: TFRecord (plain or GZIP) as published, or a codec of this benchmark.

The format is detected from the first bytes.
"""

from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mlhpc.common.data.codecs import dtypes, frame
from mlhpc.common.data.codecs.codec import Codec, facts, find, find_stated, require
from mlhpc.common.data.codecs.frame import Frame
from mlhpc.common.data.manifest import NAME, Manifest
from mlhpc.common.files import atomic
from mlhpc.common.files.filesystem import as_user_error
from mlhpc.common.files.regular import open_regular
from mlhpc.common.formats import archive
from mlhpc.common.formats.archive import Member, Sample
from mlhpc.common.formats.tf_example import Layout, encode_example, read_examples
from mlhpc.common.formats.tfrecord import GZIP_MAGIC, Packer, file_bytes
from mlhpc.cosmoflow.data.augment import apply_symmetry
from mlhpc.cosmoflow.data.codec import CODECS, LookupTable
from mlhpc.cosmoflow.data.encoded import EncodedSample
from mlhpc.cosmoflow.data.logarithm import log_counts
from mlhpc.errors import UserError

TFRECORD = {"gzip": True, "plain": False}
"""The published formats by name, and whether each is compressed."""
NAMES = (*TFRECORD, *CODECS)
"""All output formats of the conversion."""
_SUFFIXES = (".tfrecord", ".mlc")


def suffix_of(codec: str) -> str:
    """The suffix of files in the format ``codec``; when files are read, their suffix is ignored."""
    return _SUFFIXES[codec not in TFRECORD]


def list_samples(folder: Path, expected: int | None = None) -> list[Sample]:
    """The samples in ``folder``, which are files or members of archives, in the order of sample indices.

    Raises ``UserError`` if there are none or fewer than ``expected``; samples beyond ``expected`` are ignored, as
    in the reference.
    """
    kinds = "*.tfrecord, encoded or archived"
    return archive.list_samples(folder, lambda name: name.endswith(_SUFFIXES), kinds, expected)


def facts_of(codec: str, packer: Packer = "zlib") -> dict[str, Any]:
    """The manifest entries that describe the format ``codec``; files in the format ``gzip`` are compressed by
    ``packer``."""
    if codec in CODECS:
        return facts(CODECS[codec])
    packed = {"packer": packer} if TFRECORD[codec] else {}
    return {"codec": codec, "lossy": False, "gzip": TFRECORD[codec], **packed}


def format_of(path: Path) -> str:
    """The format of a file, one of ``NAMES``, judging by its first bytes. Raises UserError if it cannot be
    read."""
    with (
        as_user_error(path, "cannot be read", "check the data set"),
        open(open_regular(path), "rb", buffering=0) as file,
    ):
        head = file.read(frame.HEAD_BYTES)
    if header := frame.peek(head):
        return find(header[0], CODECS, path).name
    return "gzip" if head[:2] == GZIP_MAGIC else "plain"


def require_facts(dataset: Manifest) -> None:
    """Raise UserError if a manifest names an unknown codec or declares a lossy codec lossless, since the rules of
    the closed division rely on these facts."""
    if dataset.facts.get("codec", "gzip") not in tuple(TFRECORD):
        require(dataset.facts, CODECS, dataset.root / NAME)


def sample_bytes(
    x: npt.NDArray[np.int16], y: npt.NDArray[np.float32], codec: str, packer: Packer = "zlib"
) -> bytes | bytearray:
    """Encode a sample, with the counts ``x [n, n, n, channels]`` and the targets ``y [targets]``, as the content
    of a file in the format ``codec``. ``packer``: compressor of files in the format ``gzip``."""
    if codec in TFRECORD:
        return file_bytes([encode_example(x, y)], TFRECORD[codec], packer)
    sections = {**CODECS[codec].encode(x), "label": np.ascontiguousarray(y, "<f4").tobytes()}
    return frame.pack(codec, "<i2", x.shape, sections)


def write_sample(
    path: Path, x: npt.NDArray[np.int16], y: npt.NDArray[np.float32], codec: str, packer: Packer = "zlib"
) -> None:
    """Write a sample, encoded by ``sample_bytes``, to ``path``; the file appears once it is complete. ``x`` is [n,
    n, n, redshifts], ``y`` [targets]. Raises OSError."""
    with atomic.writing(path) as fd:
        atomic.write_all(fd, memoryview(sample_bytes(x, y, codec, packer)))


def read_counts(path: Sample) -> tuple[npt.NDArray[np.int16], npt.NDArray[np.float32]]:
    """The counts and the targets of a sample in any format. If the format does not store the shape, the counts are
    [voxels · channels]. Raises UserError like ``Reader.read``."""
    raw = archive.read(path)
    if raw[:8] != frame.MAGIC:
        voxels, targets = _example(path, raw)
        return np.frombuffer(voxels, "<i2"), targets
    encoded = frame.unpack(raw, path)
    x = np.empty(encoded.shape, np.int16)
    find(encoded.codec, CODECS, path).decode(encoded, x)
    return x, encoded.array("label", "<f4").astype(np.float32)


class Reader:
    """Reads samples of a data set. ``codec``: the codec in its manifest; None: files as published.
    ``sample_dtype``: int16 for the counts, or another type of ``dtypes.NUMPY`` for log(1 + counts).
    Thread-safe."""

    def __init__(self, codec: str | None = None, sample_dtype: str = "int16") -> None:
        self._codec = codec if isinstance(codec, str) and codec in CODECS else None
        self.sample_dtype = sample_dtype
        self._layout: Layout | None = None  # of the last plain file read

    def read(self, sample: tuple[Sample, int], x: npt.NDArray[Any], y: npt.NDArray[np.float32]) -> int:
        """Read ``sample``, a pair of its location and the symmetry to apply to its voxels
        (``augment.apply_symmetry``), into ``x [n, n, n, channels]``, of type ``sample_dtype``, and ``y
        [targets]``. Returns the size of the file in bytes.

        Raises ``UserError`` naming the file if it is missing, truncated or corrupt, does not contain exactly one
        sample of this shape, or has a codec that differs from the manifest's.
        """
        path, symmetry = sample
        target = x if symmetry == 0 and x.flags.c_contiguous else np.empty(x.shape, x.dtype)
        if size := self._read_alike(path, target, y):
            if target is not x:
                _copy(target, x, symmetry)
            return size
        raw = archive.read(path)
        if raw[:8] == frame.MAGIC:
            encoded, codec = self._unpack(raw, path, x.shape)
            _take_targets(encoded.array("label", "<f4"), y, path)
            self._decode(codec, encoded, target)
        else:
            voxels, targets = _example(path, raw)
            _take_targets(targets, y, path)
            counts = _counts(path, voxels, x.shape)
            self._layout = Layout.of(raw, voxels, targets)
            if self.sample_dtype == "int16":
                target = counts
            else:
                log_counts(counts, target, self.sample_dtype)
        if target is not x:
            _copy(target, x, symmetry)
        return len(raw)

    def _read_alike(self, path: Sample, out: npt.NDArray[Any], y: npt.NDArray[np.float32]) -> int:
        """Read a file into contiguous memory without an intermediate copy, if it has the same layout as the last
        file. Returns its size in bytes, or 0 if its layout is different."""
        layout = self._layout
        if layout is None or isinstance(path, Member):
            return 0
        counts = out if self.sample_dtype == "int16" else np.empty(out.shape, np.int16)
        with (
            as_user_error(path, "cannot be read", "check the data set"),
            open(open_regular(path), "rb", buffering=0) as file,
        ):
            targets = layout.read(file.fileno(), counts)
        if targets is None or targets.size != y.size:
            return 0
        y[...] = targets
        if counts is not out:
            log_counts(counts, out, self.sample_dtype)
        return counts.nbytes + len(layout.around)

    def read_encoded(
        self,
        sample: tuple[Sample, int],
        keys: npt.NDArray[np.uint16],
        y: npt.NDArray[np.float32],
        shape: tuple[int, ...],
    ) -> EncodedSample:
        """Read ``sample``, which has the lookup-table codec and the ``shape`` [n, n, n, channels], without
        decoding it: the keys of all voxels into ``keys [voxels]``, and the targets into ``y [targets]``. Raises
        UserError like ``read``."""
        path, symmetry = sample
        raw = archive.read(path)
        encoded, codec = self._unpack(raw, path, shape)
        _take_targets(encoded.array("label", "<f4"), y, path)
        assert isinstance(codec, LookupTable)
        tables, voxels = [], []
        for block in codec.blocks(encoded):
            keys[block.start : block.start + len(block.keys)] = block.keys
            tables.append(self._delivered(block.table))
            voxels.append(len(block.keys))
        return EncodedSample(len(raw), symmetry, tables, voxels)

    def _decode(self, codec: Codec, encoded: Frame, out: npt.NDArray[Any]) -> None:
        if isinstance(codec, LookupTable):
            codec.decode(encoded, out, self._delivered)
        elif self.sample_dtype == "int16":
            codec.decode(encoded, out)
        else:
            counts = np.empty(out.shape, np.int16)
            codec.decode(encoded, counts)
            log_counts(counts, out, self.sample_dtype)

    def _delivered(self, table: npt.NDArray[np.int16]) -> npt.NDArray[Any]:
        """Convert a table to the type ``sample_dtype``: counts, or their logarithms."""
        if self.sample_dtype == "int16":
            return table
        out = np.empty(table.shape, dtypes.NUMPY[self.sample_dtype])
        log_counts(np.ascontiguousarray(table), out, self.sample_dtype)
        return out

    def _unpack(self, raw: memoryview, path: Sample, shape: tuple[int, ...]) -> tuple[Frame, Codec]:
        encoded = frame.unpack(raw, path)
        codec = find_stated(encoded, CODECS, self._codec, path)
        encoded.require(codec.name, np.int16, shape)
        return encoded, codec


def _counts(path: Sample, voxels: memoryview, shape: tuple[int, ...]) -> npt.NDArray[np.int16]:
    counts = np.frombuffer(voxels, "u1")
    if len(counts) != 2 * prod(shape):
        raise UserError(
            f"{path}: x has {len(counts)} bytes, but data.sample_shape {list(shape)} in int16 takes "
            f"{2 * prod(shape)}; choose another preset or data set"
        )
    return counts.view("<i2").reshape(shape)


def _take_targets(targets: npt.NDArray[Any], y: npt.NDArray[np.float32], path: Sample) -> None:
    if targets.size != y.size:
        raise UserError(f"{path}: y has {targets.size} values, but network.targets is {y.size}")
    y[...] = targets


def _copy(voxels: npt.NDArray[Any], x: npt.NDArray[Any], symmetry: int) -> None:
    # A voxel with all its channels is one item, so that a rotation moves 8 bytes at a time instead of 2.
    voxel = np.dtype((np.void, x.itemsize * x.shape[-1]))
    x.view(voxel)[...] = apply_symmetry(voxels.view(voxel), symmetry)


def _example(path: Sample, raw: memoryview) -> tuple[memoryview, npt.NDArray[np.float32]]:
    samples = list(read_examples(path, raw=raw))
    if len(samples) != 1:
        raise UserError(f"{path} has {len(samples)} records, but a sample file must have exactly one")
    return samples[0]
