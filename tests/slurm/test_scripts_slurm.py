"""The batch scripts in adverse jobs: no environment, requeueing, cancelling, lost ranks, containers."""

import json
import os
import signal
import time
from pathlib import Path

import pytest
from slurm.test_slurm import process_of
from smoke.conftest import climate_settings, result

# One Slurm: its tests run one after the other in one worker, as `--dist loadfile` has the tests of a file.
pytestmark = [pytest.mark.system, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
CONVERGES = ("target.value=1e-6",)
NEVER_ENDS = ("target.value=0.999", "training.max_epochs=500")


class Jobs:
    """Jobs of the repository's scripts. Their site is ``local``, which names the stage after the job."""

    def __init__(self, slurm, data, folder):
        self.slurm, self.folder, self.out = slurm, folder, folder / "out"
        self.variables = {
            "BENCHMARK": "deepcam", "DATA": str(data), "OUT": str(self.out), "TMPDIR": str(folder / "tmp"),
            "PWD": str(ROOT),
        }  # fmt: skip
        (folder / "tmp").mkdir()

    def submit(self, script, *words, options=(), settings=CONVERGES, **variables):
        done = self.slurm.run(
            "sbatch", "--parsable", "-o", self.folder / "job-%j.out", *options, f"run_scripts/{script}.sbatch",
            *words, *climate_settings(*settings), **{**self.variables, **variables},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def output(self):
        return "\n".join(path.read_text() for path in sorted(self.folder.glob("job-*.out")))

    def wait(self, arrived, seconds=300):
        deadline = time.monotonic() + seconds
        while not arrived():
            assert time.monotonic() < deadline, self.output() or "the job did not start"
            time.sleep(0.2)

    def wait_for_end(self, job):
        self.wait(lambda: job not in self.slurm.run("squeue", "-h", "-o", "%A").stdout.split())

    def wait_for_epoch(self, log, epochs=1):
        self.wait(lambda: log.exists() and log.read_text().count('"eval_accuracy"') >= epochs)

    def state(self, job, field="JobState"):
        words = self.slurm.run("scontrol", "show", "job", job).stdout.split()
        return next(word.partition("=")[2] for word in words if word.startswith(f"{field}="))

    def staged(self):
        """The remaining stages and their locks."""
        return [path.name for path in (self.folder / "tmp").glob("mlhpc-*")]


@pytest.fixture
def jobs(slurm, climate, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    return Jobs(slurm, climate, tmp_path)


def statuses(log):
    records = [json.loads(line.removeprefix(":::MLLOG ")) for line in log.read_text().splitlines()]
    return [record["metadata"]["status"] for record in records if record["key"] == "run_stop"]


def test_a_job_without_the_environment_stops_unless_it_gets_its_variables(jobs):
    """H1: --export=NONE is the default at some centres."""
    job = jobs.submit("run", options=["--export=NONE"])
    jobs.wait_for_end(job)
    assert "set it to cosmoflow, deepcam or resnet50 (with sbatch --export=NONE" in jobs.output()
    assert jobs.state(job) == "FAILED" and not jobs.out.exists()
    given = ",".join(f"{name}={value}" for name, value in jobs.variables.items())
    job = jobs.submit("run", options=[f"--export={given}"])
    jobs.wait_for_end(job)
    assert jobs.state(job) == "COMPLETED", jobs.output()
    assert f"job {job}, site local: deepcam, preset smoke" in jobs.output()
    assert result(jobs.out)["nodes"] == 2


def test_a_requeued_campaign_continues_and_keeps_its_output(jobs):
    """H2: as after the failure of a node."""
    job = jobs.submit("campaign", "--runs", 1, settings=NEVER_ENDS)
    jobs.wait_for_epoch(jobs.out / "run_01" / "run.log")
    assert jobs.slurm.run("scontrol", "requeue", job).returncode == 0

    def restarted():  # Slurm delays requeued jobs by two minutes
        jobs.slurm.run("scontrol", "update", f"jobid={job}", "starttime=now")
        return (jobs.out / ".aborted" / "run_01-1").exists()

    jobs.wait(restarted)
    jobs.wait_for_epoch(jobs.out / "run_01" / "run.log")
    jobs.slurm.run("scancel", job)
    jobs.wait_for_end(job)
    assert jobs.output().count("starting run_01 of 1") == 2, jobs.output()
    assert statuses(jobs.out / "run_01" / "run.log") == ["aborted"]
    assert jobs.staged() == []


def test_a_single_run_is_not_requeued(jobs):
    """H2: it would fail on its own results."""
    job = jobs.submit("run", settings=NEVER_ENDS)
    jobs.wait_for_epoch(jobs.out / "run.log")
    assert jobs.slurm.run("scontrol", "requeue", job).returncode != 0
    # H4, H7: a signal to the ranks, as --signal=USR1@30 sends before the time limit.
    jobs.slurm.run("scancel", "--signal=USR1", job)
    jobs.wait_for_end(job)
    assert "terminated by SIGUSR1" in jobs.output()
    assert statuses(jobs.out / "run.log") == ["aborted"], jobs.output()
    assert jobs.staged() == []


def test_a_cancelled_run_closes_its_log_and_leaves_no_stage(jobs):
    """H4."""
    job = jobs.submit("run", settings=NEVER_ENDS)
    jobs.wait_for_epoch(jobs.out / "run.log")
    assert f"mlhpc-{job}" in jobs.staged()
    jobs.slurm.run("scancel", job)
    jobs.wait_for_end(job)
    assert statuses(jobs.out / "run.log") == ["aborted"], jobs.output()
    assert jobs.staged() == []


def test_a_run_that_loses_a_rank_names_it_and_leaves_no_stage(jobs):
    """No process is left to remove it normally."""
    job = jobs.submit("run", settings=NEVER_ENDS)
    jobs.wait_for_epoch(jobs.out / "run.log")
    os.kill(process_of(job, rank=1, command=str(jobs.out)), signal.SIGKILL)
    jobs.wait_for_end(job)
    assert jobs.output().count("mlhpc: rank 1 on n1 was lost in phase") == 1, jobs.output()
    assert statuses(jobs.out / "run.log") == ["aborted"]
    assert result(jobs.out)["epochs"][0]["epoch"] == 1, "H10: what it had done before is kept"
    assert jobs.staged() == []


def test_instances_that_do_not_fit_into_the_job_are_refused(jobs):
    """H3: two of four would wait, and all four would be scored as concurrent."""
    job = jobs.submit("campaign", "--instances", 4, "--runs", 4)
    jobs.wait_for_end(job)
    assert jobs.state(job) == "FAILED"
    assert "4 instances of 1 rank exceed this job's 2 tasks on 2 nodes" in jobs.output()
    assert not jobs.out.exists()


@pytest.mark.parametrize("script", ["run", "campaign"])
def test_a_launch_wrapper_starts_every_rank(jobs, script):
    """H11: as a container would."""
    wrapper = jobs.folder / "container"
    wrapper.write_text(f'#!/bin/bash\ntouch {jobs.folder}/wrapped-"$SLURM_PROCID"\nexec "$@"\n')
    wrapper.chmod(0o755)
    words = ("--runs", 1) if script == "campaign" else ()
    job = jobs.submit(script, *words, LAUNCH_WRAP=str(wrapper))
    jobs.wait_for_end(job)
    assert jobs.state(job) == "COMPLETED", jobs.output()
    assert sorted(path.name for path in jobs.folder.glob("wrapped-*")) == ["wrapped-0", "wrapped-1"]
    assert jobs.staged() == []
