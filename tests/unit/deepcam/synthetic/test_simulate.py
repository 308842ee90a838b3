"""The making of DeepCAM data sets: layout, statistics, same bytes, restart, bad settings, the picture."""

import errno
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from helpers.thread_world import on_ranks

from mlhpc.benchmarks.deepcam import Data, Simulation
from mlhpc.common.data import generate, manifest
from mlhpc.common.data.verify import verify
from mlhpc.common.host import picture
from mlhpc.common.ranks.world import Solo
from mlhpc.deepcam.synthetic import simulate as module
from mlhpc.deepcam.synthetic.show import range_of, show
from mlhpc.deepcam.synthetic.simulate import make, simulate
from mlhpc.errors import AlreadyReported, UserError


def small(**changes: object) -> Data:
    settings = {
        "train_samples": 5,
        "eval_samples": 3,
        "sample_shape": (32, 48, 16),
        "simulation": Simulation(test_samples=2),
    }
    return Data(**settings | changes)


def content(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_the_published_layout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(small(), tmp_path / "d", Solo(), workers=1)
    assert "10 samples made, 0 kept" in capsys.readouterr().out
    names = {
        folder: sorted(path.name for path in (tmp_path / "d" / folder).iterdir())
        for folder in ("train", "validation", "test")
    }
    # No sample in two folders.
    assert names == {
        "train": [f"data-{n:06d}.h5" for n in range(5)],
        "validation": [f"data-{n:06d}.h5" for n in range(5, 8)],
        "test": [f"data-{n:06d}.h5" for n in range(8, 10)],
    }
    channels, mask = simulate(Simulation(), 32, 48, 6)
    with h5py.File(tmp_path / "d/validation/data-000006.h5") as file:
        data, labels = file["climate/data"], file["climate/labels_0"]
        assert data.dtype == np.float32 and labels.dtype.kind == "i"
        assert data.chunks is None and labels.chunks is None
        assert np.array_equal(data[:], channels) and np.array_equal(labels[:], mask)


def test_statistics_are_those_of_the_training_samples(tmp_path: Path) -> None:
    make(small(), tmp_path, Solo(), workers=1)
    fields = []
    for path in sorted((tmp_path / "train").iterdir()):
        with h5py.File(path) as file:
            fields.append(file["climate/data"][:])
    everything = np.concatenate(fields).reshape(-1, 16)
    with h5py.File(tmp_path / "stats.h5") as file:
        low, high = file["climate/minval"][:], file["climate/maxval"][:]
    assert np.array_equal(low, everything.min(axis=0)) and np.array_equal(high, everything.max(axis=0))
    assert (high > low).all()


def test_the_manifest_says_what_a_run_asks_for(tmp_path: Path) -> None:
    make(small(), tmp_path, Solo(), workers=1)
    written = manifest.describe(tmp_path, Solo())
    assert written.facts["benchmark"] == "deepcam" and written.facts["sample_shape"] == [32, 48, 16]
    assert written.facts["simulation"]["seed"] == 2021 and written.facts["channels"][:2] == ["TMQ", "U850"]
    taken = manifest.take(written, train=4, validation=3)
    assert len(taken.folder("train")) == 4 and len(taken.folder("validation")) == 3
    assert not taken.folder("test") and "stats.h5" in {file.path for file in taken.files}
    with pytest.raises(UserError, match="5 samples, but 6 are needed"):
        manifest.take(written, train=6, validation=3)
    assert verify(tmp_path, 2) == []


def test_the_bytes_depend_on_neither_workers_nor_ranks(tmp_path: Path) -> None:
    data = small()
    make(data, tmp_path / "one", Solo(), workers=1)
    make(data, tmp_path / "two", Solo(), workers=2)
    outcomes = on_ranks(3, 1, lambda world: make(data, tmp_path / "ranks", world, workers=1))
    assert outcomes == [None] * 3
    assert content(tmp_path / "one") == content(tmp_path / "two") == content(tmp_path / "ranks")


def test_a_restart_keeps_what_is_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = small()
    make(data, tmp_path, Solo(), workers=1)
    before = content(tmp_path)
    gone = tmp_path / "train/data-000002.h5"
    gone.unlink()
    (tmp_path / "train/.data-000002.h5.here.1.part").write_bytes(b"of a process that was killed")
    times = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("data-*.h5")}
    capsys.readouterr()
    make(data, tmp_path, Solo(), workers=1)
    assert "1 sample made, 9 kept" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("data-*.h5") if path != gone} == times
    assert content(tmp_path) == before
    (tmp_path / "stats.h5").unlink()
    make(data, tmp_path, Solo(), workers=1)
    assert content(tmp_path) == before


def test_a_killed_making_goes_on_to_the_same_bytes(tmp_path: Path) -> None:
    data = small(train_samples=120)
    program = (
        "import sys; from pathlib import Path; from mlhpc.benchmarks.deepcam import Data;"
        "from mlhpc.common.ranks.world import Solo; from mlhpc.deepcam.synthetic.simulate import make;"
        "make(Data.model_validate_json(sys.argv[1]), Path(sys.argv[2]), Solo(), 1)"
    )
    cut_off = tmp_path / "cut off"
    victim = subprocess.Popen([sys.executable, "-c", program, data.model_dump_json(), str(cut_off)])
    try:
        while len(list(cut_off.rglob("data-*.h5"))) < 10:
            assert victim.poll() is None
            time.sleep(0.002)
    finally:
        victim.send_signal(signal.SIGKILL)
        victim.wait()
    assert 10 <= len(list(cut_off.rglob("data-*.h5"))) < 120
    make(data, cut_off, Solo(), workers=1)
    make(data, tmp_path / "whole", Solo(), workers=1)
    assert content(cut_off) == content(tmp_path / "whole")


def test_a_damaged_sample_is_named_when_statistics_are_made(tmp_path: Path) -> None:
    data = small()
    make(data, tmp_path, Solo(), workers=1)
    sample = tmp_path / "train/data-000003.h5"
    sample.write_bytes(sample.read_bytes()[:5000])
    (tmp_path / "stats.h5").unlink()
    with pytest.raises(UserError, match=r"data-000003\.h5:? .*truncated"):
        make(data, tmp_path, Solo(), workers=1)
    assert not (tmp_path / "stats.h5").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"simulation": None}, "official data set"), ({"sample_shape": (32, 48, 4)}, "must have 16 channels")],
)
def test_settings_that_do_not_fit_are_refused(
    tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        make(small(**changes), tmp_path / "d", Solo(), workers=1)
    assert not (tmp_path / "d").exists()


def test_two_data_sets_are_never_mixed(tmp_path: Path) -> None:
    make(small(), tmp_path / "d", Solo(), workers=1)
    with pytest.raises(UserError, match=r"\(simulation\); remove it, or choose another"):
        make(small(simulation=Simulation(storm_size=2)), tmp_path / "d", Solo(), workers=1)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.txt").write_text("…")
    with pytest.raises(UserError, match="not empty"):
        make(small(), tmp_path / "mine", Solo(), workers=1)


def test_a_full_disk_on_one_rank_is_an_error_on_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = module.write_sample

    def full(path: Path, *arrays: Any) -> None:
        if path.name == "data-000004.h5":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        write(path, *arrays)

    monkeypatch.setattr(module, "write_sample", full)
    outcomes = on_ranks(3, 1, lambda world: make(small(), tmp_path / "d", world, workers=1))
    assert [type(outcome) for outcome in outcomes] == [UserError, AlreadyReported, AlreadyReported]
    assert len({str(outcome) for outcome in outcomes}) == 1
    assert re.search(r"rank 1: .*data-000004\.h5 cannot be written: No space left", str(outcomes[0]))
    assert not (tmp_path / "d/stats.h5").exists() and not (tmp_path / "d/manifest.json").exists()


def test_a_full_disk_that_names_no_file_names_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write by its descriptor knows no name, and the error of HDF5 none either."""

    def full(path: Path, *arrays: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(module, "write_sample", full)
    wanted = f"{tmp_path / 'd'} cannot be written: No space left on device; check free space and permissions"
    with pytest.raises(UserError, match=f"^{re.escape(wanted)}"):
        make(small(), tmp_path / "d", Solo(), workers=1)
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(UserError, match=r"^[^:]*: Not a directory; correct this or choose another folder$"):
        make(small(), tmp_path / "file/d", Solo(), workers=1)


def _die(task: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_worker_that_is_killed_is_reported_not_waited_for() -> None:
    with pytest.raises(UserError, match=r"killed \(out of memory"):
        generate.in_processes(_die, [0, 1], 2)


def test_show_draws_a_sample_of_either_layout(tmp_path: Path) -> None:
    make(small(), tmp_path / "d", Solo(), workers=1)
    sample = tmp_path / "d/train/data-000000.h5"
    with h5py.File(sample) as file:
        np.save(tmp_path / "data-000000.npy", file["climate/data"][:])
        np.save(tmp_path / "label-000000.npy", file["climate/labels_0"][:])
    for number, path in enumerate((sample, tmp_path / "data-000000.npy")):
        show(path, tmp_path / f"{number}.png")
        assert (tmp_path / f"{number}.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    with pytest.raises(
        UserError, match=r"cannot be written: there is no folder .*no such; create it or"
    ) as said:
        show(sample, tmp_path / "no such/sample.png")
    assert "Errno" not in str(said.value)
    for name, what in (("missing.h5", "no such file"), ("missing.npy", "no such file"), ("d", "a folder")):
        with pytest.raises(UserError, match=f"{name}: {what}[^;]*; pass a file named data-"):
            show(tmp_path / name, tmp_path / "odd.png")
    with pytest.raises(UserError, match=r"odd\.h5 cannot be read"):
        (tmp_path / "odd.h5").write_text("no HDF5")
        show(tmp_path / "odd.h5", tmp_path / "odd.png")
    with pytest.raises(UserError, match=r"stats\.h5 has no dataset climate/data"):
        show(tmp_path / "d/stats.h5", tmp_path / "odd.png")
    np.save(tmp_path / "data-000000.npy", np.zeros((32, 48, 3), np.float32))
    with pytest.raises(UserError, match=r"not \[rows, columns, 16 channels\]"):
        show(tmp_path / "data-000000.npy", tmp_path / "odd.png")


def test_the_numbers_of_a_channel_say_what_they_are(tmp_path: Path) -> None:
    wind = np.array([[-30.0, 30.0], [-30.0, 30.0]], np.float32)
    assert range_of(wind) == "minimum -30, mean 0, maximum 30"
    assert range_of(wind + np.float32(1e-6) * np.sign(wind + 60)) == "minimum -30, mean 0, maximum 30"
    assert range_of(wind + 0.5) == "minimum -29.5, mean 0.5, maximum 30.5"
    rain = np.array([[0.0, 0.0], [0.0, 1e-8]], np.float32)
    assert range_of(rain) == "minimum 0, mean 2.5e-09, maximum 1e-08", "small is not rounding"


@pytest.mark.parametrize(
    "least, largest, ends", [(0, 1, "neither"), (-1, 1, "min"), (0, 2, "max"), (-1, 2, "both")]
)
def test_a_colour_bar_has_arrows_where_the_values_go_on(least: float, largest: float, ends: str) -> None:
    assert picture.extend(least, largest, 0, 1) == ends
