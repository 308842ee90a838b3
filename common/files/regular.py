"""Opens files that another user may have created: a FIFO or a device must not hang the reader."""

import errno
import os
import stat
from pathlib import Path

LARGEST_SAMPLE = 4 * 2**30
"""Bytes of a file that is read as a whole. A sparse file may state any size."""


def size_to_read(fd: int) -> int:
    """Bytes of an open file to be read into memory as a whole. Raises OSError if these are more than any sample
    has."""
    size = os.fstat(fd).st_size
    if size > LARGEST_SAMPLE:
        raise OSError(errno.EFBIG, f"{size} bytes are more than a sample has")
    return size


def open_regular(path: Path | str, flags: int = 0) -> int:
    """A descriptor to read ``path``, which must be a regular file; with O_NOFOLLOW in ``flags``, no link to one.
    Raises OSError."""
    try:
        # Without O_NONBLOCK the open of a FIFO waits for a writer; on a regular file it changes nothing.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | flags)
    except OSError as error:
        if flags & os.O_NOFOLLOW and error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, "a link, which is not followed", str(path)) from None
        raise
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return fd
