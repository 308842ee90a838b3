"""The I/O emulation against what it may cost: steps of 0.5 ms, generation beside dd, counting beside bare reads.

    python tests/perf/io_emulation.py FOLDER [steps] [counting] [workloads] [generation] [--turns N] [--mib 128]

FOLDER is on the disk to measure. All ratios are taken within this process, their sides in turn. ``--mib``: of
each of the eight files that are generated.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import threading
import time
from contextlib import nullcontext
from pathlib import Path
from unittest.mock import patch

import numpy as np

from mlhpc.common.host.malloc import keep_memory
from mlhpc.common.ranks.world import Solo
from mlhpc.common.timing.waiting import give_way, occupy, sharpen_timers
from mlhpc.iobench.dataset.generate import generate
from mlhpc.iobench.dataset.layout import Layout
from mlhpc.iobench.definition.load import load
from mlhpc.iobench.definition.schema import Dataset, Workload
from mlhpc.iobench.emulate.checkpoints import Checkpoints
from mlhpc.iobench.emulate.counters import ProcessIo
from mlhpc.iobench.emulate.emulation import Settings, emulate
from mlhpc.iobench.formats.access import Bytes, CountedFile
from mlhpc.iobench.formats.counting import SPANS_KEPT, ReadStatistics


def steps(folder: Path, turns: int = 8, asked: float = 5e-4, number: int = 1000) -> None:
    """Beside readers as a pipeline has them, whose memory the loop frees, and beside ones that free it themselves:
    64 MiB go back to the kernel, for 0.2 ms in which the interpreter is locked."""
    path = folder / "steps.bin"
    path.write_bytes(os.urandom(64 << 20))
    stop = threading.Event()

    def read(counts: ReadStatistics, free: bool) -> None:
        give_way()
        file = CountedFile(path, counts, transfer=256 << 10)
        out = np.empty(64 << 20, np.uint8)
        while not stop.is_set():
            if free:
                file.read(0, 64 << 20)
            else:
                file.read_into(0, out)
        file.close()

    sharpen_timers()
    ways = {"no readers": (0, False), "2 readers": (2, False), "2 readers that free memory": (2, True)}
    took: dict[str, list[float]] = {way: [] for way in ways}
    rates: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(turns):
        for way, (readers, free) in ways.items():
            stop.clear()
            counts = [ReadStatistics() for _ in range(readers)]
            threads = [threading.Thread(target=read, args=(each, free)) for each in counts]
            for thread in threads:
                thread.start()
            before, start = sum(each.bytes for each in counts), time.perf_counter()
            took[way] += [occupy(asked) for _ in range(number)]
            read_bytes = sum(each.bytes for each in counts) - before
            rates[way].append(read_bytes / (time.perf_counter() - start) / 1e9)
            stop.set()
            for thread in threads:
                thread.join()
    for way, each in took.items():
        median, mean = statistics.median(each) / asked - 1, statistics.fmean(each) / asked - 1
        parts = [statistics.fmean(each[at : at + number]) / asked - 1 for at in range(0, len(each), number)]
        print(
            f"steps of {1e3 * asked} ms, {way}: median {median:+.2%}, mean {mean:+.2%} (turns {min(parts):+.2%} "
            f"to {max(parts):+.2%}); read {statistics.median(rates[way]):.1f} GB/s"
        )
    path.unlink()


def generation(folder: Path, turns: int = 3, mib: int = 128) -> None:
    dataset = Dataset(format="npz", files=8, sample_bytes=mib << 20)
    for turn in range(turns):
        start = time.perf_counter()
        made = generate(dataset, folder / f"made{turn}", Solo(), len(os.sched_getaffinity(0)))
        subprocess.run(["sync", "-f", folder], check=True)
        ours = made.bytes / (time.perf_counter() - start)
        start = time.perf_counter()
        target = folder / f"dd{turn}"
        subprocess.run(
            ["dd", "if=/dev/zero", f"of={target}", "bs=1M", f"count={8 * mib}", "status=none"], check=True
        )
        subprocess.run(["sync", "-f", folder], check=True)
        dd = (8 * mib << 20) / (time.perf_counter() - start)
        print(f"generation {ours / 1e6:.0f} MB/s, dd {dd / 1e6:.0f} MB/s: {ours / dd:.0%}")
        subprocess.run(["rm", "-r", folder / f"made{turn}", target], check=True)


def counting(folder: Path, turns: int = 4 * SPANS_KEPT // 256) -> None:
    """Warm reads of 256 KiB, where counting weighs most: counted against os.preadv into the same memory, once
    that of the sample before, once new memory for every sample of 64 MiB. Totals, not medians: one read of many
    pays for all of them."""
    path = folder / "counted.bin"
    path.write_bytes(os.urandom(64 << 20))
    used, counts = np.empty(64 << 20, np.uint8), ReadStatistics()

    def counted(out: Bytes) -> None:
        file = CountedFile(path, counts, transfer=256 << 10)
        file.read_into(0, out)
        file.close()

    def bare(out: Bytes) -> None:
        fd, view = os.open(path, os.O_RDONLY), out.data
        for at in range(0, 64 << 20, 256 << 10):
            os.preadv(fd, (view[at : at + (256 << 10)],), at)
        os.close(fd)

    for memory in ("used", "new"):
        took = {counted: 0.0, bare: 0.0}
        for turn in range(turns):
            for way in (counted, bare) if turn % 2 else (bare, counted):
                out = used if memory == "used" else np.empty(64 << 20, np.uint8)
                start = time.process_time()
                way(out)
                took[way] += time.process_time() - start
        start = time.process_time()
        counts.settle()
        reading_s = counts.activity.reading_s
        took[counted] += time.process_time() - start
        assert reading_s > 0
        cost, read = (took[counted] - took[bare]) / (256 * turns), took[bare] / (256 * turns)
        print(
            f"counting reads of 256 KiB from the page cache into {memory} memory: {1e6 * cost:.2f} µs of "
            f"{1e6 * read:.1f}: {cost / read:+.2%}"
        )
    path.unlink()


SHAPES = {
    "mlperf_cosmoflow": ["dataset.files=128"],
    "mlperf_unet3d": ["dataset.files=14", "dataset.sample_bytes=40 MB", "dataset.sample_bytes_stdev=0"],
    "mlperf_resnet50": ["dataset.files=2", "reader.batch_size=40"],
}
"""Small enough to be read from the page cache; what a sample is, and how it is read, is the workload's."""


def uncounted(file: CountedFile, offset: int, out: memoryview) -> int:
    """What ``CountedFile`` does for a run of reads, but for counting it."""
    at = count = 0
    for at in range(0, len(out), file._transfer):
        part = out[at : at + file._transfer]
        count = os.preadv(file._fd, (part,), offset + at)
        if count != file._transfer:
            break
    return at + count


def epoch_s(workload: Workload, layout: Layout, counted: bool) -> tuple[float, float]:
    """Seconds of an epoch, and of the processor, as fast as it can be read."""
    assert isinstance(layout.root, Path)
    checkpoints, start = Checkpoints(workload.checkpoint, layout.root, Solo()), time.process_time()
    with (
        nullcontext() if counted else patch.object(CountedFile, "_read_run", uncounted),
        nullcontext() if counted else patch.object(ProcessIo, "read_bytes", lambda self: None),
    ):
        run = emulate(workload, layout, checkpoints, Solo(), Settings("keep", null_steps=0))
    return run.epochs[0].seconds, time.process_time() - start


def workloads(folder: Path, turns: int = 15) -> None:
    """Epochs of whole workloads, read from the page cache without computation between, with and without counting,
    in turn: samples/s, and processor time, which other programs disturb less."""
    for name, settings in SHAPES.items():
        workload = load(name, [*settings, "train.epochs=1", "train.computation=0", "reader.threads=2"])
        assert workload.dataset
        layout = Layout(folder / name, workload.dataset)
        generate(workload.dataset, layout.root, Solo(), len(os.sched_getaffinity(0)))
        epoch_s(workload, layout, True)
        ratios: list[list[float]] = [[], []]
        for turn in range(turns):
            took = {
                each: epoch_s(workload, layout, each)
                for each in ((True, False) if turn % 2 else (False, True))
            }
            for ratio, counted, bare in zip(ratios, took[True], took[False], strict=True):
                ratio.append(counted / bare - 1)
        print(f"{name}, {workload.dataset.samples / took[True][0]:.0f} samples/s: counting costs", end="")
        for ratio, of in zip(ratios, ("time", "the processor's"), strict=True):
            low, middle, high = statistics.quantiles(ratio, n=4)
            print(f" {middle:+.2%} of {of} (quartiles {low:+.2%} to {high:+.2%})", end="")
        print(flush=True)
        shutil.rmtree(folder / name)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    measures = {each.__name__: each for each in (steps, counting, workloads, generation)}
    parser.add_argument("folder", type=Path)
    parser.add_argument("only", nargs="*", metavar="MEASURE", help=" ".join(measures))
    parser.add_argument("--turns", type=int, help="default: by measure")
    parser.add_argument("--mib", type=int, default=128)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    keep_memory()
    for name in options.only or measures:
        chosen = {"turns": options.turns} if options.turns else {}
        chosen |= {"mib": options.mib} if name == "generation" else {}
        measures[name](options.folder, **chosen)


if __name__ == "__main__":
    main()
