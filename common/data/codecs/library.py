"""Checked access to the compression libraries of the extra ``codecs``.

They are imported when used, since data sets in other formats do not need them.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import import_module
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from mlhpc.common.data.codecs.codec import Codec, Sections, as_stored, require_order
from mlhpc.common.data.codecs.frame import Frame
from mlhpc.errors import UserError, install

_PCO_LEVEL = 8  # pcodec's default; decoding does not depend on it
_BLOSC2_LEVEL = 5
ZSTD_LEVEL = 3


def load(name: str, distribution: str) -> Any:
    """The module ``name`` of a library. Raises UserError if ``distribution`` is not installed."""
    try:
        return import_module(name)
    except ImportError as error:
        raise UserError(f"cannot load {distribution} ({error}); {install('codecs')}") from error


def pco_compress(array: npt.NDArray[Any]) -> bytes:
    """Compress a one-dimensional array of 16- or 32-bit numbers with pcodec; an empty array yields no bytes."""
    pco = load("pcodec", "pcodec")
    if not array.size:
        return b""
    config = pco.ChunkConfig(compression_level=_PCO_LEVEL)
    aligned = np.require(array, requirements="A")  # arrays in a TFRecord may begin at any byte
    compressed: bytes = pco.standalone.simple_compress(aligned, config)
    return compressed


def pco_decompress(frame: Frame, section: str, dtype: npt.DTypeLike, length: int) -> npt.NDArray[Any]:
    """Decompress ``section`` to an array [length]. Raises UserError if it contains a different number of
    values."""
    out = np.empty(length, dtype)
    pco_decompress_into(frame, section, out)
    return out


def pco_decompress_into(frame: Frame, section: str, out: npt.NDArray[Any]) -> None:
    """Decompress ``section`` into ``out``, which is one-dimensional. Raises UserError if the sizes differ."""
    data = _content(frame, section, empty=not out.size)
    if not out.size:
        return
    pco = load("pcodec", "pcodec")
    try:
        progress = pco.standalone.simple_decompress_into(bytes(data), out)
    except Exception as error:
        raise frame.error(f"not readable by pcodec: {_reason(error)}", section) from error
    except BaseException as error:  # pcodec's panics are no Exceptions
        if type(error).__name__ != "PanicException":
            raise
        raise frame.error(f"not readable by pcodec: {_reason(error)}", section) from error
    if progress.n_processed != len(out) or not progress.finished:
        raise frame.error(f"pcodec found {progress.n_processed} values, expected {len(out)}", section)


def _content(frame: Frame, section: str, empty: bool) -> memoryview:
    if section not in frame.sections:
        raise frame.error(f"it has no section {section!r}")
    data = frame.sections[section]
    if empty and len(data):
        raise frame.error(f"has {len(data)} bytes, expected none", section)
    return data


def _reason(error: BaseException) -> str:
    return " ".join(str(error).split())[:160] or type(error).__name__


class Compressed:
    """A codec with one section, ``data``, which ``compress`` creates from an array. ``fill(frame, section, out)``
    decompresses it into ``out``, the array flattened to one axis, and raises UserError if the section does not
    fill ``out`` exactly."""

    def __init__(
        self,
        name: str,
        compress: Callable[[npt.NDArray[Any]], bytes],
        fill: Callable[[Frame, str, npt.NDArray[Any]], None],
    ) -> None:
        self.name, self.lossy = name, False
        self._compress, self._fill = compress, fill

    def encode(self, array: npt.NDArray[Any]) -> Sections:
        """Encode ``array``, of any shape, as one section."""
        return {"data": self._compress(as_stored(array).reshape(-1)) if array.size else b""}

    def decode(self, frame: Frame, out: npt.NDArray[Any]) -> None:
        """Decode ``frame`` into ``out``, which has the frame's shape."""
        require_order(out)
        frame.require(self.name, out.dtype, out.shape)
        _content(frame, "data", empty=not out.size)
        if out.size:
            self._fill(frame, "data", out.reshape(-1))


def _zstd_compress(array: npt.NDArray[Any]) -> bytes:
    zstd = load("zstandard", "zstandard")
    compressed: bytes = zstd.ZstdCompressor(level=ZSTD_LEVEL).compress(array)
    return compressed


def _zstd_fill(frame: Frame, section: str, out: npt.NDArray[Any]) -> None:
    content = _zstd_decompress(frame, section, out.nbytes)
    if len(content) != out.nbytes:
        raise frame.error(f"contains {len(content)} bytes, expected {out.nbytes}", section)
    out[...] = np.frombuffer(content, out.dtype)


def _zstd_decompress(frame: Frame, section: str, most: int) -> bytes:
    """Decompress ``section`` with zstd. Raises UserError, before allocating memory, if it is invalid or its
    content would exceed ``most`` bytes."""
    zstd = load("zstandard", "zstandard")
    data = frame.sections[section]
    try:
        size = zstd.frame_content_size(data)
        if not 0 <= size <= most:
            raise frame.error(f"declares {size} bytes, expected at most {most}", section)
        content: bytes = zstd.ZstdDecompressor().decompress(
            data, max_output_size=size, allow_extra_data=False
        )
    except zstd.ZstdError as error:
        raise frame.error(f"not readable by zstd: {_reason(error)}", section) from error
    return content


def inflated(frame: Frame, sections: Sequence[str]) -> Frame:
    """A copy of ``frame`` in which the ``sections``, compressed by zstd, are decompressed. Raises UserError if a
    section is missing, damaged, or larger than the frame's whole array."""
    most = frame.dtype.itemsize * prod(frame.shape)
    parts = {}
    for section in sections:
        _content(frame, section, empty=False)
        parts[section] = memoryview(_zstd_decompress(frame, section, most))
    return replace(frame, sections={**frame.sections, **parts})


def zfp_compress(plane: npt.NDArray[np.float32], tolerance: float) -> bytes:
    """Compress the finite float32 values of ``plane`` [rows, columns] with an error of at most ``tolerance``, or
    in zfp's lossless mode if ``tolerance`` is 0. zfp exceeds some tolerances (for instance with values of 1e-29),
    so the caller must verify the error. Raises UserError if a value is not finite."""
    if not np.isfinite(plane).all():
        raise UserError("zfp supports only finite values; use another codec")
    zfp = load("zfpy", "zfpy")
    mode = {"tolerance": tolerance} if tolerance else {}
    compressed: bytes = zfp.compress_numpy(np.ascontiguousarray(plane), write_header=False, **mode)
    return compressed


def zfp_decompress(
    frame: Frame, section: str, shape: tuple[int, ...], tolerance: float
) -> npt.NDArray[np.float32]:
    """Inverse of ``zfp_compress``; returns an array of ``shape``, [rows, columns]. Raises UserError if the section
    is missing or empty. zfp itself validates nothing: it turns a damaged stream into wrong values, and reads
    beyond the end of a truncated one."""
    if not 0 <= tolerance < np.inf:
        raise frame.error("contains an invalid tolerance", "limits")
    data = _content(frame, section, empty=False)
    zfp = load("zfpy", "zfpy")
    # Maximum bytes read for a block of 4 × 4 values (zfp's maximum_size: all its bits, and a header).
    blocks = prod(-(-side // 4) for side in shape)
    room = np.zeros(max(len(data), blocks * 80) + 64, np.uint8)
    room[: len(data)] = np.frombuffer(data, np.uint8)
    out = np.empty(shape, np.float32)
    mode = {"tolerance": tolerance} if tolerance else {}
    zfp._decompress(room.tobytes(), zfp.type_float, shape, out=out, **mode)
    return out


def sz3_compress(plane: npt.NDArray[np.float32], tolerance: float) -> bytes:
    """Compress the finite float32 values of ``plane`` [rows, columns] with an error of at most ``tolerance``; the
    caller must verify the error. Raises UserError if a value is not finite."""
    if not np.isfinite(plane).all():
        raise UserError("sz3 supports only finite values; use another codec")
    pysz = load("pysz", "pysz")
    config = pysz.szConfig()
    config.errorBoundMode, config.absErrorBound = pysz.szErrorBoundMode.ABS, float(tolerance)
    config.openmp = False  # the same bytes for any number of threads
    compressed, _ = pysz.sz.compress(np.ascontiguousarray(plane), config)
    return bytes(compressed)


def sz3_decompress(
    frame: Frame, section: str, shape: tuple[int, ...], tolerance: float
) -> npt.NDArray[np.float32]:
    """Inverse of ``sz3_compress``; returns an array of ``shape``, [rows, columns]. ``tolerance`` is not used,
    since the stream contains it. Raises UserError if the section is missing or SZ3 cannot decompress it."""
    data = np.frombuffer(_content(frame, section, empty=False), np.uint8)
    pysz = load("pysz", "pysz")
    try:
        out: npt.NDArray[np.float32]
        out, _ = pysz.sz.decompress(data, np.float32, shape)
    except (RuntimeError, ValueError, IndexError, MemoryError) as error:  # C++ exceptions, converted
        raise frame.error(f"not readable by SZ3: {_reason(error)}", section) from error
    if out.shape != shape:
        raise frame.error(f"contains a plane of {out.shape}, expected {shape}", section)
    return out


def _blosc2_compress(array: npt.NDArray[Any]) -> bytes:
    blosc2 = load("blosc2", "blosc2")
    compressed: bytes = blosc2.compress2(
        array,
        codec=blosc2.Codec.ZSTD,
        clevel=_BLOSC2_LEVEL,
        filters=[blosc2.Filter.BITSHUFFLE],
        typesize=array.itemsize,
        nthreads=1,  # so that the bytes are the same for any number of threads
    )
    return compressed


def _blosc2_fill(frame: Frame, section: str, out: npt.NDArray[Any]) -> None:
    blosc2 = load("blosc2", "blosc2")
    data = bytes(frame.sections[section])
    try:
        size, stored, _ = blosc2.get_cbuffer_sizes(data)
        if (size, stored) != (out.nbytes, len(data)):
            raise frame.error(f"contains {size} bytes, expected {out.nbytes}", section)
        blosc2.decompress2(data, dst=out, nthreads=1)
    except (RuntimeError, ValueError, TypeError) as error:
        raise frame.error(f"not readable by blosc2: {_reason(error)}", section) from error


LOSSLESS: tuple[Codec, ...] = (
    Compressed("pco", pco_compress, pco_decompress_into),
    Compressed("zstd", _zstd_compress, _zstd_fill),
    Compressed("blosc2", _blosc2_compress, _blosc2_fill),
)
