"""Opens files that another user may have created: a FIFO or a device must not hang the reader."""

import errno
import os
import stat
from pathlib import Path


def open_regular(path: Path | str, flags: int = 0) -> int:
    """A descriptor to read ``path``, which must be a regular file. Raises OSError."""
    # Without O_NONBLOCK the open of a FIFO waits for a writer; on a regular file it changes nothing.
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | flags)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return fd
