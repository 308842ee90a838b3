"""The example of docs/guide/adding_a_benchmark.md: a benchmark in a separate package, used by every command."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from smoke.conftest import EXAMPLES, install_example, lines_of_example, mlhpc, result


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    return install_example("blobs", tmp_path_factory.mktemp("blobs"))


@pytest.fixture(scope="module")
def data(installed, tmp_path_factory):
    out = tmp_path_factory.mktemp("blobs") / "data"
    assert mlhpc("data", "make", "blobs", "--out", out, env=installed).returncode == 0
    return out


@pytest.mark.parametrize("ranks", [1, 2])
def test_it_trains_to_target_stages_and_passes_the_check(installed, data, tmp_path, ranks):
    out = tmp_path / "out"
    done = mlhpc(
        *("run", "blobs", "--data", data, "--stage", tmp_path / "stage", "--out", out, "--ranks", ranks),
        env=installed,
    )
    assert done.returncode == 0, done.stderr
    run = result(out)
    assert run["status"] == "success" and run["ranks"] == ranks and run["staging"]["files"] == 512 + 128
    checked = mlhpc("check", out, env=installed)
    assert checked.returncode == 0 and "MLPerf has no rules" in " ".join(checked.stdout.split()), (
        checked.stdout
    )
    reported = mlhpc("report", out, env=installed)
    assert reported.returncode == 0 and "Blobs" in (out / "report.html").read_text()


@pytest.mark.slow
def test_a_campaign_of_it_has_a_score(installed, data, tmp_path):
    done = mlhpc("campaign", "blobs", "--data", data, "--out", tmp_path / "campaign", env=installed)
    assert done.returncode == 0, done.stdout + done.stderr
    scored = mlhpc("score", tmp_path / "campaign", env=installed)
    assert scored.returncode == 0 and scored.stdout.count("yes") == 3, (
        scored.stdout
    )  # of five, two are dropped


def test_a_study_of_it_measures(installed, data, tmp_path):
    out = tmp_path / "study"
    words = ["--vary", "batch=16,32", "--repeats", "1", "--steps", "3", "--warmup", "1"]
    done = mlhpc("study", "blobs", "--data", data, "--out", out, *words, env=installed)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(json.loads((out / "study.json").read_text())["cells"]) == 2


def test_runs_of_it_start_in_the_folder_above_a_clone(installed, data, tmp_path):
    """Where ``python -m`` finds the clone first, which is named mlhpc but is not the package."""
    (tmp_path / "mlhpc").symlink_to(EXAMPLES.parent)

    def started(*words):
        command = [str(word) for word in words]
        done = subprocess.run(
            command, cwd=tmp_path, env=os.environ | installed, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    python, script = sys.executable, Path(sys.executable).with_name("mlhpc")
    torchrun = [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--log-dir=log"]
    run = ["run", "blobs", "--data", data, "--out"]
    assert started(python, "-m", "mlhpc", "--version") == started(script, "--version")
    started(python, "-m", "mlhpc", *run, "ranks", "--ranks", 2)
    started(*torchrun, "--no-python", script, *run, "torchrun")
    started(*torchrun, "-m", "mlhpc", *run, "torchrun-m")
    started(script, "campaign", "blobs", "--data", data, "--out", "campaign", "--runs", 1, "--ranks", 2)
    words = ["--vary", "ranks=2", "--repeats", 1, "--steps", 3, "--warmup", 1]
    started(script, "study", "blobs", "--data", data, "--out", "study", *words)
    runs = [tmp_path / name for name in ("ranks", "torchrun", "torchrun-m", "campaign/run_01")]
    assert [(result(run)["status"], result(run)["ranks"]) for run in runs] == [("success", 2)] * 4


def test_a_corrected_command_may_use_the_folder_of_one_that_could_not_stage(installed, data, tmp_path):
    words = ["run", "blobs", "--data", data, "--out", tmp_path / "out", "--stage"]
    failed = mlhpc(*words, data / "inside", env=installed)
    assert failed.returncode == 2 and "inside the data set to be staged" in failed.stderr
    assert result(tmp_path / "out")["status"] == "aborted", "until then the record says why"
    done = mlhpc(*words, tmp_path / "stage", env=installed)
    assert done.returncode == 0 and result(tmp_path / "out")["status"] == "success", done.stderr


def test_it_has_no_closed_division_and_cannot_be_submitted(installed, data, tmp_path):
    closed = mlhpc("run", "blobs", "--data", data, "--set", "division=closed", env=installed)
    assert closed.returncode == 2 and "closed, which blobs does not have" in closed.stderr
    assert closed.stderr.count("\n") == 1


def test_without_the_package_its_name_is_unknown():
    done = mlhpc("run", "blobs")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1) and "no benchmark 'blobs'" in done.stderr


def test_the_example_stays_short():
    assert lines_of_example("blobs") <= 150
