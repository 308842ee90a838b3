"""Campaigns under a real Slurm of two nodes: in one allocation, as a job array, several at the same time."""

import json
import time
from pathlib import Path

import pytest
from smoke.conftest import result, settings

# One Slurm: its tests run one after the other in one worker, as `--dist loadfile` has the tests of a file.
pytestmark = pytest.mark.system

ROOT = Path(__file__).parents[2]


@pytest.fixture
def submit(slurm, tiny_data, tmp_path, monkeypatch):
    """The script of the repository, as a user submits it: from the top of the checkout."""
    monkeypatch.chdir(ROOT)

    def submit(*words, options=(), wait=True, more=("target.value=9.0",)):
        return slurm.run(
            "sbatch", *["--wait"] * wait, "--parsable", "-o", tmp_path / "job-%j.out", *options,
            "run_scripts/campaign.sbatch", *words, *settings(*more), timeout=300,
            BENCHMARK="cosmoflow", DATA=str(tiny_data), OUT=str(tmp_path / "out"),
            STAGE=str(tmp_path / "stage"), PWD=str(ROOT),
        )  # fmt: skip

    return submit


def said(folder):
    return "\n".join(path.read_text() for path in folder.glob("job-*.out"))


def made(folder):
    return json.loads((folder / "out" / "campaign.json").read_text())["made"]


def test_runs_one_after_the_other_and_a_second_job_that_goes_on(submit, tmp_path):
    assert submit("--runs", 1).returncode == 0, said(tmp_path)
    first = (tmp_path / "out" / "run_01" / "run.log").read_bytes()
    assert submit("--runs", 2).returncode == 0, said(tmp_path)
    assert (tmp_path / "out" / "run_01" / "run.log").read_bytes() == first
    runs = [result(tmp_path / "out" / name) for name in ("run_01", "run_02")]
    assert [(run["ranks"], run["nodes"], run["launcher"]) for run in runs] == [(2, 2, "srun")] * 2
    assert runs[0]["seed"] != runs[1]["seed"]
    assert [m["state"] for m in made(tmp_path)] == ["converged"] * 2
    assert not (tmp_path / "stage").exists()


def test_a_job_array_makes_a_run_a_task(submit, tmp_path):
    assert submit("--runs", 2, options=["--array=1-2%1"]).returncode == 0, said(tmp_path)
    assert [m["state"] for m in made(tmp_path)] == ["converged"] * 2
    assert len(list(tmp_path.glob("job-*.out"))) == 2


def test_instances_on_a_node_each_at_the_same_time(submit, tmp_path):
    assert (
        submit("--runs", 2, "--instances", 2, "--ranks", 2, options=["--ntasks-per-node=2"]).returncode == 0
    ), said(tmp_path)
    runs = [result(tmp_path / "out" / name) for name in ("run_01", "run_02")]
    assert [(run["ranks"], run["nodes"], run["launcher"]) for run in runs] == [(2, 1, "srun")] * 2
    starts, stops = zip(
        *(times(tmp_path / "out" / name / "run.log") for name in ("run_01", "run_02")), strict=True
    )
    inits = [init(tmp_path / "out" / name / "run.log") for name in ("run_01", "run_02")]
    assert max(inits) < min(stops), "the second began before the first had ended"
    assert not (tmp_path / "stage").exists()
    told = json.loads((tmp_path / "out" / "campaign.json").read_text())
    assert told["metric"] == "weak"
    assert (told["score"]["T"], told["score"]["S"], told["score"]["M"]) == (2, 1, 2)


def test_a_cancelled_campaign_closes_its_log_and_can_go_on(submit, slurm, tmp_path):
    job = submit("--runs", 1, wait=False, more=("training.max_epochs=500",)).stdout.strip()
    log = tmp_path / "out" / "run_01" / "run.log"
    wait_for(lambda: log.exists() and "eval_error" in log.read_text(), tmp_path)
    slurm.run("scancel", job)
    wait_for(lambda: job not in slurm.run("squeue", "-h").stdout.split(), tmp_path)
    stops = [line for line in log.read_text().splitlines() if '"run_stop"' in line]
    assert len(stops) == 1 and '"aborted"' in stops[0], said(tmp_path)
    # Other settings would be another campaign; what is told is that, not that somebody is at work there.
    again = submit("--runs", 1)
    assert again.returncode == 2 and "was run with target.value" in said(tmp_path), said(tmp_path)


def records(log):
    return [json.loads(line.removeprefix(":::MLLOG ")) for line in log.read_text().splitlines()]


def times(log):
    at = {record["key"]: record["time_ms"] for record in records(log)}
    return at["run_start"], at["run_stop"]


def init(log):
    return next(record["time_ms"] for record in records(log) if record["key"] == "init_start")


def wait_for(arrived, folder, seconds=120):
    deadline = time.monotonic() + seconds
    while not arrived():
        assert time.monotonic() < deadline, said(folder) or "the job did not start"
        time.sleep(0.2)
