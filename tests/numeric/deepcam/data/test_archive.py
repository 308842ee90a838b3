"""DeepCAM packed into archives: every loader reads what it reads from files."""

import numpy as np
import pytest
from helpers.deepcam_files import CHANNELS, SHAPE, make_data_set

from mlhpc.benchmarks.deepcam import Loading
from mlhpc.common.data import manifest
from mlhpc.common.data.assign import assign_samples
from mlhpc.common.data.loader import Loader
from mlhpc.common.data.verify import verify
from mlhpc.common.ranks.world import Solo
from mlhpc.deepcam.data.convert import convert
from mlhpc.deepcam.data.hdf5 import read_statistics
from mlhpc.deepcam.data.sample import is_sample
from mlhpc.deepcam.data.source import DeepCamSource
from mlhpc.errors import UserError


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return make_data_set(tmp_path_factory.mktemp("deepcam") / "h5")


def batches(root, loader="threads", staged=None):
    dataset = manifest.describe(root, Solo())
    samples = assign_samples(
        dataset, staged, "replicate", Solo(), train_samples=6, eval_samples=5, is_sample=is_sample
    )
    loading, codec = Loading(loader=loader, workers=2), dataset.facts.get("codec")
    reader = Loader(
        samples,
        DeepCamSource(loading, SHAPE, read_statistics(root, CHANNELS), codec),
        local_batch_size=2,
        eval_batch_size=2,
        steps=3,
        seed=5,
    )
    return [(x.numpy().copy(), y.numpy().copy()) for x, y in [*reader.train_epoch(1), *reader.evaluation()]]


def equal(some, others):
    return all(
        np.array_equal(a, b)
        for one, other in zip(some, others, strict=True)
        for a, b in zip(one, other, strict=True)
    )


@pytest.mark.parametrize("codec", ["plain", "zstd"])
def test_batches_from_archives_are_those_from_hdf5(source, tmp_path, codec):
    convert(source, tmp_path / "packed", Solo(), 2, codec=codec, archive=4)
    assert sorted(path.name for path in (tmp_path / "packed" / "train").iterdir()) == [
        "samples-000000.zip",
        "samples-000001.zip",
    ]
    expected = batches(source)
    for loader in ("threads", "workers"):
        assert equal(batches(tmp_path / "packed", loader), expected)
    assert verify(tmp_path / "packed", workers=1) == []


def test_encoded_samples_are_packed_as_they_are_lossy_or_not(source, tmp_path):
    convert(source, tmp_path / "delta", Solo(), 2, codec="delta", max_error=1e-2)
    convert(tmp_path / "delta", tmp_path / "packed", Solo(), 2, archive=10)
    assert equal(batches(tmp_path / "packed"), batches(tmp_path / "delta"))
    before, after = (manifest.load(tmp_path / name).facts for name in ("delta", "packed"))
    for key in ("codec", "lossy", "max_error", "max_error_of", "samples"):
        assert after[key] == before[key]


@pytest.mark.parametrize("codec", [None, "npy", "npy-float16"])
def test_samples_that_no_codec_wrote_are_not_packed(source, tmp_path, codec):
    advice = f"--archive does not support {codec or 'hdf5'}; use another codec, or --codec plain"
    with pytest.raises(UserError, match=advice):
        convert(source, tmp_path / "packed", Solo(), 2, codec=codec, archive=4)
    assert not (tmp_path / "packed").exists()
