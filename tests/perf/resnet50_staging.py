"""Staging many small images, as they are or packed during the copy, against staging the same set packed
before; from a cold source, side by side in one run.

    python tests/perf/resnet50_staging.py [--images 20000] [--target DIR] [--rounds 5] [--workers 4]

The images are 60 drawn ones of about 68 KB, each written many times over. Rounds turn the order, and a ratio is to
the plain files of its round. Before each staging the source is dropped from the page cache; nothing is forced to
disk. The time to pack is printed as well: it is done once, before any run.
"""

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

from resnet50_input import make_images
from rich.console import Console
from rich.table import Table

from mlhpc.common.data import manifest
from mlhpc.common.ranks.world import Solo
from mlhpc.common.staging.stage import remove, stage
from mlhpc.resnet50.data.convert import convert
from mlhpc.resnet50.data.pack import pack

DRAWN, CLASSES = 60, 100
PACKED = "packed while staging"


def make_many(root: Path, drawn: Path, images: int) -> None:
    make_images(drawn, DRAWN, 500)
    contents = [path.read_bytes() for path in sorted((drawn / "train").rglob("*.JPEG"))]
    for n in range(images):
        folder = root / ("validation" if n < CLASSES else "train") / f"class{n % CLASSES:03d}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{n:07d}.JPEG").write_bytes(contents[n % DRAWN])
    manifest.index(root, {}, Solo(), 2)


def forget(root: Path) -> None:
    for path in root.rglob("*"):
        if path.is_file():
            fd = os.open(path, os.O_RDONLY)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--images", type=int, default=20000)
    parser.add_argument("--target", type=Path, help="folder to stage to; default: beside the source")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--scratch", type=Path, help="folder for the source, on the disk to be read")
    args = parser.parse_args()

    with tempfile.TemporaryDirectory(prefix="resnet50-staging-", dir=args.scratch) as scratch:
        roots = {kind: Path(scratch) / kind for kind in ("jpeg", "tfrecord", "lmdb")}
        make_many(roots["jpeg"], Path(scratch) / "drawn", args.images)
        for kind in ("tfrecord", "lmdb"):
            convert(roots["jpeg"], roots[kind], kind, Solo(), args.workers)
        os.sync()
        target = (args.target or Path(scratch)) / f"staged-{os.getpid()}"
        roots[PACKED] = roots["jpeg"]
        wall: dict[str, list[float]] = {kind: [] for kind in roots}
        cpu: dict[str, list[float]] = {kind: [] for kind in roots}
        for turn in range(args.rounds):
            for kind in sorted(roots, reverse=bool(turn % 2)):
                forget(roots[kind])
                dataset = manifest.load(roots[kind])
                started, used = time.perf_counter(), time.process_time()
                if kind == PACKED:
                    pack(dataset, target, Solo(), CLASSES, args.workers)
                else:
                    stage(dataset, target, Solo(), "replicate", args.workers)
                wall[kind].append(time.perf_counter() - started)
                cpu[kind].append(time.process_time() - used)
                remove(target)
        title = f"{args.images} images, {args.workers} workers"
        table = Table("staged", "s", "CPU s", "times as quick", "least", "most", title=title)
        for kind in roots:
            ratios = [plain / own for plain, own in zip(wall["jpeg"], wall[kind], strict=True)]
            seconds = (f"{statistics.median(times[kind]):.2f}" for times in (wall, cpu))
            table.add_row(kind, *seconds, *(f"{f(ratios):.2f}" for f in (statistics.median, min, max)))
        Console().print(table)


if __name__ == "__main__":
    main()
