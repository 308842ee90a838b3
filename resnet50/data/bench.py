"""Compares the loaders on the user's data set: whether they read the same images, and their rates."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from rich.console import Console

from mlhpc.common.data.loader_bench import Figures, Row, compare
from mlhpc.common.data.manifest import describe
from mlhpc.common.ranks.world import Solo
from mlhpc.errors import UserError, count
from mlhpc.resnet50.data.dataset import files_of, open_splits
from mlhpc.resnet50.data.formats import Files, Images

WAYS = ("threads", "workers", "dali")
SIDE = 224
# Mean difference of normalised images: two grey levels. DALI's decoder and resampling differ by half a level.
CLOSE = 2 / (255 * 0.225)


def bench(
    data: Path, samples: int, batch: int, workers: int, rounds: int, evict: bool, console: Console
) -> list[Row]:
    """Read ``samples`` training images of ``data`` at 224 x 224 with every loader, and print the medians.
    JPEG files are sampled from the whole data set, packed formats from their beginning. Returns whether all
    loaders read the same images in the same order.

    The loaders take turns, ``rounds`` times, each in a process of its own. With ``evict`` the images are
    dropped from this machine's page cache before each turn. Raises UserError when the data set cannot be
    read; for a loader that cannot run the reason is printed.
    """
    dataset = describe(data, Solo())
    images = open_splits(dataset, Solo())[0]["train"]
    total = len(images)
    samples = min(samples, total)
    if not 0 < batch <= samples:
        raise UserError(f"--batch {batch}: give 1 to {samples}, the number of images to read")
    paths = [data / name for name in files_of(dataset, "train")]
    if isinstance(images, Files):  # avoids sending and evicting a million file names
        chosen = [i * total // samples for i in range(samples)]
        paths = [Path(images.paths[i]) for i in chosen]
        labels = [images.labels[i] for i in chosen]
        images = Files([str(path) for path in paths], labels, images.classes)
    epoch = partial(_epoch, images, samples, batch, workers, paths if evict else [])
    rows = compare(WAYS, epoch, rounds=rounds, close=CLOSE, console=console)
    cache = "evicted before each" if evict else "as it was"
    console.print(
        f"{count(samples, 'image')} from {data}, seen at {SIDE} x {SIDE}, batch {batch}, "
        f"{count(workers, 'worker')}, median of {count(rounds, 'round')}, page cache {cache}; the second epoch",
        soft_wrap=True,
        highlight=False,
    )
    return rows


def _epoch(
    images: Images, samples: int, batch: int, workers: int, evict: Sequence[Path], way: str
) -> Figures:
    from mlhpc.benchmarks.resnet50 import Loading
    from mlhpc.common.data.sharding import Pool
    from mlhpc.common.pytorch.bench import DEVICE, measure_batches
    from mlhpc.resnet50.data.dataset import RankSamples
    from mlhpc.resnet50.data.loader import Loader

    loader = Loader(
        RankSamples(images, images, Pool(samples, 1), Pool(samples, 1), 0),
        Loading.model_validate({"loader": way, "workers": workers, "prefetch": 4}),
        sample_shape=(SIDE, SIDE, 3),
        local_batch_size=batch,
        eval_batch_size=batch,
        steps=samples // batch,
        seed=1,
        device=DEVICE,
    )
    return measure_batches(loader, evict)
