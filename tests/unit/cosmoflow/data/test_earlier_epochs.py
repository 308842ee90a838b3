"""Epochs read before the measured steps of a study, by ranks that share their samples."""

import numpy as np
import pytest
from helpers.thread_world import on_ranks

from mlhpc.benchmarks.load import load
from mlhpc.common.data.manifest import index
from mlhpc.common.formats.tf_example import encode_example
from mlhpc.common.formats.tfrecord import write_records
from mlhpc.common.ranks.world import Solo
from mlhpc.common.training.dataset import open_loader
from mlhpc.cosmoflow.data.source import CosmoFlowSource

SETTINGS = [
    "data.train_samples=8",
    "data.eval_samples=2",
    "data.gzip=false",
    "hyperparameters.global_batch_size=2",
    "study.steps=1",
    "study.warmup_steps=0",
    "study.earlier_epochs=1",
]


@pytest.mark.parametrize("spatial_size", [1, 2])
def test_every_sample_is_read_once_however_many_ranks_share_it(tmp_path, spatial_size):
    x, y = np.zeros((16, 16, 16, 4), np.int16), np.zeros(4, np.float32)
    for folder, count in (("train", 8), ("validation", 2)):
        (tmp_path / folder).mkdir()
        for i in range(count):
            write_records(tmp_path / folder / f"{i}.tfrecord", [encode_example(x, y)], False)
    dataset = index(tmp_path, {"benchmark": "cosmoflow"}, Solo(), workers=1)
    run = load("cosmoflow", "smoke", SETTINGS)

    def bytes_read(world):
        batch = 2 * spatial_size // world.size
        source = CosmoFlowSource.of(run, dataset, gpu=False)
        return open_loader(run, dataset, None, source, batch, 1, world, spatial_size).bytes_read

    training = sum(file.size for file in dataset.files if file.folder == "train")
    assert on_ranks(1, 2, bytes_read) == [training / 2] * 2
