import hashlib
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers.thread_world import on_ranks

from mlhpc.common.ranks.world import Solo
from mlhpc.errors import UserError
from mlhpc.iobench.dataset.generate import generate, require_data
from mlhpc.iobench.dataset.layout import Layout
from mlhpc.iobench.dataset.places import RECORD
from mlhpc.iobench.definition.schema import Dataset

SMALL = Dataset(
    format="tfrecord", files=7, samples_per_file=3, sample_bytes=5000, sample_bytes_stdev=500, eval_files=2
)


def digests(root: Path) -> dict[str, str]:
    files = (path for path in root.rglob("*") if path.is_file())
    return {str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_any_number_of_ranks_and_processes_writes_the_same_bytes(tmp_path):
    generate(SMALL, tmp_path / "one", Solo(), 1)
    generate(SMALL, tmp_path / "two", Solo(), 2)
    made = on_ranks(1, 3, lambda world: generate(SMALL, tmp_path / "three", world, 1))
    assert [result.made for result in made] == [9, 9, 9]
    assert digests(tmp_path / "one") == digests(tmp_path / "two") == digests(tmp_path / "three")


def test_what_is_there_is_not_written_again(tmp_path):
    generate(SMALL, tmp_path, Solo(), 1)
    before = digests(tmp_path)
    (tmp_path / "train/00003.tfrecord").unlink()
    (tmp_path / "train/.00004.tfrecord.host.1.abcd.part").write_bytes(b"half")  # of a process that was killed
    times = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.tfrecord")}
    assert generate(SMALL, tmp_path, Solo(), 1).made == 1
    assert digests(tmp_path) == before
    assert all(path.stat().st_mtime_ns == time for path, time in times.items())


def test_sizes_have_the_stated_mean_and_spread(tmp_path):
    wide = Dataset(
        format="binary", files=200, samples_per_file=100, sample_bytes=10_000, sample_bytes_stdev=2_000
    )
    layout = Layout(tmp_path, wide)
    sizes = np.concatenate([layout.sizes("train", file) for file in range(200)])
    assert sizes.mean() == pytest.approx(10_000, abs=5 * 2_000 / np.sqrt(20_000))
    assert sizes.std() == pytest.approx(2_000, rel=0.03)
    assert not np.array_equal(layout.sizes("train", 0), layout.sizes("train", 1))


def test_a_folder_of_another_workload_is_refused(tmp_path):
    generate(SMALL, tmp_path, Solo(), 1)
    other = SMALL.model_copy(update={"sample_bytes": 6000})
    with pytest.raises(UserError, match=r"different workload \(sample_bytes is 5000, not 6000"):
        require_data(other, tmp_path)
    with pytest.raises(UserError, match="sample_bytes"):
        generate(other, tmp_path, Solo(), 1)


def test_a_data_set_with_more_files_serves_as_a_smaller_one(tmp_path):
    larger = Dataset(format="binary", files=5, sample_bytes=1000, sample_bytes_stdev=100)
    generate(larger, tmp_path, Solo(), 1)
    require_data(larger.model_copy(update={"files": 3}), tmp_path)
    # The sizes of evaluation files follow from how many training files are before them.
    evaluated = larger.model_copy(update={"files": 3, "eval_files": 2})
    generate(evaluated, tmp_path / "evaluated", Solo(), 1)
    require_data(evaluated.model_copy(update={"eval_files": 1}), tmp_path / "evaluated")
    for other in ({"files": 2, "eval_files": 2}, {"files": 4}, {"sample_bytes": 999}):
        with pytest.raises(UserError, match="data for a different workload"):
            require_data(evaluated.model_copy(update=other), tmp_path / "evaluated")


@pytest.mark.parametrize("format", ["npz", "npy", "tfrecord", "hdf5", "csv", "jpeg", "binary", "parquet"])
def test_a_truncated_or_empty_file_is_written_again_and_no_other(tmp_path, format):
    columns = {"columns": 10} if format == "csv" else {}
    dataset = Dataset(format=format, files=3, sample_bytes=5000, sample_bytes_stdev=500, **columns)
    generate(dataset, tmp_path, Solo(), 1)
    before, files = digests(tmp_path), sorted((tmp_path / "train").iterdir())
    files[0].write_bytes(files[0].read_bytes()[: files[0].stat().st_size // 2])
    files[2].write_bytes(b"")
    again = generate(dataset, tmp_path, Solo(), 1)
    assert (again.made, again.damaged) == (2, 2) and digests(tmp_path) == before
    assert generate(dataset, tmp_path, Solo(), 1).made == 0


def test_a_folder_without_all_files_is_refused(tmp_path):
    with pytest.raises(UserError, match="not a data set made by mlhpc io"):
        require_data(SMALL, tmp_path)
    generate(SMALL, tmp_path, Solo(), 1)
    require_data(SMALL, tmp_path)
    (tmp_path / "validation/00001.tfrecord").unlink()
    with pytest.raises(UserError, match="validation: 1 of 2 files are missing"):
        require_data(SMALL, tmp_path)


def test_a_foreign_folder_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("important")
    with pytest.raises(UserError, match="not empty"):
        generate(SMALL, tmp_path, Solo(), 1)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_data_set_larger_than_the_disk_is_refused_before_it_is_begun(tmp_path):
    vast = SMALL.model_copy(update={"files": 998, "samples_per_file": 10**9})
    with pytest.raises(UserError, match=r"5\.1 PB needed, but only .* free"):
        generate(vast, tmp_path / "data", Solo(), 1)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("format", ["tfrecord", "hdf5", "npz", "parquet"])
def test_a_disk_that_fills_up_is_a_line_and_leaves_no_half_file(tmp_path, format):
    """The limit on a file's size stands for the full disk: both are an error of the write."""
    code = (
        "import resource, signal, sys; from pathlib import Path\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, {resource.RLIM_INFINITY}))\n"
        "from mlhpc.common.ranks.world import Solo\n"
        "from mlhpc.iobench.definition.schema import Dataset\n"
        "from mlhpc.iobench.dataset.generate import generate\n"
        "from mlhpc.errors import UserError\n"
        f"dataset = Dataset(format={format!r}, files=3, samples_per_file=4, sample_bytes=400_000)\n"
        "try: generate(dataset, Path(sys.argv[1]), Solo(), 1)\n"
        "except UserError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=True)
    assert "cannot be written: File too large; check free space" in done.stdout, done.stderr
    assert len(done.stdout.splitlines()) == 1
    files = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert files == {RECORD}
