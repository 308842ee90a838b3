"""The memory available to the processes of a node."""

import os
import re
from collections.abc import Iterator
from pathlib import Path


def usable_bytes(root: Path = Path("/")) -> int:
    """The node's memory in bytes, or the limit of a control group of this process (a batch job, a container) if
    that is lower: when a group reaches its limit, the kernel kills one of its processes."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([physical, *_limits(root)])


def _limits(root: Path) -> Iterator[int]:
    """The values of memory.max (version 2) and memory.limit_in_bytes (version 1; cgroups(7)) of this process's
    control group and all groups above it."""
    try:
        groups = os.fsdecode((root / "proc/self/cgroup").read_bytes())
    except OSError:
        return
    for controllers, path in re.findall(r"^\d+:([^:\n]*):(.*)$", groups, re.MULTILINE):
        if controllers == "":
            top, name = root / "sys/fs/cgroup", "memory.max"
        elif controllers == "memory":
            top, name = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes"
        else:
            continue
        folder = top / path.lstrip("/")
        # Inside a container its own group is at the top, but /proc may show the group's name outside.
        for each in (folder, *folder.parents):
            try:
                if each.is_relative_to(top):
                    yield int((each / name).read_text())
            except (OSError, ValueError):  # missing, or "max"
                continue
