"""Studies of real runs of each benchmark: measurements are consistent with the runs' records."""

import json

import pytest
from smoke.conftest import climate_settings, mlhpc, settings
from smoke.resnet50.test_run import settings as image_settings

from mlhpc.common.timing.breakdown import read_events
from mlhpc.submission.report.study import read


def check_cell(cell, warmup, steps, batch):
    """Against the run's own events: the number of steps, and a plausible time."""
    (run,) = cell.runs
    events = read_events(run.path / "events.rank0.jsonl")
    ends = {e["name"]: e for e in events if e["event"] == "end"}
    (made,) = [e for e in events if e["event"] == "timed" and e["name"] == "data_wait"]
    assert made["count"] == warmup + steps
    assert run.samples == steps * batch
    assert 0 < run.seconds < ends["train"]["seconds"] < ends["run"]["seconds"]
    assert 0 <= run.wait_s <= min(run.seconds, made["seconds"] + 1e-6)
    assert "eval" not in ends and "error" not in ends["run"]
    return run


def test_cosmoflow_on_two_ranks_over_storage(tiny_data, tmp_path):
    done = mlhpc(
        "study", "cosmoflow", "--data", tiny_data, "--out", tmp_path / "study", "--stage", tmp_path / "stage",
        "--vary", "ranks=2", "--vary", "storage=shared,staged", "--vary", "batch=4", "--repeats", 1,
        "--warmup", 1, "--steps", 2, *settings(),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    study = read(tmp_path / "study")
    assert study.axes == ("storage",)
    for cell in study.cells:
        run = check_cell(cell, 1, 2, 4 * cell.settings["ranks"])
        assert (run.staging_s is None) == (cell.settings["storage"] == "shared")
        assert len(list(run.path.glob("events.rank*.jsonl"))) == cell.settings["ranks"]
    assert not (tmp_path / "stage").exists()
    assert (tmp_path / "study" / "study.html").stat().st_size > 10_000
    # Its runs are not results: their epoch was cut short, so a rate computed from its time would be wrong.
    for command in ("report", "score", "check"):
        done = mlhpc(command, tmp_path / "study")
        assert done.returncode == 2 and "study.html" in done.stderr
    done = mlhpc("check", run.path)
    assert done.returncode == 1 and "log/study" in done.stdout


def test_deepcam_over_loaders(climate, tmp_path):
    done = mlhpc(
        "study", "deepcam", "--data", climate, "--out", tmp_path / "study", "--vary", "batch=2",
        "--vary", "loading.loader=threads,workers", "--repeats", 1, "--warmup", 1, "--steps", 3,
        *climate_settings(),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    for cell in read(tmp_path / "study").cells:
        check_cell(cell, 1, 3, 2)


def test_resnet50_over_networks_and_formats(tmp_path):
    made = mlhpc("data", "make", "resnet50", "--out", tmp_path / "jpeg", *image_settings())
    assert made.returncode == 0, made.stderr
    converted = mlhpc("data", "convert", "resnet50", tmp_path / "jpeg", tmp_path / "lmdb", "--to", "lmdb")
    assert converted.returncode == 0, converted.stderr
    done = mlhpc(
        "study", "resnet50", "--vary", f"data={tmp_path / 'jpeg'},{tmp_path / 'lmdb'}",
        "--vary", "network.name=lenet,resnet50", "--vary", "batch=4", "--repeats", 1, "--warmup", 1,
        "--steps", 2, "--out", tmp_path / "study", *image_settings(),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    study = read(tmp_path / "study")
    assert study.axes == ("network.name", "data")
    assert len(study.cells) == 4
    for cell in study.cells:
        check_cell(cell, 1, 2, 4)
    record = json.loads((tmp_path / "study" / "study.json").read_text())
    assert [len(cell["runs"]) for cell in record["cells"]] == [1] * 4


@pytest.mark.parametrize("warmup", [0, 1])
def test_accumulated_gradients_count_as_one_step(tmp_path, climate, warmup):
    done = mlhpc(
        "study", "deepcam", "--data", climate, "--out", tmp_path / "study", "--repeats", 1, "--warmup", warmup,
        "--steps", 2, "--vary", "batch=4",
        *climate_settings("hyperparameters.gradient_accumulation_frequency=2"),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    (run,) = read(tmp_path / "study").cells[0].runs
    events = read_events(run.path / "events.rank0.jsonl")
    assert [e["count"] for e in events if e["event"] == "timed"] == [2 * (warmup + 2)]
    assert run.samples == 2 * 4
