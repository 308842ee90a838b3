"""DeepCAM on two ranks of which one is lost, in every phase of a run, and how the run resumes."""

import json
import os
import shutil

import h5py
import numpy as np
import pytest
from helpers.warm import run_warm
from smoke.conftest import PYTORCH, climate_settings, mlhpc, mllog, result, settings

# Rank 1 ends as if the machine had killed it: half way through a file that it stages, or where a span begins.
PROGRAM = """
import json, os, signal, sys
from contextlib import contextmanager
from mlhpc.cli import main
from mlhpc.common.files import atomic
from mlhpc.common.timing.runlog import RunLog

words, phase, epoch = json.loads(sys.argv[1])
write, span = atomic.write_all, RunLog.span

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def half(fd, data):
    write(fd, data[: len(data) // 2])
    die()

@contextmanager
def deadly(log, name, **tags):
    with span(log, name, **tags) as span_tags:
        if (name, tags.get("epoch")) == (phase, epoch):
            die()
        yield span_tags

if os.environ["MLHPC_RANK"] == "1":
    if phase == "staging":
        atomic.write_all = half
    else:
        RunLog.span = deadly
sys.exit(main(words))
"""
LOCAL = """import sys
from mlhpc.common.ranks.local import run_local
sys.exit(run_local(2, [sys.executable, *sys.argv[1:]]))
"""
SETTINGS = climate_settings("training.checkpoint_epochs=1", "training.max_epochs=4", "target.value=0.999")


def lose_rank_1(words, phase, epoch):
    """The standard error of a run that loses rank 1 at this point. It has two minutes to end."""
    arguments = json.dumps([[str(word) for word in words], phase, epoch])
    done = run_warm(PYTORCH, ["-c", LOCAL, "-c", PROGRAM, arguments], timeout=120)
    assert done.returncode not in (0, 2), done.stderr
    return done.stderr


def losses_and_metrics(out):
    """The training loss and the evaluation of every epoch that the run completed."""
    metrics = {}
    for line in (out / "events.rank0.jsonl").read_text().splitlines():
        event = json.loads(line)
        if event["event"] == "metric" and event["name"] in ("train_loss", "eval_accuracy"):
            metrics[event["name"], event["epoch"]] = event["value"]
    return metrics


@pytest.mark.slow
def test_a_run_that_loses_a_rank_in_every_phase_resumes_to_the_result_of_an_undisturbed_run(
    climate, tmp_path
):
    """Each attempt stages to the same folder and resumes from the last checkpoint."""
    stage = tmp_path / "stage"
    words = ["run", "deepcam", "--data", climate, "--stage", stage, *SETTINGS]
    whole = mlhpc(*words, "--out", tmp_path / "whole", "--seed", 7, "--ranks", 2)
    assert whole.returncode == 3, whole.stderr
    expected = losses_and_metrics(tmp_path / "whole")
    assert len(expected) == 2 * 4

    source = {path.name: path.read_bytes() for path in climate.rglob("*.h5")}
    metrics, start = {}, ["--seed", 7]
    for number, (phase, epoch, named) in enumerate(
        [
            ("staging", None, "staging"),
            ("train", 2, "train of epoch 2"),
            ("eval", 3, "eval of epoch 3"),
            ("checkpoint", 4, "checkpoint of epoch 4"),
        ]
    ):
        out = tmp_path / f"out{number}"
        output = lose_rank_1([*words, "--out", out, *start], phase, epoch)
        line = f"mlhpc: rank 1 on {os.uname().nodename} was lost in phase '{named}': killed or crashed"
        assert output.count(line) == output.count("was lost") == 1 and "Traceback" not in output, output
        stops = [record["metadata"] for record in mllog(out) if record["key"] == "run_stop"]
        assert [stop["status"] for stop in stops] == ["aborted"] and named in stops[0]["reason"]
        # Files with final names are complete; partial ones are hidden, and only the killed rank's: it may have
        # been writing several files, and its process stands in their names.
        for path in stage.rglob("*.h5"):
            assert path.read_bytes() == source[path.name]
        writers = {path.name.split(".")[-3] for path in tmp_path.rglob("*.part")}
        assert len(writers) == (phase == "staging")
        if (out / "checkpoint.npz").exists():
            start = ["--resume", out]
        metrics |= losses_and_metrics(out)
    last = mlhpc(*words, "--out", tmp_path / "last", *start, "--ranks", 2)
    assert last.returncode == 3, last.stderr
    metrics |= losses_and_metrics(tmp_path / "last")
    assert [epoch["epoch"] for epoch in result(tmp_path / "last")["epochs"]] == [4]
    assert metrics == pytest.approx(expected, rel=1e-6)
    assert not stage.exists()


def test_an_error_of_one_rank_is_reported_once_with_rank_phase_and_file(climate, tmp_path):
    data, out = tmp_path / "data", tmp_path / "out"
    shutil.copytree(climate, data)
    (data / "manifest.json").unlink()
    second = sorted((data / "validation").glob("*.h5"))[1]  # of the evaluation, rank 1 reads every other file
    with h5py.File(second, "r+") as file:
        file["climate/data"][3, 4, 5] = np.nan
    done = mlhpc("run", "deepcam", "--data", data, "--out", out, "--ranks", 2, *SETTINGS)
    assert done.returncode in (1, 2)
    reason = f"{second}: climate/data is nan in channel 5 (QREFHT) at row 3, column 4"
    lines = [line for line in done.stderr.splitlines() if "mlhpc: " in line]  # "[rank 1] mlhpc: ", too
    assert len(lines) == 1 and "rank 1 on" in lines[0] and f"'eval of epoch 1': {reason}" in lines[0]
    assert "Traceback" not in done.stderr
    assert [r["metadata"]["status"] for r in mllog(out) if r["key"] == "run_stop"] == ["aborted"]


@pytest.mark.parametrize("exists", [False, True])
@pytest.mark.parametrize("benchmark", ["cosmoflow", "deepcam"])
def test_an_error_of_all_ranks_is_reported_once(benchmark, exists, tmp_path):
    """A missing folder is detected before the run starts, an empty one only inside it."""
    data, out = tmp_path / "data", tmp_path / "out"
    if exists:
        data.mkdir()
    tiny = settings() if benchmark == "cosmoflow" else climate_settings()
    done = mlhpc("run", benchmark, "--data", data, "--out", out, "--ranks", 2, *tiny)
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("mlhpc: ") == 1 and f"mlhpc: {data}: " in done.stderr, done.stderr
    assert out.exists() == exists
    if exists:
        assert [r["metadata"]["status"] for r in mllog(out) if r["key"] == "run_stop"] == ["aborted"]
