"""Drawn images: the volume of ImageNet's JPEGs, and classes that colours alone do not identify."""

import io

import numpy as np
import numpy.typing as npt
from PIL import Image

from mlhpc.benchmarks import load
from mlhpc.resnet50.synthetic.drawing import class_look, draw

Vector = npt.NDArray[np.float64]


def test_files_have_the_volume_of_imagenets_at_its_dimensions() -> None:
    """ImageNet's training images have about 110 KB at some 470 x 400 pixels on average."""
    files = [draw(2021, number, number, 500) for number in range(40)]
    images = [Image.open(io.BytesIO(data)) for data in files]
    assert 90e3 < np.mean([len(data) for data in files]) < 130e3
    width, height = np.mean([image.size for image in images], axis=0)
    assert 400 < width < 520 and 350 < height < 450
    # Quality 92 or more, from the tables as written: the luminance table of Annex K (ITU T.81) sums to 3692 at 50.
    for image in images:
        table = np.array(image.quantization[0])  # type: ignore[attr-defined]
        assert table.sum() < 3692 * 0.165


def test_classes_come_in_pairs_that_only_the_order_of_two_hues_tells_apart() -> None:
    looks = [class_look(2021, number) for number in range(1000)]
    for one, other in zip(looks[::2], looks[1::2], strict=True):
        assert other == one._replace(rim=one.core, core=one.rim) != one
    assert len({(look.rim, look.core, look.texture) for look in looks[:72]}) == 72
    assert len(set(looks)) == 1000


def hue_histogram(data: bytes) -> Vector:
    """Of the middle, saturated pixels only, and of its mirror distances: what a classifier by colour looks at."""
    image = Image.open(io.BytesIO(data)).convert("HSV")
    width, height = image.size
    middle = image.crop((width // 4, height // 4, 3 * width // 4, 3 * height // 4))
    hue, saturation, _ = (np.asarray(band) for band in middle.split())
    counts = np.bincount(hue[saturation > 70] // 11, minlength=24).astype(float)
    smooth: Vector = np.sqrt(counts / max(counts.sum(), 1))
    return smooth


def test_colours_alone_miss_the_smoke_target() -> None:
    """Twenty nearest neighbours in Hellinger distance: a nonlinear baseline, on the preset's classes and size."""
    target = load.load("resnet50", "smoke", []).target.value
    train, held = range(1200), range(2000, 2300)

    def histograms(numbers: range) -> Vector:
        return np.array([hue_histogram(draw(2021, n % 10, n, 96)) for n in numbers])

    similar = histograms(held) @ histograms(train).T
    nearest = np.argsort(-similar, axis=1)[:, :20] % 10
    guesses = np.array([np.bincount(row, minlength=10).argmax() for row in nearest])
    accuracy = (guesses == np.array(held) % 10).mean()
    assert 0.15 < accuracy < target - 0.05
