"""``mlhpc export`` read back by the tools' own libraries."""

import json
import shutil
from pathlib import Path

import pytest
from golden.make_run import make_run

from mlhpc import cli


def test_tensorboard_reads_every_epoch(tmp_path: Path) -> None:
    loader = pytest.importorskip("tensorboard.backend.event_processing.event_file_loader")
    from tensorboard.util.tensor_util import make_ndarray

    run = make_run(tmp_path / "run", epochs=4)
    assert cli.main(["export", str(run), "--to", "tensorboard", "--out", str(tmp_path / "tb")]) == 0
    (file,) = (tmp_path / "tb").iterdir()
    read = {
        (value.tag, event.step): float(make_ndarray(value.tensor).item())
        for event in loader.EventFileLoader(str(file)).Load()
        for value in event.summary.value
    }
    epochs = json.loads((run / "result.json").read_text())["epochs"]
    for epoch in epochs:
        for name in ("eval_error", "train_loss", "samples_per_s", "learning_rate"):
            assert read[name, epoch["epoch"]] == pytest.approx(epoch[name], rel=1e-6)  # it stores float32


def test_mlflow_reads_every_epoch_setting_and_fact(tmp_path: Path) -> None:
    """Below a folder whose name has what URLs and pages have to quote."""
    from mlflow.tracking import MlflowClient

    folder = tmp_path / "a 'b' \"c\" <d> é %41 #"
    hostile = {"metric": "eval_error", "value 1": 2.5, "<b>'\"%/../;": 1.5, ".": 3.5, "eval error": 4.5}
    run = make_run(
        folder / "run",
        epochs=4,
        result=lambda result: [epoch.update(hostile) for epoch in result["epochs"]],
    )
    out = folder / "out"
    assert cli.main(["export", str(run), "--to", "mlflow", "--out", str(out)]) == 0
    shutil.copy(out / "mlflow.db", tmp_path)  # MLflow itself cannot open a path with % in it
    client = MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")
    (experiment,) = client.search_experiments(filter_string="name = 'cosmoflow'")
    (read,) = client.search_runs([experiment.experiment_id])
    result = json.loads((run / "result.json").read_text())
    for name in ("eval_error", "train_loss", "samples_per_s", "learning_rate"):
        history = {point.step: point.value for point in client.get_metric_history(read.info.run_id, name)}
        assert history == {epoch["epoch"]: epoch[name] for epoch in result["epochs"]}
    assert read.data.metrics["time_to_train_s"] == result["time_to_train_s"]
    assert {2.5, 1.5, 3.5, 4.5} <= set(read.data.metrics.values())
    assert "eval_20_error" in read.data.metrics
    assert read.data.params["hyperparameters.global_batch_size"] == str(result["global_batch_size"])
    assert read.data.params["benchmark"] == read.data.tags["mlhpc.benchmark"] == "cosmoflow"
    assert read.data.tags["mlhpc.preset"] == "smoke" and read.info.status == "FINISHED"
    assert (read.info.end_time - read.info.start_time) / 1e3 == pytest.approx(result["time_to_train_s"], 0.01)


def test_without_the_package_the_message_names_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path / "run", epochs=1)
    monkeypatch.setattr("mlhpc.observe.export.find_spec", lambda name: None)
    assert cli.main(["export", str(run), "--to", "mlflow", "--out", str(tmp_path / "out")]) == 2
    assert "[mlflow]'" in capsys.readouterr().err and not (tmp_path / "out").exists()
