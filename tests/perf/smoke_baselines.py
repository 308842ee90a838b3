"""What simple baselines reach on the smoke data sets: ``python tests/perf/smoke_baselines.py BENCHMARK DATA``.

docs/evidence/training.md has the figures.

Linear, kernel and tree regression, neighbours and perceptrons on global statistics for CosmoFlow, among them power
spectra (as in ``python tests/helpers/universe_statistics.py regression DATA``); thresholds, gradient boosting and
perceptrons per pixel for DeepCAM; trees, neighbours, support vectors on colour, spectra, texture and places for
ResNet-50.
"""

import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt
from PIL import Image
from scipy import fft, ndimage
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.ensemble import (
    ExtraTreesClassifier,
    ExtraTreesRegressor,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
)
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import LinearRegression, LogisticRegression, RidgeCV
from sklearn.model_selection import GridSearchCV
from sklearn.multioutput import MultiOutputRegressor
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures, StandardScaler
from sklearn.svm import SVC

from mlhpc.common.formats import tf_example

Array = npt.NDArray[Any]
SPLITS = ("train", "validation")


def cosmoflow(data: Path) -> None:
    def statistics(path: Path) -> tuple[Array, Array, Array, Array]:
        ((raw, targets),) = tf_example.read_examples(path)
        counts = np.frombuffer(raw, "<i2").reshape(-1, 4)
        logs = np.log1p(counts.astype(np.float32))
        shares = [np.bincount(np.minimum(c, 60), minlength=61) / len(counts) for c in counts.T]
        skew = ((logs - logs.mean(axis=0)) ** 3).mean(axis=0)
        moments = np.concatenate([logs.mean(axis=0), logs.std(axis=0), skew])
        side = round(len(counts) ** (1 / 3))
        fields = logs.reshape(side, side, side, 4)
        fields -= fields.mean(axis=(0, 1, 2))
        # A part of a larger box does not continue at its other side: the second spectra are of a field that
        # fades out.
        edge = np.hanning(side + 2)[1:-1]
        window = edge[:, None, None, None] * edge[:, None, None] * edge[:, None]
        spectra = np.concatenate([clustering(fields), clustering(fields * window)])
        return moments, np.concatenate(shares), spectra, targets

    def clustering(fields: Array) -> Array:
        """Logarithms of the power spectra and cross spectra of the redshifts, and the third moments of the
        fields in shells of wave numbers: the equilateral part of the bispectrum."""
        side = len(fields)
        waves = fft.fftn(fields, axes=(0, 1, 2))
        frequency = np.fft.fftfreq(side, 1 / side)
        length = np.sqrt(sum(f**2 for f in np.meshgrid(frequency, frequency, frequency))).astype(int)
        shell = np.minimum(length, side // 2).ravel()
        found = []
        for i, j in ((0, 0), (1, 1), (2, 2), (3, 3), (0, 1), (1, 2), (2, 3), (0, 3)):
            power = np.bincount(shell, (waves[..., i] * waves[..., j].conj()).real.ravel())[1:]
            found.append(np.log(np.abs(power) + 1))
        edges = (1, 2, 4, 8, 16)[: side.bit_length() - 1]
        for low, high in pairwise(edges):
            inside = ((length >= low) & (length < high))[..., None]
            band = fft.ifftn(waves * inside, axes=(0, 1, 2)).real
            found.append(
                (band * band * band).mean(axis=(0, 1, 2)) / (band * band).mean(axis=(0, 1, 2)) ** 1.5
            )
        return np.concatenate(found)

    (*x, y), (*held, truth) = (
        [np.array(part) for part in zip(*map(statistics, sorted((data / s).iterdir())), strict=True)]
        for s in SPLITS
    )
    moments, shares, spectra = 0, 1, 2
    trees = ExtraTreesRegressor(300, min_samples_leaf=3, max_features=0.3, random_state=0, n_jobs=1)
    for name, model, use, columns in (
        ("linear, mean and spread", LinearRegression(), [moments], 8),
        (
            "quadratic, mean and spread",
            make_pipeline(PolynomialFeatures(2), LinearRegression()),
            [moments],
            8,
        ),
        ("extra-trees, mean, spread, skewness", trees, [moments], None),
        ("extra-trees, histograms", trees, [moments, shares], None),
        ("linear, spectra", scaled(RidgeCV(np.logspace(-3, 3, 13))), [moments, spectra], None),
        ("linear, everything", scaled(RidgeCV(np.logspace(-3, 3, 13))), [moments, shares, spectra], None),
        ("kernel ridge, moments", scaled(KernelRidgeOfAll(0.02)), [moments], None),
        ("kernel ridge, moments and spectra", scaled(KernelRidgeOfAll(0.0005)), [moments, spectra], None),
        ("kernel ridge, everything", scaled(KernelRidgeOfAll(0.0005)), [moments, shares, spectra], None),
        ("perceptron, moments and spectra", scaled(perceptron(MLPRegressor)), [moments, spectra], None),
        (
            "perceptron, everything, chosen by cross-validation",
            scaled(
                GridSearchCV(
                    perceptron(MLPRegressor).set_params(learning_rate_init=3e-4),
                    {"hidden_layer_sizes": [(64,), (128, 64)], "alpha": [0.3, 1, 3, 10]},
                    cv=3,
                    scoring="neg_mean_absolute_error",
                )
            ),
            [moments, shares, spectra],
            None,
        ),
        ("10 nearest, moments", scaled(KNeighborsRegressor(10, weights="distance")), [moments], None),
        (
            "gradient boosting, moments and spectra",
            MultiOutputRegressor(HistGradientBoostingRegressor(random_state=0)),
            [moments, spectra],
            None,
        ),
        (
            "gradient boosting, everything",
            MultiOutputRegressor(HistGradientBoostingRegressor(random_state=0)),
            [moments, shares, spectra],
            None,
        ),
    ):
        train, test = (np.hstack([part[i] for i in use])[:, :columns] for part in (x, held))
        guess = np.clip(model.fit(train, y).predict(test), -1, 1)
        print(f"{name}: mean absolute error {np.abs(guess - truth).mean():.3f}", flush=True)


def scaled(model: Any) -> Any:
    return make_pipeline(StandardScaler(), model)


class KernelRidgeOfAll(BaseEstimator, RegressorMixin):
    """Kernel ridge regression on all samples. Its settings are chosen on 3 000 of them, as the time grows with
    the cube of their number."""

    def __init__(self, gamma: float) -> None:
        self.gamma = gamma

    def fit(self, x: Array, y: Array) -> Any:
        grid = {"alpha": [1e-3, 1e-2, 1e-1, 1], "gamma": [self.gamma / 4, self.gamma, 4 * self.gamma]}
        search = GridSearchCV(KernelRidge(kernel="rbf"), grid, cv=3, scoring="neg_mean_absolute_error")
        some = np.random.default_rng(0).permutation(len(x))[:3000]
        best = search.fit(x[some], y[some]).best_params_
        self.model_ = KernelRidge(kernel="rbf", **best).fit(x, y)
        return self

    def predict(self, x: Array) -> Array:
        return np.asarray(self.model_.predict(x))


def perceptron(kind: Any) -> Any:
    return kind(hidden_layer_sizes=(128, 64), alpha=1e-3, early_stopping=True, max_iter=300, random_state=0)


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

    def pixels(x: Array, boxes: tuple[int, ...], spin: bool) -> Array:
        """A pixel's channels, wind speed, transport and latitude; with ``boxes`` also the departure of all from
        their latitude's mean, and the means over boxes of these sides; with ``spin`` all this also of the
        vorticity, from which the masks are made."""
        wind = np.hypot(x[..., 1], x[..., 2])
        derived = [wind, x[..., 0] * wind]
        if spin:
            eastward = (np.roll(x[..., 2], -1, axis=2) - np.roll(x[..., 2], 1, axis=2)) / np.cos(
                np.radians(latitude)
            )
            derived.append((eastward - np.gradient(x[..., 1], axis=1)) * np.sign(latitude))
        fields = np.concatenate([x, np.stack(derived, axis=-1)], axis=-1)
        parts = [fields, np.broadcast_to(latitude[..., None], (*x.shape[:3], 1))]
        if boxes:
            parts.append(fields - fields.mean(axis=2, keepdims=True))
        for side in boxes:
            rows = ndimage.uniform_filter1d(fields, side, axis=1, mode="nearest")
            parts.append(ndimage.uniform_filter1d(rows, side, axis=2, mode="wrap"))
        features = np.concatenate(parts, axis=-1)
        flat: Array = features.reshape(-1, features.shape[-1]).astype(np.float32)
        return flat

    labels, rng = y.ravel(), np.random.default_rng(0)
    chosen = [rng.permutation(np.flatnonzero(labels == kind))[:60_000] for kind in range(3)]
    prior = np.array([(labels == kind).mean() / len(chosen[kind]) for kind in range(3)])
    boosting = HistGradientBoostingClassifier(max_iter=150, max_leaf_nodes=63, random_state=0)
    sides = (3, 7, 15, 31)
    for name, model, boxes, spin in (
        ("gradient boosting per pixel", boosting, (), False),
        ("gradient boosting, surroundings", boosting, sides, False),
        ("perceptron per pixel", scaled(perceptron(MLPClassifier)), (), False),
        ("perceptron, surroundings", scaled(perceptron(MLPClassifier)), sides, False),
        ("logistic, surroundings", scaled(LogisticRegression(max_iter=200)), sides, False),
        ("gradient boosting, surroundings and vorticity", boosting, sides, True),
    ):
        features = pixels(x, boxes, spin)[np.concatenate(chosen)]
        model.fit(features, labels[np.concatenate(chosen)])
        guess = (model.predict_proba(pixels(held, boxes, spin)) * prior).argmax(axis=1).reshape(truth.shape)
        print(f"{name}: IoU {mean_iou(guess, truth):.3f}", flush=True)


def resnet50(data: Path) -> None:
    # Local binary patterns: 36 classes under rotation.
    patterns = np.arange(256)
    turned = np.min([((patterns >> k) | (patterns << (8 - k))) & 255 for k in range(8)], axis=0)
    kinds = np.unique(turned, return_inverse=True)[1]

    def texture(grey: Array) -> Array:
        """The shares of local binary patterns, and how far the strongest wave of a ring is above its mean."""
        side = len(grey)
        pattern = np.zeros((side - 2, side - 2), int)
        for k, (dy, dx) in enumerate(((0, 0), (0, 1), (0, 2), (1, 2), (2, 2), (2, 1), (2, 0), (1, 0))):
            pattern |= (grey[dy : side - 2 + dy, dx : side - 2 + dx] > grey[1:-1, 1:-1]).astype(int) << k
        window = np.outer(np.hanning(side), np.hanning(side))
        power = np.abs(np.fft.fftshift(np.fft.fft2((grey - grey.mean()) * window))).ravel() ** 2 + 1e-6
        radius = np.hypot(*np.mgrid[-side // 2 : side // 2, -side // 2 : side // 2]).astype(int).ravel()
        rings = [power[radius == r] for r in range(2, side // 2, 2)]
        peaks = [np.log(ring.max() / ring.mean()) for ring in rings]
        means = [np.log(ring.mean()) for ring in rings]
        return np.concatenate(
            [np.bincount(kinds[pattern].ravel(), minlength=36) / pattern.size, peaks, means]
        )

    def features(path: Path) -> tuple[Array, ...]:
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
        thumbnail = np.asarray(image.resize((16, 16)), float).ravel()
        hue_shares = hues / max(1, hues.sum())
        textures = np.r_[texture(grey), texture(grey[16:48, 16:48])]
        return hue_shares, colours, spectrum, thumbnail, textures, arrangement(image)

    def arrangement(image: Image.Image) -> Array:
        """Hue histograms of the 4 x 4 cells of the image, and of rings around its middle and around the centre of
        its saturated pixels."""
        hue, saturation, _ = np.moveaxis(np.asarray(image.convert("HSV"), int), 2, 0)
        y, x = np.mgrid[:64, :64]
        vivid = saturation > 110
        centre = (y[vivid].mean(), x[vivid].mean()) if vivid.any() else (32, 32)
        places = [(y // 16) * 4 + x // 16]
        places += [
            (np.hypot(y - v, x - u) // width).astype(int) for (v, u), width in (((32, 32), 5), (centre, 4))
        ]
        coloured, found = saturation > 70, []
        for place in places:
            bins = (place * 12 + hue * 12 // 256)[coloured]
            counts = np.bincount(bins, minlength=(place.max() + 1) * 12).reshape(-1, 12)[:16]
            found.append(
                np.pad(
                    counts / np.maximum(counts.sum(axis=1, keepdims=True), 1), ((0, 16 - len(counts)), (0, 0))
                )
            )
        together: Array = np.concatenate(found).ravel()
        return together

    parts, labels = [], []
    for split in SPLITS:
        paths = sorted((data / split).glob("*/*.JPEG"))
        parts.append([np.array(p) for p in zip(*map(features, paths), strict=True)])
        labels.append([path.parent.name for path in paths])
    trees = ExtraTreesClassifier(300, random_state=0)
    boosting = HistGradientBoostingClassifier(max_iter=100, random_state=0)
    for name, model, use in (
        ("extra-trees, hue histogram", trees, [0]),
        ("extra-trees, hue and saturation", trees, [0, 1]),
        ("extra-trees, radial spectrum", trees, [2]),
        ("extra-trees, hue, saturation, spectrum", trees, [0, 1, 2]),
        ("extra-trees, thumbnails", trees, [3]),
        ("extra-trees, texture", trees, [4]),
        ("extra-trees, colours and texture", trees, [0, 1, 2, 4]),
        ("support vectors, colours and texture", scaled(SVC(C=3)), [0, 1, 2, 4]),
        ("10 nearest, colours and texture", scaled(KNeighborsClassifier(10)), [0, 1, 2, 4]),
        ("logistic, colours and texture", scaled(LogisticRegression(max_iter=300, C=0.1)), [0, 1, 2, 4]),
        ("perceptron, colours and texture", scaled(perceptron(MLPClassifier)), [0, 1, 2, 4]),
        ("gradient boosting, colours and texture", boosting, [0, 1, 2, 4]),
        ("extra-trees, colours by place", trees, [5]),
        ("support vectors, colours by place", scaled(SVC(C=3)), [5]),
        ("gradient boosting, everything but thumbnails", boosting, [0, 1, 2, 4, 5]),
    ):
        train, held = (np.hstack([part[i] for i in use]) for part in parts)
        print(f"{name}: top-1 {model.fit(train, labels[0]).score(held, labels[1]):.3f}", flush=True)


if __name__ == "__main__":
    {"cosmoflow": cosmoflow, "deepcam": deepcam, "resnet50": resnet50}[sys.argv[1]](Path(sys.argv[2]))
