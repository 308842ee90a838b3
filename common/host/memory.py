"""The memory available to the processes of a node."""

import os
from contextlib import suppress
from pathlib import Path

from mlhpc.common.files.filesystem import memory_groups


def usable_bytes(root: Path = Path("/")) -> int:
    """The node's memory in bytes, or the limit of a control group of this process (a batch job, a container) if
    that is lower: when a group reaches its limit, the kernel kills one of its processes."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for group, limit, _ in memory_groups(root):
        with suppress(OSError, ValueError):  # missing, or "max"
            limits.append(int((group / limit).read_text()))
    return min(limits)
