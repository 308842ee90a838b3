"""Every format against the library that defines it, and what is counted against what strace would see."""

import errno
import io
import os
import re
import sys
import zlib
from importlib.metadata import metadata
from pathlib import Path

import h5py
import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from mlhpc.common.formats.tf_example import decode_features
from mlhpc.common.formats.tfrecord import read_records
from mlhpc.common.ranks.world import Solo
from mlhpc.errors import UserError
from mlhpc.iobench.dataset.content import Content
from mlhpc.iobench.dataset.generate import generate
from mlhpc.iobench.dataset.layout import Layout
from mlhpc.iobench.definition.schema import Dataset
from mlhpc.iobench.formats.access import CountedFile
from mlhpc.iobench.formats.counting import ReadStatistics
from mlhpc.iobench.formats.formats import FORMATS

MANY = ("tfrecord", "npz", "binary", "csv", "hdf5", "parquet")
ONE = ("npy", "jpeg")


def make(root: Path, format: str, **settings: object) -> Layout:
    samples = 1 if format in ONE else 4
    given = {"files": 2, "samples_per_file": samples, "sample_bytes": 50_000, "columns": 100, **settings}
    dataset = Dataset(format=format, sample_bytes_stdev=8_000, **given)
    generate(dataset, root, Solo(), 1)
    return Layout(root, dataset)


def contents(layout: Layout, file: int) -> list[bytes]:
    content = Content(layout.dataset.seed)
    sizes = layout.sizes("train", file).tolist()
    return [content.sample(file, number, size).tobytes() for number, size in enumerate(sizes)]


def read(layout: Layout, file: int, **options: object) -> tuple[list[object], ReadStatistics]:
    statistics = ReadStatistics()
    counted = CountedFile(layout.path("train", file), statistics, **options)  # type: ignore[arg-type]
    sizes = layout.sizes("train", file)
    reader = FORMATS[layout.dataset.format].open_samples(counted, sizes, layout.dataset)
    samples = [reader.read(number) for number in range(len(sizes))]
    reader.close()
    statistics.settle()
    return samples, statistics


@pytest.mark.parametrize("options", [{}, {"transfer": 4096, "streaming": True}, {"transfer": 10_000}])
@pytest.mark.parametrize("format", [*MANY, "npy"])
def test_what_is_read_is_what_was_written(tmp_path, format, options):
    layout = make(tmp_path, format)
    samples, statistics = read(layout, 1, **options)
    if format == "csv":
        assert all(np.shape(sample) == (100,) for sample in samples)
    else:
        assert [bytes(sample) for sample in samples] == contents(layout, 1)
    assert statistics.bytes >= layout.sizes("train", 1).sum()
    assert max(statistics.sizes) <= options.get("transfer", 1 << 30)


def test_other_libraries_read_the_same(tmp_path):
    for format in (*MANY, *ONE):
        layout = make(tmp_path / format, format)
        path, expected = layout.path("train", 0), contents(layout, 0)
        if format == "tfrecord":
            content = [bytes(decode_features(r, ["sample"])["sample"]) for r in read_records(path)]
        elif format == "npz":
            content, expected = [np.load(path)["x"].tobytes()], [b"".join(expected)]
        elif format == "npy":
            content = [np.load(path).tobytes()]
        elif format == "binary":
            content, expected = [path.read_bytes()], [b"".join(expected)]
        elif format == "csv":
            rows = np.loadtxt(path, delimiter=",", dtype=np.float32)
            samples, _ = read(layout, 0)
            assert rows.shape == (4, 100)
            np.testing.assert_array_equal(rows, samples)
            lengths = [len(line) + 1 for line in path.read_text().splitlines()]
            assert lengths == layout.sizes("train", 0).tolist()
            continue
        elif format == "hdf5":
            content, expected = [h5py.File(path)["samples"][:].tobytes()], [b"".join(expected)]
        elif format == "parquet":
            content = [row.as_py() for row in pq.read_table(path)["sample"]]
        else:
            (sample,), _ = read(layout, 0)
            assert path.stat().st_size == layout.sizes("train", 0)[0]
            np.testing.assert_array_equal(np.asarray(Image.open(path)), sample)
            continue
        assert content == expected, format


@pytest.mark.parametrize("size", [1024, 1025, 1027, 5000, 65_535, 65_541, 200_003])
def test_a_jpeg_has_exactly_the_size_asked_for(size):
    from mlhpc.iobench.formats.jpeg import picture

    encoded = picture(Content(3).sample(0, 0, size))
    assert len(encoded) == size
    assert Image.open(io.BytesIO(encoded)).convert("RGB").size[0] >= 8


@pytest.mark.parametrize("filter", ["gzip", "lzf"])
def test_hdf5_filters_and_chunks_are_the_stated_ones(tmp_path, filter):
    layout = make(tmp_path, "hdf5", chunk_bytes=8192, compression=filter, compression_level=3)
    with h5py.File(layout.path("train", 0)) as file:
        stored = file["samples"]
        assert (stored.chunks, stored.compression) == ((8192,), filter)
        assert stored.compression_opts == (3 if filter == "gzip" else None)
    assert [bytes(s) for s in read(layout, 0)[0]] == contents(layout, 0)


def test_a_gzip_tfrecord_is_one_gzip_stream(tmp_path):
    layout = make(tmp_path, "tfrecord", compression="gzip")
    assert zlib.decompress(layout.path("train", 0).read_bytes(), 31)
    assert [bytes(s) for s in read(layout, 0)[0]] == contents(layout, 0)


@pytest.mark.parametrize("format", [*MANY, *ONE])
def test_a_damaged_file_is_a_line(tmp_path, format):
    layout = make(tmp_path, format)
    path = layout.path("train", 0)
    data = bytearray(path.read_bytes())
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(UserError, match=str(path)):
        read(layout, 0)
    path.unlink()
    with pytest.raises(UserError, match=r"cannot be opened: No such file"):
        read(layout, 0)


@pytest.mark.parametrize("format", ["tfrecord", "npz"])
def test_a_flipped_bit_is_found(tmp_path, format):
    layout = make(tmp_path, format)
    path = layout.path("train", 0)
    data = bytearray(path.read_bytes())
    data[20_000] ^= 1
    path.write_bytes(data)
    with pytest.raises(UserError, match=r"checksum|damaged"):
        read(layout, 0)


@pytest.mark.parametrize(
    ("name", "package", "imported"),
    [("hdf5", "h5py", "h5py"), ("jpeg", "pillow", "PIL"), ("parquet", "pyarrow", "pyarrow")],
)
def test_a_missing_library_is_a_line_with_the_extra_that_has_it(monkeypatch, name, package, imported):
    monkeypatch.setitem(sys.modules, imported, None)
    with pytest.raises(UserError, match=f"{name}: {package} is n") as error:
        FORMATS[name].load()
    extra = re.search(r"\[(\w+)\]", str(error.value))[1]
    required = metadata("mlhpc").get_all("Requires-Dist")
    assert any(each.startswith(package) and each.endswith(f'extra == "{extra}"') for each in required)


def test_a_library_that_cannot_be_loaded_is_a_line_with_its_reason(monkeypatch, tmp_path):
    """As h5py on a node without the MPI library it was built with."""
    (tmp_path / "h5py.py").write_text("raise ImportError('libmpi.so.40: cannot open shared object file')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "h5py")
    with pytest.raises(UserError, match=r"h5py cannot be loaded \(libmpi\.so\.40: cannot open"):
        FORMATS["hdf5"].load()


def counted(path: Path, reads: list[tuple[int, int]], **options: object) -> ReadStatistics:
    statistics = ReadStatistics()
    file = CountedFile(path, statistics, **options)  # type: ignore[arg-type]
    for offset, length in reads:
        assert file.read(offset, length).tobytes() == path.read_bytes()[offset : offset + length]
    file.close()
    statistics.settle()
    return statistics


@pytest.fixture
def numbers(tmp_path):
    path = tmp_path / "numbers"
    path.write_bytes(os.urandom(100_000))
    return path


def test_sequential_and_consecutive_reads_are_told_apart(numbers):
    # As Darshan defines them: 100..200 follows 0..100 directly, 500 is further on, 0 is behind.
    statistics = counted(numbers, [(0, 100), (100, 100), (500, 100), (0, 100)])
    assert (statistics.follow_ups, statistics.sequential, statistics.consecutive) == (3, 2, 1)
    assert (statistics.calls, statistics.bytes) == (4, 400)


def test_a_stream_reads_in_transfers_only(numbers):
    small = [(at, 700) for at in range(0, 99_400, 700)]
    statistics = counted(numbers, small, transfer=8192, streaming=True)
    assert statistics.calls == -(-100_000 // 8192)
    assert statistics.bytes == 100_000
    assert set(statistics.sizes) == {8192, 100_000 % 8192}


def test_exact_reads_are_cut_into_transfers(numbers):
    statistics = counted(numbers, [(50_000, 10_000)], transfer=4096)
    assert dict(statistics.sizes) == {4096: 2, 10_000 - 8192: 1}


def test_direct_reads_are_aligned_and_right(numbers):
    try:
        os.close(os.open(numbers, os.O_RDONLY | os.O_DIRECT))
    except OSError:
        pytest.fail("the folder of temporary files has no O_DIRECT: set TMPDIR to one on a disk")
    statistics = counted(numbers, [(5000, 10_000), (99_999, 1), (0, 100_000)], direct=True, transfer=8192)
    assert all(size % 4096 == 0 for size in statistics.sizes)


def test_a_direct_read_that_fails_is_one_line_and_the_file_can_be_closed(numbers, monkeypatch):
    file = CountedFile(numbers, ReadStatistics(), direct=True)

    def failing(fd, buffers, offset):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "preadv", failing)
    with pytest.raises(UserError, match="cannot be read: Input/output error; check the data folder"):
        try:
            file.read(0, 10)
        finally:
            file.close()


def test_events_are_kept_when_traced(numbers):
    statistics = ReadStatistics(events=[])
    file = CountedFile(numbers, statistics)
    file.read(10, 20)
    file.close()
    statistics.settle()
    assert statistics.events is not None
    assert [(event.offset, event.size) for event in statistics.events] == [(10, 20)]
