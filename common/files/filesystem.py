"""What kind of file system a path is on, and how much more it holds. Linux; no root."""

import os
import re
from dataclasses import dataclass
from pathlib import Path

RAM_TYPES = frozenset({"tmpfs", "ramfs", "devtmpfs"})
SHARED_TYPES = frozenset(
    {"lustre", "gpfs", "beegfs", "nfs", "nfs4", "ceph", "wekafs", "panfs", "pvfs2", "orangefs", "cifs",
     "smb3", "9p", "virtiofs", "glusterfs", "fuse.glusterfs", "fuse.cephfs", "fuse.sshfs", "fuse.juicefs",
     "afs", "dvs", "daos", "fuse.daos", "fuse.dfuse", "vastnfs"}
)  # fmt: skip
"""Types of file systems that several nodes share, as /proc/mounts names them."""


@dataclass(frozen=True)
class FileSystem:
    """``type`` as in /proc/mounts (``unknown`` without one), ``is_ram`` when files on it are memory.

    ``free_bytes`` is what this process may still write: the free blocks, and on a RAM file system no more
    than the memory that the machine and the control group (version 2) have left.
    """

    type: str
    mount_point: Path
    is_ram: bool
    free_bytes: int


def filesystem_of(path: Path) -> FileSystem:
    """The file system that ``path`` is on, or would be on once it is made. Raises OSError."""
    there = path.absolute()
    while not there.exists() and there != there.parent:
        there = there.parent
    mount_point, kind = _mount(there.resolve())
    is_ram = kind in RAM_TYPES
    status = os.statvfs(there)
    limits = [status.f_bavail * status.f_frsize] if status.f_blocks else []  # ramfs knows no limit: 0 blocks
    if is_ram:
        limits += _memory_left()
    return FileSystem(kind, mount_point, is_ram, min(limits, default=0))


def memory_left() -> int:
    """Bytes that this process may still take of the machine's and its control group's memory."""
    return min(_memory_left(), default=0)


def _mount(path: Path) -> tuple[Path, str]:
    """Mount point and type: of the mounts above ``path`` the deepest, of those on one point the last."""
    found = (Path("/"), "unknown")
    try:
        lines = Path("/proc/self/mounts").read_text().splitlines()
    except OSError:
        return found
    for line in lines:
        _, point, kind, *_ = line.split(" ")
        # proc(5): blanks in names stand as octal escapes.
        mount = Path(re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), point))
        if path.is_relative_to(mount) and len(mount.parts) >= len(found[0].parts):
            found = (mount, kind)
    return found


def _memory_left() -> list[int]:
    left = []
    available = re.search(r"^MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    if available:
        left.append(int(available[1]) * 1024)
    own = re.search(r"^0::/(.*)$", Path("/proc/self/cgroup").read_text(), re.MULTILINE)
    group = Path("/sys/fs/cgroup") / (own[1] if own else "")
    while group != group.parent:
        try:
            limit = int((group / "memory.max").read_text())  # "max" (no limit) is no number
            used = int((group / "memory.current").read_text())
            statistics = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
            # The page cache of files on disk is given up before anything is refused.
            cache = int(statistics["active_file"]) + int(statistics["inactive_file"])
            left.append(max(0, limit - used + cache))
        except (OSError, ValueError, KeyError):
            pass
        group = group.parent
    return left
