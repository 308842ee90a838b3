"""Runs of a study that failed, were moved or damaged, or are still going on."""

import json
import os
import re
import shutil

import pytest
from helpers.study_site import Site

from mlhpc.run_processes import locked
from mlhpc.study import content
from mlhpc.submission.report.study import read
from mlhpc.submission.report.study_page import cells_table


@pytest.fixture
def site(tmp_path, monkeypatch):
    site = Site(tmp_path)
    monkeypatch.setattr("mlhpc.common.ranks.local.sys.executable", str(tmp_path / "python"))
    monkeypatch.setenv("COLUMNS", "200")
    return site


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


def test_joules_per_sample_are_those_of_the_steps(site):
    """Two ranks read counters every half second; each draws 100 W before the steps and 460 W in them. Slurm's
    energy of the nodes is that of the whole run."""
    site.takes(run1=[2.0, 0.5])
    assert site.study("--vary", "batch=4", "--repeats", "1", "--steps", "20", "--warmup", "3") == 0
    (cell,) = read(site.out).cells
    assert not cell.runs[0].joules_per_sample
    file = cell.path / "run-1/events.rank0.jsonl"
    figure = {"joules": 4000.0, "counters": 2, "source": "NVML", "nodes": 2, "problems": []}
    node = figure | {"joules": 9000.0, "source": "Slurm, ipmi"}
    note = {"t": 99.0, "event": "note", "name": "energy", "accelerators": figure, "node": node}
    times = [n / 2 for n in range(23)]
    readings = [
        {"t": t, "event": "energy", "name": "accelerators", "joules": 100 * min(t, 9) + 460 * max(t - 9, 0)}
        for t in times
    ]

    def lines(events):
        return "".join(f"{json.dumps(each)}\n" for each in events)

    events = file.read_text() + lines([*readings, note])
    file.write_text(events)
    file.with_name("events.rank1.jsonl").write_text(events)
    study = read(site.out)
    assert study.cells[0].runs[0].joules_per_sample == {"accelerators": pytest.approx(2 * 460 * 2 / (20 * 4))}
    assert "J/sample, accelerators" in cells_table(study).head
    assert content(study)["cells"][0]["runs"][0]["joules_per_sample"] == pytest.approx(23)
    few = [each for each in readings if not 9.0 <= each["t"] <= 10.5]
    file.write_text(file.read_text().replace(lines(readings), lines(few)))
    assert not read(site.out).cells[0].runs[0].joules_per_sample


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
    """Another user's study can be rendered as a page."""
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


@pytest.mark.parametrize(
    "time, waited", [(1, 10**400), (-1e12, 0.1), (1e250, float("nan"))], ids=["wait", "order", "nan"]
)
def test_a_run_of_impossible_times_is_a_failure_of_that_run(site, time, waited):
    assert site.study("--vary", "batch=4", "--repeats", "1", "--steps", "20", "--warmup", "3") == 0
    path = read(site.out).cells[0].runs[0].path / "events.rank0.jsonl"
    events = [json.loads(line) for line in path.read_text().splitlines()]
    for event in events:
        if event["event"] == "mark":
            event["waited"]["data_wait"] = waited
        if (event["event"], event["name"]) == ("end", "train"):
            event["t"] *= time
    path.write_text("".join(json.dumps(event) + "\n" for event in events))
    (cell,) = read(site.out).cells
    assert not cell.runs and "its record is damaged" in cell.failures[0]


def test_a_run_of_a_warm_up_alone_has_measured_nothing(site):
    assert site.study("--vary", "batch=4", "--repeats", "1", "--steps", "20", "--warmup", "3") == 0
    run = read(site.out).cells[0].runs[0].path
    cell_file, config, events = run.parent / "cell.json", run / "config.toml", run / "events.rank0.jsonl"
    content = json.loads(cell_file.read_text())
    content["settings"].pop("study.steps")
    cell_file.write_text(json.dumps(content))
    config.write_text(re.sub(r"^steps = 20$", "steps = 0", config.read_text(), flags=re.MULTILINE))
    events.write_text(events.read_text().replace('"count": 23', '"count": 3'))
    (cell,) = read(site.out).cells
    assert not cell.runs and "measured no steps" in cell.failures[0]


def test_a_damaged_cell_is_reported_before_anything_runs(site, capsys):
    assert site.study("--vary", "batch=4", "--repeats", "1") == 0
    (path,) = site.out.glob("*/cell.json")
    for text in ("", "[]", "{}"):
        path.write_text(text)
        assert site.study("--vary", "batch=8", "--repeats", "1") == 2
        error = capsys.readouterr().err
        assert f"{path} cannot be read" in error and error.count("\n") == 1
    assert len(site.calls()) == 1


def test_a_run_that_found_staged_files_has_no_staging_time(site):
    """The second repeat found files of an interrupted run."""
    assert site.study("--vary", "batch=4", "--repeats", "2", "--stage", site.folder / "stage") == 0
    assert [run.staging_s for run in read(site.out).cells[0].runs] == [0.4, None]


def test_a_run_in_progress_in_another_task_is_not_a_failure(site):
    assert site.study("--vary", "batch=4,8", "--repeats", "1") == 0
    eight = read(site.out).cells[1]
    (eight.runs[0].path / "events.rank0.jsonl").unlink()  # as it is while it runs
    with locked(site.out, f"{eight.path.name}.1", "study"):
        assert site.study("--vary", "batch=4,8", "--repeats", "1", "--number", "1") == 0
        record = json.loads((site.out / "study.json").read_text())["cells"]
    assert [(len(cell["runs"]), cell["failures"]) for cell in record] == [(1, []), (0, [])]
