"""Studies: what is planned, run and measured."""

import json
import os
import signal

import pytest
from helpers.study_site import Site
from scipy import stats

from mlhpc.benchmarks import load
from mlhpc.submission.report.study import read


@pytest.fixture
def site(tmp_path, monkeypatch):
    site = Site(tmp_path)
    monkeypatch.setattr("mlhpc.common.ranks.local.sys.executable", str(tmp_path / "python"))
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
    assert "interrupted; restart the study to continue" in capsys.readouterr().out
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


def test_the_data_wait_is_that_of_all_ranks_after_the_warm_up(site):
    site.takes(run1=[4.0, 1.0])
    assert site.study("--vary", "batch=8", "--repeats", "1", "--steps", "20", "--warmup", "3") == 0
    record = next(site.out.glob("*/run-1/events.rank0.jsonl"))
    with record.open("a") as events:
        for name, seconds, tags in (
            ("data_wait", 9.0, {}), ("data_wait", 3.0, {"after": "warm"}), ("eval_data_wait", 50.0, {}),
        ):  # fmt: skip
            waited = {"event": "waited", "name": name, "epoch": 1, "count": 4, "seconds": seconds, "lost": []}
            events.write(json.dumps({"t": 99.5, **waited, **tags}) + "\n")
    (run,) = read(site.out).cells[0].runs
    assert (run.seconds, run.wait_s) == (4.0, 3.0)


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


def test_json_has_the_numbers_of_the_printed_table(site, capsys):
    site.takes(run1=[2.0, 0.5], run2=[2.5, 0.5], run3=[2.2, 0.5])
    vary = ("--vary", "batch=8,16", "--steps", "20", "--repeats", "3")
    assert site.study(*vary, "--json") == 0
    content = json.loads(capsys.readouterr().out)
    assert content["command"] == "study" and list(content["axes"]) == ["batch"]
    assert site.study(*vary) == 0  # everything has run: only the table is left
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if " – " in line]
    for cell, (batch, runs, mean, low, _, high, *rest) in zip(content["cells"], rows, strict=True):
        rate = cell["samples_per_s"]
        assert (int(batch), int(runs)) == (cell["settings"]["batch"], len(cell["runs"]))
        printed = [float(number) for number in (mean, low, high)]
        assert printed == pytest.approx([rate["mean"], rate["low95"], rate["high95"]], rel=2e-3)
        assert f"{cell['variability']:.1%}" in rest


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
        "--set",
        "network.blocks=[]",
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
        (["--vary", "batch"], "must have the form KEY=A,B"),
        (["--vary", "bach=8"], "did you mean 'batch'"),
        (["--vary", "network.wdth=1,2"], "did you mean 'network.width'"),
        (["--vary", "batch=8", "--vary", "batch=16"], "repeated"),
        (["--vary", "batch=0"], "whole numbers of at least 1"),
        (["--vary", "ranks=two"], "whole numbers of at least 1"),
        (
            ["--vary", "ranks=3"],
            "ranks=3: a global batch of 16 must be a multiple of the number of ranks, 3",
        ),
        (["--vary", "storage=sharde"], "did you mean 'shared'"),
        (["--vary", "storage=staged"], "pass --stage"),
        (["--vary", "data=/nowhere/at/all"], "no such data set"),
        (
            ["--vary", "batch=8192"],
            "batch=8192: 5 warm-up + 20 measured steps exceed the 2 steps of an epoch",
        ),
        (["--vary", "batch=8", "--steps", "0"], "--steps: 0 is not"),
        (["--vary", "batch=8", "--repeats", "0"], "--repeats: 0 is not"),
        (["--vary", "batch=8", "--warmup", "-1"], "--warmup: -1 is not"),
        (["--vary", "batch=4,8", "--repeats", "2", "--number", "5"], "numbered 1 to 4"),
        (["--vary", "batch=true"], "whole numbers of at least 1"),
        (["--vary", "batch=,"], "has no value"),
        (["--vary", "study.steps=0"], "study.steps=0 trains to the target"),
        (["--vary", "parameter_servers=0,1"], "is not supported for cosmoflow (supported: resnet50"),
        (["--vary", "parameter_servers=two"], "whole numbers of at least 0 (0: an all-reduce)"),
        (["--vary", "updates=synchronous"], "add --vary parameter_servers=0,1,2,4"),
        (["--vary", "parameter_servers=1", "--vary", "updates=async"], "did you mean 'asynchronous'"),
        (
            ["--vary", "batch=4", "--vary", "hyperparameters.global_batch_size=8,16"],
            "determine each other",
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
    assert "contains a study of cosmoflow" in capsys.readouterr().err
