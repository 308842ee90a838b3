"""The frame of an encoded sample: a checked header, then sections with checksums.

Little-endian throughout:

====== ===== ==================================================================
offset bytes
====== ===== ==================================================================
0      8     ``89 4D 4C 43 0D 0A 1A 0A``: not valid text, and damaged by text-mode transfers
8      2     version, 1
10     1     number of axes of the array, 1 to 4
11     1     number of sections, at most 64
12     16    name of the codec, ASCII, padded with NUL
28     4     type of the array as NumPy writes it (``<i2``), padded with NUL
32     16    shape, 4 × uint32, unused axes 0
48     4     CRC-32 of the header without these 4 bytes
52     12    zero
64     32·n  sections: name (8 bytes, ASCII, padded with NUL), offset in the file and length (uint64 each),
             CRC-32 of the content, 4 bytes zero
====== ===== ==================================================================

Sections follow each other in order, each at the next multiple of 64 bytes after zero padding, so that decoders
can read them in place; the file ends with the last one. Headers are checked against the file's size before
anything is allocated.
"""

import os
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np
import numpy.typing as npt
from isal import isal_zlib

from mlhpc.errors import UserError

MAGIC = b"\x89MLC\r\n\x1a\n"
_VERSION = 1
_HEAD = struct.Struct("<8sHBB16s4s4I")
HEAD_BYTES = 64
_SECTION = struct.Struct("<8sQQI4x")
_ALIGNED = 64
_MOST_SECTIONS = 64
_MOST_BYTES = 1 << 40  # of a decoded array: far larger than any sample, and far below overflow
_DTYPES = ("<i2", "<f4", "|u1")
_REMEDY = "copy or convert the file again"


@dataclass(frozen=True)
class Frame:
    """An encoded sample: its codec, the array that it decodes to, and its sections by name.

    ``where`` is the file named in messages, ``offsets`` the start of each section in it.
    """

    codec: str
    dtype: np.dtype[np.generic]
    shape: tuple[int, ...]
    sections: Mapping[str, memoryview]
    where: str = "encoded sample"
    offsets: Mapping[str, int] | None = None

    def error(self, problem: str, section: str | None = None) -> UserError:
        """A UserError naming the file and the position of the problem."""
        at = f" at byte {self.offsets[section]}" if section and self.offsets else ""
        name = f"section {section!r}{at}: " if section else ""
        return UserError(f"{self.where}: {name}{problem}; {_REMEDY}")

    def array(self, section: str, dtype: npt.DTypeLike, length: int | None = None) -> npt.NDArray[np.generic]:
        """A section as a one-dimensional array, without copying. Raises UserError if the section's size is not a
        multiple of the type's size or, if ``length`` is passed, not the size of that many items."""
        kind = np.dtype(dtype)
        if section not in self.sections:
            raise self.error(f"section {section!r} is missing")
        data = self.sections[section]
        if len(data) % kind.itemsize or (length is not None and len(data) != length * kind.itemsize):
            expected = f"a multiple of {kind.itemsize}" if length is None else f"{length * kind.itemsize}"
            raise self.error(f"has {len(data)} bytes, expected {expected}", section)
        return np.frombuffer(data, kind)

    def require(self, codec: str, dtype: npt.DTypeLike, shape: tuple[int, ...]) -> None:
        """Raise UserError unless this sample was encoded by ``codec`` from an array of this type and shape."""
        if self.codec != codec:
            raise UserError(f"{self.where}: encoded by codec {self.codec!r}, expected {codec!r}")
        if self.dtype != np.dtype(dtype) or self.shape != shape:
            raise UserError(
                f"{self.where}: contains {self.dtype.name} {list(self.shape)}, expected {np.dtype(dtype).name} "
                f"{list(shape)}; the preset's data.sample_shape does not match this data set"
            )


def pack(
    codec: str, dtype: npt.DTypeLike, shape: tuple[int, ...], sections: Mapping[str, bytes | memoryview]
) -> bytes:
    """Encode a frame with these ``sections`` as bytes."""
    kind = np.dtype(dtype)
    assert kind.str in _DTYPES and 1 <= len(shape) <= 4 and len(sections) <= _MOST_SECTIONS
    assert len(codec) <= 16 and all(len(name) <= 8 for name in sections)
    start = HEAD_BYTES + _SECTION.size * len(sections)
    rows, parts, at = [], [], start
    for name, content in sections.items():
        padding = -at % _ALIGNED
        parts += [bytes(padding), bytes(content)]
        at += padding
        rows.append(_SECTION.pack(name.encode(), at, len(content), isal_zlib.crc32(content)))
        at += len(content)
    head = _HEAD.pack(
        MAGIC, _VERSION, len(shape), len(sections), codec.encode(), kind.str.encode(),
        *shape, *[0] * (4 - len(shape)),
    )  # fmt: skip
    crc = isal_zlib.crc32(head + bytes(12) + b"".join(rows))
    return b"".join([head, struct.pack("<I12x", crc), *rows, *parts])


def unpack(data: bytes | memoryview, where: object = "encoded sample", checksums: bool = True) -> Frame:
    """Read a frame; the sections are views of ``data``.

    Raises UserError naming ``where`` if ``data`` is not a frame, or is truncated or damaged. Without
    ``checksums``, only the header's checksum is verified.
    """
    view, name = memoryview(data).cast("B"), str(where)

    def refuse(problem: str, at: int) -> UserError:
        return UserError(f"{name}: {problem} at byte {at}; {_REMEDY}")

    if view[:8] != MAGIC:
        raise UserError(f"{name}: not an encoded sample (wrong first bytes); {_REMEDY}")
    if len(view) < HEAD_BYTES:
        raise refuse("truncated in the header", len(view))
    _, version, axes, count, codec, dtype, *extents = _HEAD.unpack_from(view)
    if version != _VERSION:
        raise UserError(f"{name}: format version {version}, but only {_VERSION} is supported; {_REMEDY}")
    end = HEAD_BYTES + _SECTION.size * count
    if count > _MOST_SECTIONS or len(view) < end:
        raise refuse(f"truncated in the list of {count} sections", min(len(view), end))
    if isal_zlib.crc32(bytes(view[:48]) + bytes(view[52:end])) != struct.unpack_from("<I", view, 48)[0]:
        raise refuse("wrong checksum of the header", 48)
    # The checks below fail only for malicious files or defective writers.
    kind, shape = dtype.rstrip(b"\0").decode("latin-1"), tuple(extents[:axes])
    if kind not in _DTYPES or not 1 <= axes <= 4 or prod(shape) * 4 > _MOST_BYTES:
        raise refuse(f"impossible array {kind!r} {list(shape)}", 28)
    sections, offsets = _sections(view, count, checksums, refuse)
    return Frame(codec.rstrip(b"\0").decode("latin-1"), np.dtype(kind), shape, sections, name, offsets)


def _sections(
    view: memoryview, count: int, checksums: bool, refuse: Callable[[str, int], UserError]
) -> tuple[dict[str, memoryview], dict[str, int]]:
    """The ``count`` sections of a frame by name, and the byte at which each begins."""
    sections: dict[str, memoryview] = {}
    offsets: dict[str, int] = {}
    at = HEAD_BYTES + _SECTION.size * count
    for number in range(count):
        row = HEAD_BYTES + _SECTION.size * number
        raw, offset, length, crc = _SECTION.unpack_from(view, row)
        section = raw.rstrip(b"\0").decode("latin-1")
        if offset != at + -at % _ALIGNED or section in sections or not section.isalnum():
            raise refuse(f"impossible section {section!r}", row)
        at = offset + length
        if at > len(view):
            raise refuse(f"truncated: section {section!r} would end at byte {at}, the file ends", len(view))
        content = view[offset:at]
        if checksums and isal_zlib.crc32(content) != crc:
            raise refuse(f"wrong checksum of section {section!r}", offset)
        sections[section], offsets[section] = content, offset
    if at != len(view):
        raise refuse("extra bytes after the last section", at)
    return sections, offsets


def peek(head: bytes) -> tuple[str, tuple[int, ...]] | None:
    """Codec and shape, unchecked, from the first ``HEAD_BYTES`` of a file; None if it is not a frame."""
    if len(head) < HEAD_BYTES or head[:8] != MAGIC:
        return None
    _, _, axes, _, codec, _, *extents = _HEAD.unpack_from(head)
    return codec.rstrip(b"\0").decode("latin-1"), tuple(extents[:axes])


def is_whole(path: Path) -> bool:
    """Return whether a file is a complete frame; a file truncated by a power cut is not. Only the header and the
    list of sections are read. Raises OSError."""
    with path.open("rb") as file:
        head = file.read(HEAD_BYTES + _SECTION.size * _MOST_SECTIONS)
        size = os.fstat(file.fileno()).st_size
    if peek(head) is None:
        return False
    end = HEAD_BYTES + _SECTION.size * head[11]
    if HEAD_BYTES < end <= len(head):
        _, offset, length, _ = _SECTION.unpack_from(head, end - _SECTION.size)
        end = offset + length
    return bool(end == size)
