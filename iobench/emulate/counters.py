"""The kernel's counters: bytes that a process fetched from storage, and bytes transferred by the device."""

import contextlib
import os
import resource
from pathlib import Path
from typing import NamedTuple

SECTOR = 512  # unit of /sys/block/*/stat for every device (Documentation/block/stat.rst)


class ProcessIo:
    """The counters in ``/proc/self/io`` (proc(5)), which is kept open so that reading it takes a few microseconds.
    ``counted`` False: the data is not on this machine's devices, so nothing is counted."""

    def __init__(self, counted: bool = True) -> None:
        self._fd = -1
        if counted:
            with contextlib.suppress(OSError):  # a kernel without CONFIG_TASK_IO_ACCOUNTING
                self._fd = os.open("/proc/self/io", os.O_RDONLY | os.O_CLOEXEC)

    def read_bytes(self) -> int | None:
        """Bytes fetched from the storage layer for this process, readahead included; None if not counted.
        Excludes bytes from the page cache and, on some network file systems, bytes from the network."""
        if self._fd < 0:
            return None
        for line in os.pread(self._fd, 512, 0).split(b"\n"):
            if line.startswith(b"read_bytes:"):
                return int(line[11:])
        return None

    def close(self) -> None:
        """Stop counting."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class DeviceIo(NamedTuple):
    """Bytes transferred to and from the block device of a folder by the whole machine."""

    read_bytes: int
    written_bytes: int


def device_io(folder: Path) -> DeviceIo | None:
    """The counters of the block device under ``folder``; None if there is none (network, tmpfs)."""
    number = os.stat(folder).st_dev
    path = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}/stat")
    try:
        fields = path.read_text().split()
    except OSError:
        return None
    return DeviceIo(int(fields[2]) * SECTOR, int(fields[6]) * SECTOR)


def cpu_seconds() -> float:
    """User and system time of this process so far."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
