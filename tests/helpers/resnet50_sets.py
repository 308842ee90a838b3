"""A small data set of drawn images, in every format."""

from collections import Counter
from pathlib import Path

from mlhpc.benchmarks.resnet50 import Data
from mlhpc.common.data import manifest
from mlhpc.common.ranks.world import Solo
from mlhpc.resnet50.data.convert import Target, convert
from mlhpc.resnet50.data.dataset import assign_samples, select
from mlhpc.resnet50.synthetic import simulate

TRAIN, EVALUATION, CLASSES = 22, 9, 3

PACKED: tuple[Target, ...] = ("tfrecord", "lmdb", "raw")

FORMATS = ("jpeg", *PACKED)


def described(**changes) -> Data:
    facts = {
        "train_samples": TRAIN,
        "eval_samples": EVALUATION,
        "sample_shape": (32, 32, 3),
        "simulation": {"classes": CLASSES, "side": 48, "seed": 5},
    }
    return Data(**facts | changes)


def in_every_format(root: Path, data: Data) -> dict[str, Path]:
    """The same images under ``root`` in every format."""
    simulate.make(data, root / "jpeg", Solo(), 1)
    for kind in PACKED:
        convert(root / "jpeg", root / kind, kind, Solo(), 2)
    return {kind: root / kind for kind in FORMATS}


def opened(root: Path, classes=CLASSES, world=None, staged=None, mode="replicate", **changes):
    """The share that a run has of a data set."""
    world = world or Solo()
    data = described(**changes)
    dataset = select(manifest.describe(root, world), data)
    counts = {"train_samples": data.train_samples, "eval_samples": data.eval_samples}
    return assign_samples(dataset, staged, mode, world, classes=classes, **counts)


def images_of(images):
    return [images.read(index) for index in range(len(images))]


def without_manifest(root: Path) -> Path:
    (root / manifest.NAME).unlink()
    return root


def count(root):
    """Settings of a run that match a damaged set of files, so that it passes the counting."""
    names = [p for split in ("train", "validation") for p in (root / split).rglob("*.*")]
    counts = Counter(p.relative_to(root).parts[0] for p in names)
    return {"train_samples": counts["train"], "eval_samples": counts["validation"]}
