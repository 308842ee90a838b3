"""Studies: what is planned, run and measured. A stand-in takes the place of ``mlhpc run``: it leaves the record of
a run whose steps took as long as it is told."""

import json
import shlex
import sys

import pytest
from scipy import stats

from mlhpc import cli
from mlhpc.benchmarks import load
from mlhpc.submission.study import read

STAND_IN = """\
import json, pathlib, sys
from mlhpc.benchmarks import load
here, words = pathlib.Path(__file__).parent, sys.argv[4:]
with (here / "calls").open("a") as calls:
    calls.write(json.dumps(words) + "\\n")
given = [words[i + 1] for i, word in enumerate(words) if word == "--set"]
run = load.load(words[0], words[words.index("--preset") + 1], given)
out = pathlib.Path(words[words.index("--out") + 1])
out.mkdir(parents=True)
seconds, wait = json.loads((here / "seconds").read_text()).get(out.name, [2.0, 0.5])
if seconds < 0:
    print("there is no more memory")
    sys.exit(2)
(out / "config.toml").write_text(load.dumps(run))
(out / "env.json").write_text(json.dumps({"cpu": "a processor", "cores": 2, "commit": "0123456789abcdef"}))
warm = run.study.warmup_steps
events = [
    {"t": 1.0, "event": "begin", "name": "run"},
    {"t": 1.5, "event": "begin", "name": "train", "epoch": 1},
    {"t": 9.0, "event": "mark", "name": "warm", "waited": {"data_wait": 7.0}},
    {"t": 9.0 + seconds, "event": "timed", "name": "data_wait", "seconds": 7.0 + wait, "epoch": 1, "count": 1},
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
        told = {f"run-{name.removeprefix('run')}": value for name, value in seconds.items()}
        (self.folder / "seconds").write_text(json.dumps(told))

    def study(self, *more, benchmark="cosmoflow"):
        words = ["study", benchmark, "--data", self.folder / "data", "--out", self.out, *more]
        return cli.main([str(word) for word in words])

    def calls(self):
        path = self.folder / "calls"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def settings(self):
        """Of each call: what it was given by --set, and its options."""
        found = []
        for words in self.calls():
            given = dict(words[i + 1].split("=", 1) for i, word in enumerate(words) if word == "--set")
            options = {words[i]: words[i + 1] for i in range(1, len(words) - 1) if words[i].startswith("--")}
            found.append(options | given)
        return found


@pytest.fixture
def site(tmp_path, monkeypatch):
    site = Site(tmp_path)
    monkeypatch.setattr("mlhpc.children.sys.executable", str(tmp_path / "python"))
    monkeypatch.setenv("COLUMNS", "200")
    return site


def test_throughput_is_of_the_steps_after_the_warm_up(site):
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


def test_the_interval_over_repeats_is_that_of_students_t(site, capsys):
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
    told = json.loads((site.out / "study.json").read_text())["cells"][0]
    assert told["samples_per_s"]["low95"] == pytest.approx(low) and len(told["runs"]) == 5


def test_every_combination_is_run_with_the_batch_times_the_ranks(site):
    assert site.study("--vary", "ranks=1,2", "--vary", "batch=4,8", "--repeats", "1") == 0
    found = [
        (call.get("--ranks", "1"), call["hyperparameters.global_batch_size"]) for call in site.settings()
    ]
    assert found == [("1", "4"), ("1", "8"), ("2", "8"), ("2", "16")]
    assert read(site.out).axes == ("batch", "ranks")


def test_without_a_batch_the_global_batch_stays(site):
    """Strong scaling: the local batch is what ranks make of the preset's."""
    assert site.study("--vary", "ranks=1,2", "--repeats", "1") == 0
    whole = load.load("cosmoflow", "smoke").hyperparameters.global_batch_size
    assert [c.settings["batch"] for c in read(site.out).cells] == [whole // 2, whole]


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
    found = {(c["network.name"], c["loading.loader"]) for c in site.settings()}
    assert len(found) == 4 and ('"lenet"', '"dali"') in found
    assert read(site.out).axes == ("network.name", "loading.loader")


def test_formats_and_storage_are_places(site):
    data = f"data={site.folder / 'jpeg'},{site.folder / 'lmdb'}"
    stage = site.folder / "stage"
    assert (
        site.study("--vary", data, "--vary", "storage=shared,staged", "--stage", stage, "--repeats", "1") == 0
    )
    found = {(call["--data"].rpartition("/")[2], call.get("--stage")) for call in site.settings()}
    assert found == {(f, s) for f in ("jpeg", "lmdb") for s in (None, str(stage))}
    assert read(site.out).values("storage") == ["shared", "staged"]


def test_repeats_go_round_the_cells_with_the_same_seeds_and_cold_caches(site):
    assert site.study("--vary", "batch=4,8", "--repeats", "2") == 0
    found = [(c["hyperparameters.global_batch_size"], c["--seed"]) for c in site.settings()]
    assert found == [("4", "1"), ("8", "1"), ("4", "2"), ("8", "2")]
    assert all("--evict" in words for words in site.calls())


def test_no_run_of_a_study_calls_itself_closed(site):
    site.study("--preset", "closed", "--vary", "batch=64", "--repeats", "1")
    assert site.settings()[0]["division"] == "open"


def test_a_second_start_makes_only_what_is_not_made(site):
    assert site.study("--vary", "batch=4,8", "--repeats", "1") == 0
    assert site.study("--vary", "batch=8,16", "--repeats", "2") == 0
    found = [(c["hyperparameters.global_batch_size"], c["--seed"]) for c in site.settings()]
    assert found == [("4", "1"), ("8", "1"), ("16", "1"), ("8", "2"), ("16", "2")]
    assert [len(cell.runs) for cell in read(site.out).cells] == [1, 2, 2]


def test_a_cell_is_the_same_whichever_settings_are_varied(site):
    assert site.study("--vary", "batch=4,8", "--repeats", "1") == 0
    assert site.study("--vary", "batch=8", "--vary", "loading.workers=2,3", "--repeats", "1") == 0
    assert len(site.calls()) == 3 and len(read(site.out).cells) == 3


def test_a_cell_that_fails_is_told_and_the_others_go_on(site, capsys):
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


def test_the_task_of_an_array_makes_its_run_alone(site):
    for number in (4, 1):
        assert site.study("--vary", "batch=4,8", "--repeats", "2", "--number", number) == 0
    assert [(c["hyperparameters.global_batch_size"], c["--seed"]) for c in site.settings()] == [
        ("8", "2"),
        ("4", "1"),
    ]
    assert [len(cell.runs) for cell in read(site.out).cells] == [1, 1]


@pytest.mark.parametrize(
    ("words", "told"),
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
        (["--vary", "data=/nowhere/at/all"], "no data set is there"),
        (
            ["--vary", "batch=1024"],
            "batch=1024: 5 steps of warm-up and 20 to measure are more than the 2 of an epoch",
        ),
        (["--vary", "batch=8", "--steps", "0"], "--steps 0"),
        (["--vary", "batch=8", "--repeats", "0"], "--repeats 0"),
        (["--vary", "batch=8", "--warmup", "-1"], "--warmup -1"),
        (["--vary", "batch=4,8", "--repeats", "2", "--number", "5"], "has the runs 1 to 4"),
    ],
)
def test_what_cannot_run_is_told_before_anything_does(site, words, told, capsys):
    benchmark = "deepcam" if "wdth" in words[-1] else "cosmoflow"
    (site.folder / "data").joinpath("train").mkdir()
    assert site.study(*words, benchmark=benchmark) == 2
    error = capsys.readouterr().err
    assert told in error and error.count("\n") == 1
    assert not site.calls()


def test_a_folder_holds_a_study_of_one_benchmark(site, capsys):
    assert site.study("--vary", "batch=8", "--repeats", "1") == 0
    assert site.study("--vary", "batch=4", "--repeats", "1", benchmark="deepcam") == 2
    assert "holds a study of cosmoflow" in capsys.readouterr().err


def test_the_page_has_a_picture_for_each_setting_and_every_cell_in_numbers(site):
    stage = site.folder / "stage"
    words = ["--vary", "network.name=lenet,alexnet", "--vary", "ranks=1,2", "--vary", "batch=4,8"]
    words += ["--vary", "storage=shared,staged", "--stage", stage, "--repeats", "2"]
    site.takes(run1=[2.0, 0.1], run2=[3.0, 0.1])
    assert site.study(*words, benchmark="resnet50") == 0
    page = (site.out / "study.html").read_text()
    for title in ("Network", "Ranks", "Local batch size", "Storage", "Variability by storage", "In numbers"):
        assert f"<h2>{title}</h2>" in page
    assert page.count("<tr>") == 1 + 16
    assert "a processor" in page and "commit 0123456789ab" in page and "preset smoke" in page
    assert "Not a result\nof the benchmark" in page
    assert "50.0%" in page, "the slower repeat took half as long again"
    assert "<script" not in page and "http://" not in page and "https://" not in page
