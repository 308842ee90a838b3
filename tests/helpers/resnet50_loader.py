"""A small data set of drawn images, and loaders over it."""

from pathlib import Path

import torch

from mlhpc.benchmarks.resnet50 import Data, Loading
from mlhpc.common.data import manifest
from mlhpc.common.data.assign import RankSamples
from mlhpc.common.data.loader import Loader
from mlhpc.common.data.sharding import Pool
from mlhpc.common.ranks.world import Solo
from mlhpc.resnet50.data.augment import STD
from mlhpc.resnet50.data.dataset import assign_samples, select
from mlhpc.resnet50.data.source import ResNet50Source

TRAIN, EVALUATION, CLASSES, SIZE = 16, 7, 2, 64

FACTS = Data(
    train_samples=TRAIN,
    eval_samples=EVALUATION,
    sample_shape=(SIZE, SIZE, 3),
    simulation={"classes": CLASSES, "side": 150},
)

FORMATS = ("jpeg", "tfrecord", "lmdb", "raw")

GREY_LEVEL = 1 / (255 * min(STD))


def open_loader(root, loader="threads", ranks=1, place=0, batch=4, **more):
    world = Solo()
    dataset = select(manifest.describe(root, world), FACTS)
    share = assign_samples(
        dataset, None, "replicate", world, classes=CLASSES, train_samples=TRAIN, eval_samples=EVALUATION
    )
    samples = RankSamples(share.train, share.evaluation, Pool(TRAIN, ranks), Pool(EVALUATION, ranks), place)
    settings = {key: more.pop(key) for key in ("workers", "broken_images") if key in more}
    loading = Loading.model_validate({"loader": loader, "workers": 2, "prefetch": 2} | settings)
    return Loader(
        samples,
        ResNet50Source(loading, SIZE, **more),
        local_batch_size=batch,
        eval_batch_size=3,
        steps=TRAIN // (ranks * batch),
        seed=11,
    )


def epoch_of(loader, epoch=0):
    batches = [*loader.train_epoch(epoch), *loader.evaluation()]
    return torch.cat([x for x, _ in batches]), torch.cat([y for _, y in batches])


def broken(root, split, how) -> Path:
    path = sorted((root / split).rglob("*.JPEG"))[2]
    data = path.read_bytes()
    path.write_bytes({"truncated": data[: len(data) // 2], "empty": b"", "text": b"<html>" * 99}[how])
    return path
