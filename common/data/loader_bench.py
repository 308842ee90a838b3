"""Loaders of one data set side by side: whether their samples agree; rate, processor time, memory."""

import contextlib
import multiprocessing
import os
import re
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
from isal import isal_zlib
from rich.console import Console
from rich.table import Table

from mlhpc.common.files.pagecache import evict as evict_files
from mlhpc.common.host.progress import progress
from mlhpc.errors import UserError

# Values kept of each sample, to measure how much two loaders differ.
_KEPT = 1000
_OTHER = "NO: different samples"
Arrays = tuple[npt.NDArray[np.float32], npt.NDArray[Any]]


class Row(NamedTuple):
    """One loader: medians over the rounds, and whether it read the first one's samples. ``error``: why it could
    not be measured; the figures are then None."""

    loader: str
    samples_per_s: float | None
    bytes_per_s: float | None
    cpu_s_per_sample: float | None
    memory_bytes: float | None
    agreement: str
    error: str | None = None

    @property
    def same(self) -> bool:
        return self.error is not None or not self.agreement.startswith("NO")


class Loader(Protocol):
    """What the loaders of all benchmarks share."""

    steps: int
    local_batch_size: int
    bytes_read: int

    def train_epoch(self, epoch: int) -> Iterator[Any]: ...


class Figures(NamedTuple):
    """One epoch: samples and bytes read per second, seconds of processor time per sample, peak bytes of memory
    beyond what the process had before; a checksum of all ``x``, some values of each ``x``, and a checksum of all
    ``y``."""

    samples_per_s: float
    bytes_per_s: float
    cpu_s: float
    memory: float
    checksum: int
    excerpt: npt.NDArray[np.float32]
    labels: int


def measure(
    loader: Loader,
    evict: Sequence[Path],
    use: Callable[[Any], object],
    wait: Callable[[], object],
    arrays: Callable[[Any], Arrays],
) -> Figures:
    """Read three epochs with ``loader``: one untimed, one timed, and one whose content is compared.

    Called in a process of its own. Before the second epoch the files ``evict`` are dropped from the page cache.
    ``use`` consumes a batch inside the clock, ``wait`` returns when all of that is done, and ``arrays`` returns a
    batch as ``x`` float32 ``[b, ...]`` and ``y``, in the same layout for every loader.
    """
    before = _memory()
    # The untimed epoch loads libraries, starts fork server and GPU, allocates memory and fills caches.
    for _ in loader.train_epoch(0):
        pass
    evict_files(evict)

    read, cpu, start = loader.bytes_read, _cpu_seconds(), time.perf_counter()
    for step, batch in enumerate(loader.train_epoch(1), 1):
        use(batch)
        if step == loader.steps:  # everything is read, and the worker processes still exist
            cpu = _cpu_seconds() - cpu
    wait()
    seconds, read = time.perf_counter() - start, loader.bytes_read - read
    samples = loader.steps * loader.local_batch_size

    memory, checksum, labels = 0, 0, 0  # after the clock: comparing takes long
    excerpt = []
    for batch in loader.train_epoch(2):
        memory = max(memory, _memory() - before)
        x, y = map(np.ascontiguousarray, arrays(batch))
        labels = isal_zlib.crc32(y, labels)
        checksum = isal_zlib.crc32(x, checksum)
        flat = x.reshape(len(x), -1)
        excerpt.append(flat[:, :: flat.shape[1] // _KEPT + 1].copy())
    return Figures(
        samples / seconds, read / seconds, cpu / samples, memory, checksum, np.concatenate(excerpt), labels
    )


def compare(
    ways: Sequence[str],
    epoch: Callable[[str], Figures],
    *,
    rounds: int,
    close: float,
    console: Console,
) -> list[Row]:
    """Measure ``epoch`` for each of the ``ways`` in turn, ``rounds`` times, each in its own process; print and
    return the medians.

    They are compared with those of the first: bit for bit, or equal ``y`` and ``x`` that differ by at most
    ``close`` on average. ``epoch`` must be picklable. For a way that raises UserError the reason is
    printed; if none can be measured, the first error is raised.
    """
    results: dict[str, list[Figures]] = {way: [] for way in ways}
    reasons: dict[str, str] = {}
    with progress(rounds * len(ways), "bench", "turns") as advance:
        for turn in range(rounds):
            for way in ways[:: 1 if turn % 2 else -1]:
                if way not in reasons:
                    try:
                        results[way].append(_in_process(epoch, way))
                    except UserError as error:
                        reasons[way] = str(error)
                advance(1)
    measured = [way for way in ways if way not in reasons]
    if not measured:
        raise UserError(reasons[ways[0]])

    first = results[measured[0]][0]
    rows = [_row(way, results[way], first, close, reasons.get(way)) for way in ways]
    console.print(_table(rows))
    for row in rows:
        if row.error:
            console.print(f"{row.loader}: {row.error}", soft_wrap=True, highlight=False)
    return rows


def _row(way: str, figures: Sequence[Figures], first: Figures, close: float, error: str | None) -> Row:
    if error:
        return Row(way, None, None, None, None, "-", error)
    verdicts = [_agreement(first, one, close) for one in figures]
    worst = next((verdict for verdict in verdicts if verdict.startswith("NO")), verdicts[-1])
    return Row(way, *map(statistics.median, list(zip(*figures, strict=True))[:4]), worst)


def _table(rows: Sequence[Row]) -> Table:
    table = Table("loader", "samples/s", "MB/s read", "CPU ms/sample", "memory MiB", "same samples")
    for row in rows:
        if row.samples_per_s is None or row.bytes_per_s is None or row.cpu_s_per_sample is None:
            table.add_row(row.loader, *"-----")
            continue
        memory = f"{(row.memory_bytes or 0) / 2**20:.0f}"
        numbers = (
            f"{row.samples_per_s:.1f}",
            f"{row.bytes_per_s / 1e6:.1f}",
            f"{1000 * row.cpu_s_per_sample:.2f}",
        )
        table.add_row(row.loader, *numbers, memory, row.agreement)
    return table


def _agreement(first: Figures, other: Figures, close: float) -> str:
    if other.labels != first.labels or other.excerpt.shape != first.excerpt.shape:
        return _OTHER
    if other.checksum == first.checksum:
        return "bit for bit"
    difference = float(np.abs(other.excerpt - first.excerpt).mean())
    return f"to {difference:.2g}" if difference <= close else f"{_OTHER}, mean difference {difference:.2g}"


def _in_process(epoch: Callable[[str], Figures], way: str) -> Figures:
    # A new process, so that no loader inherits the threads or the memory of the previous one.
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(epoch, way).result()


def _processes() -> list[Path]:
    """The folders in /proc of this process and its descendants."""
    parent = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # the process has ended
            parent[entry] = Path("/proc") / _stat(entry)[1]
    family = {Path("/proc") / str(os.getpid())}
    while more := {process for process, above in parent.items() if above in family} - family:
        family |= more
    return list(family)


def _stat(process: Path) -> list[str]:
    """Fields of proc(5), /proc/PID/stat, from the state on."""
    return (process / "stat").read_text().rpartition(")")[2].split()


def _cpu_seconds() -> float:
    ticks = sum(int(field) for process in _processes() for field in _stat(process)[11:13])
    return ticks / os.sysconf("SC_CLK_TCK")


def _memory() -> int:
    """Bytes of memory of this process and its descendants; shared memory counts once (Pss, proc(5))."""
    matches = [
        re.search(r"^Pss: +(\d+) kB", (process / "smaps_rollup").read_text(), re.MULTILINE)
        for process in _processes()
    ]
    return 1024 * sum(int(pss[1]) for pss in matches if pss)
