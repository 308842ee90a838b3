"""Storage whose reads take as long every time: a read-only FUSE file system in front of a folder in memory.

    python tests/perf/steady_storage.py FOLDER MOUNT MB_PER_S LATENCY_US

One request after another, each for the latency and its size at the rate, from when it came or the one before was
done; at most 128 KiB each, as of a disk with the kernel's default read-ahead. The page cache in front of it is the
kernel's, and can be dropped. Needs root and /dev/fuse. Runs until it is unmounted (umount MOUNT); the disk of a
virtual machine, whose hosts share it, repeats no run within 10%.
"""

import ctypes
import errno
import os
import stat
import struct
import sys
import time
from pathlib import Path

REQUEST = 128 << 10
_IN = struct.Struct("=IIQQIIIHH")  # linux/uapi/fuse.h: fuse_in_header
_OUT = struct.Struct("=IiQ")
_INIT_OUT = struct.Struct("=IIIIHHIIHHI7I")
_ATTR = struct.Struct("=6Q10I")
_LOOKUP, _GETATTR, _OPEN, _READ, _STATFS, _INIT, _OPENDIR, _READDIR = 1, 3, 14, 15, 17, 26, 27, 28
_RELEASE, _FLUSH, _RELEASEDIR, _ACCESS = 18, 25, 29, 34
_UNANSWERED = {2, 36, 42}  # FORGET, INTERRUPT, BATCH_FORGET
_ASYNC_READ, _PARALLEL_DIROPS, _KEEP_CACHE = 1, 1 << 18, 1 << 1
_DAY = 86400


class Server:
    """Answers the kernel's requests for files below ``folder``, which must not change."""

    def __init__(self, folder: Path, bytes_per_s: float, latency_s: float) -> None:
        self.bytes_per_s, self.latency_s = bytes_per_s, latency_s
        self.paths, self.numbers = {1: str(folder)}, {str(folder): 1}
        self.open_files: dict[int, int] = {}
        self.done = 0.0  # when the last read is

    def serve(self, mount: Path) -> None:
        self.fuse = os.open("/dev/fuse", os.O_RDWR)
        libc = ctypes.CDLL(None, use_errno=True)
        options = f"fd={self.fuse},rootmode=40000,user_id=0,group_id=0,allow_other,max_read={REQUEST}"
        read_only, no_atime = 1, 1024  # linux/mount.h
        words = b"steady", os.fsencode(mount), b"fuse", read_only | no_atime, options.encode()
        if libc.mount(*words):
            raise OSError(ctypes.get_errno(), f"cannot mount {mount}")
        libc.prctl(29, 1, 0, 0, 0)  # PR_SET_TIMERSLACK: wakes within a nanosecond
        answers = {
            _INIT: self.init, _LOOKUP: self.lookup, _GETATTR: self.getattr, _OPEN: self.open, _READ: self.read,
            _RELEASE: self.release, _OPENDIR: self.opendir, _READDIR: self.readdir, _STATFS: self.statfs,
            _FLUSH: self.nothing, _RELEASEDIR: self.nothing, _ACCESS: self.nothing,
        }  # fmt: skip
        while True:
            try:
                request = os.read(self.fuse, 1 << 17)
            except OSError as error:
                if error.errno == errno.ENODEV:  # unmounted
                    return
                raise
            _, code, unique, node, *_ = _IN.unpack_from(request)
            if code in _UNANSWERED:
                continue
            answer, problem = b"", 0
            try:
                answer = answers[code](node, request[_IN.size :]) if code in answers else b""
                problem = 0 if code in answers else errno.ENOSYS
            except OSError as error:
                problem = error.errno or errno.EIO
            os.writev(self.fuse, (_OUT.pack(_OUT.size + len(answer), -problem, unique), answer))

    def init(self, node: int, body: bytes) -> bytes:
        flags = _ASYNC_READ | _PARALLEL_DIROPS
        return _INIT_OUT.pack(7, 31, REQUEST, flags, 64, 48, 4096, 1, 0, 0, 0, *[0] * 7)

    def attributes(self, node: int) -> bytes:
        status = os.lstat(self.paths[node])
        times = [int(moment) for moment in (status.st_atime, status.st_mtime, status.st_ctime)]
        return _ATTR.pack(
            node,
            status.st_size,
            status.st_blocks,
            *times,
            0,
            0,
            0,
            status.st_mode,
            status.st_nlink,
            0,
            0,
            0,
            4096,
            0,
        )

    def lookup(self, node: int, body: bytes) -> bytes:
        path = os.path.join(self.paths[node], os.fsdecode(body.rstrip(b"\0")))
        os.lstat(path)
        number = self.numbers.setdefault(path, len(self.numbers) + 1)
        self.paths[number] = path
        return struct.pack("=QQQQII", number, 0, _DAY, _DAY, 0, 0) + self.attributes(number)

    def getattr(self, node: int, body: bytes) -> bytes:
        return struct.pack("=QII", _DAY, 0, 0) + self.attributes(node)

    def open(self, node: int, body: bytes) -> bytes:
        handle = os.open(self.paths[node], os.O_RDONLY)
        return struct.pack("=QIi", handle, _KEEP_CACHE, 0)

    def read(self, node: int, body: bytes) -> bytes:
        handle, offset, size = struct.unpack_from("=QQI", body)
        content = os.pread(handle, size, offset)
        now = time.perf_counter()
        self.done = max(now, self.done) + self.latency_s + len(content) / self.bytes_per_s
        if self.done > now:
            time.sleep(self.done - now)
        return content

    def release(self, node: int, body: bytes) -> bytes:
        os.close(*struct.unpack_from("=Q", body))
        return b""

    def opendir(self, node: int, body: bytes) -> bytes:
        return struct.pack("=QIi", 0, 0, 0)

    def readdir(self, node: int, body: bytes) -> bytes:
        _, offset, size = struct.unpack_from("=QQI", body)
        entries, answer = sorted(os.scandir(self.paths[node]), key=lambda each: each.name), b""
        for number, entry in enumerate(entries[offset:], offset + 1):
            name = os.fsencode(entry.name)
            kind = stat.S_IFMT(entry.stat(follow_symlinks=False).st_mode) >> 12
            record = struct.pack("=QQII", number + 1, number, len(name), kind) + name
            record += bytes(-len(record) % 8)
            if len(answer) + len(record) > size:
                break
            answer += record
        return answer

    def statfs(self, node: int, body: bytes) -> bytes:
        return struct.pack("=5Q4I6I", 1 << 20, 0, 0, 1 << 20, 0, 4096, 255, 4096, 0, *[0] * 6)

    def nothing(self, node: int, body: bytes) -> bytes:
        return b""


if __name__ == "__main__":
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    folder, mount = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
    rate, latency = map(float, sys.argv[3:5])
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))  # no reader delays an answer
    Server(folder, rate * 1e6, latency * 1e-6).serve(mount)
