"""Staging against what else copies files, from a cold source, side by side in one run.

    python tests/perf/staging.py [--data DIR] [--target DIR] [--files 64] [--rounds 9] [--workers 8]

The ways: ``cp -r --reflink=never``; the best unverified parallel copy, which is the fastest by median of ``cp``
under ``xargs -P`` with 2, 4 and 8 processes; ``sendfile`` in one stream; only reading, by one ``dd`` to /dev/null
and by eight at a time, which shows whether one stream fills the disk; and staging with checksums. The rounds
interleave the ways, each in a random order, so that a noisy machine is noisy for all; a ratio is taken within each
round, and the result is its median with the 95% interval of the order statistics (Conover 1999, section 3.2: of
nine rounds the second smallest to the second largest, 96%).
Before each copy the source is dropped from the page cache and checked to be gone, and what the last copy left is
written to disk. What lies below this machine (the host's cache, a server's) stays as it is. No way forces what it
wrote to disk.

    python tests/perf/staging.py --manifest 1000 589824 [--nodes 250] [--local 8]

What a manifest of that many files costs instead: for rank 0 to read it; and for another rank from the broadcast to
its own files, first to copy them from shards, then to train in place. Each in a process of its own: seconds, of
processor time, and by how much the resident set grew at most. Names are as in the published data; sizes and
checksums are random. Left out: the network, and what a rank does with its own files.
"""

import argparse
import dataclasses
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from scipy.stats import binom

from mlhpc.common.data.assign import assign_samples
from mlhpc.common.data.manifest import NAME, File, Files, Manifest, index, load, save, take
from mlhpc.common.data.partition import files_of_node, files_of_rank
from mlhpc.common.files import pagecache
from mlhpc.common.files.filesystem import filesystem_of
from mlhpc.common.ranks import wire
from mlhpc.common.ranks.collectives import on_rank0
from mlhpc.common.ranks.world import Solo
from mlhpc.common.staging.stage import stage

SAMPLE = (128, 128, 128, 4)  # int16: 16.8 MB a file, as in the round 0.7 data set
CP = "cp -r --reflink=never"
READERS = {f"read only, {n} dd": n for n in (1, 8)}
PARALLEL = {f"cp under xargs -P {n}": n for n in (2, 4, 8)}
Way = Callable[[Path, Path], object]


def make_source(root: Path, files: int) -> Manifest:
    (root / "train").mkdir(parents=True)
    rng = np.random.default_rng(1)
    counts = rng.poisson(1.5, SAMPLE).astype("<i2")
    for i in range(files):
        # A different file each time: rolled, not drawn again, to save time.
        (root / "train" / f"{i:03d}.raw").write_bytes(np.roll(counts, i * 1009).tobytes())
    return index(root, {}, Solo(), workers=4)


def make_cold(paths: list[Path]) -> None:
    os.sync()  # this copy must not pay for data of the last one that is still to be written
    pagecache.evict(paths)
    left = max(map(pagecache.resident_fraction, paths))
    if left > 0:
        sys.exit(
            f"the source cannot be dropped from memory ({left:.0%} of a file stayed); choose another --data"
        )


def cp(source: Path, target: Path) -> None:
    subprocess.run(["cp", "-r", "--reflink=never", source, target], check=True)


def parallel_cp(processes: int) -> Way:
    line = 'mkdir -p "$2/train" && ls "$1"/train/* | xargs -P "$3" -n 4 cp --reflink=never -t "$2/train"'

    def copy(source: Path, target: Path) -> None:
        subprocess.run(["sh", "-c", line, "sh", source, target, str(processes)], check=True)

    return copy


def sendfile(source: Path, target: Path) -> None:
    (target / "train").mkdir(parents=True)
    for path in (source / "train").iterdir():
        with path.open("rb") as reader, (target / "train" / path.name).open("wb") as writer:
            while os.sendfile(writer.fileno(), reader.fileno(), None, 1 << 20):
                pass


def read(processes: int) -> Way:
    line = 'ls "$1"/train/* | xargs -P "$2" -I {} dd if={} of=/dev/null bs=1M status=none'

    def work(source: Path, target: Path) -> None:
        target.mkdir()
        subprocess.run(["sh", "-c", line, "sh", source, str(processes)], check=True)

    return work


def interval(values: Sequence[float]) -> tuple[float, float]:
    """The 95% confidence interval of the median, from the order statistics; the range if they are too few."""
    ordered, n = sorted(values), len(values)
    k = max((k for k in range(n // 2) if 2 * binom.cdf(k, n, 0.5) <= 0.05), default=0)
    return ordered[k], ordered[n - 1 - k]


class Other(Solo):
    """The last rank of many, for which ``message`` is what rank 0 broadcasts."""

    message = b""

    def broadcast(self, obj: Any) -> Any:
        message, Other.message = self.message, b""
        return wire.decode(message)

    def gather(self, obj: Any) -> Any:
        return [obj]


def write_manifest(root: Path, files: int) -> None:
    rng = np.random.default_rng(files)
    universes = 10**7 + rng.integers(1, 1000, files // 64 + 1).cumsum()
    numbers = zip(
        rng.integers(5_000_000, 6_500_000, files).tolist(),
        rng.integers(0, 2**32, files).tolist(),
        strict=True,
    )
    rows = []
    for i, (size, crc) in enumerate(numbers):
        folder = "validation" if i % 9 == 8 else "train"
        name = f"{folder}/univ_ics_2019-03_a{universes[i // 64]}_{i % 64:03d}.tfrecord"
        rows.append(File(name, size, crc))
    save(Manifest(root, Files.of(sorted(rows)), {}))


def manifest_cost(root: Path, part: str, nodes: int, local: int) -> dict[str, float]:
    """What ``part`` costs this process."""

    def resident(field: str) -> int:
        text = Path("/proc/self/status").read_text()
        return int(text.partition(f"{field}:")[2].split()[0]) * 1024

    message = root / "message"
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # forget the largest resident set
    cpu, wall = time.process_time(), time.perf_counter()
    wanted: Any = None
    if part == "read":
        wanted = load(root)
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        message.write_bytes(wire.encode((wanted, None)))
    else:
        world = Other(size=nodes * local, rank=nodes * local - 1, local_rank=local - 1, local_size=local)
        world = dataclasses.replace(world, node=nodes - 1, nodes=nodes)
        Other.message = message.read_bytes()
        dataset = on_rank0(world, lambda: load(root))
        samples = {name: dataset.samples(name) for name in ("train", "validation")}
        dataset = take(dataset, **samples)
        if part == "shards":
            files = files_of_node(dataset.files, world.node, nodes, "shard")
            wanted = [*files_of_rank(files, local - 1, local)]
        stage = Path("/stage") if part == "shards" else None
        train, validation = samples["train"], samples["validation"]
        assigned = assign_samples(
            dataset, stage, "shard", world, train_samples=train, eval_samples=validation
        )
        wanted = wanted, assigned
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    return {
        "s": wall,
        "cpu_s": cpu,
        "peak_mb": (resident("VmHWM") - before) / 1e6,
        "sent_mb": message.stat().st_size / 1e6,
        "file_mb": (root / NAME).stat().st_size / 1e6,
    }


def manifests(options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory(dir=options.data) as folder:
        for files in options.manifest:
            write_manifest(Path(folder), files)
            for part in ("read", "shards", "in place"):
                words = [sys.executable, __file__, "--part", part, "--data", folder]
                words += ["--nodes", str(options.nodes), "--local", str(options.local)]
                line = subprocess.run(words, check=True, text=True, stdout=subprocess.PIPE).stdout
                print(
                    f"files={files} nodes={options.nodes} ranks={options.local} part={part!r} {line}", end=""
                )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="where to make the source (default: the temporary folder)")
    parser.add_argument("--target", type=Path, help="where to copy to (default: beside the source)")
    parser.add_argument("--files", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--workers", type=int, nargs="+", default=[8], help="one row each")
    parser.add_argument("--manifest", type=int, nargs="+", metavar="FILES")
    parser.add_argument("--nodes", type=int, default=250)
    parser.add_argument("--local", type=int, default=8, help="ranks of a node")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part:
        cost = manifest_cost(options.data, options.part, options.nodes, options.local)
        print(" ".join(f"{name}={value:.3f}" for name, value in cost.items()))
        return
    if options.manifest:
        manifests(options)
        return
    with (
        tempfile.TemporaryDirectory(dir=options.data) as below,
        tempfile.TemporaryDirectory(dir=options.target or below) as above,
    ):
        manifest = make_source(Path(below) / "source", options.files)
        paths = [manifest.root / file.path for file in manifest.files]

        def ours(workers: int) -> Way:
            return lambda source, target: stage(manifest, target, Solo(), "replicate", workers=workers)

        staging = {f"mlhpc, at most {n} files at once, checksums": ours(n) for n in options.workers}
        ways: dict[str, Way] = {CP: cp, "sendfile, one stream": sendfile}
        ways |= {name: read(n) for name, n in READERS.items()}
        ways |= {name: parallel_cp(n) for name, n in PARALLEL.items()} | staging
        rates: dict[str, list[float]] = {name: [] for name in ways}
        cpu: dict[str, list[float]] = {name: [] for name in ways}
        for turn in range(options.rounds):
            # A way's rate depends on what its predecessor left in memory: each has another one in every round.
            for name in random.Random(turn).sample(list(ways), len(ways)):
                make_cold(paths)
                target = Path(above) / "copy"
                started, used = time.perf_counter(), sum(os.times()[:4])
                ways[name](manifest.root, target)
                rates[name].append(manifest.bytes / 1e6 / (time.perf_counter() - started))
                cpu[name].append(1e9 * (sum(os.times()[:4]) - used) / manifest.bytes)
                shutil.rmtree(target)
        filesystem = filesystem_of(Path(above))
    best = max(PARALLEL, key=lambda name: statistics.median(rates[name]))
    title = f"{len(paths)} files, {manifest.bytes / 1e6:.0f} MB, cold source, to {filesystem.type}"
    table = Table(title=f"{title}; load {os.getloadavg()[1]:.1f} on {os.cpu_count()} cores")
    for column in ("way", "MB/s", "CPU ns/B", "to cp [95%]", "to the best parallel copy [95%]"):
        table.add_column(column.replace("[", r"\["), justify="left" if column == "way" else "right")
    for name, values in rates.items():
        cells = [f"{name} (best)" if name == best else name, f"{statistics.median(values):.0f}"]
        cells.append(f"{statistics.median(cpu[name]):.2f}")
        for base in (CP, best):
            ratios = [one / other for one, other in zip(values, rates[base], strict=True)]
            low, high = interval(ratios)
            cells.append(f"{statistics.median(ratios):.2f} {low:.2f}–{high:.2f}")
        table.add_row(*cells)
    Console(width=115).print(table)


if __name__ == "__main__":
    main()
