"""Preprocessing of closed runs, against recorded results of the MLPerf reference on the same images."""

import base64
import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from mlhpc.resnet50.data import mlperf
from mlhpc.resnet50.data.augment import View
from mlhpc.resnet50.data.image import decode

RECORDED = json.loads(
    (Path(__file__).parents[3] / "data" / "reference" / "resnet50_preprocessing.json").read_text()
)


def picture(height, width, seed):
    """Colours that vary over the picture, and noise: uint8 [3, height, width]."""
    rng = np.random.RandomState(seed)
    y, x = np.mgrid[:height, :width].astype(np.float64)
    planes = [128 + 60 * np.sin(x / (5 + 3 * c) + c) + 50 * np.cos(y / (7 + 2 * c)) for c in range(3)]
    pixels = np.clip(np.stack(planes, -1) + rng.randint(-16, 17, (height, width, 3)), 0, 255)
    return torch.from_numpy(pixels.astype(np.uint8)).permute(2, 0, 1)


def rendered(pixels, view):
    x = np.empty((224, 224, 3), np.float32)
    mlperf.render(pixels, view, 224, x)
    return x


def assert_equal(x, case):
    every = case["every"]
    values = np.array(case["values"], np.float32)
    np.testing.assert_allclose(x[::every, ::every].ravel(), values, rtol=0, atol=1e-4)
    assert x.astype(np.float64).mean() == pytest.approx(case["mean"], abs=1e-6)
    assert hashlib.sha256(x.tobytes()).hexdigest() == case["sha256"]


@pytest.mark.parametrize("case", RECORDED["evaluation"], ids=lambda case: str(case["picture"]))
def test_evaluation_preprocessing_equals_the_references_bit_for_bit(case):
    height, width, _ = case["picture"]
    view = mlperf.evaluation_view(height, width, 224)
    assert_equal(rendered(picture(*case["picture"]), view), case)


@pytest.mark.parametrize("case", RECORDED["training"], ids=lambda case: str(case["picture"]))
def test_training_preprocessing_equals_the_references_bit_for_bit(case):
    view = View(*case["box"], 224, 224, mirrored=case["mirrored"])
    assert_equal(rendered(picture(*case["picture"]), view), case)


def test_the_recorded_boxes_cover_mirroring_enlarging_and_reducing():
    """Or the test above would show less than it says."""
    boxes = [(case["box"], case["mirrored"]) for case in RECORDED["training"]]
    assert {mirrored for _, mirrored in boxes} == {True, False}
    assert min(box[2] for box, _ in boxes) < 224 < max(box[2] for box, _ in boxes)


@pytest.mark.parametrize("case", RECORDED["jpeg"], ids=lambda case: str(case["size"]))
def test_jpeg_decoding_differs_at_most_by_rounding(case):
    """TensorFlow decodes with libjpeg's fast inverse transform, torchvision with the accurate one."""
    pixels = decode(np.frombuffer(bytearray(base64.b64decode(case["jpeg"])), np.uint8))
    views = {
        "evaluation": mlperf.evaluation_view(*case["size"], 224),
        "training": View(*case["box"], 224, 224, mirrored=case["mirrored"]),
    }
    for name, view in views.items():
        every = case["every"]
        difference = rendered(pixels, view)[::every, ::every].ravel() - np.array(case[name])
        assert np.abs(difference).max() <= 4 and np.abs(difference).mean() < 1.5, name


def test_the_size_of_an_evaluation_image_equals_the_references():
    for height, width, rows, columns in RECORDED["evaluation_sizes"]:
        view = mlperf.evaluation_view(height, width, 224)
        assert (view.rows, view.columns) == (rows, columns), (height, width)


@pytest.mark.parametrize("case", RECORDED["crops"], ids=lambda case: str(case["size"]))
def test_boxes_have_the_references_distribution(case):
    """Kolmogorov and Smirnov's distance between our boxes and its 20 000, at its quantiles."""
    height, width = case["size"]
    views = [mlperf.training_view(height, width, 224, np.random.default_rng([7, i])) for i in range(5000)]
    h, w, top, left = (
        np.array([getattr(view, name) for view in views], float)
        for name in ("height", "width", "top", "left")
    )
    ours = {
        "height": h,
        "width": w,
        "area": h * w / (height * width),
        "ratio": w / h,
        "top": top,
        "left": left,
    }
    # 0.1% of samples of these sizes from one distribution are further apart; half a quantile for the table.
    allowed = 1.95 * np.sqrt(1 / 5000 + 1 / case["draws"]) + 0.5 / 200
    for name, quantiles in case["quantiles"].items():
        values, at = np.sort(ours[name]), np.array(quantiles)
        share = np.linspace(0, 1, len(at))
        below = np.searchsorted(values, at, "left") / len(values)
        upto = np.searchsorted(values, at, "right") / len(values)
        # Between the shares below and up to a value lies every share of which it is the quantile.
        distance = np.maximum(np.maximum(below - share, share - upto), 0).max()
        assert distance < allowed, (name, distance, allowed)
    assert np.mean([view.mirrored for view in views]) == pytest.approx(0.5, abs=0.03)
    # It never drew the last position, where a box ends at the image's edge but does not fill it.
    assert case["never_last"] == [0, 0]
    assert (top[h < height] < (height - h)[h < height]).all() and (
        left[w < width] < (width - w)[w < width]
    ).all()
    assert ours["area"].min() >= case["least_area"] - 1e-6
