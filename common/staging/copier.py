"""Copies files and verifies their checksums, as fast as the storage allows.

Each file is read in blocks that stay in the processor's cache, and each block is checksummed and written from
there, so the checksum needs no second pass over memory. Copying inside the kernel (sendfile, copy_file_range)
would save one copy, but the checksum would have to read the bytes again, which takes the same time. Requesting
more readahead from the kernel (POSIX_FADV_WILLNEED) takes more processor time than its default readahead. Both
were measured: docs/reference/performance.md.
"""

import mmap
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from io import RawIOBase
from pathlib import Path
from typing import NamedTuple

from isal import isal_zlib

from mlhpc.common.data.manifest import File
from mlhpc.common.files import atomic
from mlhpc.common.files.filesystem import as_user_error
from mlhpc.common.files.regular import open_regular
from mlhpc.common.staging.streams import Streams
from mlhpc.common.staging.target import make_folders
from mlhpc.errors import UserError

BLOCK = 256 << 10
"""Bytes read, checksummed and written at a time. Larger blocks exceed the second-level cache and take up to
four times the processor time; smaller ones need more system calls."""


class Abandoned(Exception):
    """Copying a file was abandoned because something else failed."""


class Copied(NamedTuple):
    """Result of one rank: number of files and bytes copied, and the files that were already in place and
    correct."""

    files: int
    bytes: int
    kept: int


def copy_all(
    files: Sequence[File],
    present: Sequence[File],
    source: Path,
    target: Path,
    workers: int,
    in_place: Callable[[File], None],
    failures: list[BaseException],
) -> Copied:
    """Copy ``files`` from ``source`` to ``target``, at most ``workers`` at a time. Calls ``in_place``, from any
    thread, with each complete and verified file.

    ``present`` files are already in the target with the right size: their checksums are verified there, and files
    that differ are copied again. ``failures`` is a list, initially empty, to which other threads may also add
    errors. As soon as it has an error, all threads stop, and that error is raised. Errors of copying itself are
    UserErrors.
    """
    make_folders(target, {os.path.dirname(file.path) for file in (*files, *present)})
    # Threads take files from one iterator; half a million futures would take half a gigabyte of memory.
    queue: Iterator[tuple[File, bool]] = iter([*((f, False) for f in files), *((f, True) for f in present)])
    copied: list[File] = []
    streams = Streams(max(1, workers))

    def work(thread: int) -> None:
        block = memoryview(mmap.mmap(-1, BLOCK))  # aligned to pages
        while streams.wait_for_turn(thread) and not failures:
            file, is_present = next(queue, (None, False))
            if file is None:
                break
            try:
                if not (is_present and _is_intact(file, target, block, failures)):
                    _copy(file, source, target, block, failures)
                    copied.append(file)
                in_place(file)
            except Abandoned:
                break
            except BaseException as failure:
                failures.append(failure)
                break
            streams.done(file.size)
        streams.close()

    count = min(max(1, workers), len(files) + len(present))
    with ThreadPoolExecutor(max(1, count)) as pool:
        try:
            for future in [pool.submit(work, thread) for thread in range(count)]:
                future.result()
        except BaseException as interrupt:
            failures.append(interrupt)
            streams.close()
    if failures:
        raise failures[0]
    return Copied(len(copied), sum(file.size for file in copied), len(files) + len(present) - len(copied))


def _copy(file: File, source: Path, target: Path, block: memoryview, failures: Sequence[object]) -> None:
    """Copy one file through the buffer ``block``. Stops once there are ``failures``."""
    origin, remedy = source / file.path, f"see: mlhpc data verify {source}"
    with as_user_error(origin, "cannot be read", remedy):
        reader = os.fdopen(open_regular(origin), "rb", buffering=0)
    with reader:
        with as_user_error(origin, "cannot be read", remedy):
            status = os.fstat(reader.fileno())
            if status.st_size != file.size:
                raise UserError(f"{origin}: {status.st_size} bytes, expected {file.size}; {remedy}")
            os.posix_fadvise(reader.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)  # doubles the read-ahead

        def pieces() -> Iterator[memoryview]:
            while count := _read(reader, block, origin, remedy):
                if failures:
                    raise Abandoned
                yield block[:count]

        write_verified(file, target, pieces(), status.st_mtime_ns, str(origin), remedy)


def write_verified(
    file: File, target: Path, pieces: Iterable[memoryview], mtime_ns: int, origin: str, remedy: str
) -> None:
    """Write ``pieces`` as ``file`` in ``target``, with the modification time ``mtime_ns``.

    The file gets its final name once its size matches, and its checksum if the manifest has one. ``origin``: where
    the pieces come from, and ``remedy``: what to do, for messages. Raises UserError.
    """
    copy = target / file.path
    with (
        as_user_error(copy, "cannot be written", "free some space or choose another --stage"),
        atomic.writing(copy) as fd,
    ):
        size = crc = 0
        for piece in pieces:
            if file.crc32 is not None:
                crc = isal_zlib.crc32(piece, crc)
            size += len(piece)
            if size > file.size:
                break
            atomic.write_all(fd, piece)
        if size != file.size:
            raise UserError(
                f"{origin} changed during the copy ({size} of {file.size} bytes copied); {remedy}"
            )
        if file.crc32 is not None and crc != file.crc32:
            raise UserError(f"{origin}: checksum {crc:08x}, expected {file.crc32:08x}; {remedy}")
        os.utime(fd, ns=(mtime_ns, mtime_ns))


def _read(reader: RawIOBase, block: memoryview, origin: Path, remedy: str) -> int:
    with as_user_error(origin, "cannot be read", remedy):
        return reader.readinto(block) or 0


def _is_intact(file: File, target: Path, block: memoryview, failures: Sequence[object]) -> bool:
    """Return whether the staged file has the right checksum, if the manifest has one. Without a checksum, returns
    True, since the file's size and modification time have already been compared."""
    if file.crc32 is None:
        return True
    copy, crc = target / file.path, 0
    with (
        as_user_error(copy, "cannot be read", "choose another --stage"),
        os.fdopen(open_regular(copy, os.O_NOFOLLOW), "rb", buffering=0) as reader,
    ):
        while count := reader.readinto(block):
            if failures:
                raise Abandoned
            crc = isal_zlib.crc32(block[:count], crc)
    return crc == file.crc32
