"""HDF5 samples to .npy pairs: the same values for any number of ranks and restarts."""

import errno
import os
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest
from helpers.deepcam_files import (
    CHANNELS,
    SHAPE,
    fields,
    make_data_set,
    mask,
    write_sample,
    write_statistics,
)
from helpers.thread_world import on_ranks

from mlhpc.common.data.manifest import index, load
from mlhpc.common.data.verify import verify
from mlhpc.common.files import atomic
from mlhpc.common.formats import npy
from mlhpc.common.ranks.world import Solo
from mlhpc.deepcam.data.convert import convert
from mlhpc.errors import UserError

LARGE = (64, 64, 16)


@pytest.fixture
def source(tmp_path):
    return make_data_set(tmp_path / "source")


def contents(root):
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_the_values_are_those_of_the_source(source, tmp_path):
    convert(source, tmp_path / "out", Solo(), 2)
    for path in source.glob("*/*.h5"):
        made = tmp_path / "out" / path.parent.name
        with h5py.File(path) as file:
            x = np.load(made / f"{path.stem}.npy")
            assert x.dtype == np.float32 and np.array_equal(x, file["climate/data"][:])
            y = np.load(made / f"{path.stem.replace('data', 'label')}.npy")
            assert y.dtype == np.uint8 and np.array_equal(y, file["climate/labels_0"][:])
    assert (tmp_path / "out/stats.h5").read_bytes() == (source / "stats.h5").read_bytes()
    assert len(list((tmp_path / "out").rglob("*.*"))) == 2 * 11 + 3
    made = load(tmp_path / "out")
    assert made.facts == {
        "benchmark": "deepcam",
        "samples": {"train": 6, "validation": 5},
        "sample_shape": list(SHAPE),
        "format": "npy",
        "dtype": "float32",
        "converted_from": "source",
        "codec": "npy",
        "lossy": False,
    }
    assert verify(tmp_path / "out", workers=1) == []


def test_any_number_of_ranks_and_workers_writes_the_same_bytes(source, tmp_path):
    convert(source, tmp_path / "one", Solo(), 1)
    assert on_ranks(2, 2, lambda world: convert(source, tmp_path / "four", world, 3)) == [None] * 4
    assert contents(tmp_path / "four") == contents(tmp_path / "one")


def test_a_second_start_converts_only_missing_files(source, tmp_path):
    out = tmp_path / "out"
    convert(source, out, Solo(), 2)
    before = contents(out)
    kept = {path: path.stat().st_ino for path in out.glob("*/*.npy")}
    lost = sorted(kept)[0], sorted(kept)[-1]  # a field and a mask
    for path in lost:
        path.unlink()
    (out / "train" / ".data-0003.npy.elsewhere.1.part").write_bytes(b"left by a killed process")
    convert(source, out, Solo(), 2)
    assert contents(out) == before
    redone = {path for path in kept if path.stat().st_ino != kept[path]}
    assert len(redone) <= 4


@pytest.mark.parametrize(
    "damaged", ["train/data-0002.h5", "npy/data-0002.npy", "npy/label-0002.npy", "stats.h5"]
)
@pytest.mark.parametrize("codec", ["npy", "zstd"])
def test_damage_that_only_the_manifest_shows_is_not_converted(source, tmp_path, damaged, codec):
    """Else the checksums of the converted files would confirm it."""
    index(source, {}, Solo(), 1)
    if damaged.startswith("npy"):
        convert(source, tmp_path / "npy", Solo(), 1)
        source, damaged = tmp_path / "npy", damaged.replace("npy/", "train/")
    content = bytearray((source / damaged).read_bytes())
    content[-1] ^= 1
    (source / damaged).write_bytes(content)
    with pytest.raises(UserError, match=f"{damaged}: checksum [0-9a-f]{{8}}, not"):
        convert(source, tmp_path / "out", Solo(), 1, codec)
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_only_replaced_source_files_are_converted_again(source, tmp_path):
    out = tmp_path / "out"
    convert(source, out, Solo(), 2)
    kept = {path: path.stat().st_ino for path in out.glob("*/*.npy")}
    replaced = source / "train" / "data-0003.h5"
    size = replaced.stat().st_size
    write_sample(replaced, seed=77)
    assert replaced.stat().st_size == size
    convert(source, out, Solo(), 2)
    pair = out / "train/data-0003.npy", out / "train/label-0003.npy"
    assert np.array_equal(np.load(pair[0]), fields(77)) and np.array_equal(np.load(pair[1]), mask(77))
    assert {path for path, inode in kept.items() if path.stat().st_ino != inode} == set(pair)
    assert verify(out, workers=1) == []


def test_complete_files_are_kept_on_a_file_system_with_whole_second_times(source, tmp_path):
    out = tmp_path / "out"
    convert(source, out, Solo(), 2)
    for path in out.glob("*/*.npy"):
        os.utime(path, (int(path.stat().st_mtime),) * 2)
    kept = {path: path.stat().st_ino for path in out.glob("*/*.npy")}
    convert(source, out, Solo(), 2)
    assert {path: path.stat().st_ino for path in kept} == kept


def test_a_full_disk_is_a_one_line_error_with_the_path(source, tmp_path, monkeypatch):
    def full(fd, data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(npy.atomic, "write_all", full)
        patch.setattr(atomic, "write_bytes", Path.write_bytes)
        with pytest.raises(UserError, match=r"data-0000\.npy cannot be written: No space left .*; free some"):
            convert(source, tmp_path / "out", Solo(), 1)
    assert not list(tmp_path.rglob("*.npy")) and not list(tmp_path.rglob("*.part"))


@pytest.mark.parametrize("codec", ["npy", "delta"])
def test_a_file_that_a_power_cut_left_without_its_end_is_written_again(source, tmp_path, codec):
    """Files get their source's time before their name, so the time says nothing of the content."""
    out = tmp_path / "out"
    convert(source, out, Solo(), 1, codec)
    before = {path: path.read_bytes() for path in out.glob("*/data-*")}
    for length, path in zip((0, 100), sorted(before), strict=False):
        times = path.stat().st_atime_ns, path.stat().st_mtime_ns
        path.write_bytes(before[path][:length])
        os.utime(path, ns=times)
    convert(source, out, Solo(), 1, codec)
    assert {path: path.read_bytes() for path in before} == before


@pytest.mark.parametrize("codec", ["npy", "npy-float16"])
def test_a_disk_that_is_full_when_the_statistics_are_written_is_a_one_line_error(
    source, tmp_path, monkeypatch, codec
):
    def full(*args):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr("mlhpc.deepcam.data.convert._copy", full)
        patch.setattr("mlhpc.deepcam.data.hdf5.write_statistics", full)
        with pytest.raises(UserError) as error:
            convert(source, out, Solo(), 1, codec)
    wanted = f"{out} cannot be written: No space left on device; check free space and permissions"
    assert str(error.value) == wanted
    assert not (out / "manifest.json").exists()


def test_float16_samples_never_mix_two_statistics(source, tmp_path):
    """As when a conversion is interrupted, the statistics are recomputed, and it is restarted."""
    out = tmp_path / "out"
    bad = source / "validation" / "data-0104.h5"
    good = bad.read_bytes()
    bad.write_bytes(b"cut off here")
    with pytest.raises(UserError, match=r"data-0104\.h5"):
        convert(source, out, Solo(), 1, "npy-float16")
    bad.write_bytes(good)
    half = contents(out)
    assert any(name.endswith(".npy") for name in half) and "manifest.json" not in half
    before = (source / "stats.h5").read_bytes()
    write_statistics(source / "stats.h5", high=np.full(CHANNELS, 1e6, np.float32))
    with pytest.raises(UserError, match=r"different settings \(statistics\); remove it"):
        convert(source, out, Solo(), 1, "npy-float16")
    assert contents(out) == half
    (source / "stats.h5").write_bytes(before)
    convert(source, out, Solo(), 1, "npy-float16")
    convert(source, tmp_path / "at once", Solo(), 1, "npy-float16")
    assert contents(out) == contents(tmp_path / "at once")


def test_facts_of_the_source_are_copied(source, tmp_path):
    (source / "manifest.json").write_text(
        '{"version": 1, "facts": {"simulation": {"seed": 7}, "samples": {"train": 6}}, "files": []}'
    )
    convert(source, tmp_path / "out", Solo(), 1)
    assert load(tmp_path / "out").facts["simulation"] == {"seed": 7}
    assert load(tmp_path / "out").facts["samples"] == {"train": 6, "validation": 5}


@pytest.mark.parametrize(
    "spoil, words",
    [
        (lambda s: (s / "stats.h5").unlink(), "stats.h5 is missing"),
        (lambda s: os.truncate(s / "train/data-0004.h5", 5000), "data-0004.h5 cannot be read"),
        (
            lambda s: write_sample(s / "validation/data-0101.h5", 1, None, mask(1) + 1),
            "data-0101.h5: climate/labels_0 is 3",
        ),
        (
            lambda s: write_sample(s / "train/data-0002.h5", 1, fields(1, LARGE), mask(1, LARGE)),
            r"data-0002.h5: .* \[64, 64, 16\]",
        ),
    ],
)
def test_every_rank_names_the_file_that_cannot_be_converted(source, tmp_path, spoil, words):
    spoil(source)
    errors = on_ranks(1, 3, lambda world: convert(source, tmp_path / "out", world, 2))
    assert len({str(error) for error in errors}) == 1
    with pytest.raises(UserError, match=words):
        raise errors[0]
    assert not list(tmp_path.rglob("*.part"))
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_a_missing_sample_of_the_manifest_is_named_before_writing(source, tmp_path):
    index(source, {}, Solo(), 1)
    shutil.rmtree(source / "validation")
    errors = on_ranks(1, 2, lambda world: convert(source, tmp_path / "out", world, 2))
    gone = source / "validation/data-0100.h5"
    assert {str(error) for error in errors} == {
        f"{gone}: listed in the manifest but missing; see: mlhpc data verify {source}"
    }
    assert not (tmp_path / "out").exists()
    make_data_set(source)
    os.truncate(source / "stats.h5", 100)
    with pytest.raises(UserError, match=r"stats\.h5: 100 bytes, expected \d+; see: mlhpc data verify"):
        convert(source, tmp_path / "out", Solo(), 1)
    assert not (tmp_path / "out").exists()


def test_other_missing_files_of_the_manifest_are_ignored(source, tmp_path):
    (source / "README").write_text("of the site")
    index(source, {}, Solo(), 1)
    (source / "README").unlink()
    convert(source, tmp_path / "out", Solo(), 1)
    assert verify(tmp_path / "out", workers=1) == []


def test_an_impossible_conversion_is_a_one_line_error(source, tmp_path):
    out = tmp_path / "out"
    for wrong, words in (
        (tmp_path / "nowhere", "no such folder"),
        (tmp_path / "empty", "has none of train, validation, test"),
    ):
        (tmp_path / "empty").mkdir(exist_ok=True)
        with pytest.raises(UserError, match=words):
            convert(wrong, out, Solo(), 1)
    assert not out.exists()
    with pytest.raises(UserError, match="is the data set to convert"):
        convert(source, source, Solo(), 1)
    with pytest.raises(UserError, match="inside the data set to convert"):
        convert(source, source / "train" / "npy", Solo(), 1)
    convert(source, out, Solo(), 1)
    convert(source, tmp_path / "half", Solo(), 1, "npy-float16")
    with pytest.raises(UserError, match=r"is already lossy \(npy-float16\)"):
        convert(tmp_path / "half", tmp_path / "again", Solo(), 1)
    before = contents(out)
    with pytest.raises(
        UserError, match=r"with different settings \(codec, dtype, lossy, statistics\); remove it, or choose"
    ):
        convert(source, out, Solo(), 1, "npy-float16")
    assert contents(out) == before
    (out / "train" / "foreign").touch()
    with pytest.raises(UserError, match="24 files, but 23 were converted"):
        convert(source, out, Solo(), 1)
