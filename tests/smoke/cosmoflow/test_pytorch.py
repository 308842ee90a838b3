"""Whole runs of CosmoFlow in PyTorch: the record, the ranks, resuming, and what is refused."""

import pytest
from smoke.conftest import mlhpc, mllog, result, resumed_after_a_kill, settings, trace

PYTORCH = "training.framework=pytorch"


@pytest.fixture(scope="module")
def one_rank(tiny_data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("pytorch")
    words = ["--data", tiny_data, "--stage", folder / "stage", "--out", folder / "out", "--seed", 4]
    done = mlhpc("run", "cosmoflow", *words, *settings(PYTORCH, "training.checkpoint_epochs=1"))
    assert done.returncode == 1 and "target" in done.stderr, done.stderr  # missed, after three epochs
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
    assert done.returncode == 1 and "target" in done.stderr, done.stderr  # missed, after three epochs
    assert result(tmp_path / "out")["ranks"] == 2
    assert trace(tmp_path / "out") == pytest.approx(trace(one_rank), rel=2e-3)


def test_a_killed_run_resumes_on_the_same_trajectory(tiny_data, tmp_path):
    words = ["run", "cosmoflow", "--data", tiny_data, *settings(PYTORCH, "hyperparameters.dropout=0.5")]
    resumed_after_a_kill(tmp_path, *words, rel=1e-6)


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
        ([PYTORCH, "training.device=cuda"], "training.device=cuda needs a GPU"),
        ([PYTORCH, "training.precision=mixed_float16"], "mixed_float16 needs a GPU"),
        ([PYTORCH, "network.conv_layers=6"], "multiples of 64"),
    ],
)
def test_what_cannot_run_is_one_line(wrong, named, tiny_data, tmp_path):
    words = ["--data", tiny_data, "--out", tmp_path / "out"]
    done = mlhpc("run", "cosmoflow", *words, *settings(*wrong), env={"CUDA_VISIBLE_DEVICES": ""})
    assert done.returncode == 2 and named in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
