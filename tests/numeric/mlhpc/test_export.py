"""``mlhpc export`` read back by the tools' own libraries."""

import json
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
