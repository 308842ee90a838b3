"""Converted data sets in whole runs: without loss the training is the same, number by number."""

import signal
from pathlib import Path

import h5py
import numpy as np
import pytest
from smoke.conftest import mlhpc, mllog, result, settings, start_mlhpc, trace, wait_for

from mlhpc.common.data import manifest
from mlhpc.common.data.codecs import frame


def run(data: Path, folder: Path) -> Path:
    """Of 5 epochs of 4 steps."""
    done = mlhpc(
        "run", "cosmoflow", "--seed", 7, "--data", data, "--stage", folder / "stage", "--out", folder / "out",
        *settings("training.max_epochs=5"),
    )  # fmt: skip
    assert done.returncode == 3, done.stderr
    return folder / "out"


@pytest.fixture(scope="module")
def published(tiny_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(tiny_data, tmp_path_factory.mktemp("published"))


@pytest.mark.parametrize("codec", ["lut", "lut-small"])
def test_a_run_from_a_converted_set_has_the_same_losses(
    published: Path, tiny_data: Path, tmp_path: Path, codec: str
) -> None:
    """20 steps, staged, against the run from the published layout; the log says which format was read."""
    made = tmp_path / "data"
    done = mlhpc("data", "convert", "cosmoflow", tiny_data, made, "--codec", codec)
    assert done.returncode == 0, done.stderr
    assert mlhpc("data", "verify", made).returncode == 0
    before, after = manifest.load(tiny_data), manifest.load(made)
    assert [Path(file.path).with_suffix("") for file in after.files] == [
        Path(file.path).with_suffix("") for file in before.files
    ]
    assert after.facts["codec"] == codec and after.facts["lossy"] is False
    assert after.facts["simulation"] == before.facts["simulation"]
    run(made, tmp_path)
    assert trace(tmp_path / "out") == trace(published)
    read = result(tmp_path / "out")
    assert read["data"] == {
        "codec": codec,
        "lossy": False,
        "decoder": "compiled",
        "shuffle_scope": "sample",
    }
    assert read["staging"]["bytes"] == after.bytes
    (record,) = [line for line in mllog(tmp_path / "out") if line["key"] == "data_codec"]
    assert (record["value"], record["metadata"]["lossy"]) == (codec, False)


@pytest.mark.parametrize(("sent", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_conversion_that_is_ended_leaves_only_whole_files(tmp_path: Path, sent: int, status: int) -> None:
    (tmp_path / "raw").mkdir()
    with h5py.File(tmp_path / "raw" / "u.hdf5", "w") as file:
        file["full"] = np.random.default_rng(1).poisson(2, (64, 64, 64, 4)).astype(np.int16)
        file["unitPar"] = np.zeros(4, np.float32)
    words = ("data", "convert", "cosmoflow", tmp_path / "raw", tmp_path / "tf", "--sample", 8)
    assert mlhpc(*words, "--codec", "plain").returncode == 0
    out = tmp_path / "out"
    conversion = start_mlhpc("data", "convert", "cosmoflow", tmp_path / "tf", out, "--codec", "lut-small")
    wait_for(lambda: any(out.glob("train/*.mlc")))
    conversion.send_signal(sent)
    _, told = conversion.communicate(timeout=60)
    assert conversion.returncode == status and told.splitlines()[-1].endswith("mlhpc: interrupted")
    assert not list(out.rglob("*.part")) and not (out / manifest.NAME).exists()
    samples = list(out.glob("train/*.mlc"))
    assert 0 < len(samples) < 512 and all(frame.is_whole(path) for path in samples)
    again = mlhpc("data", "convert", "cosmoflow", tmp_path / "tf", out, "--codec", "lut-small")
    assert again.returncode == 0 and mlhpc("data", "verify", out).returncode == 0


def test_a_set_goes_there_and_back(tiny_data: Path, tmp_path: Path) -> None:
    last = tiny_data
    for codec in ("lut", "pco", "plain"):
        done = mlhpc("data", "convert", "cosmoflow", last, tmp_path / codec, "--codec", codec)
        assert done.returncode == 0, done.stderr
        last = tmp_path / codec
    done = mlhpc("data", "convert", "cosmoflow", tiny_data, tmp_path / "straight", "--codec", "plain")
    assert done.returncode == 0, done.stderr
    one, other = (manifest.load(tmp_path / name).files for name in ("plain", "straight"))
    assert one == other
