"""``examples/unet3d``: a benchmark with spatial parallelism in a separate package."""

import importlib
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
from smoke.conftest import EXAMPLES, install_example, lines_of_example, mlhpc, result, trace

SPLIT = Path(__file__).parents[2] / "ranks" / "unet3d_split.py"
LOCAL = """import sys
from mlhpc.common.ranks.local import run_local
sys.exit(run_local(int(sys.argv[1]), [sys.executable, *sys.argv[2:]]))
"""
# Volumes of 16³ train eight times as fast. Any Dice coefficient meets a target of 0.
TINY = [
    "data.sample_shape=[16,16,16]",
    "data.train_samples=10",
    "data.eval_samples=3",
    "training.eval_batch_size=2",
    "training.device=cpu",
]


def settings(*more):
    return [word for setting in (*TINY, *more) for word in ("--set", setting)]


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    return install_example("unet3d", tmp_path_factory.mktemp("unet3d"))


@pytest.fixture(scope="module")
def data(installed, tmp_path_factory):
    out = tmp_path_factory.mktemp("volumes") / "data"
    made = mlhpc("data", "make", "unet3d", "--preset", "smoke", "--out", out, *settings(), env=installed)
    assert made.returncode == 0, made.stderr
    return out


def run(installed, data, out, *words):
    """A run of two epochs, and what it ended with."""
    command = ["run", "unet3d", "--preset", "smoke", "--data", data, "--out", out, "--seed", 3, *words]
    return mlhpc(*command, env=installed)


def test_it_trains_staged_with_checkpoints_passes_the_check_and_is_reported(installed, data, tmp_path):
    out = tmp_path / "out"
    words = settings("target.value=0", "training.checkpoint_epochs=1")
    done = run(installed, data, out, "--stage", tmp_path / "stage", "--ranks", 2, *words)
    assert done.returncode == 0, done.stderr
    record = result(out)
    assert record["status"] == "success" and record["ranks"] == 2 and record["staging"]["files"] == 13
    assert mlhpc("check", out, env=installed).returncode == 0
    reported = mlhpc("report", out, env=installed)
    assert reported.returncode == 0 and "3-D U-Net" in (out / "report.html").read_text()


def test_a_run_in_slabs_learns_what_one_of_whole_volumes_learns(installed, data, tmp_path):
    for name, words in (
        ("whole", settings("training.checkpoint_epochs=1")),
        ("slabs", ["--ranks", 2, *settings("training.spatial=[1,2,1]")]),
    ):
        done = run(installed, data, tmp_path / name, *words)
        assert done.returncode == 3, done.stderr  # two epochs do not reach the target
    slabs, whole = trace(tmp_path / "slabs"), trace(tmp_path / "whole")
    assert slabs[::2] == pytest.approx(whole[::2], rel=1e-3)
    assert slabs[1::2] == pytest.approx(whole[1::2], abs=0.01)  # rounding decides voxels of near equal logits
    assert mlhpc("report", tmp_path / "slabs", env=installed).returncode == 0
    weights = mlhpc("weights", tmp_path / "whole", "--out", tmp_path / "w.safetensors", env=installed)
    assert weights.returncode == 0 and "as of epoch 2" in weights.stdout, weights.stderr


@pytest.mark.parametrize(
    "parts", [(2, 1, 1), *(pytest.param(parts, marks=pytest.mark.slow) for parts in ((2, 1, 2), (1, 3, 1)))]
)
def test_outputs_loss_statistics_and_gradients_in_slabs_are_those_of_the_whole_volume(parts):
    command = [sys.executable, "-c", LOCAL, str(np.prod(parts)), SPLIT, *parts]
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(EXAMPLES / "unet3d")}
    done = subprocess.run([*map(str, command)], env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_a_campaign_in_slabs_has_a_score(installed, data, tmp_path):
    words = ["--ranks", 2, "--runs", 5, *settings("target.value=0", "training.spatial=[2,1,1]")]
    command = ["campaign", "unet3d", "--preset", "smoke", "--data", data, "--out", tmp_path / "campaign"]
    done = mlhpc(*command, *words, env=installed)
    assert done.returncode == 0, done.stdout + done.stderr
    scored = mlhpc("score", tmp_path / "campaign", env=installed)
    assert scored.returncode == 0 and scored.stdout.count("yes") == 3, scored.stdout


def test_mistakes_are_one_line(installed, data, tmp_path):
    uneven = run(installed, data, tmp_path / "uneven", *settings("training.spatial=[4,1,1]"), "--ranks", 4)
    assert (uneven.returncode, uneven.stderr.count("\n")) == (2, 1) and "multiples of 8" in uneven.stderr
    three = run(installed, data, tmp_path / "three", *settings("training.spatial=[2,1,1]"), "--ranks", 3)
    assert (three.returncode, three.stderr.count("\n")) == (
        2,
        1,
    ) and "a multiple of 2 ranks, not 3" in three.stderr


def test_neither_a_threshold_nor_a_regression_on_neighbourhoods_segments_the_volumes(monkeypatch):
    """Both stay far below the target. Weights and thresholds from 16 volumes, on eight others."""
    monkeypatch.syspath_prepend(EXAMPLES / "unet3d")
    generator = importlib.import_module("mlhpc_unet3d.data")
    defaults = tomllib.loads((EXAMPLES / "unet3d/mlhpc_unet3d/unet3d.toml").read_text())["defaults"]["data"]
    simulation = generator.Simulation(**defaults["simulation"])
    volumes = np.stack([generator.volume(simulation, (32, 32, 32), number) for number in range(24)])
    x, y = volumes["x"].astype(np.float64), volumes["y"]
    classes = range(1, generator.CLASSES)

    def mean_dice(predicted, true):
        return np.mean([2 * np.sum((predicted == c) & (true == c)) / (np.sum(predicted == c) + np.sum(true == c))
                        for c in classes])  # fmt: skip

    bright = [np.where(x[16:] > level, c, 0) for level in np.arange(0, 1.5, 0.1) for c in classes]
    assert max(mean_dice(predicted, y[16:]) for predicted in bright) < 0.3

    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (1, 1)))
    cubes = np.lib.stride_tricks.sliding_window_view(padded, (3, 3, 3), axis=(1, 2, 3)).reshape(*x.shape, 27)
    inputs = np.concatenate([cubes, cubes[..., 13:14] ** 0], axis=-1)  # 27 intensities and a constant
    one_hot = np.eye(generator.CLASSES)[y[:16]].reshape(-1, generator.CLASSES)
    weights = np.linalg.lstsq(inputs[:16].reshape(-1, 28), one_hot, rcond=None)[0]
    scores = inputs[16:] @ weights
    # Rare classes seldom have the highest score: the scores are also compared after division by their frequency.
    weighed = [(scores / one_hot.mean(0) ** power).argmax(-1) for power in (0, 0.25, 0.5, 0.75, 1)]
    assert max(mean_dice(predicted, y[16:]) for predicted in weighed) < 0.4


def test_a_damaged_volume_is_named(installed, data, tmp_path):
    copy = tmp_path / "data"
    shutil.copytree(data, copy)
    volume = next((copy / "train").iterdir())
    volume.write_bytes(volume.read_bytes()[:-1])
    done = run(installed, copy, tmp_path / "out", *settings())
    assert done.returncode == 2 and volume.name in done.stderr and done.stderr.count("Traceback") == 0


def test_the_example_stays_short():
    assert lines_of_example("unet3d") <= 350
