"""TFRecord files, read and written without TensorFlow. ``tf_example`` handles the messages in them.

Framing (tensorflow/core/lib/io/record_writer.h): each record consists of its length (little-endian uint64), the
masked CRC-32C of those 8 bytes, its bytes, and the masked CRC-32C of its bytes; mask(c) = (c rotated right by 15)
+ 0xa282ead8. A compressed file is a single gzip stream around all of this.
"""

import os
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Literal

import numpy as np
import numpy.typing as npt
from isal import igzip, isal_zlib

from mlhpc.common.files import atomic
from mlhpc.common.files.filesystem import as_user_error
from mlhpc.common.formats import archive, crc32c
from mlhpc.common.formats.archive import Sample
from mlhpc.errors import UserError

GZIP_MAGIC = b"\x1f\x8b"
CHECKSUM_BYTES = 4
LENGTH_BYTES = 8 + CHECKSUM_BYTES  # before each record, with the checksum of the length
RECORD_OVERHEAD = LENGTH_BYTES + CHECKSUM_BYTES  # bytes of framing per record
Packer = Literal["zlib", "isal"]
"""Compressor of a file. zlib: level 6 and memory level 9, the defaults of TensorFlow's writer, which yield the
same bytes. isal: level 2, about 25 times faster, with files up to a third larger."""
# Byte 9 of a gzip header (RFC 1952) as written by each compressor.
_OS_OF_PACKER: dict[Packer, int] = {"zlib": 3, "isal": 255}
_ISAL_ERROR: type[Exception] = isal_zlib.error  # type: ignore[assignment]  # its stub has an instance here
REMEDY = "copy or regenerate the file"
MAX_BYTES = 2 << 30
"""Default limit of the decompressed size of a gzip file: twice the largest published sample, which has 512³ × 4
values of 2 bytes."""


def write_records(path: Path, records: Iterable[bytes], gzip: bool, packer: Packer = "zlib") -> None:
    """Write ``records``, compressed by ``packer`` if ``gzip``, to ``path``, which appears once it is complete.

    The same records always yield the same bytes in a plain file or with the same version of zlib. isal's files
    have no time or name in the gzip header and decompress to the same content, but isal 1.9.1 compresses about one
    file in 20,000 differently, and other versions and processors may differ more.

    Raises OSError.
    """
    with atomic.writing(path) as fd:
        atomic.write_all(fd, memoryview(file_bytes(records, gzip, packer)))


def file_bytes(records: Iterable[bytes], gzip: bool, packer: Packer = "zlib") -> bytes | bytearray:
    """The content of the file that ``write_records`` writes."""
    framed = bytearray()
    for record in records:
        length = struct.pack("<Q", len(record))
        framed += length + checksum(length) + record
        framed += checksum(record)
    return compress(framed, packer) if gzip else framed


def compress(data: bytes | bytearray, packer: Packer) -> bytes:
    """Compress ``data`` into one gzip stream without time or name."""
    if packer == "isal":
        packed: bytes = igzip.compress(data, compresslevel=2, mtime=0)
        return packed
    stream = zlib.compressobj(6, zlib.DEFLATED, 31, 9)
    return stream.compress(data) + stream.flush()


def packer_of(header: bytes) -> Packer | None:
    """The packer that wrote a gzip file, as named in ``compress``, judging by the file's first 10 bytes; None if
    it is neither of the two."""
    if header[:2] == GZIP_MAGIC and len(header) >= 10:
        return next((packer for packer, system in _OS_OF_PACKER.items() if header[9] == system), None)
    return None


def write_record(fd: int, pieces: Sequence[bytes | memoryview]) -> None:
    """Write a record, the concatenated ``pieces``, to a plain file without copying them.

    Raises OSError.
    """
    length, crc = struct.pack("<Q", sum(map(len, pieces))), 0
    for piece in pieces:
        crc = crc32c.extend(crc, piece)
    framed = [length + checksum(length), *pieces, masked(crc)]
    written = os.writev(fd, framed)
    if written < sum(map(len, framed)):
        atomic.write_all(fd, memoryview(b"".join(framed))[written:])


def read_records(
    path: Sample, max_bytes: int = MAX_BYTES, raw: bytes | memoryview | None = None
) -> Iterator[memoryview]:
    """The records of a TFRecord file, plain or gzip (judging by its first bytes), with every checksum verified.

    Unless the caller passes the file's content as ``raw``, the whole file is read, since it contains one sample.
    The records are views of the content in memory. A gzip file that would decompress to more than ``max_bytes`` is
    refused before memory for it is allocated.

    Raises UserError naming the file when it cannot be read, is not a TFRecord file, or is too large,
    truncated or corrupt.
    """
    if raw is None:
        raw = archive.read(path)
    zipped = raw[:2] == GZIP_MAGIC
    data = memoryview(_inflate(raw, path, max_bytes) if zipped else raw)
    where = f"{path}: " + ("inside the gzip stream, " if zipped else "")
    at, number = 0, 0
    while at < len(data):
        if len(data) - at < 12:
            if not number and not zipped:
                raise UserError(f"{where}not a TFRecord file ({len(data)} bytes); {REMEDY}")
            raise UserError(f"{where}truncated at byte {len(data)} in header of record {number}; {REMEDY}")
        header = bytes(data[at : at + 8])
        if checksum(header) != data[at + 8 : at + 12]:
            if not number:
                kind = _kind(bytes(data[:16]))
                why = f", but {kind}" if kind else " (wrong checksum of the first length)"
                raise UserError(f"{where}not a TFRecord{why}; {REMEDY}")
            raise UserError(f"{where}wrong checksum of the length of record {number} at byte {at}; {REMEDY}")
        (length,) = struct.unpack("<Q", header)
        start = at + 12
        at = start + length + 4
        if at > len(data):
            raise UserError(f"{where}truncated at byte {len(data)} of {at} in record {number}; {REMEDY}")
        record = data[start : at - 4]
        if checksum(record) != data[at - 4 : at]:
            raise UserError(f"{where}wrong checksum of record {number} at byte {start}; {REMEDY}")
        yield record
        number += 1


_KINDS = {
    GZIP_MAGIC: "compressed with gzip a second time",
    b"\x89HDF\r\n\x1a\n": "an HDF5 file",
    b"\x93NUMPY": "a NumPy array",
    b"PK\x03\x04": "a ZIP archive",
    b"\x28\xb5\x2f\xfd": "compressed with Zstandard",
    b"\x04\x22\x4d\x18": "compressed with LZ4",
    b"BZh": "compressed with bzip2",
    b"\xfd7zXZ\0": "compressed with xz",
    b"\xff\xd8\xff": "a JPEG image",
    b"\x89PNG": "a PNG image",
    b"<": "HTML or XML, such as an error page",
    b"{": "JSON",
    b"version https:": "a Git LFS pointer, whose content was not downloaded",
}
"""Kinds of files by their first bytes."""


def _kind(head: bytes) -> str:
    """What kind of file begins with ``head`` if it is not a TFRecord file; "" if unknown."""
    if len(head) > 1 and head[0] == 0x78 and int.from_bytes(head[:2], "big") % 31 == 0:  # RFC 1950
        return "compressed with ZLIB, which is not supported: write it plain or with GZIP"
    return next((kind for start, kind in _KINDS.items() if head.startswith(start)), "")


def record_extents(path: Path) -> npt.NDArray[np.int64]:
    """Offset and length in bytes of the content of every record of a plain file, [records, 2].

    Reads only the headers, so large files take little time. Raises UserError naming the file when it cannot be
    read, is not a plain TFRecord file, or is truncated.
    """
    extents: list[tuple[int, int]] = []
    with _opened(path) as file:
        fd, end, at = file.fileno(), os.fstat(file.fileno()).st_size, 0
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)  # no readahead around each header
        while at < end:
            header = os.pread(fd, 12, at)
            if len(header) < 12 or masked(crc32c.extend(0, header[:8])) != header[8:]:
                problem = (
                    f"wrong header of record {len(extents)} at byte {at}: damaged, or truncated"
                    if extents
                    else "not a plain TFRecord file"
                )
                raise UserError(f"{path}: {problem}; {REMEDY}")
            (length,) = struct.unpack("<Q", header[:8])
            extents.append((at + 12, length))
            at += length + RECORD_OVERHEAD
    if at > end:
        last = len(extents) - 1
        raise UserError(f"{path}: truncated at byte {end} of {at} in record {last}; {REMEDY}")
    return np.array(extents, np.int64).reshape(-1, 2)


def read_record(path: Path, offset: int, length: int) -> memoryview:
    """The record that ``record_extents`` found at this position in a plain file, with its checksum verified, in
    separate, writable memory.

    Raises UserError naming the file when it cannot be read, is truncated or corrupt.
    """
    data = np.empty(length + 4, np.uint8)
    with _opened(path) as file:
        count = os.preadv(file.fileno(), [data.data], offset)
    if count < len(data):
        raise UserError(f"{path}: truncated at byte {offset + count}, inside a record; {REMEDY}")
    if masked(crc32c.extend(0, data[:length])) != data[length:].tobytes():
        raise UserError(f"{path}: wrong checksum of the record at byte {offset}; {REMEDY}")
    return data[:length].data


def _opened(path: Path) -> BinaryIO:
    with as_user_error(path, "cannot be read", "check the data set"):
        return path.open("rb", buffering=0)


def checksum(data: bytes | memoryview | npt.NDArray[np.uint8]) -> bytes:
    """The CRC-32C of ``data``, [n], masked as it is stored."""
    return masked(crc32c.extend(0, data))


def masked(crc: int) -> bytes:
    """A CRC-32C, masked as it is stored (tensorflow/core/lib/hash/crc32c.h)."""
    return struct.pack("<I", (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF)


def _inflate(raw: bytes | memoryview, path: Sample, max_bytes: int) -> bytes:
    # The last 4 bytes of a gzip member are its length (RFC 1952): if it is right, one allocation suffices, which
    # is a quarter faster. Otherwise (several members, a truncated file) the general method is used.
    length = int.from_bytes(raw[-4:], "little")
    # Deflate compresses at most 1032:1 (zlib's technical notes).
    plausible = 0 < length <= min(max_bytes, 1100 * len(raw))
    try:
        if plausible:
            stream = isal_zlib.decompressobj(31)
            data: bytes = stream.decompress(raw, length)
            if stream.eof and not stream.unused_data:
                return data
        return b"".join(_members(raw, path, max_bytes))
    except EOFError as error:
        raise UserError(f"{path}: truncated gzip file: it ends at byte {len(raw)}; {REMEDY}") from error
    except (_ISAL_ERROR, OSError) as error:
        if "incomplete" in str(error).lower():
            raise UserError(f"{path}: truncated gzip file: it ends at byte {len(raw)}; {REMEDY}") from error
        raise UserError(f"{path}: corrupt gzip file: {error}; {REMEDY}") from error


def _members(raw: bytes | memoryview, path: Sample, max_bytes: int) -> Iterator[bytes]:
    """The decompressed content of each gzip member of ``raw``. Refuses content of more than ``max_bytes`` in
    total."""
    left = max_bytes
    while raw:
        stream = isal_zlib.decompressobj(31)
        data: bytes = stream.decompress(raw, left + 1)  # 0 would mean no limit
        left -= len(data)
        if left < 0:
            raise UserError(f"{path}: unpacks to more than the maximum of {max_bytes} bytes; {REMEDY}")
        if not stream.eof:
            raise EOFError
        yield data
        raw = stream.unused_data.lstrip(b"\0")  # padding is allowed between members and at the end
