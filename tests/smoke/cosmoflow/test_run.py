"""Whole runs of CosmoFlow on a tiny data set: the record, the ranks, staging, resuming."""

import os
import shutil
import signal
from dataclasses import replace

import pytest
from helpers.warm import run_warm
from smoke.conftest import (
    NO_FRAMEWORK,
    TENSORFLOW,
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

from mlhpc.benchmarks import load
from mlhpc.common.data import manifest
from mlhpc.common.files.filesystem import filesystem_of
from mlhpc.record.events import read_events


def test_the_parts_add_up_to_time_to_train_and_the_log_says_the_same(one_rank):
    record = result(one_rank)
    total = record["time_to_train_s"]
    assert sum(part or 0 for part in record["breakdown_s"].values()) == pytest.approx(total, rel=0.01)
    stamps = {r["key"]: r["time_ms"] for r in mllog(one_rank) if r["key"] in ("run_start", "run_stop")}
    assert (stamps["run_stop"] - stamps["run_start"]) / 1e3 == pytest.approx(total, abs=0.002)
    assert record["breakdown_s"]["staging"] > 0
    assert record["time_to_train_without_staging_s"] == pytest.approx(
        total - record["breakdown_s"]["staging"]
    )


def test_staging_is_between_run_start_and_the_first_epoch(one_rank):
    keys = [r["key"] for r in mllog(one_rank)]
    order = [
        "init_start",
        "init_stop",
        "run_start",
        "staging_start",
        "staging_stop",
        "epoch_start",
        "run_stop",
    ]
    assert [keys.index(key) for key in order] == sorted(keys.index(key) for key in order)


def test_the_staged_copy_is_removed_after_the_run(one_rank):
    assert result(one_rank)["staging"]["files"] == 27 + 7
    assert not (one_rank.parent / "stage").exists()


def test_check_reports_only_the_missed_target(one_rank):
    done = mlhpc("check", one_rank)
    assert done.returncode == 1
    assert str(load.load("cosmoflow", "smoke").target.value) in done.stdout


@pytest.fixture(scope="module")
def converged(tiny_data, tmp_path_factory):
    """A staged run that meets its target."""
    folder = tmp_path_factory.mktemp("converged")
    words = ["--data", tiny_data, "--stage", folder / "stage", "--out", folder / "out"]
    done = mlhpc("run", "cosmoflow", *words, *settings("target.value=9.0"))
    assert done.returncode == 0, done.stderr
    assert result(folder / "out")["status"] == "success"
    return folder / "out"


@pytest.mark.parametrize("ruleset", ["1.0.0", "2.0.0", "3.0.0"])
def test_a_converged_run_passes_the_check_except_for_the_official_target(converged, ruleset):
    checked = mlhpc("check", converged, "--ruleset", ruleset)
    assert checked.returncode == 0, checked.stdout
    assert "0.124" in checked.stdout


@pytest.mark.parametrize("ruleset", ["1.0.0", "2.0.0", "3.0.0"])
def test_the_official_checker_objects_only_to_the_target(converged, ruleset, tmp_path, monkeypatch):
    words = [
        "mlperf_logging.compliance_checker",
        "--usage",
        "hpc",
        "--ruleset",
        ruleset,
        converged / "run.log",
    ]
    monkeypatch.chdir(tmp_path)
    done = run_warm(NO_FRAMEWORK, ["-m", *words], timeout=60)
    text = done.stdout + done.stderr
    assert "Failed checks for eval_error" in text
    assert text.count("Failed checks") + text.count("Required ") == 1, text


def test_two_ranks_reproduce_the_trace_of_one(tiny_data, one_rank, tmp_path):
    out = tmp_path / "out"
    words = ["--data", tiny_data, "--out", out, "--seed", 7, "--ranks", 2, *settings()]
    done = mlhpc("run", "cosmoflow", *words, new_process=True)
    assert done.returncode == 3, done.stderr
    assert result(out)["ranks"] == 2
    assert trace(out) == pytest.approx(trace(one_rank), rel=2e-5)
    assert (out / "events.rank1.jsonl").exists()


def test_a_killed_run_resumes_on_the_same_trajectory_and_is_marked(tiny_data, tmp_path):
    words = ["run", "cosmoflow", "--data", tiny_data, *settings("hyperparameters.dropout=0.5")]
    out = resumed_after_a_kill(tmp_path, *words, rel=1e-6)
    for what in (out, out / "run.log"):
        checked = mlhpc("check", what)
        assert checked.returncode == 1 and "resumed" in checked.stdout


def test_eviction_is_recorded(tiny_data, tmp_path):
    out = tmp_path / "out"
    mlhpc(
        "run", "cosmoflow", "--data", tiny_data, "--out", out, "--evict", *settings("training.max_epochs=1")
    )
    on_ram = filesystem_of(tiny_data).is_ram  # where files are in memory only and cannot be dropped
    assert result(out)["source_evicted"] is not on_ram
    assert next(r["value"] for r in mllog(out) if r["key"] == "cache_clear") is not on_ram


def test_resuming_with_other_settings_is_refused(tiny_data, one_rank, tmp_path):
    done = mlhpc(
        "run", "cosmoflow", "--data", tiny_data, "--out", tmp_path / "o", "--resume", one_rank, *settings()
    )
    assert done.returncode == 2 and "different settings" in done.stderr


@pytest.mark.parametrize(
    ("sent", "checkpoints", "remedy"),
    [
        (signal.SIGTERM, 1, "continue from its checkpoint with --resume"),
        (signal.SIGUSR1, 0, "its record is in"),
    ],
)
def test_a_terminated_run_is_recorded_as_aborted(tiny_data, tmp_path, sent, checkpoints, remedy):
    """SIGUSR1 as ``sbatch --signal=USR1@30`` sends it."""
    out = tmp_path / "out"
    saved = out / ("checkpoint.npz" if checkpoints else "run.log")
    more = settings("training.max_epochs=500", f"training.checkpoint_epochs={checkpoints}")
    run = start_mlhpc("run", "cosmoflow", "--data", tiny_data, "--out", out, *more)
    wait_for(lambda: saved.exists() and "eval_error" in (out / "run.log").read_text())
    run.send_signal(sent)
    error = run.communicate(timeout=60)[1]
    assert run.returncode == 128 + sent and sent.name in error
    assert f"{remedy} {out}" in error
    stops = [r for r in mllog(out) if r["key"] == "run_stop"]
    assert [r["metadata"]["status"] for r in stops] == ["aborted"]
    assert result(out)["status"] == "aborted" and result(out)["time_to_train_s"] is None


def test_a_killed_rank_ends_the_run_and_is_named(tiny_data, tmp_path):
    out = tmp_path / "out"
    words = ["--data", tiny_data, "--out", out, "--ranks", 2, *settings("training.max_epochs=500")]
    run = start_mlhpc("run", "cosmoflow", *words)
    wait_for(lambda: (out / "run.log").exists() and "eval_error" in (out / "run.log").read_text())
    os.kill(rank_process(run.pid, 1), signal.SIGKILL)
    error = run.communicate(timeout=60)[1]
    assert run.returncode != 0
    assert "rank 1 on" in error and "was lost in phase" in error
    stops = [r for r in mllog(out) if r["key"] == "run_stop"]
    assert [r["metadata"]["status"] for r in stops] == ["aborted"]
    assert mlhpc("check", out).returncode == 1


def test_the_shard_of_a_single_node_is_the_whole_data_set(tiny_data, tmp_path):
    out = tmp_path / "out"
    words = ["--data", tiny_data, "--stage", tmp_path / "s", "--out", out, "--ranks", 2, "--seed", 7]
    done = mlhpc("run", "cosmoflow", *words, *settings("staging.mode=shard", "training.max_epochs=1"))
    assert done.returncode == 3, done.stderr
    assert result(out)["staging"]["files"] == 27 + 7


@pytest.mark.parametrize(
    ("damage", "more", "message"),
    [
        (lambda d: next((d / "train").glob("*.tfrecord")).write_bytes(b"\x1f\x8b broken"), [], "data verify"),
        (lambda d: next((d / "train").glob("*.tfrecord")).unlink(), [], "data verify"),
        (lambda d: None, ["data.train_samples=99"], "99 are needed"),
        (lambda d: None, ["hyperparameters.global_batch_size=64"], "cannot fill one step"),
        (lambda d: None, ["data.sample_shape=[64,64,64,4]"], "data.sample_shape"),
        (lambda d: None, ["data.sample_shape=[33,33,33,4]"], "multiple of 16"),
        (lambda d: None, ["network.parameters=5"], "parameters"),
        (lambda d: shutil.rmtree(d), [], "no such"),
        (lambda d: None, ["hyperparameters.opt_base_learning_rate=1e30"], ".tfrecord, "),
    ],
)
def test_invalid_input_is_a_one_line_error_with_status_2_and_an_aborted_log(
    damage, more, message, tiny_data, tmp_path
):
    data, out = tmp_path / "data", tmp_path / "out"
    shutil.copytree(tiny_data, data)
    damage(data)
    done = mlhpc(
        "run", "cosmoflow", "--data", data, "--stage", tmp_path / "stage", "--out", out, *settings(*more)
    )
    assert done.returncode == 2, done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("mlhpc: ")]
    assert len(lines) == 1 and message in lines[0], done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.rglob("*.part"))
    if (out / "run.log").exists() and "run_start" in (out / "run.log").read_text():
        assert mllog(out)[-1]["metadata"]["status"] == "aborted"
    if message == ".tfrecord, ":
        assert "eval_start" not in {r["key"] for r in mllog(out)}, "a network of NaN is not evaluated"


def test_results_are_never_overwritten(tiny_data, one_rank):
    before = (one_rank / "run.log").read_bytes()
    done = mlhpc("run", "cosmoflow", "--data", tiny_data, "--out", one_rank, *settings())
    assert done.returncode == 2 and "another run" in done.stderr
    assert (one_rank / "run.log").read_bytes() == before


def test_two_concurrent_runs_do_not_share_an_output_folder(tiny_data, tmp_path):
    program = """import subprocess, sys
runs = [subprocess.Popen([sys.executable, "-m", "mlhpc", *sys.argv[1:]]) for _ in range(2)]
print(sorted(run.wait() for run in runs))
"""
    words = ["--data", tiny_data, "--out", tmp_path / "o", *settings("training.max_epochs=1")]
    done = run_warm(TENSORFLOW, ["-c", program, "run", "cosmoflow", *words], timeout=120)
    assert done.stdout.splitlines()[-1] == "[2, 3]", done.stderr
    assert [r["key"] for r in mllog(tmp_path / "o")].count("run_stop") == 1


def test_a_data_set_indexed_with_fewer_files_is_not_taken_for_complete(tiny_data, tmp_path):
    data = tmp_path / "data"
    shutil.copytree(tiny_data, data)
    for path in sorted((data / "train").iterdir())[:9]:
        path.unlink()
    complete = (data / "manifest.json").read_bytes()
    assert mlhpc("data", "index", data).returncode == 0
    again = mlhpc("run", "cosmoflow", "--data", data, "--out", tmp_path / "a", *settings())
    assert again.returncode == 2 and "18 samples, but 27 are needed" in again.stderr
    # A manifest whose sample count exceeds its files.
    (data / "manifest.json").write_bytes(complete)
    forged = manifest.load(data)
    manifest.save(replace(forged, files=[file for file in forged.files if (data / file.path).exists()]))
    rejected = mlhpc("run", "cosmoflow", "--data", data, "--out", tmp_path / "b", *settings())
    assert rejected.returncode == 2 and "18 sample files" in rejected.stderr


def test_a_batch_size_that_the_ranks_do_not_divide_is_refused(tiny_data, tmp_path):
    words = ["--data", tiny_data, "--out", tmp_path / "o", "--ranks", 2]
    done = mlhpc("run", "cosmoflow", *words, *settings("hyperparameters.global_batch_size=9"))
    lines = [line for line in done.stderr.splitlines() if line.startswith("mlhpc: ")]
    assert done.returncode == 2 and len(lines) == 1 and "must be a multiple of" in lines[0]
    assert done.stderr.count("must be a multiple of") == 1, "rank 1, whose lines have a prefix, is silent"
    assert not (tmp_path / "o").exists()


def test_the_metric_belongs_to_the_epoch_that_it_was_measured_in(one_rank):
    events = read_events(one_rank / "events.rank0.jsonl")
    names = [(e["event"], e["name"]) for e in events if e.get("epoch") == 1]
    assert names.index(("metric", "eval_error")) < names.index(("end", "epoch"))
    steps = next(e for e in events if e["event"] == "steps" and e["name"] == "train")
    assert 0 < steps["p50"] <= steps["p99"] <= steps["max"]


def test_the_data_set_is_not_accessed_before_run_start(tiny_data, tmp_path):
    data = tmp_path / "data"
    shutil.copytree(tiny_data, data)
    words = ["run", "cosmoflow", "--data", str(data), "--out", str(tmp_path / "out")]
    words += settings("training.max_epochs=1")
    program = f"""
import builtins, os, sys
from mlhpc.common.timing import runlog
started = []
span = runlog.RunLog.span
def recorded(self, name, **tags):
    started.append(name)
    return span(self, name, **tags)
runlog.RunLog.span = recorded
def hook(event, args):
    touching = event in ("open", "os.listdir", "os.scandir") and str(args[0]).startswith({str(data)!r})
    if touching and "run" not in started:
        os.write(2, f"TOUCHED {{args[0]}}\\n".encode())
sys.addaudithook(hook)
from mlhpc.cli import main
sys.exit(main({words!r}))
"""
    done = run_warm(TENSORFLOW, ["-c", program], timeout=300)
    assert done.returncode == 3, done.stderr
    assert "TOUCHED" not in done.stderr
