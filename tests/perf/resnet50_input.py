"""ResNet-50's input against torchvision's ImageFolder and DataLoader, and its formats cold, side by side.

    python tests/perf/resnet50_input.py [--images 384] [--side 500] [--batch 32] [--workers 2] [--rounds 5]

Both sides end at normalised float32 batches of 224 x 224 from random resized crops, mirrored half the time.
The reference is what torchvision's users write: ImageFolder, which decodes with Pillow, v2 transforms and a
DataLoader of as many worker processes, kept from one epoch to the next, that yields channels-last batches.
The images are drawn as by ``mlhpc data make``, 500 pixels long, with the grain of a photograph at quality 90,
in a temporary folder; they lie in the page cache. Rounds alternate, and a ratio is to the reference of its
round; the median is the result.

The second table is how quickly images are read from each format, without decoding, by as many threads, in
random order: after dropping them from the page cache (cold, on this node), and warm.
"""

import argparse
import io
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from rich.console import Console
from rich.table import Table
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from mlhpc.benchmarks.resnet50 import Data, Loading
from mlhpc.common.data import manifest
from mlhpc.common.data.loader import Loader
from mlhpc.common.files.pagecache import evict, resident_fraction
from mlhpc.common.ranks.world import Solo
from mlhpc.resnet50.data.augment import MEAN, STD
from mlhpc.resnet50.data.convert import convert
from mlhpc.resnet50.data.dataset import assign_samples, select
from mlhpc.resnet50.data.source import ResNet50Source
from mlhpc.resnet50.synthetic.drawing import draw

CLASSES, SIZE = 4, 224


def make_images(root: Path, images: int, side: int) -> None:
    """Drawn images with more grain, so that they have nearly the bytes of photographs."""
    rng = np.random.default_rng(1)
    for split, count in (("train", images), ("validation", CLASSES)):
        for n in range(count):
            folder = root / split / f"class{n % CLASSES}"
            folder.mkdir(parents=True, exist_ok=True)
            with Image.open(io.BytesIO(draw(1, n % CLASSES, n, side))) as image:
                pixels = np.asarray(image.convert("RGB"), np.float32)
            pixels = pixels + 9 * rng.standard_normal(pixels.shape, np.float32)
            Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / f"{n}.JPEG", quality=90)


def reference(root: Path, batch: int, workers: int) -> Callable[[], Iterable[Any]]:
    transforms = v2.Compose(
        [
            v2.RandomResizedCrop(SIZE, antialias=True),
            v2.RandomHorizontalFlip(),
            v2.PILToTensor(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(MEAN, STD),
        ]
    )
    loader = DataLoader(
        ImageFolder(str(root / "train"), transforms),
        batch,
        shuffle=True,
        drop_last=True,
        num_workers=workers,
        persistent_workers=True,
    )
    return lambda: ((x.to(memory_format=torch.channels_last), y) for x, y in loader)


def ours(root: Path, data: Data, batch: int, workers: int, way: str) -> Callable[[], Iterable[Any]]:
    world = Solo()
    counts = {"train_samples": data.train_samples, "eval_samples": data.eval_samples}
    dataset = select(manifest.describe(root, world), data)
    share = assign_samples(dataset, None, "replicate", world, classes=CLASSES, **counts)
    loader = Loader(
        share,
        ResNet50Source(Loading.model_validate({"loader": way, "workers": workers, "prefetch": 2}), SIZE),
        local_batch_size=batch,
        eval_batch_size=batch,
        steps=data.train_samples // batch,
        seed=1,
    )
    return lambda: loader.train_epoch(0)


def rate(batches: Callable[[], Iterable[Any]], warm_up: int = 2) -> float:
    """Images a second, after the first batches: processes start and pipelines are built in those."""
    count, started = 0, 0.0
    for number, (x, _) in enumerate(batches()):
        if number == warm_up - 1:
            started = time.perf_counter()
        count += len(x) if number >= warm_up else 0
    return count / (time.perf_counter() - started)


def read_rate(images: Any, order: list[int], workers: int) -> float:
    started = time.perf_counter()
    with ThreadPoolExecutor(workers) as pool:
        for _ in pool.map(lambda index: images.read(index)[0].nbytes, order):
            pass
    return len(order) / (time.perf_counter() - started)


def rows(rounds: list[dict[str, float]], to: str) -> Iterable[tuple[str, ...]]:
    for name in rounds[0]:
        ratios = [r[name] / r[to] for r in rounds]
        median = statistics.median(r[name] for r in rounds)
        yield name, f"{median:.0f}", *(f"{f(ratios):.2f}" for f in (statistics.median, min, max))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--images", type=int, default=384, help="made, and read in an epoch")
    parser.add_argument("--side", type=int, default=500, help="pixels of the longer side")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scratch", type=Path, help="folder for the images, on the disk to be measured")
    args = parser.parse_args()

    torch.set_num_threads(args.workers)
    data = Data(train_samples=args.images, eval_samples=CLASSES, sample_shape=(SIZE, SIZE, 3))
    with tempfile.TemporaryDirectory(prefix="resnet50-input-", dir=args.scratch) as scratch:
        roots = {kind: Path(scratch) / kind for kind in ("jpeg", "tfrecord", "lmdb")}
        make_images(roots["jpeg"], args.images, args.side)
        for kind in ("tfrecord", "lmdb"):
            convert(roots["jpeg"], roots[kind], kind, Solo(), args.workers)
        size = sum(path.stat().st_size for path in roots["jpeg"].rglob("*.JPEG")) / (args.images + CLASSES)
        peer = f"torchvision, {args.workers} workers"
        ways = {peer: reference(roots["jpeg"], args.batch, args.workers)} | {
            f"mlhpc {way}": ours(roots["jpeg"], data, args.batch, args.workers, way)
            for way in ("threads", "workers", "dali")
        }
        for way in ways.values():
            rate(way)
        loaded = [
            {name: rate(ways[name]) for name in sorted(ways, reverse=bool(turn % 2))}
            for turn in range(args.rounds)
        ]
        shown = [{name: r[name] for name in ways} for r in loaded]
        table = Table("loader", "images/s", "ratio", "least", "most", title=f"{size / 1e3:.0f} KB a JPEG")
        for row in rows(shown, peer):
            table.add_row(*row)
        Console().print(table)

        world = Solo()
        order = np.random.default_rng(2).permutation(args.images).tolist()
        table = Table("read from", "images/s", "ratio", "least", "most", title="undecoded")
        for state in ("cold", "warm"):
            rounds = []
            for turn in range(args.rounds):
                rates = {}
                for kind in sorted(roots, reverse=bool(turn % 2)):
                    dataset = select(manifest.describe(roots[kind], world), data)
                    counts = {"train_samples": data.train_samples, "eval_samples": data.eval_samples}
                    files = [roots[kind] / file.path for file in dataset.files]
                    images = assign_samples(
                        dataset, None, "replicate", world, classes=CLASSES, **counts
                    ).train
                    if state == "cold":
                        evict(files)
                        if (left := statistics.mean(map(resident_fraction, files))) > 0.2:
                            print(f"{kind}: {left:.0%} stayed in memory: this is not cold", file=sys.stderr)
                    rates[f"{kind}, {state}"] = read_rate(images, order, args.workers)
                rounds.append({f"{kind}, {state}": rates[f"{kind}, {state}"] for kind in roots})
            for row in rows(rounds, f"jpeg, {state}"):
                table.add_row(*row)
        Console().print(table)


if __name__ == "__main__":
    main()
