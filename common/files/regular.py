"""Opens files that another user may have created, so that a FIFO or a device cannot hang the reader."""

import errno
import os
import stat
from pathlib import Path

LARGEST_SAMPLE = 4 * 2**30
"""Maximum bytes of a file that is read as a whole, since a sparse file may claim any size."""


def size_to_read(fd: int) -> int:
    """Size in bytes of an open file that is to be read into memory as a whole. Raises OSError if it is larger than
    any sample."""
    size = os.fstat(fd).st_size
    if size > LARGEST_SAMPLE:
        raise OSError(errno.EFBIG, f"{size} bytes are more than a sample can have")
    return size


def open_regular(path: Path | str, flags: int = 0) -> int:
    """A descriptor for reading ``path``, which must be a regular file, and not a link if ``flags`` has O_NOFOLLOW.
    Raises OSError."""
    try:
        # Without O_NONBLOCK, opening a FIFO waits for a writer; on a regular file the flag changes nothing.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | flags)
    except OSError as error:
        if flags & os.O_NOFOLLOW and error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, "a link, which is not followed", str(path)) from None
        raise
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return fd
