"""Studies of real runs of each benchmark: measurements are consistent with the runs' records."""

import json
import os
import shutil
import signal
import subprocess
import sys

import pytest
from smoke.conftest import climate_settings, mlhpc, rank_process, result, settings, wait_for
from smoke.resnet50.test_run import settings as image_settings

from mlhpc.record.events import read_events
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


def test_cosmoflow_over_storage(tiny_data, tmp_path):
    done = mlhpc(
        "study", "cosmoflow", "--data", tiny_data, "--out", tmp_path / "study", "--stage", tmp_path / "stage",
        "--vary", "storage=shared,staged", "--vary", "batch=4", "--repeats", 1,
        "--warmup", 1, "--steps", 2, *settings(),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    study = read(tmp_path / "study")
    assert study.axes == ("storage",)
    for cell in study.cells:
        run = check_cell(cell, 1, 2, 4)
        assert (run.staging_s is None) == (cell.settings["storage"] == "shared")
    assert not (tmp_path / "stage").exists()
    assert (tmp_path / "study" / "study.html").stat().st_size > 10_000
    # Its runs are not results: their epoch was cut short, so a rate computed from its time would be wrong.
    for command in ("report", "score", "check"):
        done = mlhpc(command, tmp_path / "study")
        assert done.returncode == 2 and "study.html" in done.stderr
    done = mlhpc("check", run.path)
    assert done.returncode == 1 and "log/study" in done.stdout


def test_deepcam_on_two_ranks_over_loaders(climate, tmp_path):
    done = mlhpc(
        "study", "deepcam", "--data", climate, "--out", tmp_path / "study", "--vary", "batch=2",
        "--vary", "ranks=2", "--vary", "loading.loader=threads,workers", "--repeats", 1, "--warmup", 1,
        "--steps", 2, "--set", "training.checkpoint_epochs=1", *climate_settings(),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    for cell in read(tmp_path / "study").cells:
        run = check_cell(cell, 1, 2, 2 * 2)
        assert len(list(run.path.glob("events.rank*.jsonl"))) == cell.settings["ranks"] == 2
        events = read_events(run.path / "events.rank0.jsonl")
        (end,) = [e for e in events if (e["event"], e["name"]) == ("end", "checkpoint")]
        assert run.checkpoint_s == end["seconds"]
        assert (run.path / "checkpoint.npz").stat().st_size > 4000


def test_resnet50_over_networks_and_formats(tmp_path):
    made = mlhpc("data", "make", "resnet50", "--out", tmp_path / "jpeg", *image_settings())
    assert made.returncode == 0, made.stderr
    converted = mlhpc("data", "convert", "resnet50", tmp_path / "jpeg", tmp_path / "lmdb", "--codec", "lmdb")
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


def test_codecs_over_storage(climate, tmp_path):
    """As a part of Ibrahim and Oliker 2022, Fig. 8, of samples of 32 x 48."""
    data = tmp_path / "climate"
    data.symlink_to(climate)
    converted = mlhpc("data", "convert", "deepcam", data, tmp_path / "climate-delta", "--codec", "delta")
    assert converted.returncode == 0, converted.stderr
    done = mlhpc(
        "study", "deepcam", "--data", data, "--out", tmp_path / "study", "--repeats", 1, "--warmup", 1,
        "--steps", 1, "--vary", "codec=hdf5,delta", "--vary", f"storage=shared,{tmp_path / 'disk'}",
        "--vary", "batch=2", "--vary", "data.train_samples=4", "--set", "study.earlier_epochs=1",
        *climate_settings(),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    study = read(tmp_path / "study")
    assert study.axes == ("codec", "storage") and len(study.cells) == 4
    for cell in study.cells:
        run = check_cell(cell, 1, 1, cell.settings["batch"])
        record = result(run.path)
        assert record["data"]["codec"] == (None if cell.settings["codec"] == "hdf5" else "delta")
    page = (tmp_path / "study" / "study.html").read_text()
    for title in ("Codec", "Storage", "Time per sample"):
        assert f"<h2>{title}</h2>" in page


@pytest.mark.parametrize("benchmark", ["cosmoflow", "deepcam", "resnet50"])
def test_earlier_epochs_read_the_whole_set_before_the_steps(benchmark, tiny_data, climate, tmp_path):
    """A damaged sample that the steps do not reach is found in the earlier epoch."""
    size = {"cosmoflow": settings, "deepcam": climate_settings, "resnet50": image_settings}[benchmark]()
    data = tmp_path / "data"
    if benchmark == "resnet50":
        assert mlhpc("data", "make", "resnet50", "--out", data, *size).returncode == 0
    else:
        shutil.copytree(tiny_data if benchmark == "cosmoflow" else climate, data)
    words = ["study", benchmark, "--data", data, "--out", tmp_path / "study", "--repeats", 1, "--warmup", 0]
    words += ["--steps", 1, "--vary", "batch=2", *size]
    samples = sorted(path for path in (data / "train").rglob("*") if path.is_file())
    for damaged in samples[:3]:  # the one step reads two samples, so not all of these
        whole = damaged.read_bytes()
        damaged.write_bytes(whole[: len(whole) // 2])
        if mlhpc(*words).returncode == 0:
            break
        damaged.write_bytes(whole)
    else:
        pytest.fail("a step of two samples read three")
    done = mlhpc(*words, "--set", "study.earlier_epochs=1")
    assert done.returncode == 1 and damaged.name in done.stdout
    damaged.write_bytes(whole)
    done = mlhpc(*words, "--set", "study.earlier_epochs=1")
    assert done.returncode == 0, done.stdout + done.stderr
    study = read(tmp_path / "study")
    assert study.axes == ("study.earlier_epochs",) and [len(cell.runs) for cell in study.cells] == [1, 1]


SERVERS = ["network.name=lenet", "training.preprocessing=torchvision", "training.sgd=pytorch"]


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    out = tmp_path_factory.mktemp("data") / "pictures"
    made = mlhpc("data", "make", "resnet50", "--out", out, *image_settings("data.train_samples=400"))
    assert made.returncode == 0, made.stderr
    return out


def test_parameter_servers_are_a_study_and_never_a_result(pictures, tmp_path):
    done = mlhpc(
        "study", "resnet50", "--data", pictures, "--out", tmp_path / "study", "--repeats", 1, "--warmup", 1,
        "--steps", 3, "--vary", "ranks=2", "--vary", "batch=4", "--vary", "parameter_servers=0,1",
        "--vary", "updates=synchronous,asynchronous", *image_settings("data.train_samples=400", *SERVERS),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    study = read(tmp_path / "study")
    assert (
        study.axes == ("parameter_servers", "updates") and len(study.cells) == 3
    )  # a ring has no asynchrony
    for cell in study.cells:
        (run,) = cell.runs
        assert run.samples == 3 * 8 and 0 < run.servers.utilisation <= 1 and 0 <= run.servers.accuracy <= 1
        assert run.servers.busiest_bytes == pytest.approx(run.servers.predicted_bytes, rel=1e-3)
        assert not (run.path / "run.log").exists() and not (run.path / "result.json").exists()
    ring, one = (cell.runs[0].servers for cell in study.cells[:2])
    assert ring.accuracy == one.accuracy  # the same gradients on the same samples
    assert "whose runs are not results" in mlhpc("check", tmp_path / "study").stderr
    for command in ("check", "score", "report"):
        assert mlhpc(command, run.path).returncode == 2
    assert "Accuracy and traffic" in (tmp_path / "study/study.html").read_text()
    record = json.loads((tmp_path / "study/study.json").read_text())
    assert [cell["runs"][0]["servers"]["staleness"] > 0 for cell in record["cells"]] == [False, False, True]


@pytest.mark.slow
@pytest.mark.parametrize("rank, name", [(1, "worker 1"), (2, "parameter server 0")])
def test_a_killed_worker_or_server_is_one_line_with_rank_and_role(pictures, tmp_path, rank, name):
    words = ["--preset", "smoke", "--data", pictures, "--out", tmp_path / "out", "--seed", 1, "--workers", 2]
    more = ["hyperparameters.global_batch_size=2", "study.steps=200", "network.name=resnet101"]
    words += ["--servers", 1, *image_settings("network.blocks=[]", "data.train_samples=400", *SERVERS, *more)]
    command = [sys.executable, "-m", "mlhpc.resnet50.parameter_servers", *map(str, words)]
    run = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    wait_for((tmp_path / "out/config.toml").exists)
    os.kill(rank_process(run.pid, rank), signal.SIGKILL)
    _, error = run.communicate(timeout=120)
    assert run.returncode != 0 and not (tmp_path / "out/servers.json").exists()
    assert f"rank {rank} ({name}) on" in error and error.count("was lost") == 1


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
