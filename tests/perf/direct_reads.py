"""Whole files read as the loaders read them, and with O_DIRECT: cold, in turn, on the disk of ``--folder``.

    python tests/perf/direct_reads.py [--folder DIR] [--file-mb 4.2] [--files 64] [--threads 1,2,4,8] [--rounds 9]

Threads read one file after the other into a buffer of theirs: by one pread(2) through the page cache, as the
loaders do; and with O_DIRECT into memory aligned to blocks, in one read and in reads of 1 MiB. Before each way the
files are dropped from the page cache. The ways take turns, in a random order in each round; ratios of rates and of
processor time are to the first way of the same round: their median, smallest and largest. O_DIRECT leaves nothing
in the page cache, so a set that fits memory is read from the disk in every epoch.

io_uring would save entries into the kernel; how many reads are under way, threads decide as well. The last line
has the most that it could save: the time of an entry, measured by empty reads, times the entries of a file, as a
share of the time of reading one from the page cache, where it matters most.
"""

import argparse
import mmap
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from mlhpc.common.files import pagecache
from mlhpc.common.files.filesystem import filesystem_of

BLOCK, MIB = 4096, 1 << 20
CALLS = 5
"""Entries into the kernel for a file: open, fstat, fadvise, pread, close."""
Read = Callable[[Path, memoryview], int]


def buffered(path: Path, buffer: memoryview) -> int:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_SEQUENTIAL)
        return os.preadv(fd, [buffer[: os.fstat(fd).st_size]], 0)
    finally:
        os.close(fd)


def direct(transfer: int | None) -> Read:
    def read(path: Path, buffer: memoryview) -> int:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
        try:
            size, done = os.fstat(fd).st_size, 0
            while done < size:
                piece = -(-min(transfer or size, size - done) // BLOCK) * BLOCK
                done += os.preadv(fd, [buffer[done : done + piece]], done)
            return done
        finally:
            os.close(fd)

    return read


WAYS: dict[str, Read] = {
    "pread": buffered,
    "O_DIRECT, whole": direct(None),
    "O_DIRECT, 1 MiB": direct(MIB),
}


def timed(read: Read, paths: list[Path], threads: int, size: int) -> tuple[float, float]:
    """Bytes per second, and per second of processor time."""
    buffers = [memoryview(mmap.mmap(-1, -(-size // BLOCK) * BLOCK)) for _ in range(threads)]
    for buffer in buffers:
        buffer[:] = bytes(len(buffer))  # so that no page is new

    def work(thread: int) -> int:
        return sum(read(path, buffers[thread]) for path in paths[thread::threads])

    started, cpu = time.perf_counter(), time.process_time()
    with ThreadPoolExecutor(threads) as pool:
        done = sum(pool.map(work, range(threads)))
    seconds, spent = time.perf_counter() - started, time.process_time() - cpu
    assert done == size * len(paths), (done, size * len(paths))
    return done / seconds, done / spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("build"))
    parser.add_argument("--file-mb", type=float, default=4.2, help="default: a CosmoFlow sample by lut")
    parser.add_argument("--files", type=int, default=64)
    parser.add_argument("--threads", default="1,2,4,8")
    parser.add_argument("--rounds", type=int, default=9)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    size = int(args.file_mb * 1e6)
    with tempfile.TemporaryDirectory(prefix="direct-", dir=args.folder) as scratch:
        paths = [Path(scratch) / f"{i:04d}" for i in range(args.files)]
        rng = np.random.default_rng(1)
        for path in paths:
            path.write_bytes(rng.bytes(size))
        os.sync()
        where = filesystem_of(Path(scratch))
        print(f"{args.files} files of {args.file_mb:g} MB, cold, {where.type} on {where.mount_point}\n")
        print("| threads | way | MB/s | to pread | processor time to pread |\n|---|---|---|---|---|")
        for threads in map(int, args.threads.split(",")):
            rounds = []
            for _ in range(args.rounds):
                times = {}
                for name in random.sample(list(WAYS), len(WAYS)):
                    for _ in range(50):  # pages that are still being read cannot be dropped
                        pagecache.evict(paths)
                        left = max(map(pagecache.resident_fraction, paths))
                        if left == 0:
                            break
                        time.sleep(0.1)
                    else:
                        raise SystemExit(
                            f"{left:.0%} of a file stays in the page cache: choose another --folder"
                        )
                    times[name] = timed(WAYS[name], paths, threads, size)
                rounds.append(times)
            for name in WAYS:
                rate = statistics.median(times[name][0] for times in rounds)
                ratios = [[times[name][i] / times["pread"][i] for times in rounds] for i in range(2)]
                faster, cheaper = ratios[0], [1 / ratio for ratio in ratios[1]]
                print(f"| {threads} | {name} | {rate / 1e6:.0f} | {interval(faster)} | {interval(cheaper)} |")
        fd = os.open(paths[0], os.O_RDONLY)
        started = time.perf_counter()
        for _ in range(100_000):
            os.pread(fd, 0, 0)
        entry = (time.perf_counter() - started) / 100_000
        os.close(fd)
        timed(buffered, paths, 1, size)
        warm = size / max(timed(buffered, paths, 1, size)[0] for _ in range(args.rounds))
        print(
            f"\nentering the kernel: {entry * 1e6:.2f} µs; {CALLS} times a file: {CALLS * entry / warm:.2%} of "
            f"the {warm * 1e3:.2f} ms that a file takes from the page cache: the most that io_uring can save"
        )


def interval(ratios: list[float]) -> str:
    return f"{statistics.median(ratios):.2f} [{min(ratios):.2f}–{max(ratios):.2f}]"


if __name__ == "__main__":
    main()
