"""Measures one combination of data set, loader and settings in a separate process: rates, processor time,
memory, and the samples read."""

import contextlib
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
from isal import isal_zlib

from mlhpc.common.data import manifest
from mlhpc.common.data.assign import RankSamples
from mlhpc.common.data.codecs.dtypes import as_float32
from mlhpc.common.data.loader import Loader, Source
from mlhpc.common.data.sharding import Pool
from mlhpc.common.files.pagecache import evict as evict_files
from mlhpc.errors import UserError

# Number of values kept per sample, to measure how much two loaders differ.
_KEPT = 1000
Arrays = tuple[npt.NDArray[Any], npt.NDArray[Any]]
Batch = TypeVar("Batch")


@dataclass(frozen=True)
class Way:
    """One combination: the data set, ``loading.loader`` ("threads, cached" with ``loading.cache``), the local
    batch size, ``loading.workers``, and ``loading.sample_dtype`` (empty: the benchmark's default)."""

    data: Path
    loader: str
    local_batch_size: int
    workers: int
    sample_dtype: str = ""

    def loading(self) -> dict[str, Any]:
        """The ``Loading`` settings of this combination, without the loader's name."""
        chosen: dict[str, Any] = {"workers": self.workers}
        return chosen | ({"sample_dtype": self.sample_dtype} if self.sample_dtype else {})

    def facts(self) -> Mapping[str, Any]:
        """The facts in the data set's manifest; empty if there is no manifest."""
        return manifest.facts_of(self.data)


def loader_of(way: Way, samples: Any, source: Source[Batch], count: int | None = None) -> Loader[Batch]:
    """The loader of ``source`` for the first ``count`` training ``samples`` (None: all). Raises UserError if they
    do not fill one batch."""
    count, batch = len(samples) if count is None else count, way.local_batch_size
    if batch > count:
        raise UserError(f"--batch {batch} must be from 1 to {count}, the number of samples to read")
    return Loader(
        RankSamples(samples, samples, Pool(count, 1), Pool(batch, 1), 0),
        source,
        local_batch_size=batch,
        eval_batch_size=batch,
        steps=count // batch,
        seed=1,
    )


class Figures(NamedTuple):
    """Samples per second in an epoch whose files are in the page cache, and in one whose files are not; bytes
    read, bytes delivered and seconds of processor time per sample in the former epoch; peak memory in bytes beyond
    what the process used before; a checksum of all ``x``, some values of each ``x``, and a checksum of all
    ``y``."""

    warm: float
    cold: float
    read: float
    delivered: float
    cpu_s: float
    memory: float
    checksum: int
    excerpt: npt.NDArray[np.float32]
    labels: int


def measure(
    loader: Loader[Any],
    files: Sequence[Path],
    use: Callable[[Any], object] = lambda batch: None,
    wait: Callable[[], object] = lambda: None,
    arrays: Callable[[Any], Arrays] = lambda batch: batch,
) -> Figures:
    """Read four epochs with ``loader``: one untimed, two timed, and one whose content is compared.

    Called in a separate process. Before the third epoch, ``files`` are dropped from the page cache. ``use``
    consumes a batch within the time measured, ``wait`` returns once all batches are consumed, and ``arrays``
    returns a batch as ``x`` ``[b, ...]`` and ``y``, in the same layout for every loader.
    """
    before, samples = memory_bytes(), loader.steps * loader.local_batch_size

    def timed(epoch: int) -> tuple[float, float, float]:
        read, cpu, start = loader.bytes_read, cpu_seconds(), time.perf_counter()
        for step, batch in enumerate(loader.train_epoch(epoch), 1):
            use(batch)
            if step == loader.steps:  # all samples are read, and the worker processes still exist
                cpu = cpu_seconds() - cpu
        wait()
        rate = samples / (time.perf_counter() - start)
        return rate, cpu / samples, (loader.bytes_read - read) / samples

    # The untimed epoch loads libraries, starts the fork server and the GPU, allocates memory and fills caches.
    for _ in loader.train_epoch(0):
        pass
    warm, cpu_s, read = timed(1)
    evict_files(files)
    cold, _, _ = timed(2)

    memory, checksum, labels, delivered = 0, 0, 0, 0  # not timed: comparing takes long
    excerpt = []
    for batch in loader.train_epoch(3):
        memory = max(memory, memory_bytes() - before)
        x, y = map(np.ascontiguousarray, arrays(batch))
        labels, checksum = isal_zlib.crc32(y, labels), isal_zlib.crc32(x, checksum)
        delivered += x.nbytes + y.nbytes
        flat = x.reshape(len(x), -1)
        excerpt.append(as_float32(flat[:, :: flat.shape[1] // _KEPT + 1]))
    return Figures(
        warm, cold, read, delivered / samples, cpu_s, memory, checksum, np.concatenate(excerpt), labels
    )


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
    """The fields of /proc/PID/stat (proc(5)) from the process state on."""
    return (process / "stat").read_text().rpartition(")")[2].split()


def cpu_seconds() -> float:
    """Processor seconds of this process and its descendants; the latter are counted in ticks of 10 ms."""
    others = [process for process in _processes() if process.name != str(os.getpid())]
    ticks = 0
    for process in others:
        with contextlib.suppress(OSError):  # the process has ended
            ticks += sum(int(field) for field in _stat(process)[11:13])
    return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")


def memory_bytes() -> int:
    """Bytes of memory that this process and its descendants use; shared memory counts once (Pss, proc(5))."""
    total = 0
    for process in _processes():
        with contextlib.suppress(OSError):  # the process has ended
            if pss := re.search(r"^Pss: +(\d+) kB", (process / "smaps_rollup").read_text(), re.MULTILINE):
                total += 1024 * int(pss[1])
    return total
