"""Staging against what else copies files, from a cold source, side by side in one run.

    python tests/perf/staging.py [--data DIR] [--target DIR] [--rounds 5] [--workers 4]

The serial loop of ``shutil.copyfile`` is what the public CosmoFlow reference does in each rank
(mlcommons/hpc, cosmoflow/utils/staging.py). The rounds interleave the ways, in an order that turns, so that
a noisy machine is noisy for all; the ratio is taken round by round, and its median is the result. Before
each copy the source is dropped from the page cache and seen to be gone. What lies below this machine (the
host's cache, a server's) stays as it is. No way forces what it wrote to disk.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from mlhpc.common.data.manifest import Manifest, index
from mlhpc.common.files import pagecache
from mlhpc.common.files.filesystem import filesystem_of
from mlhpc.common.ranks.world import Solo
from mlhpc.common.staging.stage import stage

SAMPLE = (128, 128, 128, 4)  # int16: 16.8 MB a file, as in the round 0.7 data set


def make_source(root: Path, files: int) -> Manifest:
    (root / "train").mkdir(parents=True)
    rng = np.random.default_rng(1)
    counts = rng.poisson(1.5, SAMPLE).astype("<i2")
    for i in range(files):
        # A copy that is different: rolled, not drawn anew, to save time.
        (root / "train" / f"{i:03d}.raw").write_bytes(np.roll(counts, i * 1009).tobytes())
    return index(root, {}, Solo(), workers=4)


def make_cold(paths: list[Path]) -> None:
    pagecache.evict(paths)
    left = max(map(pagecache.resident_fraction, paths))
    if left > 0:
        sys.exit(
            f"the source cannot be dropped from memory ({left:.0%} of a file stayed); choose another --data"
        )


def serial(source: Path, target: Path) -> None:
    (target / "train").mkdir(parents=True)
    for path in (source / "train").iterdir():
        shutil.copyfile(path, target / "train" / path.name)


def cp(source: Path, target: Path) -> None:
    subprocess.run(["cp", "-r", source, target], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="where to make the source (default: the temporary folder)")
    parser.add_argument("--target", type=Path, help="where to copy to (default: beside the source)")
    parser.add_argument("--files", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", type=int, nargs="+", default=[4], help="one row each")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(dir=options.data) as below,
        tempfile.TemporaryDirectory(dir=options.target or below) as above,
    ):
        manifest = make_source(Path(below) / "source", options.files)
        paths = [manifest.root / file.path for file in manifest.files]

        def ours(workers: int) -> Callable[[Path, Path], None]:
            def copy(source: Path, target: Path) -> None:
                stage(manifest, target, Solo(), "replicate", workers=workers)

            return copy

        ways: dict[str, Callable[[Path, Path], None]] = {"serial copyfile (reference)": serial, "cp -r": cp}
        ways |= {f"mlhpc, {n} workers, checksums": ours(n) for n in options.workers}
        rates: dict[str, list[float]] = {name: [] for name in ways}
        for turn in range(options.rounds):
            order = list(ways)
            for name in order[turn % len(order) :] + order[: turn % len(order)]:
                os.sync()  # what the last copy left to be written is not to be paid for by this one
                make_cold(paths)
                target = Path(above) / "copy"
                started = time.perf_counter()
                ways[name](manifest.root, target)
                rates[name].append(manifest.bytes / 1e6 / (time.perf_counter() - started))
                shutil.rmtree(target)
        there = filesystem_of(Path(above))
    console = Console()
    base = rates["serial copyfile (reference)"]
    table = Table(title=f"{len(paths)} files, {manifest.bytes / 1e6:.0f} MB, cold source, to {there.type}")
    for column in ("way", "MB/s", "[min–max]", "ratio to serial, median", "[min–max]"):
        table.add_column(column.replace("[", r"\["), justify="left" if column == "way" else "right")
    for name, values in rates.items():
        ratios = [ours / theirs for ours, theirs in zip(values, base, strict=True)]
        table.add_row(
            name,
            f"{statistics.median(values):.0f}",
            f"{min(values):.0f}–{max(values):.0f}",
            f"{statistics.median(ratios):.2f}",
            f"{min(ratios):.2f}–{max(ratios):.2f}",
        )
    console.print(table)


if __name__ == "__main__":
    main()
