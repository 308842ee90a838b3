"""mlhpc doctor --calibrate: what it writes is a machine file of this machine."""

import os

import pytest

from mlhpc import cli
from mlhpc.common.host import speed
from mlhpc.perf.machines import machine


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Smaller measurements: the speed of this machine is not tested."""
    for name, size in (("_SIDE", 128), ("_COPIED", 2**22), ("_FILE", 2**22), ("_SENT", 2**22)):
        monkeypatch.setattr(speed, name, size)
    monkeypatch.setattr("mlhpc.doctor.calibrate._gpu", lambda: None)


@pytest.mark.usefixtures("quick")
def test_the_file_is_a_machine_that_can_be_predicted_for(tmp_path, capsys):
    out = tmp_path / "mine.toml"
    assert cli.main(["doctor", "--calibrate", "--stage", str(tmp_path), "--out", str(out)]) == 0
    calibrated = machine(str(out))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert calibrated.figures["accelerator.memory"] == pytest.approx(memory, rel=5e-3)
    assert calibrated.is_cpu
    assert all(source.startswith("measured") for source in calibrated.sources.values())
    assert {"storage.local_read", "storage.local_write", "network.latency"} <= calibrated.figures.keys()
    assert list(tmp_path.iterdir()) == [out]
    assert cli.main(["predict", "cosmoflow", "--preset", "smoke", "--machine", str(out), "--nodes", "1"]) == 0


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("model", "family", "published"),
    [
        ("NVIDIA H100 80GB HBM3", "H100", True),  # as drivers name them
        ("NVIDIA A100-SXM4-40GB", "A100", True),
        ("NVIDIA GH200 120GB", "GH200", False),
        ("NVIDIA L4", "NVIDIA L4", False),
    ],
)
def test_published_results_of_a_gpus_family_apply_to_it(
    tmp_path, capsys, monkeypatch, model, family, published
):
    measured = {"float32": 51e12, "bfloat16": 778e12, "memory": 85e9, "bandwidth": 3e12, "host": 55e9}
    monkeypatch.setattr("mlhpc.doctor.calibrate._gpu", lambda: {"model": model, "count": 1} | measured)
    out = tmp_path / "mine.toml"
    assert cli.main(["doctor", "--calibrate", "--stage", str(tmp_path), "--out", str(out)]) == 0
    assert machine(str(out)).family == family
    capsys.readouterr()
    assert cli.main(["predict", "deepcam", "--preset", "smoke", "--machine", str(out), "--nodes", "1"]) == 0
    assert (
        "so the efficiency of all families is used" in " ".join(capsys.readouterr().out.split())
    ) != published


@pytest.mark.usefixtures("quick")
def test_a_processor_is_of_no_family_of_gpus(tmp_path, monkeypatch):
    """Without a framework for its GPUs, an MI300A is measured as the processor that it is too."""
    monkeypatch.setattr("mlhpc.doctor.calibrate.cpu_model", lambda: "AMD Instinct MI300A Accelerator")
    out = tmp_path / "mine.toml"
    assert cli.main(["doctor", "--calibrate", "--stage", str(tmp_path), "--out", str(out)]) == 0
    assert machine(str(out)).family == "AMD Instinct MI300A Accelerator"


@pytest.mark.usefixtures("quick")
def test_a_file_that_stays_in_memory_is_not_said_to_be_read_from_elsewhere(tmp_path):
    """On tmpfs, files are in memory only."""
    out = tmp_path / "mine.toml"
    assert cli.main(["doctor", "--calibrate", "--stage", "/dev/shm", "--out", str(out)]) == 0
    assert machine(str(out)).sources["storage.local_read"].endswith("256 MiB, 100% of it in memory")


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(("words", "says"), [([], "add --out"), (["--out", "old.toml"], "exists")])
def test_mistakes_are_one_line_and_nothing_is_written(tmp_path, capsys, monkeypatch, words, says):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "old.toml").write_text("x")
    assert cli.main(["doctor", "--calibrate", *words]) == 2
    assert says in capsys.readouterr().err
    assert (tmp_path / "old.toml").read_text() == "x"


@pytest.mark.usefixtures("quick")
def test_a_folder_that_cannot_be_written_is_named(tmp_path, capsys):
    out = tmp_path / "mine.toml"
    words = ["doctor", "--calibrate", "--stage", str(tmp_path / "absent"), "--out", str(out)]
    assert cli.main(words) == 2
    assert "absent" in capsys.readouterr().err and not out.exists()


def test_rates_have_the_size_of_what_was_moved(monkeypatch):
    """With a clock that stands still but for one second a measurement."""
    ticks = iter(range(10_000))
    monkeypatch.setattr(speed.time, "perf_counter", lambda: float(next(ticks)))
    monkeypatch.setattr(speed, "_SIDE", 64)
    monkeypatch.setattr(speed, "_COPIED", 2**20)
    assert speed.matrix_product() == 2 * 64**3
    assert speed.memory_copy() == 2 * 2**20
