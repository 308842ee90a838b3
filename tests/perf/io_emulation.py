"""The I/O emulation against what it may cost: steps of 0.5 ms, generation beside dd, counting beside bare reads.

    python tests/perf/io_emulation.py FOLDER [steps] [counting] [generation]

FOLDER is on the disk to measure. All ratios are taken within this process, their sides in turn.
"""

import os
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

from mlhpc.common.host.malloc import keep_memory
from mlhpc.common.ranks.world import Solo
from mlhpc.common.timing.waiting import give_way, occupy, sharpen_timers
from mlhpc.iobench.dataset.generate import generate
from mlhpc.iobench.definition.schema import Dataset
from mlhpc.iobench.formats.access import CountedFile, ReadStatistics


def steps(folder: Path, asked: float = 5e-4, number: int = 4000) -> None:
    path = folder / "steps.bin"
    path.write_bytes(os.urandom(64 << 20))
    stop = threading.Event()

    def read() -> None:
        give_way()
        file = CountedFile(path, ReadStatistics(), transfer=256 << 10)
        while not stop.is_set():
            file.read(0, 64 << 20)
        file.close()

    sharpen_timers()
    for readers in (0, 2):
        stop.clear()
        threads = [threading.Thread(target=read) for _ in range(readers)]
        for thread in threads:
            thread.start()
        took = [occupy(asked) for _ in range(number)]
        stop.set()
        for thread in threads:
            thread.join()
        median, mean = statistics.median(took) / asked - 1, statistics.fmean(took) / asked - 1
        print(f"steps of {1e3 * asked} ms, {readers} readers: median {median:+.2%}, mean {mean:+.2%}")
    path.unlink()


def generation(folder: Path) -> None:
    dataset = Dataset(format="npz", files=8, sample_bytes=128 << 20)
    for turn in range(3):
        start = time.perf_counter()
        made = generate(dataset, folder / f"made{turn}", Solo(), len(os.sched_getaffinity(0)))
        subprocess.run(["sync", "-f", folder], check=True)
        ours = made.bytes / (time.perf_counter() - start)
        start = time.perf_counter()
        target = folder / f"dd{turn}"
        subprocess.run(
            ["dd", "if=/dev/zero", f"of={target}", "bs=4M", "count=256", "status=none"], check=True
        )
        subprocess.run(["sync", "-f", folder], check=True)
        dd = (1 << 30) / (time.perf_counter() - start)
        print(f"generation {ours / 1e6:.0f} MB/s, dd {dd / 1e6:.0f} MB/s: {ours / dd:.0%}")
        subprocess.run(["rm", "-r", folder / f"made{turn}", target], check=True)


def counting(folder: Path) -> None:
    """Warm reads of 256 KB, where counting weighs most: counted against os.preadv into the same kind of memory."""
    import numpy as np

    path = folder / "counted.bin"
    path.write_bytes(os.urandom(64 << 20))
    out = np.empty(64 << 20, np.uint8)

    def counted() -> None:
        file = CountedFile(path, ReadStatistics(), transfer=256 << 10)
        file.read_into(0, out)
        file.close()

    def bare() -> None:
        fd = os.open(path, os.O_RDONLY)
        for at in range(0, 64 << 20, 256 << 10):
            os.preadv(fd, [out[at : at + (256 << 10)].data], at)
        os.close(fd)

    ratios = []
    for turn in range(40):
        took = {}
        for way in (counted, bare) if turn % 2 else (bare, counted):
            start = time.process_time()
            way()
            took[way] = time.process_time() - start
        ratios.append(took[counted] / took[bare] - 1)
    print(f"counting reads of 256 KiB from the page cache: {statistics.median(ratios):+.2%}")
    path.unlink()


if __name__ == "__main__":
    place = Path(sys.argv[1])
    keep_memory()
    for measure in (steps, counting, generation):
        if measure.__name__ in (sys.argv[2:] or [measure.__name__]):
            measure(place)
