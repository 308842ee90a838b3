"""Samples of every delivery: decoded on the device they have the host's bits, and training has the same losses."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.cosmoflow_files import DTYPES, SHAPE, make, open_loader

from mlhpc.benchmarks.cosmoflow import Hyperparameters, Network
from mlhpc.common.pytorch.slab_batches import Batches
from mlhpc.common.pytorch.step import make_scaler, make_train_step, set_rate
from mlhpc.cosmoflow.pytorch.batches import converter
from mlhpc.cosmoflow.pytorch.metric import training_loss
from mlhpc.cosmoflow.pytorch.model import CosmoFlowNet
from mlhpc.cosmoflow.pytorch.optimizer import make_optimizer

CPU = torch.device("cpu")
OTHERS = ("plain", "lut", "lut-small", "pco", "zstd", "blosc2")
NETWORK = Network(conv_layers=3, conv_filters=2, dense_units=(8,))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("delivery")
    return {codec: make(root / codec, codec, 20) for codec in ("gzip", *OTHERS)}


def batches(folder: Path, codec: str, **more: Any) -> Batches:
    loader = open_loader(folder, codec, augment=True, **more)
    return Batches(loader, converter(str(more["sample_dtype"]), CPU))


def losses(folder: Path, codec: str, precision: str, **more: object) -> list[float]:
    """Of 20 steps."""
    torch.manual_seed(3)
    model = CosmoFlowNet(NETWORK, SHAPE, dropout=0.5)
    optimizer = make_optimizer(
        Hyperparameters(global_batch_size=2, opt_base_learning_rate=0.01), model.parameters()
    )
    set_rate(optimizer, 0.01)
    loss_of = partial(training_loss, model=model, weight_decay=0.0)
    step = make_train_step(model, loss_of, optimizer, make_scaler(precision, CPU), precision)
    read = batches(folder, codec, **more)
    return [float(step(x, y)) for epoch in range(2) for x, y in read.training(epoch)]


@pytest.mark.parametrize("sample_dtype", DTYPES)
@pytest.mark.parametrize("codec", ["lut", "lut-small"])
def test_a_device_decodes_the_bits_of_the_host(
    folders: dict[str, Path], codec: str, sample_dtype: str
) -> None:
    """Turned samples and samples of several blocks among them. The device is a CPU here."""
    host = batches(folders["gzip"], "gzip", sample_dtype=sample_dtype).training(1)
    device = batches(folders[codec], codec, sample_dtype=sample_dtype, decode="device").training(1)
    for (x, y), (x_decoded, y_decoded) in zip(host, device, strict=True):
        assert x.dtype == x_decoded.dtype == getattr(torch, sample_dtype)
        assert torch.equal(x, x_decoded) and torch.equal(y, y_decoded)


@pytest.mark.parametrize(
    ("sample_dtype", "precision"),
    [*((sample_dtype, "float32") for sample_dtype in DTYPES), ("float16", "mixed_bfloat16")],
)
def test_twenty_steps_have_the_same_losses_from_every_format(
    folders: dict[str, Path], sample_dtype: str, precision: str
) -> None:
    plain = losses(folders["gzip"], "gzip", precision, sample_dtype=sample_dtype)
    assert len(plain) == 20 and len(set(plain)) == 20
    for codec in OTHERS:
        assert plain == losses(folders[codec], codec, precision, sample_dtype=sample_dtype), codec
    for codec in ("lut", "lut-small"):
        more = {"sample_dtype": sample_dtype, "decode": "device"}
        assert plain == losses(folders[codec], codec, precision, **more), codec


def test_rounded_samples_change_the_losses_a_little(folders: dict[str, Path]) -> None:
    """So that the setting is known to reach the step. In the first step: later ones drift apart."""
    exact, *_ = losses(folders["gzip"], "gzip", "float32", sample_dtype="float32")
    for sample_dtype, close in (("float16", 1e-3), ("bfloat16", 1e-2)):
        rounded, *_ = losses(folders["gzip"], "gzip", "float32", sample_dtype=sample_dtype)
        assert rounded != exact and rounded == pytest.approx(exact, rel=close)
