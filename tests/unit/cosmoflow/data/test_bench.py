"""data bench on CosmoFlow's formats."""

import json
from pathlib import Path

import pytest
from helpers.cosmoflow_files import make

from mlhpc.cli import main
from mlhpc.common.data.manifest import NAME


def data_set(root: Path, codec: str) -> Path:
    root.mkdir()
    make(root / "train", codec, 4)
    (root / NAME).write_text(
        json.dumps({"version": 1, "facts": {"codec": codec, "lossy": False}, "files": []})
    )
    return root


def test_formats_are_measured_side_by_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sets = [data_set(tmp_path / codec, codec) for codec in ("gzip", "lut")]
    words = ["data", "bench", "cosmoflow", *sets, "--batch", "2", "--workers", "1"]
    words += ["--sample-dtype", "int16,float16"]
    assert main([*map(str, words), "--rounds", "1", "--step-ms", "1e7", "--json"]) == 0
    printed = capsys.readouterr()
    rows = json.loads(printed.out)["ways"]
    assert [(Path(row["data"]).name, row["sample_dtype"]) for row in rows] == [
        (name, sample_dtype) for name in ("gzip", "lut") for sample_dtype in ("int16", "float16")
    ]
    for row in rows:
        assert (row["same_samples"], row["bound_by"]) == ("bit for bit", "compute")
        assert row["bytes_delivered_per_sample"] == 24**3 * 4 * 2 + 16
    assert all(word in printed.err for word in ("gzip,", "lut,", "int16", "float16"))


def test_a_batch_larger_than_the_set_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = data_set(tmp_path / "lut", "lut")
    assert main(["data", "bench", "cosmoflow", str(made), "--batch", "9", "--rounds", "1"]) == 2
    assert "--batch 9 must be from 1 to 4" in capsys.readouterr().err
