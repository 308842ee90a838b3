"""Runs of two ranks that are terminated at many moments: one line each, and rank 0 closes its files if it can."""

import json
import os
import signal
import subprocess
import sys

import pytest
from helpers.warm import run_warm
from smoke.conftest import (
    PYTORCH,
    climate_settings,
    mllog,
    rank_process,
    result,
    start_mlhpc,
    wait_for,
)
from smoke.deepcam.test_lost_ranks import LOCAL

ENDED = "terminated by SIGTERM (job time limit?)"

# Rank 1 is ended after its run, when rank 0 has written SIGN into FILE.
PROGRAM = """
import json, os, pathlib, signal, sys, time
from contextlib import contextmanager
from mlhpc.cli import main
from mlhpc.common.timing.runlog import RunLog

words, file, sign = json.loads(sys.argv[1])
file, span = pathlib.Path(file), RunLog.span

@contextmanager
def deadly(log, name, **tags):
    with span(log, name, **tags) as changed:
        yield changed
    if name == "run":
        while not (file.exists() and sign in file.read_text()):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)

if os.environ["MLHPC_RANK"] == "1":
    RunLog.span = deadly
sys.exit(main(words))
"""


def start(climate, out, *more):
    words = ["run", "deepcam", "--data", climate, "--stage", out.parent / "stage", "--out", out, "--ranks", 2]
    return start_mlhpc(*words, *climate_settings(*more))


def reached(out, rank, words):
    events = out / f"events.rank{rank}.jsonl"
    return events.exists() and words in events.read_text()


@pytest.mark.parametrize(
    ("when", "how", "message"),
    [
        ('"begin", "name": "run"', signal.SIGTERM, ENDED),
        ('"name": "epoch", "epoch": 3', signal.SIGTERM, ENDED),
        ('"name": "epoch", "epoch": 3', signal.SIGKILL, "killed or crashed"),
    ],
)
def test_a_rank_that_ends_during_the_run_is_named_and_the_result_is_aborted(
    climate, tmp_path, when, how, message
):
    out = tmp_path / "out"
    run = start(climate, out, "training.max_epochs=2000", "target.value=0.999")
    wait_for(lambda: reached(out, 1, when) or run.poll() is not None)
    os.kill(rank_process(run.pid, 1), how)
    output = "".join(run.communicate(timeout=60))
    assert run.returncode not in (0, None) and "Traceback" not in output, output
    lines = [line for line in output.splitlines() if "mlhpc: " in line]
    assert sum("rank 1 on" in line and message in line for line in lines) == 1, output
    # The process that started a killed rank reports what a rank cannot: memory may be the cause.
    assert len(lines) == (2 if how == signal.SIGKILL else 1), output
    stops = [record for record in mllog(out) if record["key"] == "run_stop"]
    assert [stop["metadata"]["status"] for stop in stops] == ["aborted"]
    left = result(out)
    assert left["status"] == "aborted" and left["time_to_train_s"] is None and left["ranks"] == 2
    if '"epoch": 3' in when:
        assert [epoch["epoch"] for epoch in left["epochs"]][:2] == [1, 2]


@pytest.mark.parametrize(("file", "sign"), [("run.log", '"run_stop"'), ("result.json", '"status"')])
def test_a_rank_lost_after_the_run_does_not_change_its_result(climate, tmp_path, file, sign):
    """Rank 0 does not end before it: they remove the staged files together."""
    out = tmp_path / "out"
    words = ["run", "deepcam", "--data", climate, "--stage", tmp_path / "stage", "--out", out]
    arguments = [[*map(str, words), *climate_settings("training.max_epochs=1")], str(out / file), sign]
    done = run_warm(PYTORCH, ["-c", LOCAL, "-c", PROGRAM, json.dumps(arguments)], timeout=120)
    output = done.stdout + done.stderr
    assert "Traceback" not in output, output
    assert f"was lost in phase 'after the run': {ENDED}" in output, output
    left = result(out)
    assert left["status"] == "failed" and left["time_to_train_s"] > 0
    assert [r["metadata"]["status"] for r in mllog(out) if r["key"] == "run_stop"] == ["failed"]


def test_a_signal_while_a_framework_is_loaded_ends_the_rank_without_an_exception(tmp_path):
    """What is raised inside the loading of PyTorch aborts the process, with pages of stack frames."""
    program = f"""
import contextlib, os, signal, sys, time
from mlhpc.common.ranks import launch
@contextlib.contextmanager
def loading(framework):
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)
    except BaseException as error:
        print("passed through the framework:", type(error).__name__)
        raise
    yield None
launch.joined = loading
from mlhpc.cli import main
sys.exit(main(["run", "deepcam", "--data", {str(tmp_path)!r}, "--out", {str(tmp_path / "out")!r}]))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (143, ""), done.stdout + done.stderr
    assert done.stderr.startswith(f"mlhpc: {ENDED}") and done.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_rank_0_closes_its_log_even_after_a_second_signal(climate, tmp_path):
    """``timeout`` signals the whole group, and the starter passes it on."""
    out = tmp_path / "out"
    run = start(climate, out, "training.max_epochs=2000", "target.value=0.999")
    wait_for(lambda: reached(out, 0, '"name": "epoch", "epoch": 3') or run.poll() is not None)
    os.kill(rank_process(run.pid, 0), signal.SIGTERM)
    run.send_signal(signal.SIGTERM)
    output = "".join(run.communicate(timeout=60))
    assert "Traceback" not in output, output
    assert [r["metadata"]["status"] for r in mllog(out) if r["key"] == "run_stop"] == ["aborted"]
    assert result(out)["status"] == "aborted"
    for line in (out / "events.rank0.jsonl").read_text().splitlines():
        json.loads(line)
