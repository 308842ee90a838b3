"""Campaigns interrupted, started twice, in job arrays, and with several instances at a time."""

import fcntl
import json
import os
import signal
import time
from pathlib import Path

import pytest
from helpers.campaign_site import Site

from mlhpc.benchmarks import load
from mlhpc.campaign.placement import bind_environment, srun_options
from mlhpc.campaign.record import Campaign
from mlhpc.run_processes import is_locked


@pytest.fixture
def site(tmp_path, monkeypatch):
    site = Site(tmp_path)
    monkeypatch.setattr("mlhpc.common.ranks.local.sys.executable", str(site.python))
    monkeypatch.setenv("COLUMNS", "200")
    return site


def wait_for(condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "gave up waiting"
        time.sleep(0.02)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_when_interrupted_the_run_stops_cleanly_and_a_second_start_continues(site, how):
    site.will(run_02="hangs")
    campaign = site.start("--runs", "3")
    wait_for(lambda: (site.out / "run_02" / "run.log").exists())
    campaign.send_signal(how)
    output = campaign.communicate(timeout=60)[0]
    assert campaign.returncode == 128 + how and "Traceback" not in output
    assert (site.out / "run_02" / "stopped cleanly").exists()
    assert site.states() == ["converged", "aborted", "to do"]
    site.will()
    assert site.run("--runs", "3") == 0
    assert site.states() == ["converged"] * 3


def test_a_second_campaign_in_a_folder_is_refused_also_while_an_orphaned_run_continues(site, capsys):
    site.will(run_01="hangs")
    campaign = site.start("--runs", "2")
    wait_for(lambda: (site.out / "run_01" / "run.log").exists())
    assert site.run("--runs", "2") == 2
    assert "another campaign is running" in capsys.readouterr().err
    campaign.kill()
    campaign.wait()
    assert site.run("--runs", "2") == 2
    orphan = [p for p in Path("/proc").glob("[0-9]*") if str(site.out).encode() in _cmdline(p)]
    assert len(orphan) == 1
    os.kill(int(orphan[0].name), signal.SIGKILL)
    wait_for(lambda: _can_be_locked(site.out / ".lock"))
    site.will()
    assert site.run("--runs", "2") == 0


def _cmdline(process):
    try:
        return (process / "cmdline").read_bytes()
    except OSError:
        return b""


def _can_be_locked(path):
    """Of a killed process the command line goes first, then its files, and with them its locks."""
    with path.open("r+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def test_tasks_of_a_job_array_work_on_different_runs_at_the_same_time(site, capsys):
    site.will(run_01="hangs")
    first = site.start("--runs", "3", "--number", "1")
    wait_for(lambda: (site.out / "run_01" / "run.log").exists())
    assert site.run("--runs", "3", "--number", "3") == 0
    assert site.run("--runs", "3", "--number", "1") == 2
    assert "is running here on run_01" in capsys.readouterr().err
    assert site.run("--runs", "3") == 2, "nor may a whole campaign start"
    first.terminate()
    first.communicate(timeout=60)
    assert site.run("--runs", "3", "--number", "3") == 0, "it is done: nothing to do"
    assert [call["name"] for call in site.calls()] == ["run_01", "run_03"]
    assert site.states() == ["aborted", "to do", "converged"]


def test_a_run_of_another_task_is_running_and_not_aborted(site, capsys):
    site.will(run_01="hangs")
    first = site.start("--runs", "3", "--number", "1")
    wait_for(lambda: (site.out / "run_01" / "run.log").exists())
    assert site.run("--runs", "3", "--number", "2") == 0
    assert site.states() == ["running", "converged", "to do"]
    assert "running" in capsys.readouterr().out
    first.kill()  # its run continues, and keeps the lock
    first.wait()
    assert site.run("--runs", "3", "--number", "2") == 0
    assert site.states()[0] == "running"
    (orphan,) = [p for p in Path("/proc").glob("[0-9]*") if str(site.out).encode() in _cmdline(p)]
    os.kill(int(orphan.name), signal.SIGKILL)
    wait_for(lambda: not is_locked(site.out, "run_01"))
    assert site.run("--runs", "3", "--number", "2") == 0
    assert site.states()[0] == "aborted"


def test_concurrent_instances_that_have_not_ended_are_running(site):
    site.will(run_02="hangs")
    campaign = site.start("--instances", "2", "--runs", "2")
    wait_for(lambda: (site.out / "campaign.json").exists())
    assert site.states() == ["converged", "running"]
    wait_for(lambda: (site.out / "run_02" / "run.log").exists())  # before that, SIGTERM would leave no run
    campaign.terminate()
    campaign.communicate(timeout=60)
    assert site.states() == ["converged", "aborted"]


def test_instances_run_at_the_same_time_and_are_scored_as_throughput(site, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    site.will(**{f"run_{n:02}": "converged-6" for n in range(1, 10)})
    (site.folder / "meet").touch()  # the first waits until the second has started
    assert site.run("--instances", "2", "--runs", "10", "--ranks", "2") == 0
    assert {call["gpus"] for call in site.calls()} == {"0,1", "2,3"}
    cores = os.sched_getaffinity(0)
    if len(cores) > 1:
        halves = {tuple(call["cores"]) for call in site.calls()}
        assert len(halves) == 2 and not set.intersection(*map(set, halves))
    record = site.record()
    seconds = [json.loads(p.read_text())["time_to_train_s"] for p in site.out.glob("*/result.json")]
    assert record["metric"] == "weak" and record["score"]["M"] == 10
    # The stand-ins all start at one time: the last to stop gives the time to train all.
    assert record["score"]["minutes"] == pytest.approx(max(seconds) / 60, abs=1e-5)
    # Each recorded the energy of both, so none of the figures is that of one training.
    assert site.record()["joules"] == {} and all(not made["joules"] for made in site.record()["run_states"])
    # No accelerators, one machine: both instances use the same one node.
    assert (record["score"]["T"], record["score"]["S"]) == (1, 1)
    assert (site.out / "run_01.out").exists()


@pytest.mark.parametrize(
    ("instances", "bind", "own"), [(2, "0:1", "none"), (2, "cores", "cores"), (1, "0:1", "0:1")]
)
def test_instances_that_share_a_node_do_not_bind_to_the_same_list(
    site, monkeypatch, capsys, instances, bind, own
):
    """The lists of a site are for the ranks of a whole node: each instance would take the first."""
    monkeypatch.setenv("MLHPC_BIND", bind)
    site.run("--instances", str(instances), "--runs", "2")
    assert {call["bind"] for call in site.calls()} == {own}
    assert ("share a node run unbound" in capsys.readouterr().out) == (own == "none")


def test_instances_with_nodes_of_their_own_are_bound(tmp_path):
    run = load.load("cosmoflow", "smoke")
    env = {"MLHPC_BIND": "0-15:16-31"}
    for instances, own in ((1, {}), (2, {}), (4, {"MLHPC_BIND": "none"})):
        campaign = Campaign(run, (), tmp_path, None, tmp_path, instances, instances, 0, nodes=2)
        assert bind_environment(campaign, env) == own


def test_interrupted_throughput_restarts_all_runs(site):
    site.will(run_02="aborted")
    assert site.run("--instances", "2", "--runs", "2") == 1
    assert site.states() == ["converged", "aborted"]
    site.will()
    assert site.run("--instances", "2", "--runs", "2") == 0
    assert sorted(call["name"] for call in site.calls()) == ["run_01", "run_01", "run_02", "run_02"]
    assert len(list((site.out / ".aborted").iterdir())) == 2


@pytest.mark.parametrize(
    ("instances", "ranks", "tasks", "steps"),
    [
        (1, 0, "8", [[]]),
        (1, 6, "8", [["--ntasks=6"]]),
        (2, 0, "8", [["--nodes=2", "--ntasks=4", "--nodelist=n0,n1", "--exact"],
                     ["--nodes=2", "--ntasks=4", "--nodelist=n2,n3", "--exact"]]),
        (4, 3, "12", [["--nodes=1", "--ntasks=3", f"--nodelist=n{n}", "--exact"] for n in range(4)]),
        (8, 1, "8", [["--nodes=1", "--ntasks=1", f"--nodelist=n{n % 4}", "--exact"] for n in range(8)]),
    ],
)  # fmt: skip
def test_instances_on_slurm_get_separate_nodes_or_parts_of_nodes(instances, ranks, tasks, steps, tmp_path):
    run = load.load("cosmoflow", "smoke")
    campaign = Campaign(run, (), tmp_path, None, tmp_path, instances, instances, ranks, nodes=4)
    env = {"SLURM_JOB_NODELIST": "n[0-3]", "SLURM_NTASKS": tasks}
    assert [srun_options(campaign, slot, env) for slot in range(instances)] == steps


def test_a_launch_wrapper_goes_between_srun_and_mlhpc_in_the_container(site, monkeypatch):
    srun = site.folder / "srun"
    srun.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" >{site.folder}/srun-words\n')
    srun.chmod(0o755)
    monkeypatch.setenv("PATH", f"{site.folder}:{os.environ['PATH']}")
    for name, value in {"SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "n0", "SLURM_NTASKS": "1"}.items():
        monkeypatch.setenv(name, value)
    site.run("--runs", "1")
    words = (site.folder / "srun-words").read_text().split("\n")
    assert words[:6] == ["--wait=120", "--kill-on-bad-exit=0", str(site.python), "-P", "-m", "mlhpc"]
    monkeypatch.setenv("LAUNCH_WRAP", "apptainer exec --nv '/my images/a.sif'")
    site.run("--runs", "1")
    words = (site.folder / "srun-words").read_text().split("\n")
    wrapped = ["apptainer", "exec", "--nv", "/my images/a.sif", "mlhpc", "run", "cosmoflow"]
    assert words[2:9] == wrapped
