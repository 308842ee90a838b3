"""``mlhpc io`` as a user calls it: with one and several ranks, and with mistakes."""

import csv
import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

WORKLOAD = """\
name = "tiny"
[dataset]
format = "npz"
files = 12
sample_bytes = 60_000
eval_files = 4
[reader]
batch_size = 2
threads = 2
transfer_bytes = "16 KiB"
file_order = "shuffled"
[train]
epochs = 2
computation = 0.001
[evaluation]
every_epochs = 2
[checkpoint]
files = ["10 KB", "200 KB"]
every_steps = 3
[metric]
au_percent = 90
"""


def mlhpc(*words: object, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mlhpc", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, **options)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("io")
    (folder / "tiny.toml").write_text(WORKLOAD)
    made = mlhpc("io", "generate", folder / "tiny.toml", "--data", folder / "data", "--workers", 1)
    assert made.returncode == 0, made.stderr
    assert "16 files written" in made.stdout
    return folder


def run(place: Path, out: Path, *words: object) -> subprocess.CompletedProcess[str]:
    return mlhpc("io", "run", place / "tiny.toml", "--data", place / "data", "--out", out, *words)


@pytest.mark.parametrize("ranks", [1, 3])
def test_a_run_leaves_its_record_and_the_sums_agree(place, tmp_path, ranks):
    out = tmp_path / "out"
    done = run(place, out, "--ranks", ranks, "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result == json.loads((out / "result.json").read_text())
    steps = 12 // (2 * ranks)
    assert [epoch["steps"] for epoch in result["epochs"]] == [steps, steps]
    assert result["samples"] == 2 * 12
    reading = result["reading"]
    # 12 samples in each of two epochs, and of 4 to evaluate as many as the ranks can share equally; .npz adds its
    # header and directory, under 1 kB a file.
    samples = 24 + 4 // ranks * ranks
    assert reading["content_bytes"] == samples * 60_000
    assert samples * 60_000 < reading["bytes_asked"] < samples * 61_000
    assert reading["transfer_sizes"]["max"] == 16_384
    assert reading["opens"] == samples
    (evaluation,) = result["evaluations"]
    assert evaluation["samples"] == samples - 24
    # The rate is over all the time in which these bytes were read, evaluation included.
    times = [each["seconds"] - each["checkpoint_s"] for each in (*result["epochs"], evaluation)]
    assert reading["bandwidth"] == pytest.approx(reading["bytes_asked"] / sum(times))
    tables = [list(csv.DictReader((out / f"steps.rank{rank}.csv").open())) for rank in range(ranks)]
    assert all(len(table) == 2 * steps for table in tables)
    computed = sum(float(row["compute_s"]) for table in tables for row in table)
    assert computed == pytest.approx(0.001 * 2 * steps * ranks)
    assert result["au_percent"] is not None and result["au_null_percent"] is not None
    parts = ("compute", "storage", "decode", "cpu", "barrier", "oversleep", "rest")
    assert sum(result["binding"][part] for part in parts) == pytest.approx(100)
    writes = [each for each in result["checkpoints"] if each["kind"] == "write"]
    assert [each["bytes"] for each in writes] == [210_000] * (2 * steps // 3)
    assert not (out / "checkpoints").exists()


def test_every_rank_reads_its_own_part(place, tmp_path):
    done = run(place, tmp_path / "out", "--ranks", 2, "--json", "--null-steps", 0)
    result = json.loads(done.stdout)
    assert [rank["reading"]["samples"] for rank in result["rank_results"]] == [14, 14]
    assert result["binding"] is None and result["au_null_percent"] is None


def test_the_page_cache_is_emptied_or_left_as_asked(place, tmp_path):
    emptied = json.loads(run(place, tmp_path / "a", "--json", "--null-steps", 0).stdout)
    assert emptied["resident_before_epochs"] == [0.0, 0.0]
    filled = json.loads(run(place, tmp_path / "b", "--json", "--null-steps", 0, "--cache", "warm").stdout)
    assert filled["resident_before_epochs"] == [1.0, 1.0]
    if not emptied["data_in_ram"]:
        assert emptied["reading"]["process_device_bytes"] >= 24 * 60_000
        assert filled["reading"]["process_device_bytes"] < 60_000


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--set", "dataset.files=13"], "has data for a different workload (files is 12, not 13)"),
        (["--set", "reader.batch_size=13"], "reader.batch_size 13 exceeds the 12 samples"),
        (["--set", "reader.batchsize=1"], "did you mean 'reader.batch_size'?"),
        (["--ranks", "13"], "12 files are too few for 13 ranks"),
        (["--cache", "cold"], "no cache 'cold'"),
    ],
)
def test_what_is_wrong_is_one_line_and_leaves_nothing(place, tmp_path, words, message):
    done = run(place, tmp_path / "out", *words)
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert not (tmp_path / "out").exists()


def test_results_are_never_overwritten(place, tmp_path):
    done = run(place, tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "results are never overwritten" in done.stderr


@pytest.mark.parametrize("words", [(), ("--trace",)])
def test_results_that_do_not_fit_are_one_line_and_leave_nothing(place, tmp_path, words):
    """A full disk: files cannot grow beyond a limit, below the table of steps or, with it, the trace."""
    limit = 6000 if words else 100
    words = (*words, "--ranks", 2, "--null-steps", 0, "--set", "checkpoint.every_steps=0")
    command = ["--data", place / "data", "--out", tmp_path / "out", *words]
    done = mlhpc(
        "io", "run", place / "tiny.toml", *command,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )  # fmt: skip
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert f"{tmp_path / 'out'} cannot be written: File too large; check free space" in line
    assert not (tmp_path / "out").exists()


def test_a_damaged_file_ends_the_run_with_its_name(place, tmp_path):
    path = place / "data/train/00005.npz"
    whole = path.read_bytes()
    path.write_bytes(whole[:1000])
    try:
        done = run(place, tmp_path / "out", "--null-steps", 0)
    finally:
        path.write_bytes(whole)
    assert done.returncode == 2
    assert "00005.npz" in done.stderr and len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("which", [3, 9])
def test_a_file_that_one_rank_finds_damaged_is_one_line_of_the_whole_run(place, tmp_path, which):
    """Whichever rank reads it: rank 0, reported by another, or one reported by rank 0."""
    path = place / f"data/train/{which:05}.npz"
    whole = path.read_bytes()
    path.write_bytes(whole[:1000])
    try:
        more = ("--ranks", 3, "--null-steps", 0, "--set", "reader.file_order=sequential")
        done = run(place, tmp_path / "out", *more)
    finally:
        path.write_bytes(whole)
    assert done.returncode in (1, 2)
    (line,) = done.stderr.splitlines()
    rank = which // 4  # 12 files, in their order, in equal stretches
    assert f"mlhpc: rank {rank} on " in line and "in phase 'epoch 1'" in line and path.name in line
    assert not (tmp_path / "out").exists()


def test_a_killed_rank_is_named_and_nothing_is_left(place, tmp_path):
    out = tmp_path / "out"
    command = [sys.executable, "-m", "mlhpc", "io", "run", str(place / "tiny.toml")]
    command += [
        "--data",
        str(place / "data"),
        "--out",
        str(out),
        "--ranks",
        "3",
        "--set",
        "train.computation=60",
    ]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not out.exists():  # the ranks are about to begin
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.05)
    os.kill(rank_pid(process.pid, 2), signal.SIGKILL)
    _, errors = process.communicate(timeout=60)
    assert process.returncode != 0
    assert any("rank 2" in line and "was lost in phase" in line for line in errors.splitlines()), errors
    assert "Traceback" not in errors
    assert not out.exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_leaves_nothing(place, tmp_path, number):
    """Ctrl-C reaches the whole group; the batch system's SIGTERM, here, the parent of the ranks."""
    out = tmp_path / "out"
    command = ["--data", place / "data", "--out", out, "--ranks", 2, "--set", "train.computation=0.1"]
    command += ["--set", "train.epochs=100", "--set", "checkpoint.every_steps=1"]
    process = subprocess.Popen(
        [sys.executable, "-m", "mlhpc", "io", "run", place / "tiny.toml", *map(str, command)],
        stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while not (out / "checkpoints").exists():
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.05)
    if number == signal.SIGINT:
        os.killpg(process.pid, number)
    else:
        process.terminate()
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert "mlhpc: interrupted" in errors and "Traceback" not in errors
    assert not out.exists()


def rank_pid(parent: int, rank: int) -> int:
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            status = (folder / "status").read_text()
            environment = (folder / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if f"PPid:\t{parent}\n" in status and f"MLHPC_RANK={rank}".encode() in environment:
            return int(folder.name)
    raise AssertionError(f"no rank {rank}")


def test_checkpoints_alone_are_written_and_read_back(tmp_path):
    words = [
        "--set",
        "checkpoint.total_bytes=3000001",
        "--set",
        "checkpoint.writes=2",
        "--set",
        "checkpoint.reads=2",
    ]
    out = tmp_path / "out"
    done = mlhpc("io", "run", "mlperf_checkpoint_8b", "--ranks", 2, "--json", "--out", out, *words)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert [(each["kind"], each["bytes"]) for each in result["checkpoints"]] == [
        *[("write", 3_000_001)] * 2,
        *[("read", 3_000_001)] * 2,
    ]
    assert result["epochs"] == [] and result["au_percent"] is None
    checked = mlhpc("io", "check", out, "--memory", "1 GB")
    assert (checked.returncode, checked.stderr) == (1, "")
    assert "it reads no data\n1 finding: not a valid MLPerf Storage result" in checked.stdout


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--set", "reader.batch_size=12"], "the metric excludes 1 step, but epochs have at most 1"),
        (["--set", "train.computation=0"], "steps have no computation (train.computation)"),
    ],
)
def test_where_there_is_no_utilisation_a_line_says_why(place, tmp_path, words, reason):
    done = run(place, tmp_path / "out", *words, "--null-steps", 0)
    assert done.returncode == 0, done.stderr
    assert f"accelerator utilisation: not defined, since {reason}" in " ".join(done.stdout.split())


def test_a_run_is_held_to_the_rules(place, tmp_path):
    run(place, tmp_path / "out", "--null-steps", 0)
    done = mlhpc("io", "check", tmp_path / "out", "--memory", "1 GB")
    assert done.returncode == 1
    assert "5 times are required" in done.stdout and "1 runs, but 5 are required" in done.stdout
    nothing = mlhpc("io", "check", place, "--memory", "1 GB")
    assert nothing.returncode == 2 and "result.json not found" in nothing.stderr


def test_sizes_and_workloads_are_listed():
    sizes = json.loads(mlhpc("io", "size", "--memory", "512G", "--accelerators", 64, "--json").stdout)
    assert sizes["mlperf_unet3d"]["files"] == 64 * 7 * 500
    assert "cosmic_tagger" in mlhpc("io", "list").stdout
    assert 'name = "ffn"' in mlhpc("io", "list", "ffn").stdout


def test_a_workload_that_generates_data_runs_in_an_empty_folder(tmp_path):
    """As DLIO does with workflow.generate_data; what has no effect is one line."""
    (tmp_path / "w.yaml").write_text(
        "model: tiny\nframework: pytorch\nworkflow: {generate_data: True, train: True}\n"
        "dataset: {format: npz, num_files_train: 4, record_length: 10000}\n"
        "reader: {data_loader: pytorch, batchsize: 2}\ntrain: {epochs: 1}\n"
    )
    words = ("io", "run", "w.yaml", "++workload.dataset.num_files_train=6", "--null-steps", 0)
    for number, generated in enumerate((True, False)):
        done = mlhpc(*words, "--out", f"out{number}", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert ("data/io-tiny: generating 6 files, about" in done.stderr) is generated
        assert (
            done.stderr.count(
                "these keys have no effect here: framework, reader.batchsize (DLIO has no such key"
            )
            == 1
        )
        assert json.loads((tmp_path / f"out{number}/result.json").read_text())["samples"] == 6


def test_the_suites_resnet50_reads_an_image_at_once_as_training_does(tmp_path):
    sizes = {"dataset.files": 6, "dataset.eval_files": 2, "reader.batch_size": 2, "reader.eval_batch_size": 2}
    words = [word for key, value in sizes.items() for word in ("--set", f"{key}={value}")]
    words += [
        "--set",
        "evaluation.every_epochs=1",
        "--set",
        "train.computation=0",
        "--data",
        tmp_path / "data",
    ]
    assert mlhpc("io", "generate", "resnet50", *words, "--workers", 1).returncode == 0
    done = mlhpc("io", "run", "resnet50", *words, "--out", tmp_path / "out", "--null-steps", 0, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["reading"]["calls"] == 6 + 2
