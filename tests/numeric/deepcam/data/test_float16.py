"""Samples stored as float16, which PyTorch converts."""

import numpy as np
import pytest
from helpers.deepcam_files import CHANNELS, SHAPE, as_the_reference_reads, fields, make_data_set, mask

from mlhpc.common.data.manifest import load
from mlhpc.common.ranks.world import Solo
from mlhpc.deepcam.data import hdf5
from mlhpc.deepcam.data.convert import convert
from mlhpc.deepcam.data.sample import Reader, list_samples


@pytest.fixture
def source(tmp_path):
    return make_data_set(tmp_path / "source")


def test_float16_npy_pairs_written_by_numpy_are_read(tmp_path):
    stored = (fields(1) / 1e4).astype("<f2")
    np.save(tmp_path / "label-0.npy", mask(1).astype(np.uint8))
    np.save(tmp_path / "data-0.npy", stored)
    x, y = np.full(SHAPE, np.nan, np.float32), np.full(SHAPE[:2], 255, np.uint8)
    size = Reader(SHAPE, None).read(tmp_path / "data-0.npy", x, y)
    assert np.array_equal(x, stored.astype(np.float32)) and np.array_equal(y, mask(1))
    assert size == sum(file.stat().st_size for file in tmp_path.iterdir())


def test_float16_files_have_normalised_values_and_the_manifest_records_it(source, tmp_path):
    out = tmp_path / "out"
    convert(source, out, Solo(), 2, "npy-float16")
    facts = load(out).facts
    statistics = hdf5.read_statistics(source, CHANNELS)
    assert facts["dtype"] == "float16"
    assert facts["normalised_by"] == {"minimum": [*statistics.minimum], "maximum": [*statistics.maximum]}
    reader = Reader(SHAPE, hdf5.read_statistics(out, CHANNELS))
    for made, path in zip(list_samples(out / "train"), list_samples(source / "train"), strict=True):
        assert np.load(made).dtype == np.float16
        x, y = np.empty(SHAPE, np.float32), np.empty(SHAPE[:2], np.uint8)
        reader.read(made, x, y)
        expected, classes = as_the_reference_reads(path, source / "stats.h5")
        # Rounded to a float16 of 11 bits, below 2^-14 to the nearest 2^-24.
        assert np.all(np.abs(x - expected) <= np.maximum(2.0**-11 * np.abs(expected), 2.0**-25))
        assert np.array_equal(y, classes)
