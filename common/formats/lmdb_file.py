"""Reads LMDB files without the LMDB library, which can crash or loop forever on a damaged file.

The format (liblmdb, mdb.c: MDB_page, MDB_node, MDB_db, MDB_meta; little-endian, 64-bit): a file consists of pages
of equal size. The first two are meta pages, each with the root of a B+ tree of branch and leaf pages; the one with
the newer transaction is current. A page begins with a header and an array of the offsets of its nodes. A node is a
header of 8 bytes and a key. In a branch page, the node's header has the number of the child page; in a leaf page,
the length of the value, which follows the key. A long value is on separate overflow pages; the number of the first
one then follows the key.

LMDB 0.9 writes version 1 of the format; LMDB 1.0 writes version 3, with longer page headers.
"""

import os
import struct
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mlhpc.common.files.regular import open_regular
from mlhpc.errors import UserError

_MAGIC = 0xBEEFC0DE
_HEADER_BYTES = {1: 16, 3: 24}
"""Size in bytes of a page's header for each version of the format: page number (8), transaction (8, version 3
only), padding (2), flags (2), then the bounds of the free space (2 each) or the number of overflow pages (4)."""
_BRANCH, _LEAF, _OVERFLOW = 0x01, 0x02, 0x04  # kinds of pages
_KINDS = 0x2F  # the page flags that state its kind; the others describe pages in memory
_ON_OVERFLOW_PAGES = 0x01  # a node's flag; the other flags are for duplicates and named databases
_NODE_HEADER_BYTES = 8
_NO_ROOT = 2**64 - 1
_MAX_DEPTH = 32  # CURSOR_STACK in mdb.c
_META = struct.Struct("<II16xI48xHH24xQQQQ")
"""Magic number, version; page size; flags, depth, entries and root of the main database; last page,
transaction."""
_REMEDY = "copy or regenerate it"
_Int64s = npt.NDArray[np.int64]


class LmdbFile:
    """The keys and values of the main database of an LMDB file, in key order.

    Opening the file reads every branch and leaf page once, but no values on overflow pages. The file must not
    change while it is in use. Thread-safe and picklable.

    Raises UserError if the file cannot be read, is not LMDB, is damaged or truncated, or has duplicate keys or
    named databases.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd: int | None = None
        try:
            fd = self._opened()
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)  # the pages of the tree lie far apart
            self._layout = _current_layout(fd)
            self._extents = _list_extents(fd, self._layout)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_NORMAL)
        except _Damaged as error:
            raise UserError(f"{path}: {error}; {_REMEDY}") from error
        except OSError as error:
            raise UserError(f"{path} cannot be read ({error.strerror or error}); {_REMEDY}") from error

    def __len__(self) -> int:
        return len(self._extents)

    def key(self, index: int) -> bytes:
        """The key of entry ``index``. Raises UserError if it cannot be read."""
        offset, length = map(int, self._extents[index, :2])
        return self._read(offset, length).tobytes()

    def value(self, index: int) -> npt.NDArray[np.uint8]:
        """The value of entry ``index``, uint8 [bytes], in a separate writable buffer. Raises UserError if it
        cannot be read."""
        offset, length, page = map(int, self._extents[index, 2:])
        if not page:
            return self._read(offset, length)
        header = self._layout.header
        data = self._read(offset - header, header + length)
        if self._layout.number_and_kind(data) != (page, _OVERFLOW):
            raise UserError(f"{self.path}: no value starts at page {page}; {_REMEDY}")
        return data[header:]

    def _read(self, offset: int, length: int) -> npt.NDArray[np.uint8]:
        data = np.empty(length, np.uint8)
        try:
            complete = _read_into(self._opened(), offset, data)
        except OSError as error:
            raise UserError(f"{self.path} cannot be read ({error.strerror or error}); {_REMEDY}") from error
        if not complete:
            raise UserError(f"{self.path}: truncated: it ends before byte {offset + length}; {_REMEDY}")
        return data

    def _opened(self) -> int:
        if self._fd is None:
            fd = open_regular(self.path)
            weakref.finalize(self, os.close, fd)
            self._fd = fd
        return self._fd

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_fd": None}


class _Damaged(ValueError):
    """Raised if the file is damaged. The message describes the damage without the file's name."""


def _unreadable(reason: str) -> _Damaged:
    return _Damaged(f"not a readable LMDB data file ({reason})")


@dataclass(frozen=True)
class _Layout:
    """Facts from a meta page. ``page`` and ``header``: size in bytes of a page and of its header; ``pages``:
    number of complete pages; ``depth``, ``entries`` and ``root``: tree depth, number of entries and root page of
    the main database."""

    version: int
    page: int
    header: int
    pages: int
    depth: int
    entries: int
    root: int

    @property
    def origin(self) -> int:
        """The position in a page from which its offsets are counted."""
        return self.header if self.version == 3 else 0

    def number_and_kind(self, page: npt.NDArray[np.uint8]) -> tuple[int, int]:
        """The number and kind of a page, from its header."""
        flags: int = struct.unpack_from("<H", page.data, self.header - 6)[0]
        return struct.unpack_from("<Q", page.data)[0], flags & _KINDS


def _current_layout(fd: int) -> _Layout:
    """The file's layout, from the meta page with the newer transaction. Like LMDB, this refuses a file unless both
    meta pages are valid."""
    size = os.fstat(fd).st_size
    first = _read_meta(fd, 0)
    second = _read_meta(fd, first[2])
    version, page, _, depth, entries, root = (second if second[-1] > first[-1] else first)[1:7]
    header, pages = _HEADER_BYTES[version], size // page
    if not (root == _NO_ROOT and entries == 0):
        if not 2 <= root < pages:
            raise _beyond(size, root, page)
        if not 1 <= depth <= _MAX_DEPTH:
            raise _unreadable(f"a tree of depth {depth}")
    return _Layout(version, page, header, pages, depth, entries, root)


def _read_meta(fd: int, offset: int) -> tuple[int, ...]:
    data = os.pread(fd, max(_HEADER_BYTES.values()) + _META.size, offset)
    for header in _HEADER_BYTES.values():
        if len(data) < header + _META.size:
            break
        meta = _META.unpack_from(data, header)
        magic, version, page = meta[:3]
        if magic != _MAGIC:
            continue
        if _HEADER_BYTES.get(version) != header:
            readable = " and ".join(map(str, _HEADER_BYTES))
            raise _Damaged(f"LMDB version {version} (supported: {readable}); convert the images again")
        if page & (page - 1) or not 256 <= page <= 1 << 16:
            raise _unreadable(f"pages of {page} bytes")
        return meta
    raise _unreadable(f"no meta page at byte {offset}")


def _list_extents(fd: int, layout: _Layout) -> _Int64s:
    """Positions of keys and values, ``[entries, 5]``: offset and length of the key, offset and length of the
    value, and the first overflow page, or 0 if the value follows its key."""
    leaves = list(_leaf_extents(fd, layout))
    extents: _Int64s = np.concatenate([np.empty((0, 5), np.int64), *leaves])
    if len(extents) != layout.entries:
        raise _unreadable(f"{len(extents)} entries, its header counts {layout.entries}")
    long = extents[extents[:, 4] > 0]
    long = long[np.argsort(long[:, 4])]
    if (long[:-1, 2] + long[:-1, 3] > long[1:, 2]).any():
        raise _unreadable("values overlap")
    return extents


def _leaf_extents(fd: int, layout: _Layout) -> Iterator[_Int64s]:
    """The extents (see ``_list_extents``) in every leaf from left to right, with one read per page. All leaves are
    at the same depth."""
    waiting = [(layout.root, 1)] if layout.entries else []
    visited = set()
    while waiting:
        number, level = waiting.pop()
        if number in visited:
            raise _unreadable(f"page {number} occurs twice")
        visited.add(number)
        page = np.empty(layout.page, np.uint8)
        if not 2 <= number < layout.pages or not _read_into(fd, number * layout.page, page):
            raise _beyond(os.fstat(fd).st_size, number, layout.page)
        expected = _LEAF if level == layout.depth else _BRANCH
        if layout.number_and_kind(page) != (number, expected):
            raise _unreadable(f"page {number} is not a {'leaf' if expected == _LEAF else 'branch'}")
        nodes = _nodes(page, number, layout)
        if expected == _LEAF:
            yield _extents_in_leaf(page, number, nodes, layout)
        else:
            low, high, top = (_words_at(page, nodes + k) for k in (0, 2, 4))
            children = low | high << 16 | top << 32
            waiting.extend((child, level + 1) for child in children[::-1].tolist())


def _nodes(page: npt.NDArray[np.uint8], number: int, layout: _Layout) -> _Int64s:
    """Offsets of the nodes in a page; their headers are inside the page, and no two start at the same offset."""
    words = page.view("<u2")
    lower, upper = (int(words[layout.header // 2 - k]) + layout.origin for k in (2, 1))
    nodes = words[layout.header // 2 : lower // 2].astype(np.int64) + layout.origin
    inside = layout.header <= lower <= upper <= layout.page and not lower % 2
    if not inside or ((nodes < upper) | (nodes > layout.page - _NODE_HEADER_BYTES) | (nodes % 2 > 0)).any():
        raise _unreadable(f"nodes outside page {number}")
    if len(np.unique(nodes)) != len(nodes):
        raise _unreadable(f"a node occurs twice in page {number}")
    return nodes


def _extents_in_leaf(page: npt.NDArray[np.uint8], number: int, nodes: _Int64s, layout: _Layout) -> _Int64s:
    low, high, flags, key_bytes = (_words_at(page, nodes + k) for k in (0, 2, 4, 6))
    if (flags & ~_ON_OVERFLOW_PAGES).any():
        raise _Damaged("has duplicate keys or named databases, which are not supported")
    length = low | high << 16
    key = nodes + _NODE_HEADER_BYTES
    value = key + key_bytes + (key_bytes % 2 if layout.version == 3 else 0)
    overflows = flags > 0
    if (value + np.where(overflows, 8, length) > layout.page).any():
        raise _unreadable(f"a value outside page {number}")
    first = np.zeros(len(nodes), np.int64)
    numbers = page[value[overflows, None] + np.arange(8)].view("<u8").ravel()
    if (numbers < 2).any():
        raise _unreadable(f"a value in a meta page, in page {number}")
    if (numbers >= layout.pages).any():
        raise _beyond(layout.pages * layout.page, int(numbers.max()), layout.page)
    first[overflows] = numbers
    start = number * layout.page
    value = np.where(overflows, first * layout.page + layout.header, start + value)
    if (value + length > layout.pages * layout.page).any():
        end = int((value + length).max())
        raise _beyond(layout.pages * layout.page, end // layout.page, layout.page)
    extents: _Int64s = np.stack([start + key, key_bytes, value, length, first], axis=1)
    return extents


def _words_at(page: npt.NDArray[np.uint8], offsets: _Int64s) -> _Int64s:
    words: _Int64s = page.view("<u2")[offsets // 2].astype(np.int64)
    return words


def _beyond(size: int, number: int, page: int) -> _Damaged:
    """The error for a page that is not in the file."""
    if number < 2 or number > 1 << 47:
        return _unreadable(f"a reference to page {number}")
    return _Damaged(f"truncated, {size} bytes of at least {(number + 1) * page}")


def _read_into(fd: int, offset: int, data: npt.NDArray[np.uint8]) -> bool:
    """Fill ``data`` with the file's bytes from ``offset`` on. Returns False if the file ends too early. Raises
    OSError."""
    remaining = data.data
    while remaining:
        count = os.preadv(fd, [remaining], offset)
        if count == 0:
            return False
        remaining, offset = remaining[count:], offset + count
    return True
