"""Samples in files: right values from every form of storage, one clear line for every defect."""

import hashlib
import json
import os
from pathlib import Path

import h5py
import numpy as np
import pytest
from helpers.deepcam_files import SHAPE, as_the_reference_reads, fields, mask, write_sample, write_statistics
from helpers.descriptors import open_descriptors
from helpers.limits import limited

from mlhpc.common.formats import npy
from mlhpc.deepcam.data import hdf5
from mlhpc.deepcam.data.sample import Reader, list_samples, sample_shape
from mlhpc.errors import UserError

RECORDED = json.loads((Path(__file__).parents[3] / "data/reference/readers.json").read_text())["deepcam"]


def read(path, reader=None, shape=SHAPE):
    x, y = np.full(shape, np.nan, np.float32), np.full(shape[:2], 255, np.uint8)
    size = (reader or Reader(shape, None)).read(path, x, y)
    return x, y, size


@pytest.fixture
def statistics(tmp_path):
    return write_statistics(tmp_path / "stats.h5")


@pytest.mark.parametrize("labels", ["<i8", "<i4", "<u1", ">i2", ">u8"])
@pytest.mark.parametrize("data", ["<f4", ">f4", "<f8"])
@pytest.mark.parametrize(
    "storage",
    [{}, {"chunks": True}, {"compression": "gzip", "shuffle": True}, {"userblock_size": 1024}],
    ids=["contiguous", "chunked", "gzip", "user block"],
)
def test_values_equal_the_references_bit_for_bit(tmp_path, statistics, data, labels, storage):
    path = write_sample(tmp_path / "data-0.h5", 1, fields(1).astype(data), mask(1).astype(labels), **storage)
    expected_x, expected_y = as_the_reference_reads(path, statistics)
    x, y, size = read(path, Reader(SHAPE, hdf5.read_statistics(tmp_path, 16)))
    assert np.array_equal(x, expected_x) and np.array_equal(y, expected_y)
    assert size == path.stat().st_size


@pytest.mark.parametrize("case", RECORDED)
def test_values_equal_those_that_the_reference_read_when_it_ran(tmp_path, statistics, case):
    data, labels, seed = case.split()
    seed = int(seed)
    path = write_sample(tmp_path / "a.h5", seed, fields(seed).astype(data), mask(seed).astype(labels))
    x, y, _ = read(path, Reader(SHAPE, hdf5.read_statistics(tmp_path, 16)))
    arrays = {"x": np.ascontiguousarray(x.transpose(2, 0, 1)), "y": y}
    assert {name: hashlib.sha256(array).hexdigest() for name, array in arrays.items()} == RECORDED[case]


def test_without_statistics_values_are_returned_as_stored(tmp_path):
    x, y, _ = read(write_sample(tmp_path / "data-0.h5", 3))
    assert np.array_equal(x, fields(3)) and np.array_equal(y, mask(3))


def test_a_sample_of_many_blocks_is_read_completely(tmp_path):
    """1 MiB is read at a time: here 14 rows, and the last block is smaller."""
    shape = (100, 1152, 16)
    x = fields(1, shape)
    path = write_sample(tmp_path / "data-0.h5", 1, x, mask(1, shape))
    assert np.array_equal(read(path, shape=shape)[0], x)


def test_a_layout_is_located_once_and_never_used_for_another(tmp_path, monkeypatch):
    looked_up = []
    locate = hdf5.locate
    monkeypatch.setattr(hdf5, "locate", lambda path: looked_up.append(path.name) or locate(path))
    files = {f"same{i}": write_sample(tmp_path / f"same{i}.h5", i) for i in range(3)}
    files["swapped"] = tmp_path / "swapped.h5"  # the arrays in reverse order
    with h5py.File(files["swapped"], "w") as file:
        file["climate/labels_0"], file["climate/data"] = mask(7), fields(7)
    files["big"] = write_sample(tmp_path / "big.h5", 8, fields(8).astype(">f4"))  # and of another byte order
    for path in files.values():
        os.truncate(path, 120_000)  # so that they do not differ in size
    reader = Reader(SHAPE, None)
    for name in ("same0", "same1", "swapped", "same2", "same0", "big", "same1"):
        x, y, _ = read(files[name], reader)
        with h5py.File(files[name]) as file:
            assert np.array_equal(x, file["climate/data"][:]), name
            assert np.array_equal(y, file["climate/labels_0"][:]), name
    assert looked_up == ["same0.h5", "swapped.h5", "same2.h5", "big.h5", "same1.h5"]


def test_the_library_keeps_no_file_open(tmp_path):
    path = write_sample(tmp_path / "data-0.h5", 1)
    before = open_descriptors()
    read(path)
    assert h5py.h5f.get_obj_count(h5py.h5f.OBJ_ALL, h5py.h5f.OBJ_FILE) == 0
    assert not open_descriptors() - before


def with_value(value, where=(20, 7, 5)):
    x = fields(1)
    x[where] = value
    return x


def with_label(value, dtype):
    y = mask(1).astype(dtype)
    y[20, 7] = value
    return y


def not_written(path):
    with h5py.File(path, "w") as file:
        file.create_dataset("climate/data", SHAPE, np.float32)
        file["climate/labels_0"] = mask(1)


def without_labels(path):
    with h5py.File(path, "w") as file:
        file["climate/data"] = fields(1)


def a_group_for_an_array(path):
    with h5py.File(path, "w") as file:
        file.create_group("climate/data")
        file["climate/labels_0"] = mask(1)


def truncated(path):
    os.truncate(write_sample(path, 1), 70_000)


DEFECTS = {
    "truncated": (truncated, "cannot be read: .*truncated"),
    "empty": (lambda p: p.write_bytes(b""), "cannot be read"),
    "no HDF5": (lambda p: p.write_bytes(b"GRIB" * 1000), "cannot be read: .*signature"),
    "missing": (lambda p: None, "No such file"),
    "a folder": (lambda p: p.mkdir(), "cannot be read"),
    "no labels": (without_labels, "has no dataset climate/labels_0"),
    "a group": (a_group_for_an_array, "has no dataset climate/data"),
    "not written": (not_written, "climate/data was never written"),
    "channels": (lambda p: write_sample(p, 1, fields(1)[..., :15]), "15 channels, not 16"),
    "rows": (
        lambda p: write_sample(p, 1, fields(1)[:31], mask(1)[:31]),
        r"float32 \[31, 48, 16\], expected floating point \[32, 48, 16\]; choose",
    ),
    "rows of labels": (lambda p: write_sample(p, 1, None, mask(1)[:31]), r"labels_0 is int64 \[31, 48\]"),
    "an axis too many in labels": (
        lambda p: write_sample(p, 1, None, mask(1)[..., None]),
        r"labels_0 is int64 \[32, 48, 1\], expected integers \[32, 48\]",
    ),
    "axes": (lambda p: write_sample(p, 1, fields(1)[None]), r"data is float32 \[1, 32, 48, 16\]"),
    "integers": (lambda p: write_sample(p, 1, fields(1).astype(np.int32)), "data is int32"),
    "float labels": (lambda p: write_sample(p, 1, None, mask(1) * 1.0), "labels_0 is float64"),
    "NaN": (
        lambda p: write_sample(p, 1, with_value(np.nan)),
        r"climate/data is nan in channel 5 \(QREFHT\) at row 20, column 7",
    ),
    "infinity": (lambda p: write_sample(p, 1, with_value(np.inf)), r"is inf in channel 5 \(QREFHT\)"),
    "minus infinity": (
        lambda p: write_sample(p, 1, with_value(-np.inf, (31, 47, 15))),
        r"is -inf in channel 15 \(ZBOT\) at row 31, column 47",
    ),
    "beyond float32": (
        lambda p: write_sample(p, 1, with_value(1).astype("f8") * 1e38),
        "climate/data is inf in channel",
    ),
    "NaN in chunks": (
        lambda p: write_sample(p, 1, with_value(np.nan), chunks=True),
        r"is nan in channel 5 \(QREFHT\) at row 20, column 7",
    ),
    "label 3": (lambda p: write_sample(p, 1, None, with_label(3, "i8")), "is 3 at row 20, column 7"),
    "label -1": (lambda p: write_sample(p, 1, None, with_label(-1, "i4")), "labels_0 is -1 at row 20"),
    "label 255": (lambda p: write_sample(p, 1, None, with_label(255, "u1")), "labels_0 is 255"),
    "label 2^32": (lambda p: write_sample(p, 1, None, with_label(2**32, "i8")), "labels_0 is 4294967296"),
    "label 9 in chunks": (
        lambda p: write_sample(p, 1, None, with_label(9, "i8"), chunks=True),
        "labels_0 is 9 at row 20, column 7",
    ),
}


@pytest.mark.parametrize("make, words", DEFECTS.values(), ids=DEFECTS)
def test_a_defect_is_a_one_line_error_with_the_path(tmp_path, make, words):
    path = tmp_path / "data-2.h5"
    make(path)
    reader = Reader(SHAPE, None)
    read(write_sample(tmp_path / "data-1.h5", 1), reader)  # a good one before it, whose layout is then known
    with pytest.raises(UserError, match=words) as raised:
        read(path, reader)
    assert str(raised.value).startswith((f"{path}: ", f"{path} ")) and "\n" not in str(raised.value)


def test_damage_after_the_layout_was_located_is_detected(tmp_path):
    path = write_sample(tmp_path / "data-1.h5", 1)
    reader = Reader(SHAPE, None)
    read(path, reader)
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(UserError, match=r"data-1\.h5:? .*truncated"):
        read(path, reader)


# Statistics


def test_statistics_are_found_at_the_root_or_beside_the_training_samples(tmp_path):
    (tmp_path / "train").mkdir()
    write_statistics(tmp_path / "train" / "stats.h5", np.zeros(16), np.full(16, 2.0))
    assert hdf5.read_statistics(tmp_path, 16).maximum[0] == 2
    write_statistics(tmp_path / "stats.h5", np.zeros(16), np.full(16, 3.0))
    assert hdf5.read_statistics(tmp_path, 16).maximum[0] == 3  # where the public reference reads them


def test_statistics_round_trip(tmp_path):
    written = hdf5.Statistics(np.arange(16, dtype=np.float32), np.arange(16, dtype=np.float32) + 1)
    hdf5.write_statistics(tmp_path / "stats.h5", written)
    assert all(map(np.array_equal, hdf5.read_statistics(tmp_path, 16), written))
    assert [path.name for path in tmp_path.iterdir()] == ["stats.h5"]


one = np.ones(16, np.float32)


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda p: None, "missing, and is not in train/"),
        (lambda p: p.write_bytes(b"x" * 600), "cannot be read"),
        (lambda p: write_statistics(p, names=("minval", "max")), "has no dataset climate/maxval"),
        (lambda p: write_statistics(p, one[:4], 2 * one[:4]), r"float32 \[4\], expected 16"),
        (lambda p: write_statistics(p, one.astype(int), 2 * one), r"minval is int64 \[16\]"),
        (lambda p: write_statistics(p, one, np.r_[2 * one[:9], one[9:]]), r"channel 9 \(T500\) from 1"),
        (lambda p: write_statistics(p, 2 * one, one), r"channel 0 \(TMQ\) from 2\.0 to 1\.0"),
        (lambda p: write_statistics(p, one, one * np.nan), r"channel 0 \(TMQ\) from 1\.0 to nan"),
        (lambda p: write_statistics(p, -one * np.inf, one), r"channel 0 \(TMQ\) from -inf"),
        (lambda p: write_statistics(p, 0 * one, one * 1e-45), "cannot be normalised"),
    ],
)
def test_unusable_statistics_are_refused(tmp_path, make, words):
    make(tmp_path / "stats.h5")
    with pytest.raises(UserError, match=words) as raised:
        hdf5.read_statistics(tmp_path, 16)
    assert str(raised.value).startswith(
        (f"{tmp_path}/stats.h5: ", f"{tmp_path}/stats.h5 ")
    ) and "\n" not in str(raised.value)


# .npy pairs


def write_pair(folder: Path, x, y, name="0"):
    np.save(folder / f"label-{name}.npy", y)
    np.save(path := folder / f"data-{name}.npy", x)
    return path


@pytest.mark.parametrize("data", ["<f4", ">f4", "<f8"])
def test_npy_pairs_written_by_numpy_are_read(tmp_path, data):
    stored = (fields(1) / 1e4).astype(data)
    path = write_pair(tmp_path, stored, mask(1).astype(np.uint8))
    x, y, size = read(path)
    assert np.array_equal(x, stored.astype(np.float32)) and np.array_equal(y, mask(1))
    assert size == sum(file.stat().st_size for file in tmp_path.iterdir())


def test_npy_files_are_readable_by_numpy(tmp_path):
    npy.write(tmp_path / "a.npy", fields(2))
    assert np.array_equal(np.load(tmp_path / "a.npy"), fields(2))
    np.save(tmp_path / "b.npy", fields(2))
    assert (tmp_path / "a.npy").read_bytes() == (tmp_path / "b.npy").read_bytes()
    assert npy.size(np.float32, SHAPE) == (tmp_path / "a.npy").stat().st_size


@pytest.mark.parametrize(
    "spoil, name, words",
    [
        (lambda d, m: m.unlink(), "label", "No such file"),
        (lambda d, m: os.truncate(d, d.stat().st_size - 1), "data", "truncated"),
        (lambda d, m: os.truncate(m, 50), "label", "not a .npy file"),
        (lambda d, m: d.write_bytes(b"PK" * 500), "data", "not a .npy file"),
        (lambda d, m: np.save(d, fields(1).transpose(2, 0, 1)), "data", r"\[16, 32, 48\]"),
        (lambda d, m: np.save(d, np.asfortranarray(fields(1))), "data", "Fortran"),
        (lambda d, m: np.save(d, with_value(np.nan)), "data", r"nan in channel 5 \(QREFHT\) at row 20"),
        (lambda d, m: np.save(m, with_label(3, "u1")), "label", "is 3 at row 20, column 7"),
        (lambda d, m: np.save(m, mask(1).astype(np.float32)), "label", "float32"),
        (lambda d, m: np.save(d, np.full(SHAPE, None)), "data", "object"),
    ],
)
def test_a_defect_of_a_pair_names_its_file(tmp_path, spoil, name, words):
    path = write_pair(tmp_path, fields(1), mask(1).astype(np.uint8))
    spoil(path, tmp_path / "label-0.npy")
    with pytest.raises(UserError, match=words) as raised:
        read(path)
    assert str(raised.value).startswith(
        (f"{tmp_path}/{name}-0.npy: ", f"{tmp_path}/{name}-0.npy ")
    ) and "\n" not in str(raised.value)


# Lists of samples


def test_samples_are_listed_by_name_and_other_files_ignored(tmp_path):
    for name in ("data-b.h5", "data-a.h5", "stats.h5", ".data-c.h5.host.1.part", "data-c.h5", "data.h5.bak"):
        (tmp_path / name).touch()
    assert [path.name for path in list_samples(tmp_path)] == ["data-a.h5", "data-b.h5", "data-c.h5"]
    assert [path.name for path in list_samples(tmp_path, 2)] == ["data-a.h5", "data-b.h5"]
    with pytest.raises(UserError, match="3 data-"):
        list_samples(tmp_path, 4)
    (tmp_path / "data-d.npy").touch()
    with pytest.raises(UserError, match=r"several formats, \.h5 and \.npy"):
        list_samples(tmp_path)
    with pytest.raises(UserError, match="no such folder"):
        list_samples(tmp_path / "train")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="empty: 0 data-"):
        list_samples(tmp_path / "empty")


def test_the_shape_of_a_sample_is_read_from_its_file(tmp_path):
    assert sample_shape(write_sample(tmp_path / "data-0.h5", 1)) == SHAPE
    assert sample_shape(write_pair(tmp_path, fields(1), mask(1))) == SHAPE
    with pytest.raises(UserError, match=r"data-1\.h5:? .*, not \[32, 48\]"):
        sample_shape(write_sample(tmp_path / "data-1.h5", 1, fields(1)[..., 0]))


def test_numbers_that_numpy_does_not_have_are_read_as_the_library_reads_them(tmp_path):
    biased = h5py.h5t.IEEE_F32LE.copy()
    biased.set_ebias(126)  # each number is twice what its bits are in IEEE 754
    high = h5py.h5t.STD_I64LE.copy()
    high.set_precision(48)
    high.set_offset(8)
    path = tmp_path / "data-0.h5"
    with h5py.File(path, "w") as file:
        for name, kind, values in (("data", biased, fields(1)), ("labels_0", high, mask(1).astype(np.int64))):
            group = file.require_group("climate")
            space = h5py.h5s.create_simple(values.shape)
            array = h5py.h5d.create(group.id, name.encode(), kind, space)
            array.write(h5py.h5s.ALL, h5py.h5s.ALL, values)
    x, y, _ = read(path)
    assert np.array_equal(x, fields(1)) and np.array_equal(y, mask(1))


SECRET_KINDS = ["link", "link beside", "storage", "virtual", "virtual of a file with storage elsewhere"]


@pytest.mark.parametrize("kind", SECRET_KINDS)
def test_values_in_other_files_are_refused(tmp_path, kind):
    """The library follows a virtual dataset, and the files that its sources name in turn, wherever they are."""
    folder = tmp_path / "train"
    folder.mkdir()
    secret = tmp_path / "secret.bin"
    secret.write_bytes(b"TOPSECRET" * 100_000)
    path = write_sample(folder / "data-0.h5", seed=1)
    with h5py.File(folder / "inner.h5", "w") as file:
        outside = [(str(secret), 0, h5py.h5f.UNLIMITED)]
        of = outside if kind.endswith("elsewhere") else None
        file.create_dataset("climate/data", SHAPE, np.float32, external=of)
        file["climate/data"][...] = 1 if of is None else file["climate/data"][...]
    with h5py.File(path, "a") as file:
        del file["climate/data"]
        if kind.startswith("link"):
            where = folder if kind.endswith("beside") else tmp_path
            (folder / "inner.h5").rename(where / "other.h5")
            file["climate/data"] = h5py.ExternalLink(str(where / "other.h5"), "climate/data")
        elif kind == "storage":
            file.create_dataset("climate/data", SHAPE, np.float32, external=outside)
        else:
            layout = h5py.VirtualLayout(SHAPE, np.float32)
            layout[...] = h5py.VirtualSource("inner.h5", "climate/data", SHAPE)
            file.create_virtual_dataset("climate/data", layout)
    for reader in (read, hdf5.read, hdf5.locate):
        with pytest.raises(UserError, match=r"data-0\.h5:? .* is a link to another file"):
            reader(path)


def test_arrays_larger_than_what_is_stored_of_them_are_refused_before_memory_is_allocated(tmp_path):
    path = write_sample(tmp_path / "data-0.h5", seed=1)
    with h5py.File(path, "a") as file:
        del file["climate/data"]
        file.create_dataset("climate/data", (100_000, 100_000, 16), np.float32, chunks=(64, 64, 16))
        file["climate/data"][0, 0, 0] = 1
    with h5py.File(tmp_path / "stats.h5", "w") as file:
        for name in ("climate/minval", "climate/maxval"):
            file.create_dataset(name, (10**10,), np.float32, chunks=(1000,))[0] = 1
    with limited(), pytest.raises(UserError, match=r"stores only \d+ bytes for \d+"):
        hdf5.read(path)
    with limited(), pytest.raises(UserError, match=r"stores only 4000 bytes for \d+"):
        hdf5.read_statistics(tmp_path, 16)
