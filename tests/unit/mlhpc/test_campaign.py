"""Campaigns, with a stand-in for ``mlhpc run`` that leaves a run directory with the outcome the test chose."""

import fcntl
import json
import os
import shlex
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest
from golden.make_run import make_run

from mlhpc import cli
from mlhpc.benchmarks import load
from mlhpc.campaign_placement import check_placement, srun_options
from mlhpc.campaign_record import Campaign
from mlhpc.errors import UserError
from mlhpc.run_processes import is_locked

PYTHON = sys.executable

# Started as python -S: campaign tests start many. Files beside it say how its runs end.
STAND_IN = """\
import json, os, pathlib, shutil, signal, sys, time
here, words = pathlib.Path(__file__).parent, sys.argv[1:]
out = pathlib.Path(words[words.index("--out") + 1])
seed = int(words[words.index("--seed") + 1])
with (here / "calls").open("a") as calls:
    call = {"name": out.name, "seed": seed, "words": words, "gpus": os.environ.get("CUDA_VISIBLE_DEVICES"),
            "cores": sorted(os.sched_getaffinity(0))}
    calls.write(json.dumps(call) + "\\n")
deadline = time.monotonic() + 30
while (here / "meet").exists() and (here / "calls").read_text().count('"seed"') < 2:
    assert time.monotonic() < deadline, "the other run did not start"
    time.sleep(0.01)
outcome = json.loads((here / "outcomes").read_text()).get(out.name, "converged-8")
def stop(*_):
    (out / "stopped cleanly").touch()
    sys.exit(2)
signal.signal(signal.SIGTERM, stop)
signal.alarm(120)
if outcome == "aborted" or outcome == "hangs":
    out.mkdir()
    (out / "run.log").touch()
    event = {"t": 1, "event": "end", "name": "run", "error": "the disk is full"}
    (out / "events.rank0.jsonl").write_text(json.dumps(event) + "\\n")
    while outcome == "hangs":
        time.sleep(0.02)
    sys.exit(2)
shutil.copytree(here / outcome, out)
for name in ("run.log", "result.json"):
    (out / name).write_text((out / name).read_text().replace("1234", str(seed)))
sys.exit(0 if outcome.startswith("converged") else 1)
"""


class Site:
    """A folder with the stand-in, and campaigns started there."""

    def __init__(self, folder):
        self.folder, self.out = folder, folder / "campaign"
        (folder / "data" / "train").mkdir(parents=True)
        (folder / "stand_in.py").write_text(STAND_IN)
        words = [PYTHON, "-S", folder / "stand_in.py"]
        self.python = folder / "python"
        self.python.write_text(f'#!/bin/sh\nexec {shlex.join(map(str, words))} "$@"\n')
        self.python.chmod(0o755)
        self.will()

    def will(self, **outcomes):
        for outcome in {"converged-8", *outcomes.values()}:
            kind, _, epochs = outcome.partition("-")
            if epochs and not (self.folder / outcome).exists():
                status = "success" if kind == "converged" else "failed"
                make_run(self.folder / outcome, status=status, epochs=int(epochs))
        (self.folder / "outcomes").write_text(json.dumps(outcomes))

    def words(self, *more):
        words = ["campaign", "cosmoflow", "--data", self.folder / "data", "--out", self.out, *more]
        return [str(word) for word in words]

    def run(self, *more):
        return cli.main(self.words(*more))

    def start(self, *more, **env):
        """In a separate process, to be stopped or run beside another."""
        code = (
            f"import sys; sys.executable = {str(self.python)!r}\nfrom mlhpc.cli import main; sys.exit(main())"
        )
        return subprocess.Popen(
            [PYTHON, "-c", code, *self.words(*more)],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=os.environ | env,
            # Tests that were started in the background (with &) have Ctrl-C ignored, and their children too.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )  # fmt: skip

    def calls(self):
        path = self.folder / "calls"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def record(self):
        return json.loads((self.out / "campaign.json").read_text())

    def states(self):
        return [made["state"] for made in self.record()["run_states"]]


@pytest.fixture
def site(tmp_path, monkeypatch):
    site = Site(tmp_path)
    monkeypatch.setattr("mlhpc.run_processes.sys.executable", str(site.python))
    monkeypatch.setenv("COLUMNS", "200")
    return site


def wait_for(condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "gave up waiting"
        time.sleep(0.02)


def test_ten_runs_make_a_score(site, capsys):
    site.will(**{f"run_{n:02}": f"converged-{n + 3}" for n in range(1, 11)})
    assert site.run("--stage", site.folder / "stage", "--set", "training.max_epochs=16") == 0
    minutes = [
        json.loads((site.out / f"run_{n:02}" / "result.json").read_text())["time_to_train_s"] / 60
        for n in range(1, 11)
    ]
    assert site.record()["score"]["minutes"] == pytest.approx(
        statistics.mean(sorted(minutes)[1:-1]), rel=1e-6
    )
    assert site.record()["metric"] == "strong" and site.states() == ["converged"] * 10
    output = capsys.readouterr().out
    assert f"{statistics.mean(sorted(minutes)[1:-1]):.4f} min" in output
    assert "not in the score: fastest" in output and "not in the score: slowest" in output


def test_each_run_gets_its_own_seed_and_the_options_of_the_campaign(site):
    assert site.run("--runs", "3", "--stage", "stage", "--ranks", "2", "--set", "training.max_epochs=16") == 0
    calls = site.calls()
    seeds = [call["seed"] for call in calls]
    assert len(set(seeds)) == 3 and all(0 < seed < 2**31 for seed in seeds)
    assert [made["seed"] for made in site.record()["run_states"]] == seeds
    for call in calls:
        message = " ".join(call["words"])
        assert "-m mlhpc run cosmoflow --preset smoke --set training.max_epochs=16 --data" in message
        assert (
            "--evict --stage stage" in message
            and "--ranks 2" in message
            and f"--data {site.folder}/data" in message
        )


def test_a_campaign_continues_after_an_aborted_run_and_repeats_it_later(site, capsys):
    site.will(run_02="aborted")
    assert site.run("--runs", "4") == 1
    assert site.states() == ["converged", "aborted", "converged", "converged"]
    assert "the disk is full" in capsys.readouterr().out
    before = {name: (site.out / name / "result.json").stat().st_mtime_ns for name in ("run_01", "run_04")}
    site.will()
    assert site.run("--runs", "4") == 0
    assert [call["name"] for call in site.calls()] == ["run_01", "run_02", "run_03", "run_04", "run_02"]
    assert {name: (site.out / name / "result.json").stat().st_mtime_ns for name in before} == before
    assert (site.out / ".aborted" / "run_02-1" / "run.log").exists()
    assert site.record()["run_states"][1]["aborted"] == 1
    site.will()
    assert site.run("--runs", "5") == 0, "more runs are added to these"
    assert [call["name"] for call in site.calls()][5:] == ["run_05"]


def test_a_campaign_stops_when_no_score_is_possible(site, capsys):
    site.will(run_02="missed-8", run_03="missed-8")
    assert site.run() == 1
    assert [call["name"] for call in site.calls()] == ["run_01", "run_02", "run_03"]
    assert "run_02 and run_03 missed the target" in site.record()["stopped"]
    assert site.states()[3:] == ["to do"] * 7
    assert site.run() == 1, "and does not continue when started again"
    assert len(site.calls()) == 3 and "cannot have a score" in capsys.readouterr().out


def test_one_missed_run_counts_as_the_slowest(site):
    site.will(run_04="missed-4")
    assert site.run() == 0
    whole = json.loads((site.out / "run_01" / "result.json").read_text())["time_to_train_s"] / 60
    assert site.record()["score"]["minutes"] == pytest.approx(whole, rel=1e-6)


def test_a_run_whose_loss_diverged_has_missed_and_is_not_repeated(site):
    site.will(run_01="aborted")
    assert site.run("--runs", "2") == 1
    nan = '{"t": 1, "event": "metric", "name": "train_loss", "value": NaN, "epoch": 1}\n'
    with (site.out / "run_01" / "events.rank0.jsonl").open("a") as events:
        events.write(nan)
    site.will()
    site.run("--runs", "2")
    assert site.states() == ["missed", "converged"] and len(site.calls()) == 2


def test_two_runs_in_a_row_without_a_result_stop_a_campaign(site):
    site.will(**{f"run_{n:02}": "aborted" for n in range(2, 6)})
    assert site.run("--runs", "5") == 1
    assert [call["name"] for call in site.calls()] == ["run_01", "run_02", "run_03"]
    assert "2 runs in a row" in site.record()["stopped"]


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
    assert "running there on run_01" in capsys.readouterr().err
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


def samples(count):
    return json.dumps({"version": 1, "facts": {"samples": {"train": count}}, "files": []})


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda data: data.rename(data.parent / "elsewhere"), "mlhpc data make cosmoflow"),
        (lambda data: (data / "train").rmdir(), "contains no files"),
        (lambda data: (data / "manifest.json").write_text("{"), "manifest.json"),
        (lambda data: (data / "manifest.json").write_text(samples(5)), "5 samples, but 2048 are needed"),
    ],
)
def test_an_unusable_data_set_is_refused_before_the_first_run(site, capsys, spoil, message):
    spoil(site.folder / "data")
    assert site.run("--runs", "2") == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert not site.calls() and not site.out.exists()


def test_a_run_aborted_by_a_lost_rank_says_which_rank(site):
    site.will(run_01="aborted")
    assert site.run("--runs", "1") == 1
    loss = {"rank": 3, "hostname": "n1", "phase": "epoch 2", "reason": "x"}
    loss |= {"t": 1, "event": "lost", "name": "rank"}
    (site.out / "run_01" / "events.rank0.jsonl").write_text(json.dumps(loss) + "\n")
    (site.out / "run_01" / "result.json").write_text('{"status": "aborted"}')
    site.will(run_01="hangs")
    campaign = site.start("--runs", "2", "--number", "2")
    campaign.communicate(timeout=60)
    assert site.record()["run_states"][0]["why"] == "rank 3 on n1 was lost in phase 'epoch 2': x"


def test_runs_with_other_settings_are_not_mixed(site, capsys):
    assert site.run("--runs", "1") == 0
    assert site.run("--runs", "2", "--set", "hyperparameters.global_batch_size=32") == 2
    error = capsys.readouterr().err
    assert "hyperparameters.global_batch_size = 16, not 32" in error and error.count("\n") == 1


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
    # No accelerators, one machine: both instances use the same one node.
    assert (record["score"]["T"], record["score"]["S"]) == (1, 1)
    assert (site.out / "run_01.out").exists()


def test_interrupted_throughput_restarts_all_runs(site):
    site.will(run_02="aborted")
    assert site.run("--instances", "2", "--runs", "2") == 1
    assert site.states() == ["converged", "aborted"]
    site.will()
    assert site.run("--instances", "2", "--runs", "2") == 0
    assert sorted(call["name"] for call in site.calls()) == ["run_01", "run_01", "run_02", "run_02"]
    assert len(list((site.out / ".aborted").iterdir())) == 2


def test_a_closed_campaign_with_too_few_runs_warns(site, capsys):
    closed = ["--preset", "closed", "--runs", "2"]
    site.will(run_01="aborted", run_02="aborted")
    assert site.run(*closed) == 1
    assert "--runs: 10 runs, not 2" in capsys.readouterr().out


def test_a_closed_campaign_is_checked_against_the_rules_before_its_first_run(site, capsys):
    words = ["--preset", "closed", "--set", "hyperparameters.opt_momentum=0.8"]
    assert site.run(*words) == 2
    facts = {"version": 1, "facts": {"dtype": "float16"}, "files": []}
    (site.folder / "data" / "manifest.json").write_text(json.dumps(facts))
    assert site.run("--preset", "closed") == 2
    error = capsys.readouterr().err
    assert "opt_momentum" in error and "dtype int16, not float16" in error
    assert not site.calls() and not site.out.exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--runs", "0"], "--runs 0"),
        (["--instances", "-1"], "--instances -1"),
        (["--ranks", "-2"], "--ranks -2"),
        (["--runs", "3", "--number", "4"], "1 to 3"),
        (["--instances", "4", "--runs", "3"], "increase --runs"),
        (["--instances", "2", "--number", "1"], "--number"),
        (["--seed", "7"], "--seed"),
    ],
)
def test_a_mistake_is_a_one_line_error_and_leaves_no_files(site, capsys, words, message):
    assert site.run(*words) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert not site.out.exists()


def test_a_folder_that_cannot_be_created_is_a_one_line_error(site, capsys):
    site.out.write_text("a file")
    assert site.run("--runs", "1") == 2
    error = capsys.readouterr().err
    assert str(site.out) in error and error.count("\n") == 1


def test_a_campaign_started_on_every_rank_is_refused(site, capsys, monkeypatch):
    for name, value in {"MLHPC_RANK": "0", "MLHPC_SIZE": "2", "MLHPC_TOKEN": "x"}.items():
        monkeypatch.setenv(name, value)
    assert site.run("--runs", "1") == 2
    assert "start one" in capsys.readouterr().err


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


@pytest.mark.parametrize(
    ("instances", "ranks", "nodes", "tasks", "fits"),
    [
        (2, 0, 2, 2, True),
        (4, 0, 2, 2, False),  # two would wait for the other two
        (4, 1, 2, 4, True),
        (4, 2, 2, 4, False),
        (2, 2, 2, 2, False),
        (3, 2, 2, 6, False),  # three tasks per node, and one node gets two instances
        (3, 2, 2, 8, True),
        (1, 3, 2, 2, False),
        (1, 2, 2, 2, True),
    ],
)
def test_instances_that_cannot_run_at_the_same_time_in_a_job_are_refused(
    instances, ranks, nodes, tasks, fits, tmp_path
):
    run = load.load("cosmoflow", "smoke")
    campaign = Campaign(run, (), tmp_path, None, tmp_path, instances, instances, ranks, nodes)
    env = {"SLURM_JOB_NODELIST": f"n[0-{nodes - 1}]", "SLURM_NTASKS": str(tasks)}
    if fits:
        check_placement(campaign, True, env)
    else:
        with pytest.raises(UserError, match=rf"do not fit into this job of {tasks} tasks on 2 nodes"):
            check_placement(campaign, True, env)


def test_a_closed_campaign_without_a_submitter_warns_before_its_first_run(site, capsys):
    site.will(run_01="aborted", run_02="aborted")
    assert site.run("--preset", "closed", "--runs", "2") == 1
    output = capsys.readouterr().out
    for key in ("submission.org", "submission.platform"):
        assert output.index(f"{key}: the submitter's, not unnamed") < output.index("run_01 of 2 starts")
    named = ["--set", "submission.org=Lab", "--set", "submission.platform=Cluster"]
    site.run("--preset", "closed", "--runs", "2", *named, "--out", site.folder / "named")
    assert "unnamed" not in capsys.readouterr().out
    site.will()
    assert site.run("--runs", "1", "--out", site.folder / "open") == 0
    assert "unnamed" not in capsys.readouterr().out, "an open run is not submitted"


def test_a_launch_wrapper_goes_between_srun_and_mlhpc_in_the_container(site, monkeypatch):
    srun = site.folder / "srun"
    srun.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" >{site.folder}/srun-words\n')
    srun.chmod(0o755)
    monkeypatch.setenv("PATH", f"{site.folder}:{os.environ['PATH']}")
    for name, value in {"SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "n0", "SLURM_NTASKS": "1"}.items():
        monkeypatch.setenv(name, value)
    site.run("--runs", "1")
    words = (site.folder / "srun-words").read_text().split("\n")
    assert words[:5] == ["--wait=120", "--kill-on-bad-exit=0", str(site.python), "-m", "mlhpc"]
    monkeypatch.setenv("LAUNCH_WRAP", "apptainer exec --nv '/my images/a.sif'")
    site.run("--runs", "1")
    words = (site.folder / "srun-words").read_text().split("\n")
    wrapped = ["apptainer", "exec", "--nv", "/my images/a.sif", "mlhpc", "run", "cosmoflow"]
    assert words[2:9] == wrapped


def test_the_table_of_a_batch_job_keeps_every_digit(site, capsys, monkeypatch):
    """The output of a job is not a terminal, and rich assumes 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")
    site.will(run_02="missed-8")
    site.run("--runs", "2")
    output = capsys.readouterr().out
    rows = [line.split() for line in output.splitlines() if " 1.5541 " in line]
    assert [row[:2] for row in rows] == [["run_01", "converged"], ["run_02", "missed"]]
    assert [int(row[2]) for row in rows] == [call["seed"] for call in site.calls()]
    assert "0.2825" in output  # the note may wrap: a seed has nine or ten digits


def test_aborted_attempts_are_not_scored(site, capsys):
    """Nothing else in the folder of a campaign counts as a set of runs."""
    site.will(run_02="aborted")
    site.run("--runs", "3")
    site.will()
    site.run("--runs", "3")
    capsys.readouterr()
    cli.main(["score", str(site.out)])
    output = capsys.readouterr().out
    assert [output.count(name) for name in ("run_01", "run_02", "run_03")] == [1, 1, 1], output
