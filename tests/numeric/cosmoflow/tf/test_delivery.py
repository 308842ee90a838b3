"""Samples of every delivery: decoded on the device they have the host's bits, and training has the same losses."""

from functools import partial
from pathlib import Path

import keras
import numpy as np
import pytest
from helpers.cosmoflow_files import DTYPES, SHAPE, make, open_loader

from mlhpc.benchmarks.cosmoflow import Network
from mlhpc.cosmoflow.tf.batches import as_tensors
from mlhpc.cosmoflow.tf.device import to_device
from mlhpc.cosmoflow.tf.model import build_model
from mlhpc.cosmoflow.tf.step import make_train_step

OTHERS = ("plain", "lut", "lut-small", "pco", "zstd", "blosc2")
NETWORK = Network(conv_layers=3, conv_filters=2, dense_units=(8,))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("delivery")
    return {codec: make(root / codec, codec, 20) for codec in ("gzip", *OTHERS)}


def batches(folder, codec, epoch, device=None, **more):
    read = open_loader(folder, codec, augment=True, **more).train_epoch(epoch)
    return to_device(read, device, lambda batch: as_tensors(batch, more["sample_dtype"]))


def losses(step, variables, folder, codec, **more):
    """Of 20 steps from the state that ``variables`` have now, which is restored."""
    before = [variable.numpy() for variable in variables]
    values = [float(step(x, y)) for epoch in range(2) for x, y in batches(folder, codec, epoch, **more)]
    for variable, value in zip(variables, before, strict=True):
        variable.assign(value)
    return values


@pytest.mark.parametrize("sample_dtype", DTYPES)
def test_a_device_decodes_the_bits_of_the_host(folders, sample_dtype):
    host = batches(folders["gzip"], "gzip", 1, sample_dtype=sample_dtype)
    device = batches(folders["lut"], "lut", 1, device="CPU:0", sample_dtype=sample_dtype, decode="device")
    for (x, y), (x_decoded, y_decoded) in zip(host, device, strict=True):
        assert x_decoded.dtype == sample_dtype and "CPU:0" in x_decoded.device
        assert np.array_equal(np.asarray(x).view(np.uint8), x_decoded.numpy().view(np.uint8))
        assert np.array_equal(y, y_decoded.numpy())


@pytest.mark.parametrize("sample_dtype", DTYPES)
def test_twenty_steps_have_the_same_losses_from_every_format(folders, sample_dtype):
    model = build_model(NETWORK, SHAPE, dropout=0.0, seed=3)
    optimizer = keras.optimizers.SGD(0.01, momentum=0.9)
    step = make_train_step(model, optimizer, sample_dtype=sample_dtype)
    training = partial(losses, step, [*model.variables, *optimizer.variables], sample_dtype=sample_dtype)
    plain = training(folders["gzip"], "gzip")
    assert len(plain) == 20 and len(set(plain)) == 20
    for codec in OTHERS:
        assert plain == training(folders[codec], codec), codec
    for codec in ("lut", "lut-small"):
        assert plain == training(folders[codec], codec, decode="device"), codec
