"""DeepCAM's codecs by name, and the encoding of a sample as the content of a file: the field by a codec, the mask
losslessly.

``delta`` satisfies an error bound that the user sets, and so does ``delta-small``, which also compresses the
codes. ``delta-paper`` is the codec that Ibrahim and Oliker 2022 describe: it has no bound, but lines with too many
large errors are stored raw.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from isal import isal_zlib

from mlhpc.common.data.codecs import frame, library
from mlhpc.common.data.codecs.codec import Codec, Sections, as_stored, require_order
from mlhpc.common.data.codecs.frame import Frame
from mlhpc.deepcam.data import delta, delta_encode
from mlhpc.deepcam.data.delta import Lines
from mlhpc.errors import UserError

Of = Literal["range", "value"]
FAR = 0.10
"""Relative error above which the paper considers a value wrong (section V-A: "larger than 10% error")."""
_MOST_FAR = 0.10  # share of wrong values that delta-paper accepts in a line; the paper states none
_SIMILAR = 2.0**-11  # relative: half a unit in the last place of float16, the paper's output type
_MASK_LEVEL = 1


@dataclass(frozen=True)
class Bound:
    """The largest error that a decoded value may have: ``error`` times the range of the value's channel over the
    training set (``ranges`` [channels]), or ``error`` times the value itself."""

    error: float
    of: Of
    ranges: npt.NDArray[np.float64]

    def facts(self) -> dict[str, Any]:
        """Manifest entries that describe the bound."""
        return {"max_error": self.error, "max_error_of": self.of}

    def allowed(self, values: npt.NDArray[Any], channels: npt.NDArray[np.intp]) -> npt.NDArray[np.float64]:
        """The largest error allowed for each of ``values`` [lines, ...], in the same shape. ``channels`` [lines]:
        each line's channel."""
        per_line = self.error * self.ranges[channels]
        if self.of == "range":
            return np.broadcast_to(per_line.reshape(-1, *[1] * (values.ndim - 1)), values.shape)
        return self.error * np.abs(values.astype(np.float64))


class Delta:
    """The codecs ``delta``, ``delta-small`` and ``delta-paper``. The ``bound`` is used only for encoding; without
    one, the paper's criterion applies."""

    lossy = True

    def __init__(self, name: str, bound: Bound | None = None) -> None:
        self.name, self.bound = name, bound

    def facts(self) -> dict[str, Any]:
        """Manifest entries that describe the error bound; empty for a lossless codec."""
        return self.bound.facts() if self.bound else {}

    def encode(self, array: npt.NDArray[np.float32]) -> Sections:
        """Encode ``array`` [rows, columns, channels] as the sections that ``delta.parse`` reads; delta-small
        compresses ``codes`` and ``raw`` with zstd. The bound is verified by decoding."""
        array = as_stored(array)
        bound, rows = self.bound, array.shape[0]
        if bound is None:
            sections = delta_encode.encode(array, _as_the_paper)
        else:

            def accept(values: Any, decoded: Any, lines: npt.NDArray[np.intp]) -> npt.NDArray[np.bool_]:
                error = np.abs(decoded.astype(np.float64) - values)
                kept: npt.NDArray[np.bool_] = (error <= bound.allowed(values, lines // rows)).all(axis=1)
                return kept

            def unit(values: npt.NDArray[np.float64], lines: npt.NDArray[np.intp]) -> npt.NDArray[np.float64]:
                least: npt.NDArray[np.float64] = bound.allowed(values, lines // rows).min(axis=2)
                return 2 * least

            sections = delta_encode.encode(array, accept, unit)
            self._prove(array, sections, bound)
        if self.name == "delta-small":
            zstd = library.load("zstandard", "zstandard").ZstdCompressor(level=library.ZSTD_LEVEL)
            sections |= {name: zstd.compress(sections[name]) for name in ("codes", "raw")}
        return sections

    def decode(self, frame: Frame, out: npt.NDArray[np.float32]) -> None:
        """``out`` is [rows, columns, channels]."""
        require_order(out)
        delta.decode(self.lines(frame), out)

    def lines(self, frame: Frame) -> Lines:
        """The lines of a frame. Raises UserError if the frame is malformed."""
        small = self.name == "delta-small"
        return delta.parse(library.inflated(frame, ("codes", "raw")) if small else frame)

    def finite_lines(self, frame: Frame) -> Lines:
        """As ``lines``, but also raises UserError if a value is not finite."""
        lines = self.lines(frame)
        if not np.isfinite(lines.raw).all():
            raise frame.error("contains a non-finite value", "raw")
        return lines

    def _prove(self, array: npt.NDArray[np.float32], sections: Mapping[str, bytes], bound: Bound) -> None:
        read = frame.unpack(frame.pack("delta", "<f4", array.shape, sections))
        out = np.empty_like(array)
        delta.decode(delta.parse(read), out)
        for channel in range(array.shape[2]):
            values, decoded = array[..., channel], out[..., channel]
            with np.errstate(invalid="ignore"):
                error = np.abs(decoded.astype(np.float64) - values)
            far = error > bound.allowed(values, np.full(len(values), channel))
            assert not (far & (decoded.view(np.uint32) != values.view(np.uint32))).any(), (
                "the error bound is exceeded"
            )


def _as_the_paper(values: Any, decoded: Any, lines: Any) -> npt.NDArray[np.bool_]:
    exact = values.astype(np.float64)
    error, size = np.abs(decoded - exact), np.abs(exact)
    constant = (decoded == decoded[:, :1]).all(axis=1)
    similar = (error <= _SIMILAR * size).all(axis=1)
    kept: npt.NDArray[np.bool_] = np.where(constant, similar, (error > FAR * size).mean(axis=1) <= _MOST_FAR)
    return kept


class Planes:
    """The codec of a library that supports an absolute error bound. Each channel is encoded separately, with the
    bound that follows from the channel's range. ``compress(plane, limit)`` encodes a plane [rows, columns] with
    errors of at most ``limit``; ``decompress(frame, section, shape, limit)`` is its inverse."""

    lossy = True

    def __init__(
        self,
        name: str,
        compress: Callable[[npt.NDArray[np.float32], float], bytes],
        decompress: Callable[[Frame, str, tuple[int, ...], float], npt.NDArray[np.float32]],
        bound: Bound | None = None,
    ) -> None:
        self.name, self.bound = name, bound
        self._compress, self._decompress = compress, decompress

    def facts(self) -> dict[str, Any]:
        """Manifest entries that describe the error bound; empty for a lossless codec."""
        return self.bound.facts() if self.bound else {}

    def encode(self, array: npt.NDArray[np.float32]) -> Sections:
        """Encode ``array`` [rows, columns, channels] as the sections ``limits`` (float64, the bound of each
        channel) and ``plane0``, ``plane1``… Raises UserError for values that the library does not support, and if
        the decoded values exceed the bound."""
        assert self.bound
        array = as_stored(array)
        limits = self.bound.error * self.bound.ranges
        planes = zip(np.moveaxis(array, 2, 0), limits.tolist(), strict=True)
        parts = {f"plane{i}": self._compress(plane, limit) for i, (plane, limit) in enumerate(planes)}
        sections = {"limits": limits.astype("<f8").tobytes()} | parts
        out = np.empty(array.shape, np.float32)
        self.decode(frame.unpack(frame.pack(self.name, "<f4", array.shape, sections)), out)
        kept = (np.abs(out.astype(np.float64) - array) <= limits).all(axis=(0, 1))
        if not kept.all():
            channel = int(np.argmin(kept))
            raise UserError(
                f"{self.name}: error exceeds {limits[channel]:.3g} in channel {channel}; choose another codec"
            )
        return sections

    def decode(self, frame: Frame, out: npt.NDArray[np.float32]) -> None:
        """``out`` is [rows, columns, channels]."""
        frame.require(self.name, np.float32, out.shape)
        limits = frame.array("limits", "<f8", out.shape[2])
        for i, limit in enumerate(limits.tolist()):
            out[..., i] = self._decompress(frame, f"plane{i}", out.shape[:2], limit)


ZFP = partial(Planes, "zfp", library.zfp_compress, library.zfp_decompress)
SZ3 = partial(Planes, "sz3", library.sz3_compress, library.sz3_decompress)


def _take_plain(frame: Frame, section: str, out: npt.NDArray[Any]) -> None:
    out[...] = frame.array(section, out.dtype, out.size)


PLAIN = library.Compressed("plain", lambda field: field.tobytes(), _take_plain)
"""The codec that stores the field as it is, in one file with its mask."""
_BOUNDED: Mapping[str, Callable[[Bound], Codec]] = {
    "delta": partial(Delta, "delta"),
    "delta-small": partial(Delta, "delta-small"),
    "sz3": SZ3,
    "zfp": ZFP,
}
LINES = ("delta", "delta-small", "delta-paper")
"""The codecs whose samples a GPU can decode."""
_OURS: tuple[Codec, ...] = (*map(Delta, LINES), SZ3(), ZFP(), PLAIN)
CODECS: dict[str, Codec] = {codec.name: codec for codec in (*_OURS, *library.LOSSLESS)}
"""Decoders by name."""


def encoder(
    name: str,
    max_error: float | None,
    error_of: Of | None,
    minimum: npt.NDArray[Any],
    maximum: npt.NDArray[Any],
) -> Codec:
    """The codec ``name``, with a bound relative to the values, or to the channels' ranges from ``minimum`` to
    ``maximum``, both [channels]. Raises UserError for a bound that this codec does not support."""
    if name not in _BOUNDED:
        if max_error is not None or error_of is not None:
            raise UserError(f"--max-error does not apply to codec {name} (supported: {', '.join(_BOUNDED)})")
        return CODECS[name]
    error = 1e-3 if max_error is None else max_error
    if not 1e-12 < error < 1:
        raise UserError(f"--max-error {error} must be between 1e-12 and 1")
    of: Of = error_of or "range"
    if name in ("sz3", "zfp") and of == "value":
        raise UserError(
            f"--error-of value: {name} bounds only absolute errors; use --error-of range, or --codec delta"
        )
    return _BOUNDED[name](Bound(error, of, (maximum - minimum).astype(np.float64)))


def encode_sample(codec: Codec, field: npt.NDArray[np.float32], mask: npt.NDArray[np.uint8]) -> bytes:
    """Encode ``field`` [rows, columns, channels] and ``mask`` [rows, columns] as the content of a sample's
    file."""
    label = isal_zlib.compress(np.ascontiguousarray(mask), _MASK_LEVEL)
    return frame.pack(codec.name, "<f4", field.shape, {**codec.encode(field), "mask": label})


def decode_mask(frame: Frame, out: npt.NDArray[np.uint8]) -> None:
    """Fill ``out`` [rows, columns] with the mask of a sample. Raises UserError if it is malformed."""
    if "mask" not in frame.sections:
        raise frame.error("it has no section 'mask'")
    stream = isal_zlib.decompressobj()
    try:
        content = stream.decompress(frame.sections["mask"], out.size + 1)
    except Exception as error:  # the library has no error class of its own
        raise frame.error(f"not readable by zlib: {' '.join(str(error).split())[:160]}", "mask") from error
    if len(content) != out.size or not stream.eof:
        raise frame.error(f"is not a mask of {out.size} pixels", "mask")
    out[...] = np.frombuffer(content, np.uint8).reshape(out.shape)
