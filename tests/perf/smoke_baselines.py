"""What simple baselines reach on the smoke data sets: ``python tests/perf/smoke_baselines.py BENCHMARK DATA``.

Every one of the smoke presets' targets is reached by one of these: docs/performance.md has the figures.

Linear and nonlinear regression on global statistics and power spectra for CosmoFlow (linear on the latter:
``python -m mlhpc.cosmoflow.synthetic.evidence regression DATA``), thresholds and gradient boosting per pixel for
DeepCAM, extremely randomised trees on colour histograms, radial spectra and thumbnails for ResNet-50.
Needs scikit-learn, which is not among the suite's dependencies: ``pip install scikit-learn``.
"""

import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt
from PIL import Image
from sklearn.ensemble import ExtraTreesClassifier, ExtraTreesRegressor, HistGradientBoostingClassifier
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import LinearRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures, StandardScaler

from mlhpc.common.formats import tf_example

Array = npt.NDArray[Any]
SPLITS = ("train", "validation")


def cosmoflow(data: Path) -> None:
    def statistics(path: Path) -> tuple[Array, Array]:
        ((raw, targets),) = tf_example.read_examples(path)
        counts = np.frombuffer(raw, "<i2").reshape(-1, 4)
        logs = np.log1p(counts.astype(np.float32))
        shares = [np.bincount(np.minimum(c, 60), minlength=61) / len(counts) for c in counts.T]
        skew = ((logs - logs.mean(axis=0)) ** 3).mean(axis=0)
        return np.concatenate([logs.mean(axis=0), logs.std(axis=0), skew, *shares]), targets

    def spectra(path: Path) -> Array:
        """Power spectra of the counts at each redshift (logarithm), moments of their logarithm, histograms."""
        ((raw, _),) = tf_example.read_examples(path)
        counts = np.frombuffer(raw, "<i2").reshape(-1, 4)
        logs, side = np.log1p(counts.astype(np.float32)), round(len(counts) ** (1 / 3))
        waves = [np.fft.fftfreq(side) * side] * 2 + [np.arange(side // 2 + 1)]
        shell = (
            np.hypot(np.hypot(*np.meshgrid(*waves, indexing="ij")[:2]), waves[2]).round().astype(int).ravel()
        )
        powers = []
        for c in counts.T:
            power = np.abs(np.fft.rfftn(c.reshape(side, side, side).astype(np.float32))).ravel() ** 2
            mean = np.bincount(shell, power)[1 : side // 2] / np.bincount(shell)[1 : side // 2]
            powers.append(np.log(mean + 1))
        shares = [np.sqrt(np.bincount(np.minimum(c, 20), minlength=21) / len(c)) for c in counts.T]
        skew = ((logs - logs.mean(axis=0)) ** 3).mean(axis=0)
        return np.concatenate([logs.mean(axis=0), logs.std(axis=0), skew, *powers, *shares])

    features = [np.array([spectra(path) for path in sorted((data / s).iterdir())]) for s in SPLITS]
    (x, y), (held, truth) = (
        [np.array(part) for part in zip(*map(statistics, sorted((data / s).iterdir())), strict=True)]
        for s in SPLITS
    )
    for name, model, columns in (
        ("linear, mean and spread", LinearRegression(), 8),
        ("quadratic, mean and spread", make_pipeline(PolynomialFeatures(2), LinearRegression()), 8),
        (
            "extra-trees, mean, spread, skewness",
            ExtraTreesRegressor(300, min_samples_leaf=3, random_state=0),
            12,
        ),
        (
            "extra-trees, histograms",
            ExtraTreesRegressor(200, max_features=0.3, min_samples_leaf=3, random_state=0),
            None,
        ),
    ):
        guess = np.clip(model.fit(x[:, :columns], y).predict(held[:, :columns]), -1, 1)
        print(f"{name}: mean absolute error {np.abs(guess - truth).mean():.3f}")
    kernel = KernelRidge(kernel="rbf", alpha=0.01, gamma=0.1 / features[0].shape[1])
    guess = np.clip(make_pipeline(StandardScaler(), kernel).fit(features[0], y).predict(features[1]), -1, 1)
    errors = np.abs(guess - truth)
    print(
        f"kernel ridge, spectra and histograms: mean absolute error {errors.mean():.3f}", errors.mean(axis=0)
    )


def deepcam(data: Path) -> None:
    def read(split: str) -> tuple[Array, Array]:
        files = [h5py.File(path) for path in sorted((data / split).glob("*.h5"))]
        return np.stack([f["climate/data"][:] for f in files]), np.stack(
            [f["climate/labels_0"][:] for f in files]
        )

    def mean_iou(guess: Array, truth: Array) -> float:
        scores = []
        for kind in range(3):
            both = ((guess == kind) & (truth == kind)).sum(axis=(1, 2))
            either = ((guess == kind) | (truth == kind)).sum(axis=(1, 2))
            scores.append(np.where(either, both / np.maximum(either, 1), 1))
        return float(np.mean(scores))

    (x, y), (held, truth) = map(read, SPLITS)
    rows = x.shape[1]
    latitude = (np.arange(rows) + 0.5)[None, :, None] / rows * 180 - 90

    def thresholds(x: Array, low: float, excess: float) -> Array:
        vapour, wind, pressure = x[..., 0], np.hypot(x[..., 1], x[..., 2]), x[..., 7]
        river = (vapour > 20) & (vapour > excess * vapour.mean(axis=2, keepdims=True)) & (vapour * wind > 250)
        river &= (x[..., 2] * np.sign(latitude) > 0) & (abs(latitude) > 18) & (abs(latitude) < 65)
        cyclone = (wind > 15) & (pressure - pressure.mean(axis=2, keepdims=True) < low) & (abs(latitude) < 40)
        return np.where(cyclone, 1, np.where(river, 2, 0))

    choices = [(low, excess) for low in (-400, -800, -1500) for excess in (1.25, 1.5)]
    best = max(choices, key=lambda choice: mean_iou(thresholds(x, *choice), y))
    print(f"all background: IoU {mean_iou(np.zeros_like(truth), truth):.3f}")
    print(f"thresholds: IoU {mean_iou(thresholds(held, *best), truth):.3f}")

    def pixels(x: Array) -> Array:
        return np.c_[x.reshape(-1, 16), np.broadcast_to(latitude, x.shape[:3]).ravel()]

    labels, rng = y.ravel(), np.random.default_rng(0)
    chosen = [rng.permutation(np.flatnonzero(labels == kind))[:60_000] for kind in range(3)]
    model = HistGradientBoostingClassifier(max_iter=150, max_leaf_nodes=63, random_state=0)
    model.fit(pixels(x)[np.concatenate(chosen)], labels[np.concatenate(chosen)])
    prior = np.array([(labels == kind).mean() / len(chosen[kind]) for kind in range(3)])
    guess = (model.predict_proba(pixels(held)) * prior).argmax(axis=1).reshape(truth.shape)
    print(f"gradient boosting per pixel: IoU {mean_iou(guess, truth):.3f}")


def resnet50(data: Path) -> None:
    def features(path: Path) -> tuple[Array, Array, Array, Array]:
        image = Image.open(path).convert("RGB")
        side = min(image.size)
        left, top = ((edge - side) // 2 for edge in image.size)
        image = image.crop((left, top, left + side, top + side)).resize((64, 64), Image.Resampling.BILINEAR)
        hue, saturation, _ = np.moveaxis(np.asarray(image.convert("HSV"), int)[12:52, 12:52], 2, 0)
        hues = np.bincount(hue[saturation > 70] * 24 // 256, minlength=24)
        colours = np.histogram2d(hue.ravel(), saturation.ravel(), (12, 4), ((0, 256), (0, 256)))[0].ravel()
        grey = np.asarray(image.convert("L"), float)
        window = np.outer(np.hanning(64), np.hanning(64))
        power = np.abs(np.fft.fftshift(np.fft.fft2((grey - grey.mean()) * window))) ** 2
        radius = np.hypot(*np.mgrid[-32:32, -32:32]).astype(int).ravel()
        spectrum = np.log(np.bincount(radius, power.ravel())[:32] / np.bincount(radius)[:32] + 1)
        return hues / max(1, hues.sum()), colours, spectrum, np.asarray(image.resize((16, 16)), float).ravel()

    parts, labels = [], []
    for split in SPLITS:
        paths = sorted((data / split).glob("*/*.JPEG"))
        parts.append([np.array(p) for p in zip(*map(features, paths), strict=True)])
        labels.append([path.parent.name for path in paths])
    for name, use in (
        ("hue histogram", [0]),
        ("hue and saturation", [0, 1]),
        ("radial spectrum", [2]),
        ("hue, saturation, spectrum", [0, 1, 2]),
        ("thumbnails", [3]),
    ):
        train, held = (np.hstack([part[i] for i in use]) for part in parts)
        score = ExtraTreesClassifier(300, random_state=0).fit(train, labels[0]).score(held, labels[1])
        print(f"extra-trees, {name}: top-1 {score:.3f}")


if __name__ == "__main__":
    {"cosmoflow": cosmoflow, "deepcam": deepcam, "resnet50": resnet50}[sys.argv[1]](Path(sys.argv[2]))
