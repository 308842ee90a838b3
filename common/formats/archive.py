"""Archives: many sample files in one ZIP file, stored without compression and located by the index at its end.

A member keeps its own format, so it is a range of bytes of the archive, and any ZIP tool can list and unpack
it. Reads are verified by the CRC-32 in the index.
"""

import os
import struct
import zipfile
from collections.abc import Callable, Iterable
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from isal import isal_zlib

from mlhpc.common.files import atomic
from mlhpc.common.files.filesystem import as_user_error
from mlhpc.common.files.regular import open_regular, size_to_read
from mlhpc.common.formats.extent import opened, read_into
from mlhpc.errors import UserError

SUFFIX = ".zip"
_REMEDY = "copy or convert it again"
# A member's header ends with the lengths of the name and extra field that follow it (APPNOTE.TXT, 4.3.7).
_HEADER, _SIGNATURE = struct.Struct("<26xHH"), b"PK\x03\x04"
_KEPT = 4096  # indexes kept in memory: about 40 MB if each has 64 members


class Member(NamedTuple):
    """A sample in an archive. ``number``: its position in the archive's index, counted from 0."""

    archive: Path
    number: int

    def __str__(self) -> str:
        return f"{self.archive}: member {self.number}"


Sample = Path | Member
"""Location of a sample: a single file, or a member of an archive."""


class _Entry(NamedTuple):
    """An entry of an index: start of the member's header, and size in bytes and CRC-32 of its content."""

    header: int
    size: int
    crc32: int


def file_of(sample: Sample) -> Path:
    """The file of a sample."""
    return sample.archive if isinstance(sample, Member) else sample


def write(path: Path, members: Iterable[tuple[str, bytes | bytearray | memoryview]]) -> None:
    """Write ``members``, pairs of file name and content, in this order; the archive appears when it is complete.
    The same members always yield the same bytes. Raises OSError."""
    with (
        atomic.writing(path) as fd,
        open(fd, "r+b", closefd=False) as stream,
        zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive,
    ):
        for name, content in members:
            archive.writestr(zipfile.ZipInfo(name), content)  # dated 1980-01-01, the earliest possible


def members(path: Path) -> list[Member]:
    """The members of an archive in order. Raises UserError if the archive cannot be read, is not a ZIP file, or
    has members that are compressed by ZIP, encrypted, or beyond its end."""
    return [Member(path, number) for number in range(len(_index(path, *_version(path))))]


def list_samples(
    folder: Path, is_sample: Callable[[str], bool], kinds: str, expected: int | None = None
) -> list[Sample]:
    """The first ``expected`` samples of a folder (None: all), sorted by name: the files for whose names
    ``is_sample`` is true, or, if there are archives, their members. Raises UserError like ``members``, and also if
    there are no samples or fewer than ``expected``; that message names ``kinds``, the expected kinds of files."""
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder; pass the data set's folder, which contains train/")
    with os.scandir(folder) as entries:
        names = sorted(entry.name for entry in entries if not entry.name.startswith("."))
    samples: list[Sample] = [
        member for name in names if name.endswith(SUFFIX) for member in members(folder / name)
    ]
    samples = samples or [folder / name for name in names if is_sample(name)]
    if len(samples) < (1 if expected is None else expected):
        raise UserError(f"{folder}: {len(samples)} {kinds} samples instead of {expected or 'at least one'}")
    return samples[:expected]


def read(sample: Sample) -> memoryview:
    """The content of a sample's file or archive member, in a separate buffer. Raises UserError if its file cannot
    be read. For a member, also raises like ``members``, and if the archive has no such member or the member is
    damaged."""
    if not isinstance(sample, Member):
        with (
            as_user_error(sample, "cannot be read", "check the data set"),
            open(open_regular(sample), "rb", buffering=0) as file,
        ):
            size_to_read(file.fileno())
            return memoryview(file.readall())
    path, member = sample.archive, sample
    entries = _index(path, *_version(path))
    if not 0 <= member.number < len(entries):
        raise UserError(f"{path} has only {len(entries)} members, so no member {member.number}; {_REMEDY}")
    entry = entries[member.number]
    with opened(path) as fd:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)  # no readahead: its neighbours are not needed
        start = _start(fd, member, entry)
        if start + entry.size > os.fstat(fd).st_size:
            raise UserError(
                f"{member}: extends beyond the end of the archive, which is truncated or damaged; {_REMEDY}"
            )
        content = np.empty(entry.size, np.uint8)
        read_into(fd, path, start, content)
    if (crc := isal_zlib.crc32(content)) != entry.crc32:
        raise UserError(f"{member}: checksum {crc:08x}, expected {entry.crc32:08x}; {_REMEDY}")
    return content.data


def _version(path: Path) -> tuple[int, int]:
    """Size and modification time of an archive, which differ once a different archive has replaced it."""
    with opened(path) as fd:
        status = os.fstat(fd)
        return status.st_size, status.st_mtime_ns


@lru_cache(_KEPT)
def _index(path: Path, size: int, mtime_ns: int) -> tuple[_Entry, ...]:
    try:
        with opened(path) as fd, open(fd, "rb", closefd=False) as stream, zipfile.ZipFile(stream) as archive:
            entries = archive.infolist()
    except UserError:
        raise
    except Exception as error:  # zipfile raises almost any exception for a damaged index
        reason = " ".join(str(error).split())[:160] or type(error).__name__
        raise UserError(f"{path}: not a readable ZIP archive ({reason}); {_REMEDY}") from error
    for number, each in enumerate(entries):
        what = f"{path}: member {number}"
        if (
            each.compress_type != zipfile.ZIP_STORED
            or each.flag_bits & 1
            or each.compress_size != each.file_size
        ):
            raise UserError(
                f"{what}: ZIP compression and encryption are not supported; write archives with mlhpc data convert"
            )
        if not 0 <= each.header_offset <= each.header_offset + each.file_size <= size:
            raise UserError(
                f"{what}: extends beyond the end of the archive, which is truncated or damaged; {_REMEDY}"
            )
    return tuple(_Entry(each.header_offset, each.file_size, each.CRC) for each in entries)


def _start(fd: int, member: Member, entry: _Entry) -> int:
    """Start of a member's content, found from the header before it, whose length depends on the writer."""
    head = os.pread(fd, _HEADER.size, entry.header)
    if len(head) < _HEADER.size or not head.startswith(_SIGNATURE):
        raise UserError(
            f"{member} is not at byte {entry.header}, where the archive's index puts it; {_REMEDY}"
        )
    name, extra = _HEADER.unpack(head)
    return entry.header + _HEADER.size + int(name) + int(extra)
