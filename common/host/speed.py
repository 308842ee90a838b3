"""Measures the speed of this machine in a few seconds: matrix product, memory copy, disk and loopback.

Each figure is the best of several repeats, since other programs can only slow a measurement down.
"""

import os
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from mlhpc.common.files.pagecache import evict, resident_fraction

_SIDE = 2048
_COPIED = 2**28
_FILE = 2**28
_SENT = 2**28
_PIECE = 2**20


def best(amount: float, work: Callable[[], object]) -> float:
    """``amount`` divided by the shortest time, in seconds, that ``work`` took; ``work`` is repeated at least three
    times and for at least a second, after a first call that does not count."""
    work()
    seconds: list[float] = []
    end = time.perf_counter() + 1.0
    while len(seconds) < 3 or time.perf_counter() < end:
        begin = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - begin)
    return amount / min(seconds)


def matrix_product() -> float:
    """FLOP/s of a float32 matrix product computed by NumPy's BLAS."""
    a = np.random.default_rng(0).random((_SIDE, _SIDE), dtype=np.float32)
    out = np.empty_like(a)
    return best(2 * _SIDE**3, lambda: np.matmul(a, a, out=out))


def memory_copy() -> float:
    """Bytes/s that a copy in memory reads and writes in total."""
    source = np.ones(_COPIED // 8)
    target = np.empty_like(source)
    return best(2 * source.nbytes, lambda: np.copyto(target, source))


def disk(folder: Path) -> tuple[float, float, float]:
    """(read, write) bytes/s of a file in ``folder`` that is written with fsync, dropped from the page cache, read,
    and finally removed; and the largest share of it that was in memory before a read. Raises OSError."""
    piece = np.random.default_rng(0).bytes(_PIECE)
    reads, writes, resident = [], [], 0.0
    with tempfile.TemporaryDirectory(dir=folder, prefix="mlhpc-speed-") as temporary:
        path = Path(temporary) / "file"
        for _ in range(3):
            begin = time.perf_counter()
            with path.open("wb", buffering=0) as file:
                for _ in range(_FILE // _PIECE):
                    file.write(piece)
                os.fsync(file.fileno())
            writes.append(_FILE / (time.perf_counter() - begin))
            evict([path])
            resident = max(resident, resident_fraction(path))
            begin = time.perf_counter()
            with path.open("rb", buffering=0) as file:
                while file.read(_PIECE):
                    pass
            reads.append(_FILE / (time.perf_counter() - begin))
    return max(reads), max(writes), resident


def loopback() -> tuple[float, float]:
    """(bytes/s, seconds per message) over TCP on 127.0.0.1: the network of ranks on a single machine."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=_answer, args=(server,), daemon=True)
        thread.start()
        with socket.create_connection(server.getsockname()) as link:
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            delays = []
            for _ in range(200):
                begin = time.perf_counter()
                link.sendall(b"x")
                link.recv(1)
                delays.append((time.perf_counter() - begin) / 2)
            link.sendall(b"s")
            piece = bytes(_PIECE)
            begin = time.perf_counter()
            for _ in range(_SENT // _PIECE):
                link.sendall(piece)
            link.recv(1)
            rate = _SENT / (time.perf_counter() - begin)
        thread.join()
    return rate, min(delays)


def _answer(server: socket.socket) -> None:
    """Answer each single byte until "s" arrives, then receive everything and answer once."""
    link, _ = server.accept()
    with link:
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while (byte := link.recv(1)) and byte != b"s":
            link.sendall(byte)
        left, buffer = _SENT, bytearray(_PIECE)
        while left > 0 and (got := link.recv_into(buffer)):
            left -= got
        link.sendall(b"x")
