"""Ranks under a real Slurm of two nodes: their numbers, their collectives, and how a lost one is named."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from smoke.conftest import climate_settings, result, settings

# One Slurm: its tests run one after the other in one worker, as `--dist loadfile` has the tests of a file.
pytestmark = [pytest.mark.system, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "tests" / "ranks" / "program.py"


@pytest.mark.parametrize("framework", ["horovod", "torch"])
@pytest.mark.parametrize(("tasks", "last"), [(2, "rank 1/2 node 1/2"), (4, "rank 3/4 node 1/2")])
def test_ranks_of_two_nodes_connect_and_run_every_collective(slurm, tasks, last, framework):
    done = slurm.run("srun", "-N2", f"-n{tasks}", sys.executable, PROGRAM, "well", FRAMEWORK=framework)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == tasks
    assert f"{last} by srun is done" in done.stdout and "rank 0/" in done.stdout


@pytest.mark.parametrize("framework", ["horovod", "torch"])
def test_two_jobs_on_the_same_two_nodes_do_not_mix(slurm, framework):
    jobs = [
        subprocess.Popen(
            ["srun", "-N2", "-n2", sys.executable, PROGRAM, "well"],
            env=slurm.env | {"FRAMEWORK": framework},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for _ in range(2)
    ]  # fmt: skip
    for job in jobs:
        out, error = job.communicate(timeout=120)
        assert job.returncode == 0, error
        assert sorted(line[:8] for line in out.splitlines()) == ["rank 0/2", "rank 1/2"]


def test_the_doctor_examines_both_nodes_and_starts_the_framework_on_them(slurm, climate, tmp_path):
    folders = ["--data", climate, "--stage", tmp_path / "stage", "--out", tmp_path / "out"]
    doctor = ["srun", "-N2", "-n2", sys.executable, "-m", "mlhpc", "doctor", "deepcam", *folders]
    done = slurm.run(*doctor, COLUMNS="300")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "srun: 2 ranks on 2 nodes: n0, n1" in done.stdout
    assert (
        "identical on 2 nodes" in done.stdout and "the clock of n1 differs" in done.stdout
    )  # versions, clocks
    assert "torch counts 2 ranks on 2 nodes" in done.stdout
    assert done.stdout.count("launcher") == 1, "rank 0 reports for all"


def test_ranks_bind_themselves_to_the_lists_of_a_site(slurm, climate, tmp_path):
    """Those of their local rank, on both nodes; without a list, each has what Slurm gave it."""
    one, *_, two = sorted(os.sched_getaffinity(0))
    srun = ["srun", "-N2", "--ntasks-per-node=2", sys.executable, "-m", "mlhpc"]
    site = {"MLHPC_BIND": f"{two}:{one}"}
    out = tmp_path / "out"
    words = ["run", "deepcam", "--data", climate, "--out", out, *climate_settings("training.max_epochs=1")]
    done = slurm.run(*srun, *words, **site)
    assert done.returncode == 3, done.stderr
    bindings = json.loads((out / "env.json").read_text())["bindings"]
    placed = [(each["rank"], each["local_rank"], each["cores"], each["threads"]) for each in bindings]
    assert placed == [(0, 0, str(two), 1), (1, 1, str(one), 1), (2, 0, str(two), 1), (3, 1, str(one), 1)]
    done = slurm.run(
        *srun, "doctor", "--stage", tmp_path / "s", "--out", tmp_path / "r", **site, COLUMNS="300"
    )
    assert f"each rank has its own cores: {two} : {one}" in done.stdout, done.stdout + done.stderr
    done = slurm.run(*srun, *words, MLHPC_BIND="0:99999")
    assert done.returncode == 2
    assert done.stderr.count("mlhpc: MLHPC_BIND=0:99999") == 2, "told once per node"
    done = slurm.run(*srun, *words, "--bind", "cores")
    assert done.returncode == 2 and "srun binds ranks itself" in done.stderr


def test_the_system_is_described_from_both_nodes(slurm, tmp_path):
    out = tmp_path / "system.json"
    doctor = ["srun", "-N2", "-n2", sys.executable, "-m", "mlhpc", "doctor", "--system"]
    done = slurm.run(*doctor, "--out", out)
    assert done.returncode == 1, done.stderr  # some fields cannot be detected on any machine
    assert "required: --set" in done.stderr and "Traceback" not in done.stderr
    assert not out.exists()
    assert json.loads(slurm.run(*doctor).stdout)["number_of_nodes"] == "2"


def test_the_doctor_writes_a_site_file_in_a_job(slurm, tmp_path):
    out = tmp_path / "mine.sh"
    doctor = [sys.executable, "-m", "mlhpc", "doctor", "--site", "mine", "--out", out]
    done = slurm.run("srun", "-N1", "-n1", *doctor)
    assert done.returncode == 0, done.stderr
    text = out.read_text()
    assert "sbatch -p all -N 2" in text and "(in a job)" in text


def test_without_srun_the_batch_script_is_one_rank(slurm, tmp_path):
    script, out = tmp_path / "job", tmp_path / "out"
    who = "import os; from mlhpc.common.ranks.environment import identify; print(identify(os.environ))"
    script.write_text(f"#!/bin/bash\n{sys.executable} -c '{who}'\n")
    done = slurm.run("sbatch", "--wait", "-N2", "-n2", "-o", out, script)
    assert done.returncode == 0, done.stderr
    assert "launcher='none', rank=0, size=1" in out.read_text()


def test_a_missing_rank_is_named_with_its_node(slurm):
    done = slurm.run("srun", "-N2", "-n2", sys.executable, PROGRAM, "absent", ROLL_CALL_S="5")
    assert done.returncode != 0
    assert "mlhpc: rank 1 of 2 did not connect within 5 s; no rank on n1 connected" in done.stderr


@pytest.mark.parametrize(
    ("how", "who", "reason"),
    [
        ("kill", 1, "killed or crashed"),
        ("kill", 0, "killed or crashed"),
        ("raise", 1, "ValueError: sample 7"),
    ],
)
def test_a_lost_rank_ends_the_job_and_is_named(slurm, how, who, reason):
    """The others would wait in a collective for a day: that the job ends at all shows that they noticed."""
    done = slurm.run("srun", "-N2", "-n2", sys.executable, PROGRAM, how, who, timeout=120)
    assert done.returncode != 0
    line = f"rank {who} on n{who} was lost in phase 'epoch 2': {reason}"
    assert done.stderr.count(f"mlhpc: {line}") == 1, done.stderr
    assert done.stdout.count(f"callback: {line}") == 1, done.stdout


def submit(slurm, data, folder, *more, wait, benchmark="cosmoflow", settings=settings):
    """The script of the repository, as a user submits it: from the top of the checkout."""
    return slurm.run(
        "sbatch", *["--wait"] * wait, "--parsable", "-o", folder / "job.out",
        "run_scripts/run.sbatch", "--seed", "7", *settings(*more),
        BENCHMARK=benchmark, DATA=str(data), OUT=str(folder / "out"), STAGE=str(folder / "stage"),
        PWD=str(ROOT),
    )  # fmt: skip


def test_the_batch_script_of_the_repository(slurm, tiny_data, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    done = submit(slurm, tiny_data, tmp_path, "target.value=9.0", wait=True)
    assert done.returncode == 0, (tmp_path / "job.out").read_text()
    run = result(tmp_path / "out")
    assert (run["status"], run["ranks"], run["nodes"], run["launcher"]) == ("success", 2, 2, "srun")
    assert run["staging"]["files"] == 27 + 7


def test_the_batch_script_of_deepcam(slurm, climate, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    low = "target.value=1e-6"
    done = submit(slurm, climate, tmp_path, low, wait=True, benchmark="deepcam", settings=climate_settings)
    assert done.returncode == 0, (tmp_path / "job.out").read_text()
    run = result(tmp_path / "out")
    assert (run["status"], run["ranks"], run["nodes"], run["launcher"]) == ("success", 2, 2, "srun")


def test_a_rank_killed_in_the_job_is_named_and_the_log_is_closed(slurm, tiny_data, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    job = submit(slurm, tiny_data, tmp_path, "training.max_epochs=500", wait=False).stdout.strip()
    log, output = tmp_path / "out" / "run.log", tmp_path / "job.out"
    wait_for(lambda: log.exists() and "eval_error" in log.read_text(), 120, output)
    os.kill(process_of(job, rank=1, command=str(tmp_path)), signal.SIGKILL)
    wait_for(lambda: job not in slurm.run("squeue", "-h", "-t", "R,CG").stdout.split(), 60, output)
    assert "JobState=FAILED" in slurm.run("scontrol", "show", "job", job).stdout
    assert output.read_text().count("mlhpc: rank 1 on n1 was lost in phase") == 1, output.read_text()
    records = [json.loads(line.removeprefix(":::MLLOG ")) for line in log.read_text().splitlines()]
    assert [r["metadata"]["status"] for r in records if r["key"] == "run_stop"] == ["aborted"]


def wait_for(arrived, seconds, output):
    deadline = time.monotonic() + seconds
    while not arrived():
        assert time.monotonic() < deadline, output.read_text() if output.exists() else "the job did not start"
        time.sleep(0.2)


def process_of(job, rank, command):
    """The process of a rank, by the variables that Slurm gave it and with ``command`` in its command line: another
    Slurm of this machine may have a job of this number."""
    wanted = {f"SLURM_JOB_ID={job}".encode(), f"SLURM_PROCID={rank}".encode(), b"SLURM_STEP_ID=0"}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            line = (process / "cmdline").read_bytes().replace(b"\0", b" ")
            is_rank = wanted <= set((process / "environ").read_bytes().split(b"\0"))
            if is_rank and command.encode() in line and b"rank.sh" not in line:
                return int(process.name)
        except OSError:
            continue  # it ended, or is another user's
    raise AssertionError(f"no rank {rank} of job {job}")
