"""Converted data sets in whole runs."""

from pathlib import Path

import pytest
from smoke.conftest import climate_settings, mlhpc, result, trace

from mlhpc.common.data import manifest


def run(data: Path, folder: Path, *more: str) -> Path:
    """Of 5 epochs of 4 steps."""
    done = mlhpc(
        "run", "deepcam", "--seed", 7, "--data", data, "--stage", folder / "stage", "--out", folder / "out",
        *climate_settings("training.max_epochs=5", *more),
    )  # fmt: skip
    assert done.returncode in (0, 3), done.stderr
    return folder / "out"


@pytest.fixture(scope="module")
def published(climate: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(climate, tmp_path_factory.mktemp("published"))


@pytest.mark.parametrize(("codec", "loader"), [("pco", "threads"), ("zstd", "workers")])
def test_a_lossless_set_has_the_same_losses(
    climate: Path, published: Path, tmp_path: Path, codec: str, loader: str
) -> None:
    done = mlhpc("data", "convert", "deepcam", climate, tmp_path / "data", "--codec", codec)
    assert done.returncode == 0, done.stderr
    out = run(tmp_path / "data", tmp_path, f"loading.loader={loader}")
    assert trace(out) == trace(published)
    assert result(out)["data"] == {
        "codec": codec,
        "lossy": False,
        "decoder": "compiled",
        "shuffle_scope": "sample",
    }


def test_a_lossy_set_trains_and_is_said_to_be_one(climate: Path, tmp_path: Path) -> None:
    made = tmp_path / "data"
    done = mlhpc("data", "convert", "deepcam", climate, made, "--codec", "delta", "--max-error", "1e-4")
    assert done.returncode == 0, done.stderr
    out = run(made, tmp_path)
    facts = {"max_error": 1e-4, "max_error_of": "range", "decoder": "compiled", "shuffle_scope": "sample"}
    assert result(out)["data"] == {"codec": "delta", "lossy": True, **facts}
    report = mlhpc("report", out)
    told = "data by delta, lossy, error at most 0.0001 of the range"
    assert report.returncode == 0 and told in (out / "report.html").read_text()
    again = mlhpc("data", "convert", "deepcam", made, tmp_path / "again")
    assert again.returncode == 2 and "is already lossy" in again.stderr


def test_the_closed_division_takes_no_lossy_set(climate: Path, tmp_path: Path) -> None:
    from mlhpc.benchmarks import load, rules

    made = tmp_path / "data"
    mlhpc("data", "convert", "deepcam", climate, made, "--codec", "delta")
    closed = load.load("deepcam", "closed")
    violations = rules.findings(rules.RunContext(closed, facts=manifest.load(made).facts))
    assert [f.actual for f in violations if f.rule == "rules/codec"] == ["delta"]
    mlhpc("data", "convert", "deepcam", climate, tmp_path / "lossless", "--codec", "zstd")
    violations = rules.findings(rules.RunContext(closed, facts=manifest.load(tmp_path / "lossless").facts))
    assert [f for f in violations if f.rule == "rules/codec"] == []
