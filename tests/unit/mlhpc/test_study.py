"""Studies: what is planned, run and measured. A stand-in replaces ``mlhpc run``: it writes the record of a run
with step times chosen by the test."""

import json
import os
import re
import shlex
import shutil
import signal
import sys
from urllib.parse import unquote

import pytest
from helpers.page import Page, rows_of
from scipy import stats

from mlhpc import cli
from mlhpc.benchmarks import load
from mlhpc.run_processes import locked
from mlhpc.study_plan import parse_axes
from mlhpc.submission.report.study import read

STAND_IN = """\
import json, os, pathlib, signal, sys
from mlhpc.benchmarks import load
here, words = pathlib.Path(__file__).parent, sys.argv[4:]
with (here / "calls").open("a") as calls:
    calls.write(json.dumps(words) + "\\n")
given = [words[i + 1] for i, word in enumerate(words) if word == "--set"]
run = load.load(words[0], words[words.index("--preset") + 1], given)
out = pathlib.Path(words[words.index("--out") + 1])
out.mkdir(parents=True)
seconds, wait, *batches = json.loads((here / "seconds").read_text()).get(out.name, [2.0, 0.5])
if seconds < 0:
    print("there is no more memory")
    if seconds == -2:
        out.rmdir()
    if seconds == -10:
        os.kill(os.getppid(), signal.SIGUSR1)
        signal.alarm(20)
        signal.pause()
    if seconds == -9:
        os.kill(os.getpid(), signal.SIGKILL)
    sys.exit(2)
(out / "config.toml").write_text(load.dumps(run))
(out / "env.json").write_text(json.dumps({"cpu": "a processor", "cores": 2, "commit": "0123456789abcdef"}))
kept = 7 if out.name == "run-2" else 0
warm, ranks = run.study.warmup_steps, int(words[words.index("--ranks") + 1]) if "--ranks" in words else 1
count = batches[0] if batches else warm + run.study.steps
events = [
    {"t": 0.0, "event": "note", "name": "facts", "ranks": ranks},
    {"t": 1.0, "event": "begin", "name": "run"},
    {"t": 1.5, "event": "begin", "name": "train", "epoch": 1},
    *({"t": 1.4, "event": kind, "name": "staging", "seconds": 0.4, "kept": kept}
      for kind in ("end", "note") if "--stage" in words),
    {"t": 9.0, "event": "mark", "name": "warm", "waited": {"data_wait": 7.0}},
    {"t": 9.0 + seconds, "event": "timed", "name": "data_wait", "seconds": 7.0 + wait, "epoch": 1, "count": count},
    {"t": 9.0 + seconds, "event": "end", "name": "train", "epoch": 1, "seconds": 7.5 + seconds},
    {"t": 99.0, "event": "end", "name": "run", "seconds": 98.0},
]
lines = [json.dumps(e) for e in events if warm or e["event"] != "mark"]
(out / "events.rank0.jsonl").write_text("\\n".join(lines) + "\\n")
sys.exit(1)
"""


class Site:
    def __init__(self, folder):
        self.folder, self.out = folder, folder / "study"
        for name in ("data", "jpeg", "lmdb"):
            (folder / name).mkdir()
        (folder / "stand_in.py").write_text(STAND_IN)
        python = folder / "python"
        python.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {folder / "stand_in.py"} "$@"\n')
        python.chmod(0o755)
        self.takes()

    def takes(self, **seconds):
        """Seconds of the measured steps of each repeat, and those of them that are waited for data."""
        by_run = {f"run-{name.removeprefix('run')}": value for name, value in seconds.items()}
        (self.folder / "seconds").write_text(json.dumps(by_run))

    def study(self, *more, benchmark="cosmoflow"):
        words = ["study", benchmark, "--data", self.folder / "data", "--out", self.out, *more]
        return cli.main([str(word) for word in words])

    def calls(self):
        path = self.folder / "calls"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def settings(self):
        """Settings (--set) and options of each call."""
        calls = []
        for words in self.calls():
            given = dict(words[i + 1].split("=", 1) for i, word in enumerate(words) if word == "--set")
            options = {words[i]: words[i + 1] for i in range(1, len(words) - 1) if words[i].startswith("--")}
            calls.append(options | given)
        return calls


@pytest.fixture
def site(tmp_path, monkeypatch):
    site = Site(tmp_path)
    monkeypatch.setattr("mlhpc.run_processes.sys.executable", str(tmp_path / "python"))
    monkeypatch.setenv("COLUMNS", "200")
    return site


def test_sigusr1_ends_a_study_in_order(site, capsys):
    """With --signal=USR1@30 a batch system sends it before a job's time is over."""
    site.takes(run1=[2.0, 0.5], run2=[-10, 0])
    vary = ("--vary", "batch=8", "--steps", "20", "--warmup", "3", "--repeats", "3")
    before = signal.signal(signal.SIGUSR1, lambda *_: None)  # left to the system it would end the tests
    try:
        assert site.study(*vary) == 128 + signal.SIGUSR1
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert "interrupted; start it again to continue" in capsys.readouterr().out
    assert len(site.calls()) == 2 and (site.out / "study.html").exists()
    site.takes()
    assert site.study(*vary) == 0 and len(site.calls()) == 4


def test_throughput_counts_the_steps_after_the_warm_up(site):
    site.takes(run1=[4.0, 1.0])
    assert site.study("--vary", "batch=8", "--repeats", "1", "--steps", "20", "--warmup", "3") == 0
    (cell,) = read(site.out).cells
    (run,) = cell.runs
    assert run.samples_per_s == pytest.approx(20 * 8 / 4.0)
    assert run.step_s == pytest.approx(4.0 / 20)
    assert run.wait_share == pytest.approx(1.0 / 4.0)


def test_without_warm_up_all_steps_are_measured(site):
    site.takes(run1=[4.0, 1.0])
    assert site.study("--vary", "batch=8", "--repeats", "1", "--steps", "20", "--warmup", "0") == 0
    (run,) = read(site.out).cells[0].runs
    assert run.seconds == pytest.approx(9.0 + 4.0 - 1.5) and run.wait_s == pytest.approx(8.0)


def test_the_interval_over_repeats_is_students_t(site, capsys):
    seconds = [2.0, 2.1, 2.3, 1.9, 2.2]
    site.takes(**{f"run{i}": [s, 0.0] for i, s in enumerate(seconds, 1)})
    assert site.study("--vary", "batch=8", "--steps", "10") == 0
    rates = [10 * 8 / s for s in seconds]
    mean, error = sum(rates) / 5, stats.sem(rates)
    low, high = stats.t.interval(0.95, 4, loc=mean, scale=error)
    (cell,) = read(site.out).cells
    assert cell.samples_per_s.interval == pytest.approx((mean, low, high))
    assert cell.variability == pytest.approx(2.3 / 1.9 - 1)
    assert f"{low:.2f} – {high:.2f}" in capsys.readouterr().out
    record = json.loads((site.out / "study.json").read_text())["cells"][0]
    assert record["samples_per_s"]["low95"] == pytest.approx(low) and len(record["runs"]) == 5


def test_every_combination_is_run_with_the_batch_times_the_ranks(site):
    assert site.study("--vary", "ranks=1,2", "--vary", "batch=4,8", "--repeats", "1") == 0
    calls = [
        (call.get("--ranks", "1"), call["hyperparameters.global_batch_size"]) for call in site.settings()
    ]
    assert calls == [("1", "4"), ("1", "8"), ("2", "8"), ("2", "16")]
    assert read(site.out).axes == ("batch", "ranks")


def test_without_a_batch_the_global_batch_is_constant(site):
    """Strong scaling: the local batch is what ranks make of the preset's."""
    assert site.study("--vary", "ranks=1,2", "--repeats", "1") == 0
    whole = load.load("cosmoflow", "smoke").hyperparameters.global_batch_size
    study = read(site.out)
    assert [c.settings["batch"] for c in study.cells] == [whole, whole // 2]
    assert study.axes == ("ranks",), "one curve over ranks, not one for each local batch"


def test_a_setting_of_the_configuration_is_varied_by_its_name(site):
    words = (
        "--vary",
        "network.name=lenet,resnet101",
        "--vary",
        "loading.loader=threads,dali",
        "--repeats",
        "1",
    )
    assert site.study(*words, benchmark="resnet50") == 0
    calls = {(c["network.name"], c["loading.loader"]) for c in site.settings()}
    assert len(calls) == 4 and ('"lenet"', '"dali"') in calls
    assert read(site.out).axes == ("network.name", "loading.loader")


def test_formats_and_storage_are_axes(site):
    data = f"data={site.folder / 'jpeg'},{site.folder / 'lmdb'}"
    stage = site.folder / "stage"
    assert (
        site.study("--vary", data, "--vary", "storage=shared,staged", "--stage", stage, "--repeats", "1") == 0
    )
    calls = {(call["--data"].rpartition("/")[2], call.get("--stage")) for call in site.settings()}
    assert calls == {(f, s) for f in ("jpeg", "lmdb") for s in (None, str(stage))}
    assert read(site.out).values("storage") == ["shared", "staged"]


def test_every_repeat_runs_all_cells_with_the_same_seed_and_cold_caches(site):
    assert site.study("--vary", "batch=4,8", "--repeats", "2") == 0
    calls = [(c["hyperparameters.global_batch_size"], c["--seed"]) for c in site.settings()]
    assert calls == [("4", "1"), ("8", "1"), ("4", "2"), ("8", "2")]
    assert all("--evict" in words for words in site.calls())


def test_no_run_of_a_study_calls_itself_closed(site):
    site.study("--preset", "closed", "--vary", "batch=64", "--repeats", "1")
    assert site.settings()[0]["division"] == "open"


def test_a_second_start_runs_only_missing_runs(site):
    assert site.study("--vary", "batch=4,8", "--repeats", "1") == 0
    assert site.study("--vary", "batch=8,16", "--repeats", "2") == 0
    calls = [(c["hyperparameters.global_batch_size"], c["--seed"]) for c in site.settings()]
    assert calls == [("4", "1"), ("8", "1"), ("16", "1"), ("8", "2"), ("16", "2")]
    assert [len(cell.runs) for cell in read(site.out).cells] == [1, 2, 2]


def test_a_cell_is_identified_by_its_settings_not_by_the_axes(site):
    assert site.study("--vary", "batch=4,8", "--repeats", "1") == 0
    assert site.study("--vary", "batch=8", "--vary", "loading.workers=0,3", "--repeats", "1") == 0
    assert len(site.calls()) == 3 and len(read(site.out).cells) == 3


def test_a_cell_that_fails_is_reported_and_the_others_continue(site, capsys):
    site.takes(run1=[-1, 0])
    assert site.study("--vary", "batch=4,8", "--repeats", "2") == 1
    assert len(site.calls()) == 2, "a cell that failed is not tried again in the same call"
    study = read(site.out)
    assert all(cell.failures == ("run-1: there is no more memory",) for cell in study.cells)
    assert "there is no more memory" in capsys.readouterr().out
    assert "there is no more memory" in (site.out / "study.html").read_text()
    site.takes()
    assert site.study("--vary", "batch=4,8", "--repeats", "2") == 0
    assert not any(cell.failures for cell in read(site.out).cells)


def test_a_task_of_a_job_array_starts_only_its_run(site):
    for number in (4, 1):
        assert site.study("--vary", "batch=4,8", "--repeats", "2", "--number", number) == 0
    assert [(c["hyperparameters.global_batch_size"], c["--seed"]) for c in site.settings()] == [
        ("8", "2"),
        ("4", "1"),
    ]
    assert [len(cell.runs) for cell in read(site.out).cells] == [1, 1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--vary", "batch"], "not of the form KEY=A,B"),
        (["--vary", "bach=8"], "did you mean 'batch'"),
        (["--vary", "network.wdth=1,2"], "did you mean 'network.width'"),
        (["--vary", "batch=8", "--vary", "batch=16"], "twice"),
        (["--vary", "batch=0"], "whole numbers of 1 or more"),
        (["--vary", "ranks=two"], "whole numbers of 1 or more"),
        (["--vary", "ranks=3"], "ranks=3: a global batch of 16 samples cannot be shared equally by 3 ranks"),
        (["--vary", "storage=sharde"], "did you mean 'shared'"),
        (["--vary", "storage=staged"], "give --stage"),
        (["--vary", "data=/nowhere/at/all"], "no such data set"),
        (
            ["--vary", "batch=1024"],
            "batch=1024: 5 steps of warm-up and 20 to measure exceed the 2 of an epoch",
        ),
        (["--vary", "batch=8", "--steps", "0"], "--steps 0"),
        (["--vary", "batch=8", "--repeats", "0"], "--repeats 0"),
        (["--vary", "batch=8", "--warmup", "-1"], "--warmup -1"),
        (["--vary", "batch=4,8", "--repeats", "2", "--number", "5"], "numbered 1 to 4"),
        (["--vary", "batch=true"], "whole numbers of 1 or more"),
        (["--vary", "batch=,"], "has no value"),
        (["--vary", "study.steps=0"], "study.steps=0 means a run to the target"),
        (["--vary", "parameter_servers=0,1"], "cosmoflow has no such study; it is for resnet50"),
        (["--vary", "parameter_servers=two"], "whole numbers of 0 (an all-reduce) or more"),
        (["--vary", "updates=synchronous"], "add --vary parameter_servers=0,1,2,4"),
        (["--vary", "parameter_servers=1", "--vary", "updates=async"], "did you mean 'asynchronous'"),
        (
            ["--vary", "batch=4", "--vary", "hyperparameters.global_batch_size=8,16"],
            "each determines the other",
        ),
    ],
)
def test_impossible_settings_are_refused_before_the_first_run(site, words, message, capsys):
    benchmark = "deepcam" if "wdth" in words[-1] else "cosmoflow"
    (site.folder / "data").joinpath("train").mkdir()
    assert site.study(*words, benchmark=benchmark) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert not site.calls()


def test_a_run_that_failed_before_it_had_a_folder_is_reported(site):
    site.takes(run1=[-2, 0])
    assert site.study("--vary", "batch=4", "--repeats", "1") == 1
    (cell,) = read(site.out).cells
    assert not list(cell.path.glob("run-*/")) and cell.failures == ("run-1: there is no more memory",)


def test_a_killed_run_is_reported_as_killed(site):
    site.takes(run1=[-9, 0])
    assert site.study("--vary", "batch=4", "--repeats", "1") == 1
    (cell,) = read(site.out).cells
    assert "killed by SIGKILL" in cell.failures[0]


def test_a_run_with_fewer_steps_than_its_cell_is_not_measured(site):
    """Its time is not that of the expected number of steps."""
    site.takes(run1=[2.0, 0.5, 7])
    assert site.study("--vary", "batch=4", "--repeats", "1", "--steps", "20", "--warmup", "3") == 1
    (cell,) = read(site.out).cells
    assert not cell.runs and "7 batches, not 23 steps" in cell.failures[0]


def test_accumulated_batches_are_one_step(site):
    site.takes(run1=[2.0, 0.5, 4 * 23])
    more = ("--set", "hyperparameters.gradient_accumulation_steps=4", "--repeats", "1")
    assert site.study("--vary", "batch=8", "--steps", "20", "--warmup", "3", *more, benchmark="resnet50") == 0
    (run,) = read(site.out).cells[0].runs
    assert run.samples_per_s == pytest.approx(20 * 8 / 2.0) and run.step_s == pytest.approx(0.1)


def test_a_run_that_was_moved_to_another_cell_is_not_measured_there(site):
    assert site.study("--vary", "batch=4,8", "--repeats", "1") == 0
    four, eight = (cell.path for cell in read(site.out).cells)
    shutil.rmtree(eight / "run-1")
    shutil.copytree(four / "run-1", eight / "run-1")
    assert [len(cell.runs) for cell in read(site.out).cells] == [1, 0]
    assert site.study("--vary", "batch=4,8", "--repeats", "1") == 0
    assert len(site.calls()) == 3 and [len(cell.runs) for cell in read(site.out).cells] == [1, 1]


@pytest.mark.parametrize("damage", ["config.toml", "events.rank0.jsonl", "all"])
def test_an_incomplete_run_folder_is_run_again(site, damage):
    assert site.study("--vary", "batch=4", "--repeats", "1") == 0
    run = read(site.out).cells[0].runs[0].path
    (run / damage).unlink() if damage != "all" else [path.unlink() for path in run.iterdir()]
    (run.parent / "run-1.old").mkdir()
    (cell,) = read(site.out).cells
    assert not cell.runs and len(cell.failures) == 1
    assert site.study("--vary", "batch=4", "--repeats", "1") == 0
    (cell,) = read(site.out).cells
    assert len(cell.runs) == 1 and not cell.failures


def test_a_hostile_record_of_a_run_is_a_failure_of_that_run(site):
    """The study of somebody else: a page of it can be made."""
    assert site.study("--vary", "batch=4", "--repeats", "1", "--steps", "20") == 0
    run = read(site.out).cells[0].runs[0].path
    config, events = (run / name for name in ("config.toml", "events.rank0.jsonl"))
    good = config.read_text()
    cell_file = run.parent / "cell.json"
    content = json.loads(cell_file.read_text())
    for key in ("study.steps", "study.warmup_steps"):
        content["settings"].pop(key)
    cell_file.write_text(json.dumps(content))

    def failure() -> str:
        (cell,) = read(site.out).cells
        assert not cell.runs
        return cell.failures[0]

    assert "steps = 20\n" in good and "warmup_steps" in good
    hostile = {
        "no steps": re.sub(r"^(warmup_)?steps = .*$", r"\1steps = 0", good, flags=re.MULTILINE),
        "deep": "a = " + "[" * 5000,
    }
    for text in hostile.values():
        config.write_text(text)
        assert "config.toml is damaged" in failure() or "not 0 steps" in failure()
    config.unlink()
    os.mkfifo(config)
    assert "damaged" in failure()
    events.unlink()
    os.mkfifo(events)
    assert "did not end" in failure()


def test_a_damaged_cell_is_reported_before_anything_runs(site, capsys):
    assert site.study("--vary", "batch=4", "--repeats", "1") == 0
    (path,) = site.out.glob("*/cell.json")
    for text in ("", "[]", "{}"):
        path.write_text(text)
        assert site.study("--vary", "batch=8", "--repeats", "1") == 2
        error = capsys.readouterr().err
        assert f"{path}: cannot be read" in error and error.count("\n") == 1
    assert len(site.calls()) == 1


def test_a_run_that_found_staged_files_has_no_staging_time(site):
    """The second repeat found files of an interrupted run."""
    assert site.study("--vary", "batch=4", "--repeats", "2", "--stage", site.folder / "stage") == 0
    assert [run.staging_s for run in read(site.out).cells[0].runs] == [0.4, None]


def test_a_path_is_one_cell_in_any_spelling(site, monkeypatch):
    monkeypatch.chdir(site.folder)
    for data in ("jpeg", "./lmdb/../jpeg", site.folder / "jpeg"):
        assert site.study("--vary", f"data={data}", "--repeats", "1") == 0
    monkeypatch.chdir(site.folder / "jpeg")
    assert site.study("--vary", "data=.", "--repeats", "1") == 0
    (cell,) = read(site.out).cells
    assert len(site.calls()) == 1 and cell.settings["data"] == "jpeg"


def test_folders_of_the_same_name_are_distinguished(site):
    """In one call or several: two data sets are two cells, and no two cells look alike."""
    for folder in ("lustre", "local"):
        (site.folder / folder / "imagenet").mkdir(parents=True)
    for folder in ("lustre", "local"):
        assert site.study("--vary", f"data={site.folder / folder / 'imagenet'}", "--repeats", "1") == 0
    assert read(site.out).values("data") == ["lustre/imagenet", "local/imagenet"]
    for folder in ("ssd", "ram"):
        assert site.study("--stage", site.folder / folder, "--vary", "batch=4", "--repeats", "1") == 0
    stages = {cell.settings["storage"] for cell in read(site.out).cells}
    assert stages == {"shared", "staged in ssd", "staged in ram"}


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("a.b=[1,1,1,1],[2,2,2,2]", [[1, 1, 1, 1], [2, 2, 2, 2]]),
        ("a.b=1e-3,0.001,1", [0.001, 1]),
        ("a.b=true,false", [True, False]),
        ('a.b="a, b",c', ["a, b", "c"]),
        ("a.b=2026-11-05", ["2026-11-05"]),
        ("data=007,1e3,2026-11-05", ["007", "1e3", "2026-11-05"]),
        ("data=/a b/ü.d,/c", ["/a b/ü.d", "/c"]),
    ],
)
def test_values_keep_their_type_and_spelling(text, values):
    assert list(parse_axes([text]).values()) == [values]


def test_names_keep_the_given_order(site):
    names = ["lenet", "alexnet", "resnet50", "resnet101"]
    words = f"network.name={','.join(names)}"
    assert site.study("--vary", words, "--repeats", "1", benchmark="resnet50") == 0
    assert read(site.out).values("network.name") == names


def test_equal_values_are_one_cell_in_any_spelling(site):
    assert site.study("--vary", "network.width=1,1.0", "--repeats", "1", benchmark="resnet50") == 0
    assert len(site.calls()) == 1


def test_cell_names_may_be_long_and_have_any_characters(site):
    words = ["--vary", f"submission.platform={'ü' * 200},[red]x", "--repeats", "1"]
    assert site.study(*words) == 0
    assert site.study(*words, "--number", "1") == 0
    assert len(site.calls()) == 2
    assert all(len(path.name.encode()) < 240 for path in site.out.iterdir())


def test_values_are_shown_as_given(site, capsys):
    assert site.study("--vary", "submission.platform=[red]x,<b>y", "--repeats", "1") == 0
    assert "[red]x" in capsys.readouterr().out
    page = (site.out / "study.html").read_text()
    assert "&lt;b&gt;y" in page and "<b>y" not in page


def test_a_run_in_progress_in_another_task_is_not_a_failure(site):
    assert site.study("--vary", "batch=4,8", "--repeats", "1") == 0
    eight = read(site.out).cells[1]
    (eight.runs[0].path / "events.rank0.jsonl").unlink()  # as it is while it runs
    with locked(site.out, f"{eight.path.name}.1", "study"):
        assert site.study("--vary", "batch=4,8", "--repeats", "1", "--number", "1") == 0
        record = json.loads((site.out / "study.json").read_text())["cells"]
    assert [(len(cell["runs"]), cell["failures"]) for cell in record] == [(1, []), (0, [])]


def test_one_run_has_no_interval(site):
    assert site.study("--vary", "batch=4", "--repeats", "1") == 0
    record = json.loads((site.out / "study.json").read_text())["cells"][0]["samples_per_s"]
    assert record["mean"] > 0 and record["low95"] is None and record["high95"] is None


def test_ranks_spread_over_more_nodes_are_another_cell(site, monkeypatch):
    """A job of two tasks a node, and one of one: two ranks are on one node, then on two."""
    srun = site.folder / "srun"
    srun.write_text('#!/bin/sh\nwhile [ "${1#--}" != "$1" ]; do shift; done\nexec "$@" --ranks 2\n')
    srun.chmod(0o755)
    monkeypatch.setenv("PATH", f"{site.folder}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    for nodes in ("2", "4"):
        monkeypatch.setenv("SLURM_NTASKS", "4")
        monkeypatch.setenv("SLURM_JOB_NUM_NODES", nodes)
        assert site.study("--vary", "ranks=2", "--repeats", "1") == 0
    study = read(site.out)
    assert study.axes == ("ranks_per_node",) and study.values("ranks_per_node") == [1, 2]


def test_a_folder_holds_a_study_of_one_benchmark(site, capsys):
    assert site.study("--vary", "batch=8", "--repeats", "1") == 0
    assert site.study("--vary", "batch=4", "--repeats", "1", benchmark="deepcam") == 2
    assert "holds a study of cosmoflow" in capsys.readouterr().err


def test_the_page_has_a_figure_per_setting_and_a_table_of_all_cells(site):
    stage = site.folder / "stage"
    words = ["--vary", "network.name=lenet,alexnet", "--vary", "ranks=1,2", "--vary", "batch=4,8"]
    words += ["--vary", "storage=shared,staged", "--stage", stage, "--repeats", "2"]
    site.takes(run1=[2.0, 0.1], run2=[3.0, 0.1])
    assert site.study(*words, benchmark="resnet50") == 0
    page = (site.out / "study.html").read_text()
    for title in ("Network", "Ranks", "Local batch size", "Storage", "Variability by storage", "In numbers"):
        assert f"<h2>{title}</h2>" in page
    assert sum(tag == "tr" for tag, _ in Page(page).elements) == 1 + 16
    assert "a processor" in page and "commit 0123456789ab" in page and "preset smoke" in page
    assert "Not a result of the benchmark" in page
    assert "50.0%" in page, "the slower repeat took half as long again"
    read_page = Page(page)
    # All figures of a section have one scale.
    bars = [c for c in read_page.charts if "lenet" in c["description"] and "alexnet:" in c["description"]]
    assert len(bars) == 8
    assert len({json.dumps(c["layer"][0]["encoding"]["y"]["scale"]) for c in bars}) == 1
    (link,) = [str(a["href"]) for _, a in read_page.elements if a.get("download") == "study.json"]
    rows = json.loads(unquote(link.partition(",")[2]))
    assert len(rows) == 16
    assert {(row["ranks"], row["speed-up"], row["efficiency"]) for row in rows} == {
        (1, 1.0, 1.0),
        (2, 2.0, 1.0),
    }
    assert {row["95% interval"] for row in rows} == {"of 2 runs"}, "two runs have no interval"


def test_small_numbers_keep_their_digits_on_an_axis(site):
    """A rate of 0.001 is not 0; an interval that reaches 0 has a place on a logarithmic axis."""
    site.takes(run1=[1.0, 0.1], run2=[9.0, 0.1], run3=[9.0, 0.1])
    rates = "hyperparameters.sgd_opt_base_learning_rate=1e-3,1e-2"
    assert site.study("--vary", rates, "--repeats", "3", benchmark="resnet50") == 0
    assert [cell.samples_per_s.interval[1] for cell in read(site.out).cells] == [0, 0]
    page = (site.out / "study.html").read_text()
    assert ">0.001<" in page and ">0.01<" in page
    (chart,) = Page(page).charts
    assert all(row["low"] > 0 for row in rows_of(chart) if "low" in row)


def test_cells_may_differ_in_settings_that_only_some_have(site):
    """One of two presets has no simulation to vary; curves and names still distinguish the cells."""
    for preset in ("smoke", "closed"):
        assert (
            site.study("--preset", preset, "--vary", "batch=4,8", "--repeats", "1", benchmark="resnet50") == 0
        )
    study = read(site.out)
    names = [study.name(axis) for axis in study.axes]
    assert "network.classes" in names and "data.simulation.classes" in names and len(set(names)) == len(names)
    page = (site.out / "study.html").read_text()
    assert sum(tag == "tr" for tag, _ in Page(page).elements) == 1 + 4
    assert "<h2>Local batch size</h2>" in page


def test_long_names_are_shown_in_a_legend(site):
    names = [f"{'a very long name of a network ' * 3}{i}" for i in (1, 2)]
    assert site.study("--vary", f"submission.platform={','.join(names)}", "--repeats", "1") == 0
    page = (site.out / "study.html").read_text()
    (chart,) = Page(page).charts
    assert chart["layer"][0]["encoding"]["color"]["scale"]["domain"] == names
    assert chart["layer"][0]["encoding"]["color"]["legend"]["orient"] == "bottom"
