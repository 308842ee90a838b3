"""What a codec is: a way to keep one sample, an array and its label, in one file.

A codec encodes an array to named sections of a frame and decodes them into an array of the caller's. What a reader
needs beyond the bytes is in the frame; what the rules need is in the facts of the data set's manifest.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy.typing as npt

from mlhpc.common.data.codecs.frame import Frame
from mlhpc.errors import UserError, did_you_mean

Sections = Mapping[str, bytes | memoryview]


class Codec(Protocol):
    """``name`` is that of files and manifests; ``lossy``: decoded arrays may differ from what was encoded."""

    name: str
    lossy: bool

    def encode(self, array: npt.NDArray[Any]) -> Sections:
        """The sections that ``array`` is kept in."""
        ...

    def decode(self, frame: Frame, out: npt.NDArray[Any]) -> None:
        """Fill ``out``, C-contiguous, of the frame's shape and type. Raises UserError for a malformed frame."""
        ...


def facts(codec: Codec) -> dict[str, Any]:
    """What a manifest says of a data set kept by ``codec``: its name, and whether something was lost. A codec with
    a bound adds its own."""
    more: dict[str, Any] = getattr(codec, "facts", lambda: {})()
    return {"codec": codec.name, "lossy": codec.lossy} | more


def find(name: str, codecs: Mapping[str, Codec], where: object) -> Codec:
    """The codec called ``name`` in ``where``. Raises UserError when it is not one of ``codecs``."""
    if name not in codecs:
        raise UserError(f"{where}: encoded by {name!r}, which is no codec here; {did_you_mean(name, codecs)}")
    return codecs[name]


def require(found: Mapping[str, Any], codecs: Mapping[str, Codec], where: Path) -> None:
    """Raise UserError unless the facts ``found`` in the manifest ``where`` name one of ``codecs``, and are
    true of it: what decides whether a run is closed must not rest on an edited file."""
    codec = find(str(found.get("codec")), codecs, where)
    if found.get("lossy") is not codec.lossy:
        raise UserError(
            f"{where}: says lossy {found.get('lossy')} of {codec.name}, which is {codec.lossy}; "
            f"convert the data set again"
        )
