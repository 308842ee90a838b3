"""Darshan's logs, held to strace on the same runs, to what is known of the jobs of Darshan's own examples, and to
the emulation of the workload that is made of them."""

import importlib.resources
import json
from pathlib import Path

import pytest

from mlhpc.cli import main
from mlhpc.errors import UserError
from mlhpc.iobench.definition import load
from mlhpc.iobench.report.darshan import observation, read_log, workload
from mlhpc.iobench.report.observe import read_observation

EXAMPLES = Path(str(importlib.resources.files("darshan") / "examples/example_logs"))
OWN = Path(__file__).with_name("darshan_logs")


@pytest.mark.parametrize("benchmark", ["cosmoflow", "deepcam", "resnet50"])
def test_counts_are_those_of_strace_on_the_same_run(benchmark):
    """Each log is of a run under both (its README has the commands)."""
    seen = json.loads((OWN / f"{benchmark}.json").read_text())
    below = Path(seen["below"])
    found = observation(read_log(OWN / f"{benchmark}.darshan", below), below)
    assert found["traced"]
    for key in ("reads", "bytes"):
        assert found[key] == pytest.approx(seen[key], rel=0.02)
    for key in ("files", "sequential", "consecutive", "transfer_median", "transfer_mean"):
        assert found["factors"][key] == pytest.approx(seen["factors"][key], rel=0.02, abs=0.01)


def test_reads_of_hdf5_through_mpi_io_are_counted_once():
    """IOR on four ranks: each reads 1 MiB in pieces of 256 KiB from one file, beside HDF5's metadata."""
    log = read_log(EXAMPLES / "ior_hdf5_example.darshan")
    found = observation(log, None)
    assert (log.ranks, found["factors"]["files"]) == (4, 1)
    assert 4 << 20 <= found["bytes"] < 1.01 * (4 << 20)
    assert sum(size == 256 << 10 for size in log.reads().sizes) == 16


def test_without_a_trace_counts_stay_and_times_are_estimates(capsys, tmp_path):
    log = read_log(EXAMPLES / "dxt.darshan")
    traced = observation(log, None)
    for file in log.files:
        file.traced = None
    counted = observation(log, None)
    assert counted["bytes"] == traced["bytes"] and not counted["traced"]
    assert counted["reads"] >= traced["reads"]  # with those that got nothing
    assert counted["factors"]["files"] == traced["factors"]["files"]
    assert (
        main(
            [
                "io",
                "observe",
                "--darshan",
                str(EXAMPLES / "sample-badost.darshan"),
                "--out",
                str(tmp_path / "o"),
            ]
        )
        == 0
    )
    assert "only estimates" in capsys.readouterr().out
    assert read_observation(tmp_path / "o")["files"] > 0


@pytest.mark.parametrize("benchmark", ["cosmoflow", "deepcam", "resnet50"])
def test_the_workload_of_a_log_reads_as_much_in_as_many_calls(benchmark, tmp_path):
    below = json.loads((OWN / f"{benchmark}.json").read_text())["below"]
    log = OWN / f"{benchmark}.darshan"
    made, data, out = tmp_path / "made.toml", tmp_path / "data", tmp_path / "out"
    assert main(["io", "workload-from", str(log), "--below", below, "--out", str(made)]) == 0
    assert main(["io", "generate", str(made), "--data", str(data), "--workers", "1"]) == 0
    no_wait = ["--set", "train.computation=0", "--null-steps", "0"]
    assert main(["io", "run", str(made), "--data", str(data), "--out", str(out), *no_wait]) == 0
    reading = json.loads((out / "result.json").read_text())["reading"]
    job = observation(read_log(log, Path(below)), Path(below))
    assert reading["bytes_asked"] == pytest.approx(job["bytes"], rel=0.1)
    assert reading["calls"] == pytest.approx(job["reads"], rel=0.1)


def test_a_workload_that_is_there_is_not_overwritten(tmp_path, capsys):
    made = tmp_path / "made.toml"
    made.write_text("mine")
    assert main(["io", "workload-from", str(EXAMPLES / "dxt.darshan"), "--out", str(made)]) == 2
    assert "already exists" in capsys.readouterr().err and made.read_text() == "mine"


def test_any_file_name_will_do(tmp_path):
    made = tmp_path / "my job (2).toml"
    assert main(["io", "workload-from", str(EXAMPLES / "dxt.darshan"), "--out", str(made)]) == 0
    assert load.load(str(made)).name == "my-job-2"


def test_random_reads_of_a_large_file_become_samples_in_random_order():
    log = read_log(EXAMPLES / "dxt.darshan")
    (file,) = sorted(log.files, key=lambda each: each.bytes)[-1:]
    file.traced, file.size, file.reads, file.bytes, file.sizes = None, 64 << 20, 1024, 64 << 20, {65536: 1024}
    file.opens, file.sequential, file.consecutive = 1, 10, 0
    log.files = [file]
    made = workload(log, "random").dataset, workload(log, "random").reader
    assert (made[0].samples_per_file, made[0].sample_bytes, made[1].sample_order) == (1024, 65536, "shuffled")
    assert load.dumps(workload(log, "random"))


def damaged(path: Path, kind: str) -> Path:
    whole = (EXAMPLES / "dxt.darshan").read_bytes()
    if kind == "truncated":
        path.write_bytes(whole[: len(whole) // 2])
    elif kind == "foreign":
        path.write_text("not a log")
    elif kind == "empty":
        path.write_bytes(b"")
    elif kind == "bytes changed":
        path.write_bytes(whole[:2000] + bytes(500) + whole[2500:])
    return path


@pytest.mark.parametrize("kind", ["truncated", "foreign", "empty", "bytes changed", "missing"])
def test_what_is_no_log_is_one_line(tmp_path, kind, capfd):
    path = damaged(tmp_path / "job.darshan", kind)
    assert main(["io", "observe", "--darshan", str(path), "--out", str(tmp_path / "out")]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert str(path) in line and not (tmp_path / "out").exists()


def test_a_folder_without_reads_is_said():
    with pytest.raises(UserError, match="contains no reads below /nowhere"):
        read_log(EXAMPLES / "dxt.darshan", Path("/nowhere"))
