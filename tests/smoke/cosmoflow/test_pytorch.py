"""Whole runs of CosmoFlow in PyTorch: the record, the ranks, resuming, and what is refused."""

import os
import signal

import numpy as np
import pytest
import torch
from helpers.warm import run_warm
from safetensors.numpy import load_file as load_weights
from safetensors.numpy import save_file
from safetensors.torch import save_file as save_torch
from smoke.conftest import (
    loaded_for,
    mlhpc,
    mllog,
    rank_process,
    result,
    resumed_after_a_kill,
    settings,
    start_mlhpc,
    trace,
    wait_for,
)

from mlhpc.benchmarks.load import load_file
from mlhpc.perf.machines import machine
from mlhpc.perf.prediction.model import predict
from mlhpc.quantities import bytes_text

PYTORCH = "training.framework=pytorch"


@pytest.fixture(scope="module")
def one_rank(tiny_data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("pytorch")
    words = ["--data", tiny_data, "--stage", folder / "stage", "--out", folder / "out", "--seed", 4]
    done = mlhpc("run", "cosmoflow", *words, *settings(PYTORCH, "training.checkpoint_epochs=1"))
    assert done.returncode == 3 and "target" in done.stderr, done.stderr  # missed, after three epochs
    return folder / "out"


def test_the_record_names_the_framework_and_passes_all_checks_but_the_target(one_rank):
    record = result(one_rank)
    assert record["framework"] == "pytorch" and record["staging"]["verified"]
    assert len(record["epochs"]) == 3
    assert {r["value"] for r in mllog(one_rank) if r["key"] == "opt_name"} == {"sgd"}
    checked = mlhpc("check", one_rank)
    assert checked.returncode == 1 and "does not pass: 2 errors" in checked.stdout
    assert "eval_err" in checked.stdout and "run/status" in checked.stdout  # both are about the missed target


def test_two_ranks_train_on_the_same_trajectory(one_rank, tiny_data, tmp_path):
    words = ["--data", tiny_data, "--out", tmp_path / "out", "--seed", 4, "--ranks", 2]
    done = mlhpc("run", "cosmoflow", *words, *settings(PYTORCH, "training.checkpoint_epochs=1"))
    assert done.returncode == 3 and "target" in done.stderr, done.stderr  # missed, after three epochs
    assert result(tmp_path / "out")["ranks"] == 2
    assert trace(tmp_path / "out") == pytest.approx(trace(one_rank), rel=2e-3)


def test_two_ranks_that_share_every_sample_train_on_the_same_trajectory(one_rank, tiny_data, tmp_path):
    words = ["--data", tiny_data, "--out", tmp_path / "out", "--seed", 4, "--ranks", 2]
    spatial = "training.spatial=[1,2,1]"
    done = mlhpc("run", "cosmoflow", *words, *settings(PYTORCH, "training.checkpoint_epochs=1", spatial))
    assert done.returncode == 3, done.stderr
    assert trace(tmp_path / "out") == pytest.approx(trace(one_rank), rel=2e-3)
    ours, theirs = (result(out)["epochs"] for out in (tmp_path / "out", one_rank))
    assert [epoch["bytes"] for epoch in ours] == [epoch["bytes"] for epoch in theirs]  # read once, not twice
    # 24 samples trained and 7 evaluated, of 32³ x 4 voxels of two bytes and four targets: a half of each is sent.
    assert {epoch["slab_bytes"] for epoch in ours} == {(24 + 7) * (32**3 * 4 * 2 // 2 + 4 * 4)}
    # Blocks of 2, 4, 8, 16 filters on cubes of 32, 16, 8, 4: two planes of inputs, of four bytes, per sample; in
    # the backward pass all but the first block's. Then the halves of the last block are put together.
    planes = [2 * side**2 * channels * 4 for side, channels in ((32, 4), (16, 2), (8, 4), (4, 8))]
    halves = 2**3 * 16 * 4
    assert {epoch["halo_bytes"] for epoch in ours} == {
        (24 + 7) * (sum(planes) + halves) + 24 * sum(planes[1:])
    }
    predicted = predict(machine("perlmutter"), load_file(tmp_path / "out/config.toml", "cosmoflow"), 1)
    assert {epoch["halo_bytes"] for epoch in ours} == {predicted.record()["spatial"]["halo_bytes"]}
    assert [r["value"] for r in mllog(tmp_path / "out") if r["key"] == "spatial_parallelism"] == [[1, 2, 1]]
    assert mlhpc("report", tmp_path / "out").returncode == 0
    page = (tmp_path / "out/report.html").read_text()
    assert "Spatial parallelism" in page and "cut into 1 × 2 × 1 parts" in page
    assert bytes_text(ours[0]["halo_bytes"]) in page and bytes_text(ours[0]["slab_bytes"]) in page


def test_a_killed_rank_of_a_spatial_group_is_named_with_group_and_coordinates(tiny_data, tmp_path):
    out = tmp_path / "out"
    changed = settings(PYTORCH, "training.max_epochs=500", "training.spatial=[1,2,1]")
    run = start_mlhpc("run", "cosmoflow", "--data", tiny_data, "--out", out, "--ranks", 4, *changed)
    wait_for(lambda: (out / "run.log").exists() and "eval_error" in (out / "run.log").read_text())
    os.kill(rank_process(run.pid, 3), signal.SIGKILL)
    error = run.communicate(timeout=60)[1]
    assert run.returncode != 0
    assert "rank 3 (spatial group 1, coordinates [0, 1, 0]) on" in error and error.count("was lost") == 1
    assert "spatial group 1" in next(r for r in mllog(out) if r["key"] == "run_stop")["metadata"]["reason"]


def test_coarse_epochs_are_recorded_and_learn(tiny_data, tmp_path):
    out, coarse = tmp_path / "out", ["training.coarse_epochs=[1]", "training.max_epochs=2"]
    done = mlhpc("run", "cosmoflow", "--data", tiny_data, "--out", out, *settings(PYTORCH, *coarse))
    assert done.returncode == 3 and "target" in done.stderr, done.stderr
    assert [epoch["trained_side"] for epoch in result(out)["epochs"]] == [16, 32]
    assert [r["value"] for r in mllog(out) if r["key"] == "coarse_epochs"] == [[1]]


def test_a_killed_run_resumes_on_the_same_trajectory(tiny_data, tmp_path):
    words = ["run", "cosmoflow", "--data", tiny_data, *settings(PYTORCH, "hyperparameters.dropout=0.5")]
    resumed_after_a_kill(tmp_path, *words, rel=1e-6)


@pytest.fixture(scope="module")
def tensorflow(tiny_data, tmp_path_factory):
    out = tmp_path_factory.mktemp("tensorflow") / "out"
    changed = settings("training.checkpoint_epochs=1", "training.max_epochs=1")
    assert mlhpc("run", "cosmoflow", "--data", tiny_data, "--out", out, *changed).returncode == 3
    return out


def test_weights_of_one_framework_are_where_the_other_starts(one_rank, tensorflow, tiny_data, tmp_path):
    """With a learning rate near zero, the first evaluation equals the last one of the other run."""
    still = ["hyperparameters.opt_base_learning_rate=1e-30", "training.max_epochs=1"]
    for run, framework in ((one_rank, "tensorflow"), (tensorflow, "pytorch")):
        file = tmp_path / f"of_{framework}.safetensors"
        done = mlhpc("weights", run, "--out", file)
        assert done.returncode == 0 and "weights in 14 arrays" in done.stdout, done.stderr
        changed = settings(f"training.framework={framework}", f"training.weights={file}", *still)
        out = tmp_path / framework
        assert mlhpc("run", "cosmoflow", "--data", tiny_data, "--out", out, *changed).returncode == 3
        ours, theirs = (result(each)["epochs"][-1]["eval_error"] for each in (out, run))
        assert ours == pytest.approx(theirs, rel=1e-4)


def test_wrong_weights_are_one_line(one_rank, tiny_data, tmp_path):
    file = tmp_path / "w.safetensors"
    assert mlhpc("weights", one_rank, "--out", file).returncode == 0
    (tmp_path / "bad.safetensors").write_bytes(b"\x00" * 100)
    weights = load_weights(file)
    save_file(weights | {"conv0/bias": weights["conv0/bias"] * np.nan}, tmp_path / "nan.safetensors")
    save_torch({k: torch.from_numpy(w).bfloat16() for k, w in weights.items()}, tmp_path / "bf16.safetensors")
    for changed, said in [
        (["training.weights=none.safetensors"], "does not exist"),
        ([f"training.weights={tmp_path}/bad.safetensors"], "cannot be read as safetensors"),
        (
            [f"training.weights={tmp_path}/nan.safetensors"],
            "conv0/bias has non-finite or non-float32 values",
        ),
        ([f"training.weights={tmp_path}/bf16.safetensors"], "cannot be read as safetensors"),
        ([f"training.weights={file}", "network.conv_filters=4"], "conv0/kernel has shape"),
        ([f"training.weights={file}", "network.conv_layers=3"], "weights for a different network"),
    ]:
        words = ["--data", tiny_data, "--out", tmp_path / "out", *settings(PYTORCH, *changed)]
        done = mlhpc("run", "cosmoflow", *words)
        assert done.returncode == 2 and said in done.stderr and not (tmp_path / "out").exists()
        assert len(done.stderr.strip().splitlines()) == 1
    for words, said in [
        ([one_rank, "--out", file], "already exists"),
        ([one_rank, "--out", tmp_path / "w.npz"], "must end in .safetensors"),
        ([tmp_path, "--out", tmp_path / "x.safetensors"], "contains no checkpoint.npz"),
    ]:
        done = mlhpc("weights", *words)
        assert done.returncode == 2 and said in done.stderr and len(done.stderr.strip().splitlines()) == 1


def test_a_checkpoint_of_tensorflow_is_refused_by_pytorch(tensorflow, tiny_data, tmp_path):
    words = ["--data", tiny_data, *settings("training.checkpoint_epochs=1", "training.max_epochs=1")]
    words += ["--set", PYTORCH, "--out", tmp_path / "out", "--resume", tensorflow]
    done = mlhpc("run", "cosmoflow", *words)
    assert done.returncode == 2 and "training.framework" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1 and not (tmp_path / "out").exists()


def test_a_checkpoint_of_pytorch_is_refused_by_tensorflow(one_rank, tiny_data, tmp_path):
    words = ["--data", tiny_data, "--out", tmp_path / "out", "--resume", one_rank]
    done = mlhpc("run", "cosmoflow", *words, *settings("training.checkpoint_epochs=1"))
    assert done.returncode == 2 and "training.framework" in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "wrong, named",
    [
        (["training.compile=true"], "training.framework=pytorch"),
        (["training.framework=jax"], "training.framework 'jax'"),
        ([PYTORCH, "training.device=cuda"], "sees no accelerator here"),
        ([PYTORCH, "training.precision=mixed_float16"], "mixed_float16 needs a GPU"),
        ([PYTORCH, "network.conv_layers=6"], "multiple of 64"),
        ([PYTORCH, "training.spatial=[32,1,1]"], "are thinner than a halo"),
        ([PYTORCH, "training.spatial=[2,1,1]", "training.compile=true"], "compile"),
        ([PYTORCH, "training.spatial=[2,1,1]"], "requires a multiple of 2 ranks, not 1"),
        (["training.spatial=[2,1,1]"], "training.framework=pytorch"),
    ],
)
def test_what_cannot_run_is_one_line(wrong, named, tiny_data, tmp_path):
    words = ["run", "cosmoflow", "--data", tiny_data, "--out", tmp_path / "out", *settings(*wrong)]
    # In time for a fork: importing PyTorch does not look for GPUs.
    done = run_warm(
        loaded_for(words), ["-m", "mlhpc", *words], 120, os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    )
    assert done.returncode == 2 and named in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
