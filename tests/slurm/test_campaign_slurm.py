"""Campaigns and studies under a real Slurm of two nodes: in one allocation, as a job array, several at the same
time."""

import json
import sys
import time
from pathlib import Path

import pytest
from smoke.conftest import result, settings

from mlhpc.benchmarks import load
from mlhpc.submission.report.study import read

# One Slurm: its tests run one after the other in one worker, as `--dist loadfile` has the tests of a file.
pytestmark = [pytest.mark.system, pytest.mark.slow]

ROOT = Path(__file__).parents[2]


@pytest.fixture
def submit(slurm, tiny_data, tmp_path, monkeypatch):
    """The script of the repository, as a user submits it from the top of the checkout. Returns the number of
    the job and whether it ended well. (``sbatch --wait`` polls only every half minute.)"""
    monkeypatch.chdir(ROOT)

    def submit(*words, options=(), wait=True, more=("target.value=9.0",)):
        done = slurm.run(
            "sbatch", "--parsable", "-o", tmp_path / "job-%j.out", *options,
            "run_scripts/campaign.sbatch", *words, *settings(*more),
            BENCHMARK="cosmoflow", DATA=str(tiny_data), OUT=str(tmp_path / "out"),
            STAGE=str(tmp_path / "stage"), PWD=str(ROOT),
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        job = done.stdout.strip()
        if wait:
            ended(slurm, job, tmp_path)
        record = slurm.run("scontrol", "show", "job", job).stdout
        return job, "JobState=" in record and record.count("JobState=COMPLETED") == record.count("JobState=")

    return submit


def ended(slurm, job, folder):
    wait_for(lambda: job not in slurm.run("squeue", "-h", "-o", "%A %F").stdout.split(), folder)


def outputs(folder):
    return "\n".join(path.read_text() for path in folder.glob("job-*.out"))


def made(folder):
    return json.loads((folder / "out" / "campaign.json").read_text())["run_states"]


def test_a_second_job_continues_the_campaign_of_the_first(submit, tmp_path):
    assert submit("--runs", 1)[1], outputs(tmp_path)
    first = (tmp_path / "out" / "run_01" / "run.log").read_bytes()
    assert submit("--runs", 2)[1], outputs(tmp_path)
    assert (tmp_path / "out" / "run_01" / "run.log").read_bytes() == first
    runs = [result(tmp_path / "out" / name) for name in ("run_01", "run_02")]
    assert [(run["ranks"], run["nodes"], run["launcher"]) for run in runs] == [(2, 2, "srun")] * 2
    assert runs[0]["seed"] != runs[1]["seed"]
    assert [m["state"] for m in made(tmp_path)] == ["converged"] * 2
    assert not (tmp_path / "stage").exists()


def test_each_task_of_a_job_array_starts_one_run(submit, tmp_path):
    assert submit("--runs", 2, options=["--array=1-2%1"])[1], outputs(tmp_path)
    assert [m["state"] for m in made(tmp_path)] == ["converged"] * 2
    assert len(list(tmp_path.glob("job-*.out"))) == 2


def test_concurrent_instances_get_one_node_each(submit, tmp_path):
    words = ["--runs", 2, "--instances", 2, "--ranks", 2]
    assert submit(*words, options=["--ntasks-per-node=2"])[1], outputs(tmp_path)
    runs = [result(tmp_path / "out" / name) for name in ("run_01", "run_02")]
    assert [(run["ranks"], run["nodes"], run["launcher"]) for run in runs] == [(2, 1, "srun")] * 2
    logs = [tmp_path / "out" / name / "run.log" for name in ("run_01", "run_02")]
    assert max(when("init_start", log) for log in logs) < min(when("run_stop", log) for log in logs)
    assert not (tmp_path / "stage").exists()
    record = json.loads((tmp_path / "out" / "campaign.json").read_text())
    assert record["metric"] == "weak"
    assert (record["score"]["T"], record["score"]["S"], record["score"]["M"]) == (2, 1, 2)


STEPS = """\
#!{python}
import os, pathlib, subprocess
from mlhpc.benchmarks.load import load
from mlhpc.campaign.placement import srun_options
from mlhpc.campaign.record import Campaign
here = pathlib.Path()
campaign = Campaign(load("cosmoflow", "smoke"), (), here, None, here, 4, instances=4, ranks=2)
command = ["bash", "-c", "date +%s.%N; sleep 10; date +%s.%N; echo $SLURMD_NODENAME"]
steps = [subprocess.Popen(["srun", *srun_options(campaign, slot, os.environ), *command],
                          stdout=open(f"step-{{slot}}", "w")) for slot in range(4)]
raise SystemExit(max(step.wait() for step in steps))
"""


def test_more_instances_than_nodes_run_at_the_same_time(slurm, tmp_path):
    script = tmp_path / "job"
    script.write_text(STEPS.format(python=sys.executable))
    done = slurm.run("sbatch", "--parsable", "-D", tmp_path, "-o", tmp_path / "job-1.out", "-N2",
                     "--ntasks-per-node=4", script)  # fmt: skip
    assert done.returncode == 0, done.stderr
    ended(slurm, done.stdout.strip(), tmp_path)
    steps = [(tmp_path / f"step-{slot}").read_text().split() for slot in range(4)]
    times = [sorted(float(word) for word in step if "." in word) for step in steps]
    assert [len(each) for each in times] == [4] * 4, "two ranks a step, each with a start and a stop"
    assert max(each[0] for each in times) < min(each[-1] for each in times), outputs(tmp_path)
    nodes = [{word for word in step if word.startswith("n")} for step in steps]
    assert nodes == [{"n0"}, {"n1"}, {"n0"}, {"n1"}]


def test_a_cancelled_campaign_closes_its_log(submit, slurm, tmp_path):
    job, _ = submit("--runs", 1, wait=False, more=("training.max_epochs=500",))
    log = tmp_path / "out" / "run_01" / "run.log"
    wait_for(lambda: log.exists() and "eval_error" in log.read_text(), tmp_path)
    slurm.run("scancel", job)
    ended(slurm, job, tmp_path)
    stops = [line for line in log.read_text().splitlines() if '"run_stop"' in line]
    assert len(stops) == 1 and '"aborted"' in stops[0], outputs(tmp_path)
    # With other settings it would be another campaign. No other campaign is running there any more.
    assert not submit("--runs", 1)[1]
    target = load.load("cosmoflow", "smoke").target.value
    assert f"was run with target.value = {target}, not with 9.0" in outputs(tmp_path)


def test_a_study_fills_nodes_one_after_the_other(slurm, tiny_data, tmp_path, monkeypatch):
    """In one job of four tasks: two ranks on one node, then four on both. Then one more run by a job array."""
    monkeypatch.chdir(ROOT)
    words = [
        "run_scripts/study.sbatch",
        "--vary",
        "ranks=2,4",
        "--vary",
        "batch=2",
        "--warmup",
        1,
        "--steps",
        2,
    ]
    places = {"DATA": str(tiny_data), "OUT": str(tmp_path / "out"), "STAGE": str(tmp_path / "stage")}

    def submit(repeats, *options):
        done = slurm.run(
            "sbatch", "--parsable", "-o", tmp_path / "job-%j.out", "-N2", "--ntasks-per-node=2", *options, *words,
            "--repeats", repeats, *settings(), BENCHMARK="cosmoflow", PWD=str(ROOT), **places,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        ended(slurm, done.stdout.strip(), tmp_path)
        return [[result(run.path) for run in cell.runs] for cell in read(tmp_path / "out").cells]

    first = submit(1)
    assert [[(run["ranks"], run["nodes"]) for run in cell] for cell in first] == [[(2, 1)], [(4, 2)]], (
        outputs(tmp_path)
    )
    assert [len(cell) for cell in submit(2, "--array=3")] == [2, 1], outputs(tmp_path)
    assert not (tmp_path / "stage").exists()


def when(key, log):
    records = [json.loads(line.removeprefix(":::MLLOG ")) for line in log.read_text().splitlines()]
    return next(record["time_ms"] for record in records if record["key"] == key)


def wait_for(arrived, folder, seconds=300):
    deadline = time.monotonic() + seconds
    while not arrived():
        assert time.monotonic() < deadline, outputs(folder) or "the job did not start"
        time.sleep(0.2)
