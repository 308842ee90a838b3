"""Archives: whole staged runs have the losses of reading the files in place."""

import pytest
from smoke.conftest import climate_settings, mlhpc, mllog, result, trace

RUN = ("run", "deepcam", "--seed", "7")


@pytest.fixture(scope="module")
def losses(climate, tmp_path_factory):
    """Those of two ranks that read the published layout in place."""
    out = tmp_path_factory.mktemp("in-place") / "out"
    done = mlhpc(
        *RUN, "--ranks", "2", "--data", climate, "--out", out, *climate_settings("target.value=0.999")
    )
    assert done.returncode == 3, done.stderr  # it misses the target
    assert result(out)["data"]["shuffle_scope"] == "sample"
    return trace(out)


@pytest.fixture(scope="module")
def packed(climate, tmp_path_factory):
    out = tmp_path_factory.mktemp("packed") / "data"
    done = mlhpc("data", "convert", "deepcam", climate, out, "--codec", "plain", "--archive", "4")
    assert done.returncode == 0, done.stderr
    assert "as plain, 4 per archive" in done.stdout
    return out


@pytest.mark.parametrize("archived", [False, True])
def test_the_losses_are_those_of_reading_in_place(climate, packed, losses, tmp_path, archived):
    out, data = tmp_path / "out", packed if archived else climate
    options = climate_settings("target.value=0.999")
    paths = ("--data", data, "--stage", tmp_path / "stage", "--out", out)
    done = mlhpc(*RUN, "--ranks", "2", *paths, *options)
    assert done.returncode == 3, done.stderr
    assert trace(out) == losses
    record = result(out)
    staging = record["staging"]
    assert (staging["overlapped"], staging["verified"]) == (False, True)
    assert staging["files"] == (7 if archived else 19)  # 4 + 2 archives, or 13 + 5 samples; and stats.h5
    assert record["data"].get("samples_per_archive") == (4 if archived else None)
    assert not (tmp_path / "stage").exists()
    keys = [line["key"] for line in mllog(out)]
    assert ("samples_per_archive" in keys) == archived
    assert keys.index("run_start") < keys.index("staging_start") < keys.index("staging_stop")
    assert keys.count("shuffle_scope") == keys.count("staging_stop") == 1
    assert mlhpc("report", out).returncode == 0
    page = (out / "report.html").read_text()
    assert ("packed before the clock started" in page) == archived
