"""The type and free space of the file system of a path. Works on Linux, without root."""

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from mlhpc.errors import UserError
from mlhpc.quantities import bytes_text

RAM_TYPES = frozenset({"tmpfs", "ramfs", "devtmpfs"})
SHARED_TYPES = frozenset(
    {"lustre", "gpfs", "beegfs", "nfs", "nfs4", "ceph", "wekafs", "panfs", "pvfs2", "orangefs", "cifs",
     "smb3", "9p", "virtiofs", "glusterfs", "fuse.glusterfs", "fuse.cephfs", "fuse.sshfs", "fuse.juicefs",
     "afs", "dvs", "daos", "fuse.daos", "fuse.dfuse", "vastnfs"}
)  # fmt: skip
"""Types of shared file systems, as named in /proc/mounts."""


@dataclass(frozen=True)
class FileSystem:
    """A file system: ``type`` as in /proc/mounts (``unknown`` if not listed there); ``is_ram``: its files occupy
    memory.

    ``free_bytes``: bytes that this process can write: the size of the free blocks, but on a RAM file system at
    most the memory left in the machine and the control groups.
    """

    type: str
    mount_point: Path
    is_ram: bool
    free_bytes: int


def filesystem_of(path: Path) -> FileSystem:
    """The file system of ``path``, which need not exist yet. Raises OSError."""
    existing = nearest_existing(path)
    mount_point, kind, _ = _mount(existing.resolve())
    is_ram = kind in RAM_TYPES
    status = os.statvfs(existing)
    limits = [status.f_bavail * status.f_frsize] if status.f_blocks else []  # ramfs has no limit: 0 blocks
    if is_ram:
        limits += _memory_left()
    return FileSystem(kind, mount_point, is_ram, min(limits, default=0))


def flock_reaches_other_nodes(path: Path) -> bool:
    """Return whether other nodes that mount the file system of ``path`` see flock(2) locks.

    On Lustre, they do only with the mount option ``flock``; ``localflock`` is local to the node (mount.lustre(8)).
    On NFS, they do not with ``local_lock=flock`` or ``all`` (nfs(5)). Other file systems propagate locks or belong
    to one node.
    """
    _, kind, options = _mount(nearest_existing(path).resolve())
    if kind == "lustre":
        return "flock" in options
    return not {"localflock", "local_lock=flock", "local_lock=all"} & options


def nearest_existing(path: Path) -> Path:
    """``path``, or the deepest folder above it that exists."""
    path = path.absolute()
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def cache_folder() -> Path:
    """This user's cache folder, for files that can be created again (XDG Base Directory Specification); it need
    not exist."""
    return Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "mlhpc")


def memory_left() -> int:
    """Bytes of memory that this process may still allocate, as limited by the machine and its control groups."""
    return min(_memory_left(), default=0)


def mounts(root: Path = Path("/")) -> Iterator[tuple[Path, str, frozenset[str]]]:
    """Mount point, type and options of every mount; empty if the table of mounts cannot be read."""
    try:
        table = os.fsdecode((root / "proc/self/mounts").read_bytes())
    except OSError:
        return
    # Only blanks and newlines separate fields: names may contain other characters that Python treats as line ends.
    for point, kind, options in re.findall(r"^[^ \n]* ([^ \n]+) ([^ \n]+) ([^ \n]+)", table, re.MULTILINE):
        # proc(5): blanks in names are octal escapes.
        name = re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), point)
        yield Path(name), kind, frozenset(options.split(","))


def _mount(path: Path) -> tuple[Path, str, frozenset[str]]:
    """The deepest mount (as from ``mounts``) above ``path``; the last one if several share a mount point."""
    deepest = (Path("/"), "unknown", frozenset[str]())
    for mount in mounts():
        if path.is_relative_to(mount[0]) and len(mount[0].parts) >= len(deepest[0].parts):
            deepest = mount
    return deepest


_MEMORY_GROUPS = (
    (r"^0::/(.*)$", "sys/fs/cgroup", "memory.max", "memory.current"),
    (r"^\d+:(?:\S+,)?memory(?:,\S+)?:/(.*)$", "sys/fs/cgroup/memory", "memory.limit_in_bytes",
     "memory.usage_in_bytes"),
)  # fmt: skip
"""cgroups(7), of version 2 and 1: a process's group in /proc/self/cgroup, where groups are, and files of one."""


def _memory_left(root: Path = Path("/")) -> list[int]:
    left = []
    available = re.search(r"^MemAvailable:\s+(\d+) kB", (root / "proc/meminfo").read_text(), re.MULTILINE)
    if available:
        left.append(int(available[1]) * 1024)
    for group, limit, used in memory_groups(root):
        # A group without a limit has the word "max" in version 2, and about 2**63 in version 1.
        with suppress(OSError, ValueError, KeyError):
            statistics = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
            # The page cache of files on disk is reclaimed before an allocation fails.
            kinds = ("active_file", "inactive_file")  # version 1 has separate totals with subgroups
            cache = sum(int(statistics.get(f"total_{kind}", statistics[kind])) for kind in kinds)
            taken = int((group / used).read_text()) - cache
            left.append(max(0, int((group / limit).read_text()) - taken))
    return left


def memory_groups(root: Path) -> Iterator[tuple[Path, str, str]]:
    """The folders of this process's memory control group and of all groups above it, each with the names of its
    files that contain its limit and its usage in bytes."""
    try:
        groups = os.fsdecode((root / "proc/self/cgroup").read_bytes())
    except OSError:
        return
    for pattern, mounted, limit, used in _MEMORY_GROUPS:
        for name in re.findall(pattern, groups, re.MULTILINE):
            # Inside a container its own group is at the top, but /proc may show the group's name outside.
            group = root / mounted / name
            yield from ((each, limit, used) for each in (group, *group.parents))


def require_new(path: Path) -> None:
    """Raise UserError if ``path``, to which a command is going to write, already exists."""
    if path.exists():
        raise UserError(f"{path} already exists; choose another --out, or move it away")


@contextmanager
def as_user_error(path: Path, what: str, remedy: str) -> Iterator[None]:
    """Convert an OSError raised in the block to a UserError that names ``path``, what failed (``what``, such as
    "cannot be read"), the reason, the ``remedy``, and the file system if it is full."""
    try:
        yield
    except OSError as error:
        where = ""
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            filesystem = filesystem_of(path)
            where = f" ({filesystem.type} on {filesystem.mount_point}"
            if error.errno == errno.ENOSPC:  # a quota is reached long before the file system is full
                where += f", {bytes_text(filesystem.free_bytes)} free"
            where += ")"
        raise UserError(f"{path} {what}: {error.strerror or error}{where}; {remedy}") from error
