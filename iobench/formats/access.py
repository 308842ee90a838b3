"""Reads files and counts every call: bytes, position and time.

All formats read through ``CountedFile`` only, so the counts are the application's requests to its storage.
"""

import io
import mmap
import os
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from mlhpc.common.files.regular import open_regular
from mlhpc.errors import UserError
from mlhpc.iobench.formats.counting import UNSETTLED, ReadStatistics, clock

ALIGNMENT = 4096
"""Alignment of offset, length and address for O_DIRECT; it suffices for every disk's logical blocks (open(2),
NOTES)."""
LARGEST_READ = 1 << 30
"""Linux reads at most 2 GiB less a page at once (read(2))."""
DIRECT_READ = 8 << 20
"""Bytes of the aligned buffer for direct reads if the workload sets no transfer size."""
ADVICE = {"sequential": os.POSIX_FADV_SEQUENTIAL, "random": os.POSIX_FADV_RANDOM}

Bytes = npt.NDArray[np.uint8]


class CountedFile:
    """A file open for reading. Not thread-safe.

    ``transfer``: maximum bytes of a read, 0 for no limit. ``streaming``: the samples are read sequentially
    through a window of ``transfer`` bytes, like buffered input streams; otherwise exactly the requested bytes are
    read. ``block_bytes``: size of the buffer that Python's ``open`` uses for the file; 0 if ``transfer`` or
    ``direct`` determine the reads, and for objects. Raises UserError if the file cannot be opened or read, or ends
    early.
    """

    block_bytes = 0
    whole_buffers = False
    """With ``streaming``: whether to request a whole buffer even at the end of the file, and then the missing rest
    once more, as TensorFlow's PosixRandomAccessFile does."""

    def __init__(
        self,
        path: Path,
        statistics: ReadStatistics,
        transfer: int = 0,
        direct: bool = False,
        streaming: bool = False,
    ) -> None:
        self._begin(path, statistics, transfer, streaming)
        self._direct = direct
        self._aligned: mmap.mmap | None = None  # buffer for direct reads
        self._aligned_bytes = -(-min(self._transfer, DIRECT_READ) // ALIGNMENT) * ALIGNMENT + ALIGNMENT
        start = clock()
        try:
            self._fd = open_regular(path, os.O_DIRECT if direct else 0)
            status = os.fstat(self._fd)
        except OSError as error:
            hint = "; this file system does not support direct reads" if direct and error.errno == 22 else ""
            raise UserError(
                f"{path} cannot be opened: {error.strerror}{hint}; check the data folder"
            ) from error
        self.size = status.st_size
        self.block_bytes = 0 if transfer or direct else status.st_blksize
        statistics.opens += 1
        statistics.open_s += clock() - start

    def _begin(self, path: Path | str, statistics: ReadStatistics, transfer: int, streaming: bool) -> None:
        """Initialise what subclasses for other kinds of storage need as well. ``path`` is for messages."""
        self.path = path
        self._statistics = statistics
        self._transfer = min(transfer or LARGEST_READ, LARGEST_READ)
        self._streaming = streaming and transfer > 0
        self._direct = False
        self._fd = -1
        self._window, self._window_at = np.empty(0, np.uint8), 0
        self._previous_end = -1

    def advise(self, advice: Literal["sequential", "random"]) -> None:
        """Tell the kernel how the file will be read (posix_fadvise(2)); does nothing without a descriptor."""
        if self._fd >= 0:
            os.posix_fadvise(self._fd, 0, 0, ADVICE[advice])

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)
        if self._aligned is not None:
            self._aligned.close()

    def read(self, offset: int, length: int) -> Bytes:
        """Read ``length`` bytes from ``offset`` into a new buffer, uint8 [length]."""
        out = np.empty(length, np.uint8)
        self.read_into(offset, out)
        return out

    def read_into(self, offset: int, out: Bytes) -> None:
        """Fill ``out``, uint8 [length], with the bytes from ``offset`` on."""
        self._require_inside(offset, len(out))
        if not self._streaming:
            return self._fetch(offset, out)
        done = self._from_window(offset, out)
        if whole := (len(out) - done) // self._transfer * self._transfer:
            self._fetch(offset + done, out[done : done + whole])
            done += whole
        if done < len(out):
            self._window_at = at = offset + done
            if self.whole_buffers:
                self._window = np.empty(self._transfer, np.uint8)
                count = self.read_some(at, self._window)
                if 0 < count < self._transfer:
                    self.read_some(at + count, self._window[count:])
                self._window = self._window[:count]
            else:
                self._window = np.empty(min(self._transfer, self.size - at), np.uint8)
                self._fetch(at, self._window)
            self._from_window(at, out[done:])

    def _require_inside(self, offset: int, length: int) -> None:
        if offset < 0 or offset + length > self.size:
            raise UserError(
                f"{self.path} is damaged: {self.size} bytes instead of {offset + length}; regenerate it"
            )

    def read_some(self, offset: int, out: Bytes) -> int:
        """Request ``len(out)`` bytes in one read, as an application would, and return how many were read. Without
        a descriptor, or with direct reads, no bytes beyond the end of the file are requested."""
        if self._fd < 0 or self._direct:
            count = max(0, min(len(out), self.size - offset))
            if count:
                self._fetch(offset, out[:count])
            return count
        begin = clock()
        try:
            count = self._preadv(self._fd, (out.data,), offset)
        except OSError as error:
            raise self._unreadable(error) from error
        self._statistics.add(begin, clock(), offset, len(out), self._previous_end)
        self._previous_end = offset + len(out)
        return count

    def _unreadable(self, error: OSError) -> UserError:
        return UserError(
            f"{self.path} cannot be read: {error.strerror}; check the data folder and its file system"
        )

    def _from_window(self, offset: int, out: Bytes) -> int:
        """Copy bytes out of the window, starting at ``offset``; returns their number."""
        start = offset - self._window_at
        if not 0 <= start < len(self._window):
            return 0
        part = self._window[start : start + len(out)]
        out[: len(part)] = part
        return len(part)

    _preadv = staticmethod(os.preadv)

    def _fetch(self, offset: int, out: Bytes) -> None:
        """Read at most ``transfer`` bytes at a time until ``out`` is full."""
        view, done = out.data, 0
        try:
            while done < len(out):
                count = (self._read_direct if self._direct else self._read_run)(offset + done, view[done:])
                if count <= 0:
                    raise UserError(f"{self.path}: damaged: it ends at byte {offset + done}; regenerate it")
                done += count
        except OSError as error:
            raise self._unreadable(error) from error

    def _read_run(self, offset: int, out: memoryview) -> int:
        """Read into ``out`` by a run of consecutive reads, until it is full or a read is short; returns the number
        of bytes."""
        # Local names are faster than attributes, and this loop runs once per read.
        fd, transfer, read, now, at = self._fd, self._transfer, self._preadv, clock, 0
        length = min(len(out), UNSETTLED * transfer)
        note = self._statistics.begin_run(transfer, length)
        note(now())
        for at in range(0, length, transfer):
            part = out[at : at + transfer]
            count = read(fd, (part,), offset + at)
            note(now())
            if count != transfer:  # the last read, or a short one
                break
        asked = at + len(part)
        self._statistics.end_run(offset, transfer, asked, self._previous_end)
        self._previous_end = offset + asked
        return at + count

    def _read_direct(self, offset: int, out: memoryview) -> int:
        """Perform one direct read into ``out``; returns the number of bytes read."""
        part = out[: self._transfer]
        begin = clock()
        count = self._preadv_direct(self._fd, (part,), offset)
        end = clock()
        at, asked = self._blocks(offset, len(part))
        self._statistics.add(begin, end, at, asked, self._previous_end)
        self._previous_end = at + asked
        return count

    def _blocks(self, offset: int, length: int) -> tuple[int, int]:
        """Start and length of the aligned direct read for ``length`` bytes from ``offset``."""
        begin = offset // ALIGNMENT * ALIGNMENT
        return begin, min(-(-(offset + length - begin) // ALIGNMENT) * ALIGNMENT, self._aligned_bytes)

    def _preadv_direct(self, fd: int, buffers: tuple[memoryview], offset: int) -> int:
        """Like ``os.preadv``, but reads the aligned blocks that contain the requested bytes."""
        (out,) = buffers
        if self._aligned is None:
            self._aligned = mmap.mmap(-1, self._aligned_bytes)
        begin, asked = self._blocks(offset, len(out))
        # Released even if the read fails; otherwise the error's traceback would keep the memory from being closed.
        with memoryview(self._aligned) as whole, whole[:asked] as view:
            count = min(os.preadv(fd, [view], begin) - (offset - begin), len(out))
            if count > 0:
                out[:count] = view[offset - begin : offset - begin + count]
        return count


class MemoryFile(CountedFile):
    """A file whose bytes are in memory: infinitely fast storage. Nothing is counted."""

    def __init__(self, path: Path, data: Bytes, block_bytes: int = 0) -> None:
        self.path, self.size, self._data, self.block_bytes = path, len(data), data, block_bytes

    def close(self) -> None:
        """Does nothing."""

    def read(self, offset: int, length: int) -> Bytes:
        """``length`` bytes from ``offset``, uint8 [length], as a view of the memory."""
        self._require_inside(offset, length)
        return self._data[offset : offset + length]  # no copy

    def read_some(self, offset: int, out: Bytes) -> int:
        """Copy the available bytes from ``offset`` on into ``out``; returns their number."""
        part = self._data[offset : offset + len(out)]
        out[: len(part)] = part
        return len(part)

    def read_into(self, offset: int, out: Bytes) -> None:
        """Copy the bytes from ``offset`` on into ``out``, uint8 [length]."""
        out[:] = self.read(offset, len(out))


class FileObject(io.RawIOBase):
    """A counted file with a file position, for libraries. Closing it leaves the counted file open."""

    def __init__(self, file: CountedFile) -> None:
        self._file, self._at = file, 0

    def readable(self) -> bool:
        """Yes."""
        return True

    def seekable(self) -> bool:
        """Yes."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Like ``io.RawIOBase.seek``."""
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._file.size}[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Fill ``buffer``, or read to the end of the file; returns the number of bytes."""
        out = np.frombuffer(buffer, np.uint8)
        if self._file.block_bytes:
            count = self._file.read_some(self._at, out)
        else:
            out = out[: max(0, self._file.size - self._at)]
            count = len(out)
            if count:
                self._file.read_into(self._at, out)
        self._at += count
        return count

    def readall(self) -> bytes:
        """Read all remaining bytes, and try once more at the end, as Python's files do."""
        data = bytearray(max(0, self._file.size - self._at) + 1)
        done = 0
        while count := self.readinto(memoryview(data)[done:]):
            done += count
        return bytes(data[:done])


def buffered(file: CountedFile) -> io.BufferedReader | None:
    """``file`` as a buffered file like those of Python's ``open``, with a buffer of the file system's block size;
    None if the workload or the storage determines the reads."""
    return io.BufferedReader(FileObject(file), file.block_bytes) if file.block_bytes else None
