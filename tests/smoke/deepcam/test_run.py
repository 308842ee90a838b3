"""Whole runs of DeepCAM on a tiny data set: the record, the ranks, staging, resuming, bad input."""

import io
import json
import os
import shutil

import h5py
import numpy as np
import pytest
import torch
from helpers.warm import run_warm
from safetensors.torch import load_file
from smoke.conftest import NO_FRAMEWORK, PYTORCH, mlhpc, mllog, result, resumed_after_a_kill, trace
from smoke.conftest import climate_settings as settings

from mlhpc.benchmarks.load import load_file as load_settings
from mlhpc.common.host.binding import parse_ranges
from mlhpc.deepcam.model import build_model
from mlhpc.record.mllog import parse
from mlhpc.record.phases import phases


@pytest.fixture(scope="module")
def one_rank(climate, tmp_path_factory):
    """A run of one rank, staged, with checkpoints; other runs are compared with it."""
    folder = tmp_path_factory.mktemp("one")
    done = mlhpc(
        "run", "deepcam", "--seed", 7,
        "--data", climate, "--stage", folder / "stage", "--out", folder / "out",
        *settings("training.checkpoint_epochs=1"),
    )  # fmt: skip
    assert done.returncode == 3, done.stderr  # three epochs do not reach the target
    return folder / "out"


def test_the_record_of_a_run(one_rank):
    record = result(one_rank)
    total = record["time_to_train_s"]
    assert sum(part or 0 for part in record["breakdown_s"].values()) == pytest.approx(total, rel=0.01)
    assert record["staging"]["files"] == 13 + 5 + 1 and not (one_rank.parent / "stage").exists()
    assert [epoch["samples"] for epoch in record["epochs"]] == [12, 12, 12]
    assert all(0 < epoch["eval_accuracy"] < 1 for epoch in record["epochs"])


def test_weights_load_into_the_network(one_rank, tmp_path):
    done = mlhpc("weights", one_rank, "--out", tmp_path / "w.safetensors")
    assert done.returncode == 0 and "as of epoch 3" in done.stdout, done.stderr
    weights = load_file(tmp_path / "w.safetensors")
    run = load_settings(one_rank / "config.toml", "deepcam")
    network = build_model(run.network, channels=16)
    network.load_state_dict(weights)  # raises where a name or shape differs
    trained = torch.load(io.BytesIO(np.load(one_rank / "checkpoint.npz")["shared_0"]), weights_only=True)
    assert all(torch.equal(value, trained["model"][name]) for name, value in network.state_dict().items())


def test_the_official_checker_objects_only_to_the_target(climate, tmp_path, monkeypatch):
    out = tmp_path / "out"
    low = settings("target.value=1e-6")
    monkeypatch.chdir(tmp_path)
    done = mlhpc("run", "deepcam", "--data", climate, "--stage", tmp_path / "s", "--out", out, *low)
    assert done.returncode == 0, done.stderr
    for ruleset in ("1.0.0", "2.0.0", "3.0.0"):
        words = ["mlperf_logging.compliance_checker", "--usage", "hpc", "--ruleset", ruleset, out / "run.log"]
        done = run_warm(NO_FRAMEWORK, ["-m", *words], timeout=60)
        text = done.stdout + done.stderr
        assert "Failed checks for eval_accuracy" in text  # of the open division: its target only
        assert text.count("Failed checks") + text.count("Required ") + text.count("CHECK for") == 1, text
        assert mlhpc("check", out, "--ruleset", ruleset).returncode == 0


def test_two_ranks_sharing_batch_norm_reproduce_the_trace_of_one(climate, one_rank, tmp_path):
    out = tmp_path / "out"
    grouped = settings("hyperparameters.batchnorm_group_size=2")
    done = mlhpc("run", "deepcam", "--data", climate, "--out", out, "--seed", 7, "--ranks", 2, *grouped)
    assert done.returncode == 3, done.stderr
    assert result(out)["ranks"] == 2
    # Float32 from the first step on, and LAMB amplifies rounding; tests/numeric has the gradients.
    assert trace(out)[0] == pytest.approx(trace(one_rank)[0], rel=1e-3)
    assert trace(out) == pytest.approx(trace(one_rank), rel=0.05)


def test_ranks_that_succeeded_exit_before_interpreter_finalization(climate, tmp_path):
    """In finalization gloo's threads abort some ranks; the atexit hook here aborts every rank that gets there."""
    (tmp_path / "sitecustomize.py").write_text(
        "import atexit, os, sys\natexit.register(lambda: 'torch' in sys.modules and os.abort())\n"
    )
    words = ["--data", climate, "--out", tmp_path / "out", "--ranks", 2, *settings("training.max_epochs=1")]
    done = mlhpc("run", "deepcam", *words, env={"PYTHONPATH": str(tmp_path)})
    assert done.returncode == 3 and "SIGABRT" not in done.stderr, done.stderr
    assert done.stderr.count("missed") == 1


def test_accumulated_gradients_are_those_of_one_batch(climate, one_rank, tmp_path):
    """Except for batch norm, with statistics of part of the batch: close, not equal; the same number of
    steps."""
    out = tmp_path / "out"
    parts = settings("hyperparameters.gradient_accumulation_frequency=2", "training.max_epochs=1")
    assert mlhpc("run", "deepcam", "--data", climate, "--out", out, "--seed", 7, *parts).returncode == 3
    assert result(out)["epochs"][0]["samples"] == 12
    assert trace(out)[0] == pytest.approx(trace(one_rank)[0], rel=0.2)


def test_evaluation_every_two_updates_is_timed_as_evaluation(climate, tmp_path):
    out = tmp_path / "out"
    often = settings("training.eval_steps=2", "training.max_epochs=1")
    done = mlhpc("run", "deepcam", "--data", climate, "--out", out, *often)
    assert done.returncode == 3, done.stderr
    records = mllog(out)
    assert [r["key"] for r in records].count("eval_accuracy") == 2  # after steps 2 and 3
    times = [r["time_ms"] for r in records if r["key"] in ("eval_start", "eval_stop")]
    spent = sum(stop - start for start, stop in zip(times[::2], times[1::2], strict=True)) / 1e3
    assert result(out)["breakdown_s"]["evaluation"] == pytest.approx(spent, abs=0.01)


@pytest.mark.parametrize("target", [0.999, 1e-6])
def test_the_log_is_enough_to_count_the_samples_trained_on(climate, tmp_path, target):
    """13 of which a batch of 4 leaves one out; and an epoch that the target ends after its first step."""
    out = tmp_path / "out"
    words = settings("training.eval_steps=1", "training.max_epochs=2", f"target.value={target}")
    assert mlhpc("run", "deepcam", "--data", climate, "--out", out, *words).returncode == (
        3 if target > 0.5 else 0
    )
    timeline = phases(parse(out / "run.log"))
    assert timeline is not None
    assert [e.samples for e in timeline.epochs] == ([12, 12] if target > 0.5 else [4])
    assert [e["samples"] for e in result(out)["epochs"]] == [e.samples for e in timeline.epochs]


@pytest.mark.parametrize("loader", ["dali", "workers"])
def test_what_a_loader_needs_is_ready_before_the_clock_starts(climate, tmp_path, loader):
    words = ["run", "deepcam", "--data", str(climate), "--out", str(tmp_path / "out")]
    words += settings(f"loading.loader={loader}", "training.max_epochs=1")
    program = f"""
import sys
from contextlib import contextmanager
from multiprocessing import forkserver
from mlhpc.cli import main
from mlhpc.common.timing.runlog import RunLog
span = RunLog.span
@contextmanager
def noted(log, name, **tags):
    if name == "run":
        print("nvidia.dali.fn" in sys.modules, forkserver._forkserver._forkserver_pid is not None)
    with span(log, name, **tags) as span_tags:
        yield span_tags
RunLog.span = noted
sys.exit(main({words!r}))
"""
    done = run_warm(PYTORCH, ["-c", program], timeout=300)
    assert done.stdout.splitlines()[-1:] == [f"{loader == 'dali'} {loader == 'workers'}"], done.stderr


def test_a_killed_run_resumes_on_the_same_trajectory_and_is_marked(climate, tmp_path):
    words = ["run", "deepcam", "--data", climate, *settings()]
    out = resumed_after_a_kill(tmp_path, *words, rel=1e-4)
    assert "resumed" in mlhpc("check", out).stdout


def corrupt(**change):
    """Overwrite one value of the data of the first training file."""

    def do(data):
        path = sorted((data / "train").glob("*.h5"))[0]
        with h5py.File(path, "r+") as file:
            for name, value in change.items():
                file[f"climate/{name}"][3, 4] = value
        (data / "manifest.json").unlink()  # else its checksum fails first

    return do


def cut(data):
    path = sorted((data / "train").glob("*.h5"))[0]
    os.truncate(path, path.stat().st_size // 2)
    (data / "manifest.json").unlink()


def flat_statistics(data):
    with h5py.File(data / "stats.h5", "r+") as file:
        file["climate/maxval"][2] = file["climate/minval"][2]
    (data / "manifest.json").unlink()


def of_another_benchmark(data):
    facts = json.loads((data / "manifest.json").read_text())
    facts["facts"]["benchmark"] = "cosmoflow"
    (data / "manifest.json").write_text(json.dumps(facts))


@pytest.mark.parametrize(
    ("damage", "more", "message"),
    [
        (corrupt(data=np.nan), [], "data-000000.h5"),
        (corrupt(data=np.inf), [], "data-000000.h5"),
        (corrupt(labels_0=3), [], "data-000000.h5"),
        (cut, [], "data-000000.h5"),
        (flat_statistics, [], "stats.h5"),
        (lambda d: ((d / "stats.h5").unlink(), (d / "manifest.json").unlink()), [], "stats.h5"),
        (lambda d: (d / "train" / "data-000000.h5").unlink(), [], "data-000000.h5 cannot be read"),
        (lambda d: shutil.rmtree(d), [], "no such"),
        (of_another_benchmark, [], "is a data set for cosmoflow"),
        (lambda d: None, ["data.sample_shape=[48,48,16]"], "expected floating point [48, 48, 16]"),
        (lambda d: None, ["data.sample_shape=[32,48,4]"], "channel"),
        (lambda d: None, ["data.sample_shape=[33,48,16]"], "multiples of 16"),
        (lambda d: None, ["hyperparameters.opt_lr=1e30"], "opt_lr"),
        (lambda d: None, ["training.device=cuda"], "sees no accelerator"),
        (lambda d: None, ["training.precision=mixed_float16"], "needs a GPU"),
        (lambda d: None, ["hyperparameters.global_batch_size=64"], "cannot fill one step"),
        (
            lambda d: None,
            ["training.cuda_graphs=true", "hyperparameters.gradient_accumulation_frequency=2"],
            "training.cuda_graphs=on: gradients are accumulated",
        ),
    ],
)
def test_invalid_input_is_a_one_line_error_with_status_2_and_an_aborted_log(
    damage, more, message, climate, tmp_path
):
    data, stage, out = tmp_path / "data", tmp_path / "stage", tmp_path / "out"
    shutil.copytree(climate, data)
    damage(data)
    done = mlhpc("run", "deepcam", "--data", data, "--stage", stage, "--out", out, *settings(*more))
    assert done.returncode == 2, done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("mlhpc: ")]
    assert len(lines) == 1 and message in lines[0], done.stderr
    assert "Traceback" not in done.stderr and not list(tmp_path.rglob("*.part"))
    if message == "stats.h5":
        assert not stage.exists(), "before terabytes are copied"
    if message in (
        "sees no accelerator",
        "needs a GPU",
        "training.cuda_graphs=on: gradients are accumulated",
    ):
        assert not out.exists(), "a run that cannot start leaves no folder"
    if (out / "run.log").exists() and "run_start" in (out / "run.log").read_text():
        assert mllog(out)[-1]["metadata"]["status"] == "aborted"


def test_a_closed_run_of_other_data_is_refused_before_anything_is_read(tmp_path):
    words = ["--data", tmp_path / "nowhere", "--out", tmp_path / "o", "--set", "data.train_samples=96"]
    done = mlhpc("run", "deepcam", "--preset", "closed", *words)
    assert done.returncode == 2 and "121266" in done.stderr and not (tmp_path / "o").exists()


@pytest.mark.parametrize("framework", ["tensorflow", "keras", "horovod"])
def test_tensorflow_is_not_imported_for_deepcam_and_resnet50(framework):
    """Otherwise all their runs in these tests, except those with a separate environment, would fail."""
    done = run_warm(PYTORCH, ["-c", f"import {framework}"], timeout=60)
    assert done.returncode == 1 and "ModuleNotFoundError" in done.stderr


def test_two_ranks_bound_to_a_core_each_are_seen_in_the_record(climate, tmp_path):
    """And with OMP_PROC_BIND, where importing PyTorch leaves the thread that starts the readers one core."""
    one, *_, two = sorted(os.sched_getaffinity(0))
    words = ["run", "deepcam", "--data", climate, "--ranks", 2, *settings("training.max_epochs=1")]
    bound, free = tmp_path / "bound", tmp_path / "free"
    done = mlhpc(*words, "--bind", f"{two}:{one}", "--out", bound, new_process=True)
    assert done.returncode == 3, done.stderr
    env = json.loads((bound / "env.json").read_text())
    placed = [(each["rank"], each["cores"], each["threads"]) for each in env["bindings"]]
    assert placed == [(0, str(two), 1), (1, str(one), 1)]
    assert env["cores"] == env["nodes"][0]["cores"] == len({one, two}), "what the ranks have together"
    done = mlhpc(*words, "--out", free, env={"OMP_PROC_BIND": "close", "OMP_PLACES": "cores"})
    assert done.returncode == 3, done.stderr
    env = json.loads((free / "env.json").read_text())
    allowed = os.sched_getaffinity(0)
    assert {parse_ranges(each["cores"]) for each in env["bindings"]} == {frozenset(allowed)}
    assert parse_ranges(env["binding"]["cores"]) == allowed, "also after PyTorch was imported"
    assert f"cores {two}" in mlhpc("diff", bound, free).stdout
