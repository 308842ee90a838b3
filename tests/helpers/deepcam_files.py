"""Small DeepCAM data sets in the published layout, and what the public reference would read from them."""

from pathlib import Path

import h5py
import numpy as np

ROWS, COLUMNS, CHANNELS = SHAPE = (32, 48, 16)


def fields(seed, shape=SHAPE):
    """Values of very different sizes by channel, as pressures and precipitation are."""
    rng = np.random.default_rng(seed)
    size = np.geomspace(1e-8, 1e5, shape[2])
    return (size * (2 + rng.standard_normal(shape))).astype(np.float32)


def mask(seed, shape=SHAPE):
    return np.random.default_rng([seed, 1]).integers(0, 3, shape[:2])


def write_sample(path, seed, data=None, labels=None, **storage):
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w", userblock_size=storage.pop("userblock_size", 0)) as file:
        file.create_dataset("climate/data", data=fields(seed) if data is None else data, **storage)
        file.create_dataset("climate/labels_0", data=mask(seed) if labels is None else labels, **storage)
    return path


def write_statistics(path, low=None, high=None, names=("minval", "maxval")):
    scale = np.geomspace(1e-8, 1e5, CHANNELS)
    values = ((-3 * scale).astype(np.float32) if low is None else low,
              (7 * scale).astype(np.float32) if high is None else high)  # fmt: skip
    with h5py.File(path, "w") as file:
        for name, value in zip(names, values, strict=True):
            file[f"climate/{name}"] = value
    return path


def make_data_set(root, train=6, validation=5):
    for folder, first, count in (("train", 0, train), ("validation", 100, validation)):
        for i in range(first, first + count):
            write_sample(root / folder / f"data-{i:04d}.h5", seed=i)
    write_statistics(root / "stats.h5")
    return root


def as_the_reference_reads(path: Path, statistics: Path):
    """The normalised field and the mask, as mlcommons/hpc computes them (cam_hdf5_dataset.py), by h5py."""
    with h5py.File(statistics) as file:
        low, high = file["climate/minval"][:], file["climate/maxval"][:]
    with h5py.File(path) as file:
        x, y = file["climate/data"][:].astype(np.float32), file["climate/labels_0"][:]
    return (1 / (high - low)).astype(np.float32) * (x - low.astype(np.float32)), y
