import errno
import hashlib
import json
import math
import os
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
from helpers.thread_world import on_ranks
from helpers.unpacked import content

from mlhpc.common.data.manifest import index, load
from mlhpc.common.data.verify import verify
from mlhpc.common.files import atomic
from mlhpc.common.formats.tf_example import read_examples
from mlhpc.common.ranks.world import Solo, World
from mlhpc.cosmoflow.data import convert as module
from mlhpc.cosmoflow.data.codec import CODECS
from mlhpc.cosmoflow.data.convert import Division, convert, find_universes
from mlhpc.cosmoflow.data.sample import read_counts
from mlhpc.errors import UserError

SIZE, SAMPLE = 12, 4


def write_universe(path: Path, seed: int, size: int = SIZE) -> None:
    rng = np.random.default_rng(seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        file["full"] = rng.poisson(3, (size, size, size, 4)).astype(np.int16)
        file["unitPar"] = rng.uniform(-1, 1, 4).astype(np.float32)
        file["namePar"] = "published files hold more than is read"


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    for i in range(4):
        write_universe(tmp_path / "raw" / f"2168{i % 2}" / f"ics_a{i}.hdf5", seed=i)
    return tmp_path / "raw"


def run(raw: Path, out: Path, world: World | None = None, gzip: bool = True, workers: int = 2) -> None:
    convert(
        raw, out, world or Solo(), workers, sample=SAMPLE, codec="gzip" if gzip else "plain", validation=0.25
    )


def reference(path: Path, cuts: int = SIZE // SAMPLE) -> list[np.ndarray]:
    """The public reference's order (mlcommons/hpc, cosmoflow/prepare.py): np.split over three axes."""
    with h5py.File(path) as file:
        x = file["full"][:]
    return [
        xijk
        for xi in np.split(x, cuts, axis=0)
        for xij in np.split(xi, cuts, axis=1)
        for xijk in np.split(xij, cuts, axis=2)
    ]


@pytest.mark.parametrize("gzip", [False, True])
def test_samples_equal_the_references_in_order(raw: Path, tmp_path: Path, gzip: bool) -> None:
    out = tmp_path / "out"
    run(raw, out, gzip=gzip)
    seen = 0
    for universe in find_universes(raw, 0.25):
        with h5py.File(universe.path) as file:
            parameters = file["unitPar"][:]
        for i, cube in enumerate(reference(universe.path)):
            name = f"{universe.path.parent.name}_{universe.path.stem}_{i:03d}.tfrecord"
            path = out / universe.folder / name
            assert (path.read_bytes()[:2] == b"\x1f\x8b") is gzip
            ((x, y),) = read_examples(path)
            assert np.array_equal(np.frombuffer(x, "<i2").reshape(cube.shape), cube)
            assert np.array_equal(y, parameters)
            seen += 1
    assert seen == 4 * 27 == len(content(out)) - 1


def test_names_and_samples_are_those_that_the_reference_wrote_when_it_ran(raw: Path, tmp_path: Path) -> None:
    run(raw, tmp_path / "out", gzip=False)
    lines: dict[str, str] = {}
    for path in sorted((tmp_path / "out").rglob("*.tfrecord"), key=lambda path: path.name):
        ((x, _),) = read_examples(path)
        universe = path.stem.rpartition("_")[0]
        lines[universe] = lines.get(universe, "") + f"{path.stem} {hashlib.sha256(x).hexdigest()}\n"
    recorded = json.loads((Path(__file__).parents[3] / "data/reference/readers.json").read_text())[
        "cosmoflow"
    ]
    assert {name: hashlib.sha256(text.encode()).hexdigest() for name, text in lines.items()} == recorded


def test_a_missing_universe_of_the_manifest_is_named(raw: Path, tmp_path: Path) -> None:
    (raw / "README").write_text("of the site")
    index(raw, {}, Solo(), 1)
    (raw / "README").unlink()
    run(raw, tmp_path / "whole")
    gone = raw / "21681" / "ics_a3.hdf5"
    gone.unlink()
    with pytest.raises(UserError) as said:
        run(raw, tmp_path / "out")
    assert str(said.value) == f"{gone}: listed in the manifest but missing; see: mlhpc data verify {raw}"
    assert not (tmp_path / "out").exists()


def test_damage_that_only_the_manifest_shows_is_not_converted(raw: Path, tmp_path: Path) -> None:
    index(raw, {}, Solo(), 1)
    damaged = raw / "21681" / "ics_a3.hdf5"
    with h5py.File(damaged, "r+") as file:
        file["full"][3, 3, 3, 3] += 1
    with pytest.raises(UserError, match=r"ics_a3.hdf5: (checksum|\d+ bytes).*, not "):
        run(raw, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_manifest_has_the_facts(raw: Path, tmp_path: Path) -> None:
    run(raw, tmp_path / "out")
    made = load(tmp_path / "out")
    assert made.facts == {
        "benchmark": "cosmoflow",
        "samples": {"train": 81, "validation": 27},
        "sample_shape": [4, 4, 4, 4],
        "dtype": "int16",
        "codec": "gzip",
        "lossy": False,
        "gzip": True,
        "packer": "zlib",
        "made": "converted from 4 universes of 12³ voxels in raw",
    }
    assert len(made.folder("train")) == 81 and len(made.folder("validation")) == 27
    assert verify(tmp_path / "out", workers=2) == []


def test_any_number_of_ranks_and_workers_writes_the_same_bytes(raw: Path, tmp_path: Path) -> None:
    run(raw, tmp_path / "one", workers=1)
    assert on_ranks(2, 4, lambda world: run(raw, tmp_path / "eight", world, workers=3)) == [None] * 8
    assert content(tmp_path / "eight") == content(tmp_path / "one")


def test_a_second_run_keeps_complete_files(
    raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    run(raw, out)
    before = content(out)
    times = {path: path.stat().st_mtime_ns for path in out.rglob("*.tfrecord")}
    lost = sorted(times)[40]
    lost.unlink()
    slabs: list[int] = []
    real = module._read_slab

    def spy(path: Path, start: int, planes: int) -> object:
        slabs.append(start)
        return real(path, start, planes)

    monkeypatch.setattr(module, "_read_slab", spy)
    run(raw, out)
    assert content(out) == before
    assert len(slabs) == 1  # only the slab that the lost sample is in
    assert all(path.stat().st_mtime_ns == times[path] for path in times if path != lost)


def test_the_split_is_by_universe_and_fixed(raw: Path) -> None:
    universes = find_universes(raw, 0.25)
    assert [u.name for u in universes] == ["21680_ics_a0", "21680_ics_a2", "21681_ics_a1", "21681_ics_a3"]
    # Written down once: a change would move samples between training and validation.
    assert [u.name for u in universes if u.folder == "validation"] == ["21680_ics_a0"]
    assert {u.folder for u in find_universes(raw, 0)} == {"train"}
    counts = {f: sum(u.folder == "validation" for u in find_universes(raw, f)) for f in (0.01, 0.5, 0.99)}
    assert counts == {0.01: 1, 0.5: 2, 0.99: 3}
    held = [{u.name for u in find_universes(raw, f) if u.folder == "validation"} for f in (0.25, 0.5, 0.75)]
    assert held[0] < held[1] < held[2]


def test_universes_at_the_top_have_no_folder_in_their_name(tmp_path: Path) -> None:
    write_universe(tmp_path / "raw" / "u.h5", seed=1)
    run(tmp_path / "raw", tmp_path / "out")
    assert (tmp_path / "out" / "train" / "u_026.tfrecord").exists()


def damaged(raw: Path) -> None:
    os.truncate(raw / "21681" / "ics_a3.hdf5", 3000)


def of_another_size(raw: Path) -> None:
    write_universe(raw / "21681" / "ics_a3.hdf5", seed=9, size=8)


def without_parameters(raw: Path) -> None:
    with h5py.File(raw / "21681" / "ics_a3.hdf5", "a") as file:
        del file["unitPar"]


def of_another_type(raw: Path) -> None:
    with h5py.File(raw / "21681" / "ics_a3.hdf5", "a") as file:
        full = file["full"][:]
        del file["full"]
        file["full"] = full.astype(np.float32)


@pytest.mark.parametrize(
    "spoil, words",
    [
        (damaged, "cannot be read"),
        (of_another_size, r"has shape \(8, 8, 8, 4, 4\), but other universes"),
        (without_parameters, r"no 1-dimensional float32 dataset 'unitPar'"),
        (of_another_type, r"no 4-dimensional int16 dataset 'full'"),
    ],
)
def test_an_invalid_universe_is_named_on_every_rank(
    raw: Path, tmp_path: Path, spoil: Callable[[Path], None], words: str
) -> None:
    spoil(raw)
    errors = on_ranks(1, 3, lambda world: run(raw, tmp_path / "out", world))
    assert len({str(error) for error in errors}) == 1
    with pytest.raises(UserError, match=rf"21681/ics_a3\.hdf5 .*{words}"):
        raise errors[0]  # type: ignore[misc]
    assert not (tmp_path / "out").exists()


def test_an_impossible_conversion_is_a_one_line_error(raw: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(UserError, match=r"--sample 5 must divide the shape, \[12, 12, 12\] voxels"):
        convert(raw, out, Solo(), 1, sample=5, validation=0.25)
    with pytest.raises(UserError, match=r"--validation 1\.0 must be at least 0"):
        convert(raw, out, Solo(), 1, sample=SAMPLE, validation=1.0)
    with pytest.raises(UserError, match="--packer requires --codec gzip; add it"):
        convert(raw, out, Solo(), 1, codec="lut", packer="isal")
    run(raw, samples := tmp_path / "samples")
    with pytest.raises(UserError, match=r"--validation divides universes, but .*samples contains samples"):
        convert(samples, out, Solo(), 1, validation=0.5)
    assert not out.exists()
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="empty contains no raw universes"):
        run(tmp_path / "empty", out)
    with pytest.raises(UserError, match="is inside the data set to convert; choose an output folder outside"):
        run(raw, raw / "out")
    with pytest.raises(UserError, match="nowhere: no such folder"):
        run(raw / "nowhere", out)
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="Not a directory"):
        run(raw, tmp_path / "file" / "out")


def test_samples_of_another_kind_are_refused_and_not_overwritten(raw: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run(raw, out, gzip=True)
    before = content(out)
    with pytest.raises(UserError, match="a different --sample, --codec or --packer; remove it"):
        run(raw, out, gzip=False)
    with pytest.raises(UserError, match="a different --sample, --codec or --packer"):
        convert(raw, out, Solo(), 1, sample=SAMPLE, packer="isal", validation=0.25)
    with pytest.raises(UserError, match="a different --sample, --codec or --packer"):
        convert(raw, out, Solo(), 1, sample=6, validation=0.25)
    assert content(out) == before


def test_files_of_another_origin_are_detected(raw: Path, tmp_path: Path) -> None:
    (tmp_path / "out" / "train").mkdir(parents=True)
    (tmp_path / "out" / "train" / "foreign.tfrecord").write_bytes(b"?")
    with pytest.raises(UserError, match="109 files, but 108 were converted"):
        run(raw, tmp_path / "out")


def test_a_full_disk_is_a_one_line_error_with_folder_and_remedy(
    raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(fd: int, data: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(atomic, "write_all", full)
        with pytest.raises(UserError) as error:
            run(raw, out)
    assert str(error.value) == (
        f"{out} cannot be written: No space left on device; check free space and permissions"
    )
    assert content(out) == {}, "nothing half-written"


@pytest.mark.parametrize("codec", sorted(CODECS))
@pytest.mark.parametrize("source", ["universes", "gzip", "plain", "lut"])
@pytest.mark.parametrize("sample", [2, 4])
def test_every_codec_keeps_the_samples_of_every_source(
    tmp_path: Path, sample: int, source: str, codec: str
) -> None:
    """In a TFRecord, the counts of 2³ voxels begin at an odd byte, those of 4³ at an even one."""
    write_universe(tmp_path / "universes" / "u.hdf5", seed=1, size=2 * sample)
    universes, out = tmp_path / "universes", tmp_path / "out"
    if source == "universes":
        convert(universes, out, Solo(), 2, sample=sample, codec=codec)
    else:
        convert(universes, tmp_path / source, Solo(), 2, sample=sample, codec=source)
        convert(tmp_path / source, out, Solo(), 2, codec=codec)
    for number, x in enumerate(reference(universes / "u.hdf5", cuts=2)):
        assert np.array_equal(read_counts(out / "train" / f"u_{number:03}.mlc")[0], x)


@pytest.mark.parametrize(("codec", "archive"), [("lut", None), ("gzip", None), ("lut", 5)])
def test_a_file_that_a_power_cut_left_without_its_end_is_written_again(
    raw: Path, tmp_path: Path, codec: str, archive: int | None
) -> None:
    """From universes and from samples. Files are renamed when complete but never synced."""
    run(raw, tmp_path / "samples")
    sources = {"samples": tmp_path / "samples"} | ({} if archive else {"universes": raw})
    for name, source in sources.items():
        out = tmp_path / f"from {name}"

        def made(source: Path = source, out: Path = out) -> dict[str, object]:
            division: Division = {"sample": SAMPLE, "validation": 0.25} if source == raw else {}
            convert(source, out, Solo(), 2, codec=codec, archive=archive, **division)
            return content(out)

        before = made()
        empty, cut, *_ = sorted(path for path in (out / "train").iterdir())
        empty.write_bytes(b"")
        if cut.suffix != ".tfrecord":  # whose ends do not tell
            cut.write_bytes(cut.read_bytes()[:-70])
        (out / "manifest.json").unlink()
        assert made() == before


def test_a_source_of_other_things_than_files_is_one_line(tmp_path: Path) -> None:
    """A FIFO, of which a plain open would wait for a writer, and a folder, as in a data set of images."""
    for kind in (os.mkfifo, os.mkdir):
        source = tmp_path / kind.__name__
        (source / "train").mkdir(parents=True)
        kind(source / "train" / "a_000.tfrecord")
        with pytest.raises(UserError, match=r"a_000\.tfrecord cannot be read: not a regular file"):
            convert(source, tmp_path / "out", Solo(), 1)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", ["link", "storage", "virtual"])
def test_values_outside_a_universes_file_are_not_converted(raw: Path, tmp_path: Path, kind: str) -> None:
    path = raw / "21681" / "ics_a3.hdf5"
    secret = tmp_path / "secret"
    with h5py.File(path, "a") as file, h5py.File(tmp_path / "secret.h5", "w") as other:
        shape = file["full"].shape
        secret.write_bytes(b"S" * 2 * math.prod(shape))
        other["full"] = file["full"][...]
        del file["full"]
        if kind == "link":
            file["full"] = h5py.ExternalLink(str(tmp_path / "secret.h5"), "full")
        elif kind == "storage":
            file.create_dataset("full", shape, np.int16, external=[(str(secret), 0, h5py.h5f.UNLIMITED)])
        else:
            layout = h5py.VirtualLayout(shape, np.int16)
            layout[...] = h5py.VirtualSource(str(tmp_path / "secret.h5"), "full", shape)
            file.create_virtual_dataset("full", layout)
    with pytest.raises(UserError, match="link to another file"):
        run(raw, tmp_path / "out")
