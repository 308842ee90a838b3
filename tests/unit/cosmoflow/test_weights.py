"""Weights as a safetensors file: read back as written, or refused in one line."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from mlhpc.benchmarks import load
from mlhpc.benchmarks.cosmoflow import CosmoFlow
from mlhpc.cosmoflow import weights
from mlhpc.errors import UserError
from mlhpc.weights import save

FACTS = {"benchmark": "cosmoflow", "layout": weights.LAYOUT}  # as mlhpc weights writes them
RUN = CosmoFlow.model_validate(load.load("cosmoflow", "smoke", ["network.conv_filters=2"]))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    rng = np.random.default_rng(5)
    shapes = weights.shapes(RUN.network, RUN.data.sample_shape).values()
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    save(tmp_path / "w.safetensors", dict(zip(weights.names(RUN.network), arrays, strict=True)), FACTS)
    return tmp_path / "w.safetensors"


def test_weights_are_read_back_by_this_package_and_by_the_format_s_own(file: Path) -> None:
    ours, theirs = weights.load(file, RUN.network), load_file(file)
    for name, array in zip(weights.names(RUN.network), ours, strict=True):
        np.testing.assert_array_equal(array, theirs[name])


def test_a_damaged_number_is_refused(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[-2] ^= 1  # a mantissa: still a finite number
    file.write_bytes(bytes(data))
    with pytest.raises(UserError, match=r"w\.safetensors is damaged"):
        weights.load(file, RUN.network)


def test_names_exchanged_in_the_header_are_refused(file: Path) -> None:
    one, other = b'"dense0/kernel"', b'"dense1/kernel"'
    data = file.read_bytes()
    assert data.count(one) == data.count(other) == 1
    file.write_bytes(data.replace(one, b"<one of>").replace(other, one).replace(b"<one of>", other))
    with pytest.raises(UserError, match="is damaged"):
        weights.load(file, RUN.network)


def test_a_file_of_another_tool_has_no_checksum_and_is_read(file: Path, tmp_path: Path) -> None:
    arrays = load_file(file)
    save_file(arrays, tmp_path / "plain.safetensors", metadata={"format": "np", "author": "somebody"})
    loaded = weights.load(tmp_path / "plain.safetensors", RUN.network)
    np.testing.assert_array_equal(loaded[0], arrays["conv0/kernel"])
