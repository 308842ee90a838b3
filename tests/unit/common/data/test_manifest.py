import errno
import json
import os
import tempfile
import tracemalloc
import zlib
from functools import partial
from pathlib import Path

import pytest
from helpers.thread_world import on_ranks
from hypothesis import given
from hypothesis import strategies as st

from mlhpc.common.data import manifest
from mlhpc.common.data.manifest import (
    File,
    Files,
    Manifest,
    describe,
    index,
    listing,
    load,
    save,
    take,
)
from mlhpc.common.data.verify import require_listed, verify
from mlhpc.common.files import atomic
from mlhpc.common.ranks import wire
from mlhpc.common.ranks.world import Solo
from mlhpc.errors import UserError


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A data set of seven files: four for training, two for validation, one outside folders."""
    root = tmp_path / "data"
    for folder, count in (("train", 4), ("validation", 2)):
        (root / folder).mkdir(parents=True)
        for i in range(count):
            (root / folder / f"{i}.tfrecord").write_bytes(bytes([i]) * (1000 * i + 1))
    (root / "stats.h5").write_bytes(b"statistics")
    (root / "train" / ".hidden").write_bytes(b"not data")
    return root


def expected(root: Path) -> list[File]:
    """Slow and obvious."""
    paths = [p for p in root.rglob("*") if p.is_file() and p.name != "manifest.json" and p.name[0] != "."]
    return sorted(
        File(str(p.relative_to(root)), len(p.read_bytes()), zlib.crc32(p.read_bytes())) for p in paths
    )


def test_index_lists_size_and_checksum_of_every_file_and_reads_back(root: Path) -> None:
    facts = {"benchmark": "b", "samples": {"train": 4, "validation": 2}}
    sizes: list[int] = []
    made = index(root, facts, Solo(), workers=3, progress=sizes.append)
    assert list(made.files) == expected(root)
    assert sorted(sizes) == sorted(file.size for file in made.files)
    assert load(root) == made == Manifest(root, made.files, facts)
    assert made.bytes == sum(sizes) and made.checked
    assert made.samples("train") == 4
    assert verify(root, workers=2) == []


def test_any_number_of_ranks_writes_the_same_manifest(root: Path) -> None:
    index(root, {"a": 1}, Solo(), workers=1)
    alone = (root / "manifest.json").read_bytes()
    (root / "manifest.json").unlink()
    made = on_ranks(2, 5, lambda world: index(root, {"a": 1}, world, workers=2))
    assert (root / "manifest.json").read_bytes() == alone
    assert made == [load(root)] * 10


def test_a_read_error_on_one_rank_is_raised_on_all(root: Path) -> None:
    (root / "train" / "dangling").symlink_to("nowhere")
    outcomes = on_ranks(1, 3, lambda world: index(root, {}, world, workers=2))
    assert all(isinstance(error, UserError) for error in outcomes)
    (message,) = {str(error) for error in outcomes}
    assert "dangling: No such file" in message
    assert not (root / "manifest.json").exists()


def test_verify_names_every_kind_of_problem(root: Path) -> None:
    index(root, {}, Solo(), workers=1)
    (root / "train/1.tfrecord").write_bytes(b"\xff" * 1001)
    (root / "train/2.tfrecord").write_bytes(b"short")
    (root / "train/3.tfrecord").unlink()
    (root / "validation/9.tfrecord").write_bytes(b"new")
    assert [str(problem).removeprefix(f"{root}/") for problem in verify(root, workers=2)] == [
        f"train/1.tfrecord: checksum {zlib.crc32(bytes([255]) * 1001):08x}, "
        f"expected {zlib.crc32(bytes([1]) * 1001):08x}",
        "train/2.tfrecord: 5 bytes, expected 2001",
        "train/3.tfrecord: missing",
        "validation/9.tfrecord: not in the manifest",
    ]


def test_without_a_manifest_names_and_sizes_are_listed(root: Path) -> None:
    manifests = on_ranks(2, 2, lambda world: describe(root, world))
    listed = listing(root, Solo())
    assert manifests == [listed] * 4
    assert [(file.path, file.size) for file in listed.files] == [file[:2] for file in expected(root)]
    assert not listed.checked
    assert listed.samples("train") == 4
    index(root, {"made": "here"}, Solo(), workers=1)
    assert on_ranks(2, 2, lambda world: describe(root, world)) == [load(root)] * 4


def test_the_data_set_of_another_benchmark_is_refused_on_all_ranks(root: Path) -> None:
    index(root, {"benchmark": "cosmoflow"}, Solo(), workers=1)
    outcomes = on_ranks(1, 2, lambda world: describe(root, world, "deepcam"))
    for outcome in outcomes:
        assert isinstance(outcome, UserError)
        assert str(outcome) == f"{root} is a data set for cosmoflow; pass one for deepcam with --data"
    assert on_ranks(1, 2, lambda world: describe(root, world, "cosmoflow")) == [load(root)] * 2


def test_a_manifest_without_checksums_keeps_them_unknown(root: Path) -> None:
    save(listing(root, Solo()))
    assert not load(root).checked
    assert verify(root, workers=1) == []


def test_a_missing_data_directory_is_a_one_line_error_on_every_rank(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "empty").mkdir()
    for name, words in (
        ("gone", "no such folder"),
        ("file", "not a folder"),
        ("empty", "contains no files; expected folders such as train/"),
    ):
        outcomes = on_ranks(1, 2, partial(describe, tmp_path / name))
        for error in outcomes:
            assert isinstance(error, UserError)
            assert str(tmp_path / name) in str(error) and words in str(error) and "\n" not in str(error)
    with pytest.raises(UserError, match=r"no manifest; make one with 'mlhpc data index .*empty'"):
        load(tmp_path / "empty")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"version": 1}',
        '{"version": 1, "facts": {}, "files": [["a", 1]]}',
        '{"version": 1, "facts": {}, "files": [["a", "1", "00"]]}',
        '{"version": 1, "facts": {}, "files": [["a", -1, "00"]]}',
        '{"version": 1, "facts": {}, "files": [["../../etc/passwd", 1, "00"]]}',
        '{"version": 1, "facts": {}, "files": [["/etc/passwd", 1, "00"]]}',
        '{"version": 1, "facts": {}, "files": [["a", 1, "no hex"]]}',
        '{"version": 1, "facts": [], "files": []}',
        '{"version": 99, "facts": {}, "files": []}',
        "\x00\x01",
        "[" * 100_000,
        '{"version": 1, "facts": {}, "files": [["a", 9223372036854775808, null]]}',
        '{"version": 1, "facts": {}, "files": [["a", true, null]]}',
        '{"version": 1, "facts": {}, "files": [["a", 1.0, null]]}',
        '{"version": 1, "facts": {}, "files": [[1, 1, null]]}',
        '{"version": 1, "facts": {}, "files": [["a", 1, 5]]}',
        '{"version": 1, "facts": {}, "files": [["a", 1, "-1"]]}',
        '{"version": 1, "facts": {}, "files": [["a", 1, "100000000"]]}',
        '{"version": 1, "facts": {}, "files": [["a\\u0000", 1, null]]}',
        '{"version": 1, "facts": {}, "files": [["\\ud800", 1, null]]}',
        '{"version": 1, "facts": {}, "files": [["a//b", 1, null]]}',
        '{"version": 1, "facts": {}, "files": [["./a", 1, null]]}',
        '{"version": 1, "facts": {}, "files": [["manifest.json", 1, null]]}',
        '{"version": 1, "facts": {}, "files": [["a", 1, null], ["a", 2, null]]}',
        '{"version": 1, "facts": {}, "files": 7}',
        '{"version": 1, "facts": {"samples": {"train": "9"}}, "files": []}',
        '{"version": 1, "facts": {"samples": [1]}, "files": []}',
        '{"version": 1, "facts": {"benchmark": 1}, "files": []}',
    ],
)
def test_a_broken_manifest_is_refused_by_name(tmp_path: Path, text: str) -> None:
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(UserError, match=r"manifest\.json: .*(again|regenerate)"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("paths", "sizes", "crc32", "words"),
    [
        (["a"], [1, 2], "00000001", "1 paths, 2 sizes and 1 checksums"),
        (["a"], [1], "00000001 00000002", "1 paths, 1 sizes and 2 checksums"),
        (["a"], [1], "0000001", "checksums|hexadecimal"),
        (["a"], [1], "0000000g", "hexadecimal"),
        (["a"], [1], ["00000001"], "not a table"),
        ("a", [1], "00000001", "not a table"),
        (["a", "a"], [1, 2], "00000001 00000001", "a is listed twice"),
        (["b", "a", "b"], [1, 1, 1], "-------- -------- --------", "b is listed twice"),
        (["a/../b"], [1], "00000001", "'a/../b' is not a path"),
        (["a/"], [1], "00000001", "'a/' is not a path"),
        (["..", "b"], [1, 1], "-------- --------", r"'\.\.' is not a path"),
        (["a", "b"], [1, -1], "-------- --------", "the size of b is -1"),
        (["a", "b"], [2**62, 2**62], "-------- --------", "the size of all is '8 EiB'"),
    ],
)
def test_columns_that_do_not_fit_are_named(tmp_path, paths, sizes, crc32, words) -> None:
    content = {"version": 2, "facts": {}, "files": {"paths": paths, "sizes": sizes, "crc32": crc32}}
    (tmp_path / "manifest.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match=rf"^\S+manifest\.json: not a valid manifest \(.*{words}.*regenerate"):
        load(tmp_path)


def test_a_manifest_that_was_cut_anywhere_is_refused_in_one_line(root: Path) -> None:
    whole = (index(root, {}, Solo(), workers=1).root / "manifest.json").read_bytes().rstrip()
    for length in range(len(whole)):
        (root / "manifest.json").write_bytes(whole[:length])
        with pytest.raises(UserError, match="regenerate it") as error:
            load(root)
        assert "\n" not in str(error.value)


def test_the_first_version_still_loads(root: Path) -> None:
    made = index(root, {"samples": {"train": 3}}, Solo(), workers=1)
    rows = [[file.path, file.size, f"{file.crc32:08x}"] for file in made.files]
    content = {"version": 1, "facts": made.facts, "files": rows}
    (root / "manifest.json").write_text(json.dumps(content))
    assert load(root) == made
    save(load(root))
    assert json.loads((root / "manifest.json").read_text())["version"] == 2 and load(root) == made


@given(
    st.lists(
        st.tuples(
            st.lists(st.text(st.characters(exclude_characters="/\0", codec="utf-8"), min_size=1), min_size=1),
            st.integers(0, 2**40),
            st.none() | st.integers(0, 2**32 - 1),
        ),
        max_size=20,
        unique_by=lambda row: "/".join(row[0]),
    )
)
def test_columns_are_the_files_that_were_written(rows) -> None:
    files = sorted(File("/".join(parts), size, crc) for parts, size, crc in rows)
    files = [f for f in files if not {".", ".."} & {*f.path.split("/")} and f.path != "manifest.json"]
    with tempfile.TemporaryDirectory() as folder:
        save(Manifest(Path(folder), Files.of(files), {}))
        read = wire.decode(wire.encode(load(Path(folder))))
    assert list(read.files) == files == [read.files[i] for i in range(len(files))]
    assert read.bytes == read.files.size == sum(file.size for file in files)
    for name in {file.folder for file in files} - {""}:
        assert list(read.folder(name)) == [file for file in files if file.path.startswith(f"{name}/")]
    assert read.files.outside().tolist() == ["/" not in file.path for file in files]
    assert list(read.files[1::2].at(slice(1, None))) == files[1::2][1:]


def test_files_are_sorted_by_path_in_any_manifest(tmp_path: Path) -> None:
    text = '{"version": 1, "facts": {}, "files": [["b", 1, null], ["a", 1, "0a"]]}'
    (tmp_path / "manifest.json").write_text(text)
    assert load(tmp_path).files == (File("a", 1, 10), File("b", 1))


def test_a_fifo_is_refused_without_hanging(root: Path) -> None:
    os.mkfifo(root / "manifest.json")
    with pytest.raises(UserError, match=r"manifest\.json cannot be read: not a regular file"):
        load(root)
    (root / "manifest.json").unlink()
    index(root, {}, Solo(), workers=1)
    (root / "train/1.tfrecord").unlink()
    os.mkfifo(root / "train/1.tfrecord")
    with pytest.raises(UserError, match=r"train/1\.tfrecord: not a regular file"):
        index(root, {}, Solo(), workers=1)


def test_take_selects_the_first_samples_of_each_folder(root: Path) -> None:
    taken = take(listing(root, Solo()), train=3, validation=1)
    assert [file.path for file in taken.files] == [
        "stats.h5",
        "train/0.tfrecord",
        "train/1.tfrecord",
        "train/2.tfrecord",
        "validation/0.tfrecord",
    ]
    assert (taken.samples("train"), taken.samples("validation")) == (3, 1)


def test_take_keeps_files_of_several_samples_whole(root: Path) -> None:
    several = index(root, {"samples": {"train": 40, "validation": 2}}, Solo(), workers=1)
    taken = take(several, train=30)
    assert len(taken.folder("train")) == 4 and taken.samples("train") == 40


def test_a_missing_file_of_the_manifest_is_named_on_all_ranks(root: Path) -> None:
    index(root, {}, Solo(), workers=1)
    (root / "train/3.tfrecord").unlink()
    whole = (root / "train/2.tfrecord").stat().st_size
    os.truncate(root / "train/2.tfrecord", whole - 1)

    def asked(*names: str) -> set[str]:
        outcomes = on_ranks(1, 3, lambda world: require_listed(root, world, 2, lambda name: name in names))
        return {str(outcome) for outcome in outcomes}

    remedy = f"see: mlhpc data verify {root}"
    gone, cut = root / "train/3.tfrecord", root / "train/2.tfrecord"
    assert asked("train/3.tfrecord") == {f"{gone}: listed in the manifest but missing; {remedy}"}
    (message,) = asked("train/2.tfrecord", "train/3.tfrecord")
    assert message.startswith(f"{cut}: ") and message.endswith(f", expected {whole}; {remedy}")
    assert asked("train/0.tfrecord") == {"None"}, "what is not asked for is not checked"
    (root / "manifest.json").unlink()
    assert asked("train/3.tfrecord") == {"None"}, "without a manifest there is nothing to check against"


def test_a_manifest_that_cannot_be_written_is_a_one_line_error_with_its_path(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(fd: int, data: memoryview) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(atomic, "write_all", full)
    with pytest.raises(UserError, match=r"data/manifest\.json cannot be written: No space left .*; check"):
        index(root, {}, Solo(), workers=1)


def test_too_few_samples_reports_both_numbers_and_a_remedy(root: Path) -> None:
    with pytest.raises(
        UserError, match=r"data/train: 4 samples, but 2,048 are needed; choose a smaller preset"
    ):
        take(listing(root, Solo()), train=2048)
    with pytest.raises(UserError, match=r"data/test: 0 samples, but 1 is needed"):
        take(listing(root, Solo()), test=1)


def test_a_hundred_thousand_files_take_little_memory(tmp_path: Path) -> None:
    names = [f"train/univ_ics_2019-03_a{i:08d}_{i % 64:03d}.tfrecord" for i in range(100_000)]
    save(Manifest(tmp_path, Files.of(File(name, 16_777_303, i) for i, name in enumerate(names)), {}))
    assert json.loads((tmp_path / manifest.NAME).read_text())["files"]["paths"] == names
    tracemalloc.start()
    try:
        loaded = load(tmp_path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert loaded.files[-1] == File(names[-1], 16_777_303, 99_999)
    assert peak < 200e6


def test_an_interrupt_as_a_file_is_created_leaves_nothing(tmp_path, monkeypatch):
    """Python acts on a signal as soon as the call ends, before its result has a name."""
    real = os.open

    def interrupted(*words):
        os.close(real(*words))
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "open", interrupted)
    with pytest.raises(KeyboardInterrupt):
        atomic.write_bytes(tmp_path / "file", b"content")
    assert not list(tmp_path.iterdir())
