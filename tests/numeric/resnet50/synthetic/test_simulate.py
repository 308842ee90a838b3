"""Drawn images: reproducible, in ImageNet's layout, and neither trivial nor impossible to classify."""

import io
from pathlib import Path

import numpy as np
import pytest
from helpers.resnet50_sets import CLASSES, EVALUATION, FORMATS, PACKED, TRAIN, described
from helpers.thread_world import on_ranks
from PIL import Image

from mlhpc.common.data import manifest
from mlhpc.common.data.verify import verify
from mlhpc.common.ranks.world import Solo
from mlhpc.errors import UserError
from mlhpc.resnet50.data.convert import convert
from mlhpc.resnet50.synthetic import simulate
from mlhpc.resnet50.synthetic.drawing import draw


@pytest.fixture(scope="module")
def sets(tmp_path_factory) -> dict[str, Path]:
    """The same images in every format."""
    root = tmp_path_factory.mktemp("resnet50")
    simulate.make(described(), root / "jpeg", Solo(), 1)
    for kind in PACKED:
        convert(root / "jpeg", root / kind, kind, Solo(), 2)
    return {kind: root / kind for kind in FORMATS}


def test_images_depend_only_on_the_seed_for_any_workers_ranks_and_restart(sets, tmp_path):
    others = tmp_path / "two processes", tmp_path / "two ranks"
    simulate.make(described(), others[0], Solo(), 2)
    on_ranks(1, 2, lambda world: simulate.make(described(), others[1], world, 1))
    for other in others:
        assert (other / manifest.NAME).read_bytes() == (sets["jpeg"] / manifest.NAME).read_bytes()
    some = sorted((others[0] / "train").rglob("*.JPEG"))[::3]
    for path in some:
        path.unlink()
    simulate.make(described(), others[0], Solo(), 1)
    assert not verify(others[0], 1)
    with pytest.raises(UserError, match=r"different settings \(simulation\)"):
        simulate.make(described(simulation={"classes": CLASSES, "side": 48, "seed": 6}), others[0], Solo(), 1)


def test_the_layout_is_imagenets_and_classes_are_of_equal_size(sets):
    for split, count in (("train", TRAIN), ("validation", EVALUATION)):
        per_class = [len(list(folder.glob("*.JPEG"))) for folder in sorted((sets["jpeg"] / split).iterdir())]
        assert sum(per_class) == count and len(per_class) == CLASSES and max(per_class) - min(per_class) <= 1


def test_sizes_and_aspect_ratios_are_those_of_photographs():
    sizes = [Image.open(io.BytesIO(draw(1, n % 4, n, 100))).size for n in range(150)]
    ratios = np.array([width / height for width, height in sizes])
    assert np.median([max(size) for size in sizes]) == 100
    assert 0.9 < np.mean(np.abs(ratios - 4 / 3) < 0.01) / 0.4 < 1.5  # 47% of 85% are of 4:3
    assert (ratios < 1).mean() > 0.1 and len({size for size in sizes}) > 10


def test_images_are_more_similar_within_a_class_than_between_classes():
    """A histogram of colours, the nearest mean of 20 images a class: far above chance, far from solved."""
    seed, classes = 3, 8

    def histogram(sample):
        picture = Image.open(io.BytesIO(draw(seed, sample % classes, sample, 64))).convert("HSV")
        width, height = picture.size
        middle = picture.crop((width // 4, height // 4, 3 * width // 4, 3 * height // 4))
        counts, _ = np.histogram(np.asarray(middle)[..., 0], 24, (0, 256))
        return np.sqrt(counts / counts.sum())

    means = [
        np.mean([histogram(20 * classes * k + number) for k in range(20)], axis=0)
        for number in range(classes)
    ]
    tests = [
        (number, histogram(number + classes * (7 + 20 * k))) for number in range(classes) for k in range(9)
    ]
    right = np.mean([np.argmin([np.linalg.norm(h - mean) for mean in means]) == n for n, h in tests])
    assert 2 / classes < right < 0.9


def test_a_preset_of_imagenet_cannot_be_made(tmp_path):
    with pytest.raises(UserError, match="ImageNet"):
        simulate.make(described(simulation=None), tmp_path / "out", Solo(), 1)
    with pytest.raises(UserError, match="classes 50 exceeds"):
        simulate.make(described(simulation={"classes": 50}), tmp_path / "out", Solo(), 1)
