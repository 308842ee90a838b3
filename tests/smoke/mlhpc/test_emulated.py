"""Emulated runs: the real input pipeline, with steps that only wait."""

import json
import shlex
from statistics import median

import numpy as np
import pytest
from smoke.conftest import climate_settings, mlhpc, mllog, result, settings
from smoke.resnet50.test_run import settings as image_settings

from mlhpc.record.events import read_events


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    out = tmp_path_factory.mktemp("data") / "images"
    made = mlhpc("data", "make", "resnet50", "--out", out, *image_settings())
    assert made.returncode == 0, made.stderr
    return out


def emulate(benchmark, data, out, *words):
    done = mlhpc("run", benchmark, "--data", data, "--out", out, "--seed", 7, *words)  # the order of one_rank
    assert done.returncode == 0 and "not a training" in done.stderr, done.stderr
    return result(out)


def weights(out):
    with np.load(out / "checkpoint.npz") as saved:
        return {name: saved[name] for name in saved.files if saved[name].dtype == np.float32}


@pytest.mark.parametrize("framework", ["tensorflow", "pytorch"])
def test_cosmoflow_reads_what_a_training_reads(framework, one_rank, tiny_data, tmp_path):
    words = settings(f"training.framework={framework}")
    record = emulate("cosmoflow", tiny_data, tmp_path / "out", "--compute", "0.001", *words)
    assert record["status"] == "emulated" and record["division"] == "open"
    assert record["time_to_train_s"] is None and record["target"]["best"] is None
    trained = [(e["samples"], e["bytes"]) for e in result(one_rank)["epochs"]]
    assert [(e["samples"], e["bytes"]) for e in record["epochs"]] == trained
    assert all(epoch["step_s"] >= 3 * 0.001 for epoch in record["epochs"])  # 24 samples in batches of 8


def test_no_weight_moves(climate, images, tmp_path):
    for benchmark, data, words in (
        ("deepcam", climate, climate_settings("training.checkpoint_epochs=1", "training.freeze_below=0.5")),
        ("resnet50", images, image_settings("training.checkpoint_epochs=1")),
    ):
        saved = []
        for epochs in (1, 2):
            out = tmp_path / f"{benchmark}-{epochs}"
            short = ["--compute", "0", "--set", f"training.max_epochs={epochs}"]
            assert len(emulate(benchmark, data, out, *words, *short)["epochs"]) == epochs
            saved.append(weights(out))
        assert saved[0].keys() == saved[1].keys() and len(saved[0]) > 10
        assert all(np.array_equal(value, saved[1][name]) for name, value in saved[0].items())


def test_two_ranks_take_the_step_that_a_training_measured(climate, tmp_path):
    words = climate_settings("training.max_epochs=2")
    done = mlhpc("run", "deepcam", "--data", climate, "--out", tmp_path / "trained", "--ranks", 2, *words)
    assert done.returncode == 3, done.stderr
    record = emulate(
        "deepcam", climate, tmp_path / "out", "--ranks", 2, "--compute", tmp_path / "trained", *words
    )
    of_ranks = [read_events(tmp_path / "trained" / f"events.rank{rank}.jsonl") for rank in range(2)]
    for key, name in (("step_s", "train"), ("eval_step_s", "eval")):
        # The longer steps of the other rank contain waiting for this one.
        measured = [
            median(e["p50"] for e in events if (e["event"], e["name"]) == ("steps", name))
            for events in of_ranks
        ]
        assert record["emulation"][key] == min(measured) > 0
    assert record["ranks"] == 2
    # A step of 2 samples does not give the time of a step of 4.
    done = mlhpc("run", "deepcam", "--data", climate, "--compute", tmp_path / "trained", *words)
    assert done.returncode == 2 and "samples per rank" in done.stderr


def test_a_run_adds_itself_last_and_says_how_to_add_it_later(climate, tmp_path, monkeypatch):
    store = tmp_path / "store"
    store.touch()  # not a folder: nothing can be added
    monkeypatch.setenv("MLHPC_HISTORY", str(store))
    words = ["--ranks", 2, "--compute", "0", *climate_settings("training.max_epochs=1")]
    done = mlhpc("run", "deepcam", "--data", climate, "--out", tmp_path / "out", *words)
    assert done.returncode == 0, done.stderr
    *_, outcome, warning = done.stderr.splitlines()
    assert "not a training" in outcome and warning.startswith("mlhpc: warning: not in the history")
    store.unlink()
    _, *later = shlex.split(warning.partition("add it with: ")[2])
    assert "1 new record" in mlhpc(*later).stdout


def test_an_emulated_run_is_marked_and_never_scored(climate, tmp_path):
    out = tmp_path / "out"
    emulate("deepcam", climate, out, "--compute", "0.001", *climate_settings("target.value=1e-6"))
    assert json.loads((out / "result.json").read_text(), parse_constant=pytest.fail)["status"] == "emulated"
    assert [r["value"] for r in mllog(out) if r["key"] == "emulated_step_s"] == [0.001]
    assert not [r for r in mllog(out) if r["key"] == "eval_accuracy"]
    assert "NaN" not in (out / "run.log").read_text() + (out / "events.rank0.jsonl").read_text()
    checked = mlhpc("check", out)
    assert checked.returncode == 1 and "log/emulated" in checked.stdout
    scored = mlhpc("score", out)
    assert scored.returncode == 1 and "no score" in scored.stdout
    reported = mlhpc("report", out)
    assert "Emulated run" in reported.stdout and "Emulated run" in (out / "report.html").read_text()
    again = mlhpc("run", "deepcam", "--data", climate, "--compute", out, *climate_settings())
    assert again.returncode == 2 and "emulated run" in again.stderr


def test_a_study_takes_the_emulated_steps_and_says_so(tiny_data, tmp_path):
    out = tmp_path / "study"
    words = ["--data", tiny_data, "--out", out, "--repeats", 1, "--warmup", 1, "--steps", 2]
    vary = ["--vary", "emulation.step_s=0.25,0.02", "--vary", "training.framework=tensorflow,pytorch"]
    done = mlhpc("study", "cosmoflow", *words, *vary, *settings())
    assert done.returncode == 0, done.stderr
    cells = json.loads((out / "study.json").read_text())["cells"]
    assert len(cells) == 4
    for cell in cells:
        (run,) = cell["runs"]
        # At least the time of its waits, and a warm-up does not count as measured steps.
        assert run["seconds"] >= run["steps"] * cell["settings"]["emulation.step_s"]
    sentence = "each step waited 0.02, 0.25 s"
    assert sentence in " ".join(done.stdout.split()) and sentence in (out / "study.html").read_text()


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["run", "deepcam", "--compute", "-1"], "must be from 0 to 86400 seconds"),
        (["run", "deepcam", "--compute", "nowhere"], "must be a number of seconds, a run or a machine"),
        (["run", "deepcam", "--preset", "closed", "--set", "emulation.step_s=1"], "not a closed run"),
        (
            ["study", "resnet50", "--set", "emulation.step_s=1", "--vary", "parameter_servers=1"],
            "requires training",
        ),
        (["campaign", "deepcam", "--set", "emulation.step_s=1"], "requires training"),
    ],
)
def test_what_is_refused(words, reason, climate, tmp_path):
    done = mlhpc(*words, "--data", climate, "--out", tmp_path / "out")
    assert done.returncode == 2 and reason in done.stderr, done.stderr
    assert len(done.stderr.splitlines()) == 1 and not (tmp_path / "out").exists()
