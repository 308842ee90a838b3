"""Bytes of a sample as delivered by the loaders, for any type."""

import json

import pytest
from helpers.cosmoflow_files import make

from mlhpc.benchmarks.load import load
from mlhpc.cli import main
from mlhpc.common.data.manifest import NAME
from mlhpc.deepcam.data.sample import sample_bytes as bytes_of_deepcam
from mlhpc.perf.samples import sample_bytes

MIB = 2**20


@pytest.mark.parametrize(
    ("benchmark", "settings", "mebibytes"),
    [
        ("cosmoflow", [], 16),  # int16
        ("cosmoflow", ["loading.sample_dtype=float32"], 32),
        ("cosmoflow", ["loading.sample_dtype=bfloat16"], 16),
        ("deepcam", ["loading.sample_dtype=float16"], 27),
        ("deepcam", [], 54),
        ("resnet50", [], 4 * 0.1436),
    ],
)
def test_values_are_counted_in_the_type_that_is_delivered(benchmark, settings, mebibytes):
    """Table II of Ibrahim et al. 2021 has 16 and 27 MiB of 16-bit values and 0.144 MiB of bytes; labels come
    on top, of DeepCAM a byte a pixel."""
    labels = 768 * 1152 if benchmark == "deepcam" else 0
    received = sample_bytes(load(benchmark, "closed", [*settings, "division=open"])).received
    assert (received - labels) / MIB == pytest.approx(mebibytes, rel=1e-3)


def test_cosmoflows_loader_delivers_as_many(tmp_path, capsys):
    """What ``mlhpc data bench`` counts of real batches, from which rates of preparation are made."""
    make(tmp_path / "train", "gzip", 4)
    (tmp_path / NAME).write_text(
        json.dumps({"version": 1, "facts": {"codec": "gzip", "lossy": False}, "files": []})
    )
    words = ["data", "bench", "cosmoflow", str(tmp_path), "--batch", "2", "--workers", "1", "--rounds", "1"]
    assert main([*words, "--sample-dtype", "int16,float16,float32", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["ways"]
    assert len(rows) == 3
    for row in rows:
        settings = ["data.sample_shape=[24,24,24,4]", f"loading.sample_dtype={row['sample_dtype']}"]
        run = load("cosmoflow", "smoke", [*settings, "network.conv_layers=3"])
        assert sample_bytes(run).received == row["bytes_delivered_per_sample"]


@pytest.mark.parametrize("sample_dtype", ["float32", "float16", "bfloat16"])
def test_deepcams_reader_fills_as_many(sample_dtype):
    run = load("deepcam", "smoke", [f"loading.sample_dtype={sample_dtype}"])
    assert sample_bytes(run).received == bytes_of_deepcam(run.data.sample_shape, sample_dtype)
