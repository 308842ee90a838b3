"""The interface of codecs, which store one sample, an array and its label, in one file.

A codec encodes an array to named sections of a frame and decodes them into the caller's array. The frame contains
what a decoder needs; the data set's manifest contains what the benchmark's rules ask for.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from mlhpc.common.data.codecs.frame import Frame
from mlhpc.errors import UserError, did_you_mean

Sections = Mapping[str, bytes | memoryview]


class Codec(Protocol):
    """A codec. ``name``: its name in files and manifests; ``lossy``: whether decoded arrays may differ from the
    original."""

    name: str
    lossy: bool

    def encode(self, array: npt.NDArray[Any]) -> Sections:
        """The sections that encode ``array``, which has up to four axes, of any shape, order and byte order."""
        ...

    def decode(self, frame: Frame, out: npt.NDArray[Any]) -> None:
        """Decode ``frame`` into ``out``, which is C-contiguous and has the frame's shape and type. Raises
        UserError if the frame is malformed, ValueError if ``out`` has a different memory order."""
        ...


def as_stored(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """``array``, of any shape, in the memory order of frames: axes in C order, bytes little-endian. Codecs encode
    arrays in this order because they read the bytes as they are in memory."""
    return np.ascontiguousarray(array, array.dtype.newbyteorder("<"))


def require_order(out: npt.NDArray[Any]) -> None:
    """Raise ValueError unless ``out``, of any shape, has the memory order of frames; otherwise a decoder would
    fill a copy instead of ``out``."""
    if not out.flags.c_contiguous or out.dtype != out.dtype.newbyteorder("<"):
        raise ValueError("samples are decoded into C-contiguous little-endian arrays")


def facts(codec: Codec) -> dict[str, Any]:
    """The facts about ``codec`` in the manifest of a data set that it encoded: the codec's name, whether it is
    lossy, and its error bound, if it has one."""
    more: dict[str, Any] = getattr(codec, "facts", lambda: {})()
    return {"codec": codec.name, "lossy": codec.lossy} | more


def find(name: str, codecs: Mapping[str, Codec], where: object) -> Codec:
    """The codec called ``name``. Raises UserError, which names the file ``where``, if it is not one of
    ``codecs``."""
    if name not in codecs:
        raise UserError(f"{where}: encoded by {name!r}, an unknown codec; {did_you_mean(name, codecs)}")
    return codecs[name]


def find_stated(encoded: Frame, codecs: Mapping[str, Codec], stated: str | None, where: object) -> Codec:
    """The codec of the sample ``encoded``. Raises UserError, which names the file ``where``, unless that codec is
    one of ``codecs`` and is the one named by the data set's manifest, ``stated`` (None: the manifest names none).
    """
    codec = find(encoded.codec, codecs, where)
    if codec.name != stated:
        by = f"codec {stated!r}" if stated else "no codec"
        raise UserError(
            f"{where}: encoded by {codec.name!r}, but the manifest states {by}; convert the data set again"
        )
    return codec


def require(stated: Mapping[str, Any], codecs: Mapping[str, Codec], where: Path) -> None:
    """Raise UserError unless the facts ``stated`` in the manifest ``where`` name one of ``codecs`` and match that
    codec, so that editing a manifest cannot make a run count as a closed-division run."""
    codec = find(str(stated.get("codec")), codecs, where)
    if stated.get("lossy") is not codec.lossy:
        raise UserError(
            f"{where}: lossy={stated.get('lossy')} does not match codec {codec.name}; convert the data set again"
        )
