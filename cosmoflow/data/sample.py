"""One sample and its file: TFRecord, plain or GZIP, as published, or encoded by a codec of this benchmark.

Which of them a file is, its first bytes say.
"""

import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mlhpc.common.data.codecs import frame
from mlhpc.common.data.codecs.codec import Codec, facts, find, require
from mlhpc.common.data.codecs.frame import Frame
from mlhpc.common.data.manifest import NAME, Manifest
from mlhpc.common.files import atomic
from mlhpc.common.formats.tfrecord import Packer, encode_example, read_examples, write_records
from mlhpc.cosmoflow.data.augment import apply_symmetry
from mlhpc.cosmoflow.data.codec import CODECS
from mlhpc.errors import UserError

TFRECORD = {"gzip": True, "plain": False}
"""The published layouts by name, and whether they are compressed."""
NAMES = (*TFRECORD, *CODECS)
"""Every format that a data set can be converted to."""
_SUFFIXES = (".tfrecord", ".mlc")


def suffix_of(codec: str) -> str:
    """That of the files of a data set in the format ``codec``; readers do not ask for it."""
    return _SUFFIXES[codec not in TFRECORD]


def list_samples(directory: Path, expected: int | None = None) -> list[Path]:
    """The sample files of ``directory`` in order of name, which is what sample indices count.

    Raises ``UserError`` when there are none, or fewer than ``expected``; files beyond ``expected`` are left
    out, as the reference does.
    """
    if not directory.is_dir():
        raise UserError(f"{directory}: no such directory; give the data set's directory with train/ in it")
    with os.scandir(directory) as entries:
        names = sorted(entry.name for entry in entries if entry.name.endswith(_SUFFIXES))
    if len(names) < (1 if expected is None else expected):
        raise UserError(
            f"{directory}: {expected or 'some'} *.tfrecord files are needed, but it has {len(names)}"
        )
    return [directory / name for name in names[:expected]]


def facts_of(codec: str, packer: Packer = "zlib") -> dict[str, Any]:
    """What a manifest says of a data set in the format ``codec``, ``gzip`` compressed by ``packer``."""
    if codec in CODECS:
        return facts(CODECS[codec])
    packed = {"packer": packer} if TFRECORD[codec] else {}
    return {"codec": codec, "lossy": False, "gzip": TFRECORD[codec], **packed}


def require_facts(dataset: Manifest) -> None:
    """Raise UserError when a manifest names a codec that is not here, or calls it lossless though it is not: the
    rules of the closed division go by it."""
    if dataset.facts.get("codec", "gzip") not in tuple(TFRECORD):
        require(dataset.facts, CODECS, dataset.root / NAME)


def write_sample(
    path: Path,
    x: npt.NDArray[np.int16],
    y: npt.NDArray[np.float32],
    codec: str,
    packer: Packer = "zlib",
) -> None:
    """Write the counts ``x [n, n, n, channels]`` and the targets ``y`` in the format ``codec``; the file appears
    when it is complete. ``packer`` compresses files of ``gzip``. Raises OSError as the file system does."""
    if codec in TFRECORD:
        write_records(path, [encode_example(x, y)], TFRECORD[codec], packer)
        return
    sections = {**CODECS[codec].encode(x), "label": np.ascontiguousarray(y, "<f4").tobytes()}
    atomic.write_bytes(path, frame.pack(codec, "<i2", x.shape, sections))


def read_counts(path: Path) -> tuple[npt.NDArray[np.int16], npt.NDArray[np.float32]]:
    """A sample of any format: the counts, of unknown shape [voxels · channels] where the format does not keep it,
    and the targets. Raises UserError as ``read_sample`` does."""
    raw = frame.read(path)
    if raw[:8] != frame.MAGIC:
        voxels, targets = _example(path, raw)
        return np.frombuffer(voxels, "<i2"), targets
    encoded = frame.unpack(raw, path)
    x = np.empty(encoded.shape, np.int16)
    find(encoded.codec, CODECS, path).decode(encoded, x)
    return x, encoded.array("label", "<f4").astype(np.float32)


class Reader:
    """Reads samples of a data set. ``codec``: the one that its manifest names; None: files of no codec, as
    published. Threads may share one."""

    def __init__(self, codec: str | None = None) -> None:
        self._codec = codec if isinstance(codec, str) and codec in CODECS else None

    def read(self, sample: tuple[Path, int], x: npt.NDArray[np.int16], y: npt.NDArray[np.float32]) -> int:
        """Read ``sample``, a file and the symmetry that is applied to its voxels
        (``augment.apply_symmetry``), into ``x [n, n, n, channels]`` and ``y [targets]``; return the size of
        the file in bytes.

        Raises ``UserError`` naming the file when it is missing, truncated or corrupt, or holds anything but one
        sample of this shape, and when it is encoded otherwise than the manifest says.
        """
        path, symmetry = sample
        raw = frame.read(path)
        if raw[:8] == frame.MAGIC:
            encoded = frame.unpack(raw, path)
            codec = self._codec_of(encoded, path)
            encoded.require(codec.name, np.int16, x.shape)
            targets = encoded.array("label", "<f4")
            target = x if symmetry == 0 and x.flags.c_contiguous else np.empty_like(x, order="C")
            codec.decode(encoded, target)
            if target is not x:
                _copy(target, x, symmetry)
        else:
            voxels, targets = _example(path, raw)
            if len(voxels) != x.nbytes:
                raise UserError(
                    f"{path}: x has {len(voxels)} bytes, but int16 voxels of shape {list(x.shape)} are "
                    f"{x.nbytes}; "
                    f"the preset's data.sample_shape is not that of this data set"
                )
            _copy(np.frombuffer(voxels, "<i2").reshape(x.shape), x, symmetry)
        if targets.size != y.size:
            raise UserError(f"{path}: y has {targets.size} values, but the network has {y.size} targets")
        y[...] = targets
        return len(raw)

    def _codec_of(self, encoded: Frame, path: Path) -> Codec:
        codec = find(encoded.codec, CODECS, path)
        if codec.name != self._codec:
            stated = f"by {self._codec!r}" if self._codec else "by no codec"
            raise UserError(
                f"{path}: encoded by {codec.name!r}, and by its manifest the data set is {stated}; "
                f"convert the data "
                "set again"
            )
        return codec


def _copy(voxels: npt.NDArray[np.int16], x: npt.NDArray[np.int16], symmetry: int) -> None:
    # A voxel with all its channels is one item: turning then moves 8 bytes at a time, not 2.
    voxel = np.dtype((np.void, x.itemsize * x.shape[-1]))
    x.view(voxel)[...] = apply_symmetry(voxels.view(voxel), symmetry)


def _example(path: Path, raw: memoryview) -> tuple[memoryview, npt.NDArray[np.float32]]:
    samples = list(read_examples(path, raw=raw))
    if len(samples) != 1:
        raise UserError(f"{path}: it has {len(samples)} records, but a sample file has one")
    return samples[0]
