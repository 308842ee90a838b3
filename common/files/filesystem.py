"""The type and free space of the file system of a path. Works on Linux, without root."""

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
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
    most the memory left in the machine and the control group (version 2).
    """

    type: str
    mount_point: Path
    is_ram: bool
    free_bytes: int


def filesystem_of(path: Path) -> FileSystem:
    """The file system of ``path``, which need not exist yet. Raises OSError."""
    existing = _nearest_existing(path)
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
    _, kind, options = _mount(_nearest_existing(path).resolve())
    if kind == "lustre":
        return "flock" in options
    return not {"localflock", "local_lock=flock", "local_lock=all"} & options


def _nearest_existing(path: Path) -> Path:
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


def _memory_left() -> list[int]:
    left = []
    available = re.search(r"^MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    if available:
        left.append(int(available[1]) * 1024)
    groups = os.fsdecode(Path("/proc/self/cgroup").read_bytes())
    own = re.search(r"^0::/(.*)$", groups, re.MULTILINE)
    group = Path("/sys/fs/cgroup") / (own[1] if own else "")
    while group != group.parent:
        try:
            limit = int((group / "memory.max").read_text())  # "max" (no limit) is not a number
            used = int((group / "memory.current").read_text())
            statistics = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
            # The page cache of files on disk is reclaimed before an allocation fails.
            cache = int(statistics["active_file"]) + int(statistics["inactive_file"])
            left.append(max(0, limit - used + cache))
        except (OSError, ValueError, KeyError):
            pass
        group = group.parent
    return left


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
            free = bytes_text(filesystem.free_bytes)
            where = f" ({filesystem.type} on {filesystem.mount_point}, {free} free)"
        raise UserError(f"{path} {what}: {error.strerror or error}{where}; {remedy}") from error
