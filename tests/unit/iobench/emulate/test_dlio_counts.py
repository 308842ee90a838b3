"""The emulation asks the storage for what DLIO asked for on the same workload files, as
tests/perf/io_dlio.py recorded it by strace."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from mlhpc.cli import main
from mlhpc.iobench.definition import load
from mlhpc.iobench.emulate.emulation import _due

CELLS = json.loads(Path(__file__).with_name("dlio_counts.json").read_text())["cells"]
WITHIN = 0.02


def emulated(tmp_path, tables, ranks):
    path = tmp_path / "cell.yaml"
    path.write_text(json.dumps(tables))  # which YAML contains
    data, out = tmp_path / "data", tmp_path / "out"
    assert main(["io", "generate", str(path), "--data", str(data), "--workers", "1"]) == 0
    words = ["io", "run", path, "--data", data, "--out", out, "--cache", "keep", "--null-steps", "0"]
    words += ["--set", "reader.loader=none"]
    if ranks == 1:
        assert main(list(map(str, words))) == 0
    else:
        command = map(str, [sys.executable, "-m", "mlhpc", *words, "--ranks", ranks])
        assert subprocess.run(command, timeout=120).returncode == 0
    return json.loads((out / "result.json").read_text())


@pytest.mark.parametrize("name", CELLS)
def test_opens_reads_bytes_and_schedule_are_those_of_dlio(tmp_path, name):
    cell = CELLS[name]
    result, reading = emulated(tmp_path, cell["tables"], cell["ranks"]), cell["valid"]
    theirs = {key: cell[key] + reading[key] for key in ("opens", "reads", "bytes_asked")}
    ours = dict(
        zip(theirs, (result["reading"][key] for key in ("opens", "calls", "bytes_asked")), strict=True)
    )
    own = cell["tables"]["dataset"]
    if own["format"] == "tfrecord":
        # DLIO's repeat().take().prefetch() reads beyond the epochs: compared are files read to the end.
        files, whole = own["num_files_train"] * len(cell["steps"]), cell["whole"]
        assert ours["opens"] == files <= theirs["opens"]
        theirs = {key: whole[key] * files / whole["opens"] for key in theirs}
    if "total_training_steps" in cell["tables"]["train"]:
        # PyTorch's workers read ahead of the last step, to the end of this epoch: those samples are discarded.
        all_steps = own["num_files_train"] * own["num_samples_per_file"] // 2
        theirs = {key: value * cell["steps"][0] / all_steps for key, value in theirs.items()}
    assert ours == pytest.approx(theirs, rel=WITHIN)
    assert [epoch["steps"] for epoch in result["epochs"]] == cell["steps"]
    assert [each["epoch"] for each in result["evaluations"]] == cell["evaluations"]
    assert len(result["checkpoints"]) == sum(cell["checkpoints"])
    written = sum(each["bytes"] for each in result["checkpoints"])
    assert written == pytest.approx(cell["checkpoint_bytes"], rel=WITHIN)


@pytest.mark.parametrize("name", [name for name in CELLS if sum(CELLS[name]["checkpoints"])])
def test_checkpoints_follow_the_same_epochs(tmp_path, name):
    path = tmp_path / "cell.yaml"
    path.write_text(json.dumps(CELLS[name]["tables"]))
    workload, steps = load.load(str(path)), CELLS[name]["steps"]
    own, expected = workload.checkpoint, CELLS[name]["checkpoints"]
    of_epochs = [_due(own.every_epochs, epoch, own.first_epoch) for epoch in range(1, len(steps) + 1)]
    of_steps = [sum(_due(own.every_steps, step) for step in range(1, count + 1)) for count in steps]
    assert [a + b for a, b in zip(of_epochs, of_steps, strict=True)] == expected
