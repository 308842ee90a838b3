"""The loaders side by side on a user's own data set: rate, processor time, memory."""

import contextlib
import multiprocessing
import os
import re
import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from mlhpc.common.data.pagecache import evict as evict_files
from mlhpc.common.errors import UserError
from mlhpc.common.progress import progress
from mlhpc.deepcam import hdf5, npy
from mlhpc.deepcam.sample import list_samples, sample_shape

WAYS = ("threads", "workers", "dali", "threads, cached")


class Figures(NamedTuple):
    """Of an epoch: samples and bytes read a second, seconds of processor time a sample, bytes of memory at
    the most, beyond what the process had before."""

    samples_per_s: float
    bytes_per_s: float
    cpu_s: float
    memory: float


def bench(
    data: Path, samples: int, batch: int, workers: int, rounds: int, evict: bool, console: Console
) -> None:
    """Read the first ``samples`` training samples of ``data`` with every loader, and print the medians.

    The loaders take turns, ``rounds`` times, each in a process of its own. With ``evict`` they are
    dropped from this machine's page cache before each turn. Raises UserError when the data set cannot be
    read; a loader that cannot run says why in its row.
    """
    files = list_samples(data / "train")[:samples]
    shape = sample_shape(files[0])
    hdf5.read_statistics(data, shape[2])
    if not 0 < batch <= len(files):
        raise UserError(f"--batch {batch}: give 1 to {len(files)}, the number of samples to read")
    found: dict[str, list[Figures]] = {way: [] for way in WAYS}
    reasons: dict[str, str] = {}
    with progress(rounds * len(WAYS), "bench", "turns") as advance:
        for turn in range(rounds):
            for way in WAYS[:: 1 if turn % 2 else -1]:
                if way not in reasons:
                    try:
                        found[way].append(_in_process(data, files, shape, batch, workers, way, evict))
                    except UserError as error:
                        reasons[way] = str(error)
                advance(1)

    table = Table("loader", "samples/s", "MB/s read", "CPU ms/sample", "memory MiB")
    for way in WAYS:
        if way in reasons:
            table.add_row(way, "-", "-", "-", "-")
        else:
            rate, read, cpu, memory = map(statistics.median, zip(*found[way], strict=True))
            table.add_row(
                way, f"{rate:.1f}", f"{read / 1e6:.0f}", f"{1000 * cpu:.1f}", f"{memory / 2**20:.0f}"
            )
    console.print(table)
    for way, reason in reasons.items():
        console.print(f"{way}: {reason}", soft_wrap=True, highlight=False)
    cache = "evicted before each" if evict else "as it was"
    console.print(
        f"{len(files)} samples {list(shape)} from {data}, batch {batch}, {workers} workers, median of "
        f"{rounds} rounds, page cache {cache}; the second epoch",
        soft_wrap=True,
        highlight=False,
    )


def _in_process(*turn: object) -> Figures:
    # Started afresh, so that no loader finds the threads or the memory of the one before.
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_epoch, *turn).result()  # type: ignore[arg-type]


def _epoch(
    data: Path,
    files: Sequence[Path],
    shape: tuple[int, int, int],
    batch: int,
    workers: int,
    way: str,
    evict: bool,
) -> Figures:
    import torch

    from mlhpc.common.data.sharding import Pool
    from mlhpc.deepcam.data import Loader

    device = "cuda" if torch.cuda.is_available() else "cpu"
    pool = Pool(len(files), 1)
    loader = Loader(
        train_files=files,
        eval_files=files[:batch],
        train_pool=pool,
        eval_pool=Pool(batch, 1),
        place=0,
        sample_shape=shape,
        statistics=hdf5.read_statistics(data, shape[2]),
        local_batch=batch,
        eval_batch=batch,
        steps=len(files) // batch,
        seed=1,
        readers=workers,
        loader=way.partition(",")[0],  # type: ignore[arg-type]
        cache="cached" in way,
        device=device,
    )
    before = _memory()
    # An epoch before the clock: libraries loaded, fork server and GPU started, memory taken, cache filled.
    for _ in loader.train_epoch(0):
        pass
    if evict:
        evict_files(path for file in files for path in {file, npy.label_path(file)} if path.exists())

    read, cpu, start = loader.bytes_read, _cpu_seconds(), time.perf_counter()
    for step, (x, _) in enumerate(loader.train_epoch(1), 1):
        if device == "cuda":
            x = x.to(device, non_blocking=True)
        if step == loader.steps:  # all is read, and worker processes still live
            cpu = _cpu_seconds() - cpu
    if device == "cuda":
        torch.cuda.synchronize()
    seconds, samples, read = time.perf_counter() - start, loader.steps * batch, loader.bytes_read - read

    memory = 0  # looked at after the clock, for looking takes long
    for _ in loader.train_epoch(2):
        memory = max(memory, _memory() - before)
    return Figures(samples / seconds, read / seconds, cpu / samples, memory)


def _processes() -> list[Path]:
    """The folders in /proc of this process and all below it."""
    parent = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            parent[entry] = Path("/proc") / _stat(entry)[1]
    mine = {Path("/proc") / str(os.getpid())}
    while more := {process for process, above in parent.items() if above in mine} - mine:
        mine |= more
    return list(mine)


def _stat(process: Path) -> list[str]:
    """Fields of proc(5), /proc/PID/stat, from the state on."""
    return (process / "stat").read_text().rpartition(")")[2].split()


def _cpu_seconds() -> float:
    ticks = sum(int(field) for process in _processes() for field in _stat(process)[11:13])
    return ticks / os.sysconf("SC_CLK_TCK")


def _memory() -> int:
    """Bytes of memory of this process and all below it; what they share is counted once (Pss, proc(5))."""
    found = [
        re.search(r"^Pss: +(\d+) kB", (process / "smaps_rollup").read_text(), re.MULTILINE)
        for process in _processes()
    ]
    return 1024 * sum(int(pss[1]) for pss in found if pss)
