import errno
import os
import resource
import shutil
import socket
import subprocess
import sys
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.thread_world import on_ranks
from hypothesis import given
from hypothesis import strategies as st

from mlhpc.common.data.manifest import File, Manifest, index, listing, load, save, verify
from mlhpc.common.data.partition import balance, files_of_node
from mlhpc.common.files import atomic
from mlhpc.common.files.filesystem import FileSystem, filesystem_of
from mlhpc.common.ranks.world import Solo
from mlhpc.common.staging import copier
from mlhpc.common.staging import stage as module
from mlhpc.common.staging.copier import BLOCK
from mlhpc.common.staging.ring import Share
from mlhpc.common.staging.stage import StagingReport, remove, remove_after_abort, stage
from mlhpc.common.staging.target import StagingGroup, names_job
from mlhpc.errors import UserError

SIZES = [3_000_000, 0, 1, 2_097_152, 2_097_153, 70_000, 70_000, 5]


@pytest.fixture
def source(tmp_path: Path) -> Manifest:
    """Sixteen files of awkward sizes in two folders, one file outside, and a manifest."""
    root = tmp_path / "source"
    rng = np.random.default_rng(3)
    for folder in ("train", "validation"):
        (root / folder).mkdir(parents=True)
        for i, size in enumerate(SIZES):
            (root / folder / f"{i}.tfrecord").write_bytes(rng.bytes(size))
    (root / "stats.h5").write_bytes(b"statistics")
    return index(root, {"benchmark": "b", "samples": {"train": 8, "validation": 8}}, Solo(), workers=2)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "target"


def contents(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file() and path.name != "manifest.json" and not path.name.startswith((".use.", ".lock"))
    }


# The plan


@given(
    st.lists(st.integers(0, 10**7), max_size=300),
    st.one_of(st.integers(1, 1024), st.sampled_from([1, 2, 3, 1024])),
)
def test_bins_differ_by_one_file_and_by_at_most_the_largest(sizes: list[int], bins: int) -> None:
    bin_of = balance(sizes, bins)
    counts = np.bincount(bin_of, minlength=bins)
    sums = np.bincount(bin_of, weights=sizes, minlength=bins) if sizes else np.zeros(bins)
    assert len(counts) == bins
    assert counts.max() - counts.min() <= 1
    assert sums.max() - sums.min() <= max(sizes, default=0)


def groups_of(nodes: int, local_size: int) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(range(n * local_size, (n + 1) * local_size)) for n in range(nodes))


def shares_of(
    files: list[File],
    node: int,
    groups: tuple[tuple[int, ...], ...],
    mode: module.Mode,
    read_once: bool = False,
) -> list[Share]:
    group = StagingGroup(groups[node], False, False, groups)
    held = files_of_node(files, node, len(groups), mode)
    return [module._share_of_rank(files, held, rank, group, mode, read_once) for rank in group.members]


def files_of(folders: dict[str, list[int]]) -> list[File]:
    return sorted(
        File(f"{name}/{i:04d}" if name else f"{i:04d}", size, i)
        for name, sizes in folders.items()
        for i, size in enumerate(sizes)
    )


@given(
    st.dictionaries(
        st.sampled_from(["", "train", "train/deep", "validation", "test"]),
        st.lists(st.sampled_from([0, 1, 10, 1000, 1001, 10**6]), max_size=40),
        max_size=5,
    ),
    st.one_of(st.integers(1, 12), st.sampled_from([64, 1023, 1024])),
    st.integers(1, 8),
    st.sampled_from(["replicate", "shard"]),
)
def test_every_file_goes_exactly_once_where_it_should(
    folders: dict[str, list[int]], nodes: int, local_size: int, mode: module.Mode
) -> None:
    files = files_of(folders)
    outside = {file for file in files if "/" not in file.path}
    everywhere: Counter[File] = Counter()
    held: dict[str, list[int]] = {}
    groups = groups_of(nodes, local_size)
    for node in range(nodes):
        shares = [share.alone for share in shares_of(files, node, groups, mode)]
        on_node = Counter(file for share in shares for file in share)
        assert set(on_node.values()) <= {1}
        assert sorted(on_node) == files_of_node(files, node, nodes, mode)
        loads = [sum(file.size for file in share) for share in shares]
        assert max(loads) - min(loads) <= max((file.size for file in on_node), default=0)
        everywhere += on_node
        for folder in {file.path.partition("/")[0] for file in set(files) - outside}:
            held.setdefault(folder, []).append(sum(f.path.startswith(f"{folder}/") for f in on_node))
    for file in files:
        assert everywhere[file] == (nodes if mode == "replicate" or file in outside else 1)
    if mode == "shard":
        assert all(max(counts) - min(counts) <= 1 for counts in held.values())


@given(
    st.lists(st.sampled_from([0, 1, 1000, 10**6]), max_size=30),
    st.integers(2, 6),
    st.integers(1, 4),
    st.sampled_from(["replicate", "shard"]),
)
def test_read_once_reads_what_all_nodes_hold_on_one_of_them(
    sizes: list[int], nodes: int, local_size: int, mode: module.Mode
) -> None:
    files = files_of({"": sizes, "train": sizes})
    groups = groups_of(nodes, local_size)
    read: Counter[File] = Counter()
    for node in range(nodes):
        shares = shares_of(files, node, groups, mode, read_once=True)
        on_node = Counter(file for share in shares for file in (*share.alone, *share.passed))
        assert set(on_node.values()) <= {1}
        assert sorted(on_node) == files_of_node(files, node, nodes, mode)
        for share in shares:
            read.update(share.alone)
            read.update(file for file, by in zip(share.passed, share.readers, strict=True) if by == node)
    assert sorted(read.elements()) == sorted(files)  # each once, by all nodes together


def test_a_hundred_thousand_files_are_planned_for_1024_nodes() -> None:
    rng = np.random.default_rng(0)
    files = [File(f"train/{i:07d}", int(size), i) for i, size in enumerate(rng.integers(3e6, 4e6, 100_000))]
    groups = groups_of(1024, 1)
    shares = [shares_of(files, node, groups, "shard")[0].alone for node in (0, 511, 1023)]
    counts = [len(share) for share in shares]
    assert set(counts) <= {97, 98}
    assert len({file for share in shares for file in share}) == sum(counts)


# Copying


def test_one_rank_gets_the_whole_data_set(source: Manifest, target: Path) -> None:
    report = stage(source, target, Solo(), "replicate", workers=3)
    assert contents(target) == contents(source.root)
    assert verify(target, workers=1) == []
    filesystem = filesystem_of(target)
    assert report == StagingReport(
        files=17,
        bytes=source.bytes,
        seconds=report.rank_seconds[0],
        slowest_rank=0,
        mode="replicate",
        target_filesystem=filesystem.type,
        target_is_ram=filesystem.is_ram,
        kept=0,
        verified=True,
        rank_seconds=report.rank_seconds,
        source_bytes=source.bytes,
    )
    assert report.megabytes_per_second == pytest.approx(source.bytes / 1e6 / report.seconds)
    # The keys that docs/architecture.md promises for result.json.
    assert set(asdict(report)) >= {
        *("files", "bytes", "seconds", "slowest_rank", "mode"),
        *("target_filesystem", "target_is_ram"),
    }


@pytest.mark.parametrize("mode", ["replicate", "shard"])
def test_nodes_with_storage_of_their_own(source: Manifest, tmp_path: Path, mode: module.Mode) -> None:
    nodes, local = 3, 2
    reports = on_ranks(
        nodes, local, lambda world: stage(source, tmp_path / f"node{world.node}", world, mode, workers=2)
    )
    report = reports[0]
    assert isinstance(report, StagingReport) and reports == [report] * 6
    whole, held = contents(source.root), [contents(tmp_path / f"node{node}") for node in range(nodes)]
    for node, files in enumerate(held):
        assert sorted(files) == [file.path for file in files_of_node(source.files, node, nodes, mode)]
        assert all(files[path] == whole[path] for path in files)
        assert verify(tmp_path / f"node{node}", workers=1) == []
    assert report.files == sum(map(len, held))
    assert report.bytes == sum(len(content) for files in held for content in files.values())
    assert set().union(*held) == set(whole)
    if mode == "shard":
        assert report.files == len(whole) + 2  # stats.h5 is on each of the three


def test_nodes_that_share_the_target_copy_each_file_once(source: Manifest, target: Path) -> None:
    reports = on_ranks(3, 2, lambda world: stage(source, target, world, "replicate"))
    assert all(isinstance(report, StagingReport) and report.files == 17 for report in reports)
    assert contents(target) == contents(source.root)


def test_shards_need_storage_of_each_nodes_own(source: Manifest, target: Path) -> None:
    errors = on_ranks(3, 1, lambda world: stage(source, target, world, "shard"))
    assert all("nodes 0 and 1 see the same folder" in str(error) for error in errors)
    assert contents(target) == {}


def test_without_checksums_sizes_are_held_and_the_report_says_so(source: Manifest, target: Path) -> None:
    (source.root / "manifest.json").unlink()
    found = listing(source.root, Solo())
    assert not stage(found, target, Solo(), "replicate").verified
    assert contents(target) == contents(source.root)
    assert stage(found, target, Solo(), "replicate").files == 0
    changed = source.root / "train" / "5.tfrecord"
    changed.write_bytes(b"\0" * 70_000)  # as big as before, but newer
    assert stage(found, target, Solo(), "replicate").files == 1
    assert contents(target) == contents(source.root)


# Going on after an interruption


def test_a_second_staging_copies_only_what_is_missing(
    source: Manifest, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied: list[str] = []
    real = copier._copy

    def spy(file: File, *rest: Any) -> None:
        if len(copied) == 5:
            raise OSError(errno.EIO, "pulled the plug")
        copied.append(file.path)
        real(file, *rest)

    monkeypatch.setattr(copier, "_copy", spy)
    with pytest.raises(UserError, match="pulled the plug"):
        stage(source, target, Solo(), "replicate", workers=1)
    monkeypatch.setattr(copier, "_copy", real)
    assert sorted(contents(target)) == sorted(copied) and len(copied) == 5
    cut = next(path for path in copied if (target / path).stat().st_size > 10)
    os.truncate(target / cut, 10)
    report = stage(source, target, Solo(), "replicate", workers=1)
    assert (report.files, report.kept) == (13, 4)
    assert contents(target) == contents(source.root)
    second = stage(source, target, Solo(), "replicate")
    assert (second.files, second.bytes, second.kept, second.megabytes_per_second) == (0, 0, 17, 0)


def test_a_present_file_is_checksummed_before_it_is_called_verified(source: Manifest, target: Path) -> None:
    stage(source, target, Solo(), "replicate")
    victim = target / "train" / "0.tfrecord"
    with victim.open("r+b") as file:
        file.seek(1_000_000)
        file.write(b"not what was staged")
    report = stage(source, target, Solo(), "replicate")
    assert (report.files, report.kept, report.verified) == (1, 16, True)
    assert contents(target) == contents(source.root)


def test_other_nodes_next_time_leave_no_file_of_the_last(source: Manifest, tmp_path: Path) -> None:
    def work(world: Any) -> StagingReport:
        return stage(source, tmp_path / f"node{world.node}", world, "shard")

    on_ranks(2, 1, work)
    reports = on_ranks(4, 1, work)
    assert isinstance(reports[0], StagingReport) and reports[0].kept > 0
    for node in range(4):
        wanted = [file.path for file in files_of_node(source.files, node, 4, "shard")]
        assert sorted(contents(tmp_path / f"node{node}")) == wanted


def test_what_a_killed_process_left_is_swept_and_what_a_live_one_writes_is_not(
    source: Manifest, target: Path
) -> None:
    stage(source, target, Solo(), "replicate")
    (target / "train" / "0.tfrecord").unlink()
    dead = target / "train" / ".0.tfrecord.host.1.part"
    dead.write_bytes(b"half")
    with atomic.writing(target / "train" / "other") as fd:
        os.write(fd, b"alive")
        stage(source, target, Solo(), "replicate")
        assert not dead.exists()
    assert (target / "train" / "other").read_bytes() == b"alive"


def test_a_killed_staging_leaves_no_file_that_is_not_whole(source: Manifest, target: Path) -> None:
    """A process is killed in the middle of its sixth write; names without .part must be complete files."""
    program = (
        "import sys, time\n"
        "from itertools import count\n"
        "from pathlib import Path\n"
        "from mlhpc.common.data import manifest\n"
        "from mlhpc.common.files import atomic\n"
        "from mlhpc.common.staging import stage\n"
        "from mlhpc.common.ranks.world import Solo\n"
        "real, number = atomic.write_all, count(1)\n"
        "def slow(fd, data):\n"
        "    last = next(number) == 6\n"
        "    real(fd, data[: len(data) // 2] if last else data)\n"
        "    if last:\n"
        "        print('half', flush=True); time.sleep(600)\n"
        "    time.sleep(0.05)\n"
        "atomic.write_all = slow\n"
        "stage.stage(manifest.load(Path(sys.argv[1])), Path(sys.argv[2]), Solo(), 'replicate', workers=2)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(source.root), str(target)], stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert b"half\n" in process.stdout
    process.kill()
    process.wait()
    process.stdout.close()
    whole = contents(source.root)
    left = contents(target)
    assert any(name.endswith(".part") for name in left)
    assert all(content == whole[name] for name, content in left.items() if not name.endswith(".part"))
    stage(source, target, Solo(), "replicate")
    assert contents(target) == whole


# Removal


def test_remove_takes_what_staging_put_there_and_nothing_else(source: Manifest, target: Path) -> None:
    (target / "train").mkdir(parents=True)
    (target / "train" / "mine").write_bytes(b"the user's")
    stage(source, target, Solo(), "replicate")
    remove(target)
    assert [str(path.relative_to(target)) for path in sorted(target.rglob("*"))] == ["train", "train/mine"]


def test_remove_takes_the_folder_that_staging_made(source: Manifest, target: Path) -> None:
    stage(source, target, Solo(), "replicate")
    stage(source, target, Solo(), "replicate")  # the second finds it there; the first made it
    remove(target)
    assert not target.exists()


def test_remove_refuses_a_data_set_that_was_not_staged(source: Manifest) -> None:
    before = contents(source.root)
    with pytest.raises(UserError, match="not put there by staging"):
        remove(source.root)
    assert contents(source.root) == before


# Runs that share a target

SHARER = """\
import sys, time
from pathlib import Path
from mlhpc.common.data import manifest
from mlhpc.common.files import atomic
from mlhpc.common.staging import stage
from mlhpc.common.ranks.world import Solo
source, target, pause = Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3])
real = atomic.write_all
def slow(fd, data):
    real(fd, data); print('writing', flush=True); time.sleep(pause)
if pause:
    atomic.write_all = slow
report = stage.stage(manifest.load(source), target, Solo(), 'replicate', workers=1)
print('staged', report.files, report.kept, report.shared, flush=True)
sys.stdin.readline()
stage.remove(target)
print('removed', flush=True)
"""


@contextmanager
def sharer(source: Manifest, target: Path, pause: float = 0) -> Iterator[subprocess.Popen[str]]:
    """A run that stages, uses what it staged until its input ends, and removes it."""
    words = [sys.executable, "-c", SHARER, str(source.root), str(target), str(pause)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as run:
        yield run
        run.kill()


def line_of(run: subprocess.Popen[str], word: str) -> str:
    assert run.stdout is not None
    while line := run.stdout.readline():
        if line.startswith(word):
            return line.strip()
    raise AssertionError(f"it ended without printing {word!r}")


def end(run: subprocess.Popen[str]) -> None:
    assert run.stdin is not None
    run.stdin.write("\n")
    run.stdin.flush()
    line_of(run, "removed")
    assert run.wait() == 0


def test_of_runs_that_share_a_target_one_copies_and_the_last_removes(source: Manifest, target: Path) -> None:
    with sharer(source, target, pause=0.02) as one:
        line_of(one, "writing")
        with sharer(source, target) as other:  # it comes while the first copies
            assert line_of(one, "staged") == "staged 17 0 0"
            assert line_of(other, "staged") == "staged 0 17 17"
            end(one)
            assert contents(target) == contents(source.root)
            end(other)
    assert not target.exists()


def test_a_run_that_dies_does_not_keep_the_target_for_ever(source: Manifest, target: Path) -> None:
    with sharer(source, target) as one, sharer(source, target) as other:
        line_of(one, "staged")
        line_of(other, "staged")
        one.kill()
        one.wait()
        end(other)
    assert not target.exists()


def test_what_no_run_uses_any_more_is_kept_and_not_shared(source: Manifest, target: Path) -> None:
    with sharer(source, target) as one:
        line_of(one, "staged")
        one.kill()
        one.wait()
    report = stage(source, target, Solo(), "replicate")
    assert (report.files, report.kept, report.shared) == (0, 17, 0)


def test_a_part_that_another_run_uses_is_not_taken_from_it(source: Manifest, tmp_path: Path) -> None:
    with sharer(source, tmp_path / "node0") as one:
        line_of(one, "staged")
        outcomes = on_ranks(2, 1, lambda w: stage(source, tmp_path / f"node{w.node}", w, "shard"))
        fails_alike(outcomes, "node0: another run uses another part of the data set")
        assert contents(tmp_path / "node0") == contents(source.root)
        end(one)


def test_many_runs_that_share_two_nodes_all_come_through(source: Manifest, tmp_path: Path) -> None:
    """Each takes both nodes' targets, in different orders: none may wait for another forever."""
    program = (
        SHARER.split("real =")[0]
        + """
from helpers.thread_world import on_ranks
flip = int(pause)
def work(world):
    return stage.stage(manifest.load(source), target / f"node{world.node ^ flip}", world, "replicate")
reports = on_ranks(2, 1, work)
print('staged', *(report.files + report.kept for report in reports), flush=True)
"""
    )
    words = [sys.executable, "-c", program, str(source.root), str(tmp_path)]
    path = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}
    runs = [
        subprocess.Popen([*words, str(n % 2)], stdout=subprocess.PIPE, text=True, env=path) for n in range(4)
    ]
    assert [run.communicate(timeout=120)[0].strip() for run in runs] == ["staged 34 34"] * 4
    assert contents(tmp_path / "node0") == contents(tmp_path / "node1") == contents(source.root)


# What goes wrong


def fails_alike(outcomes: list[Any], *words: str) -> None:
    assert all(isinstance(error, UserError) for error in outcomes), outcomes
    (message,) = {str(error) for error in outcomes}
    assert "\n" not in message
    for word in words:
        assert word in message


def no_parts(target: Path) -> bool:
    return not [name for name in contents(target) if name.endswith((".part", ".probe"))]


@pytest.mark.parametrize(
    "spoil, words",
    [
        (lambda path: path.unlink(), ["3.tfrecord: cannot be read: No such file"]),
        (lambda path: os.truncate(path, 9), ["3.tfrecord: 9 bytes, expected 2097152"]),
        (lambda path: path.write_bytes(b"\1" * 2_097_152), ["3.tfrecord: checksum", "expected"]),
    ],
)
def test_a_source_that_is_not_as_the_manifest_says_fails_every_rank_alike(
    source: Manifest, target: Path, spoil: Any, words: list[str]
) -> None:
    spoil(source.root / "validation" / "3.tfrecord")
    outcomes = on_ranks(1, 4, lambda world: stage(source, target, world, "replicate", workers=2))
    fails_alike(outcomes, *words, str(source.root), f"see: mlhpc data verify {source.root}", "rank ")
    assert no_parts(target)
    assert "validation/3.tfrecord" not in contents(target)


@pytest.mark.parametrize("change", [-1, +5])
def test_a_source_that_changes_while_it_is_copied_is_named(
    source: Manifest, target: Path, monkeypatch: pytest.MonkeyPatch, change: int
) -> None:
    victim = source.root / "train" / "0.tfrecord"
    real = atomic.write_all

    def meddle(fd: int, data: memoryview) -> None:
        real(fd, data)
        if len(data) == BLOCK and victim.stat().st_size == 3_000_000:
            os.truncate(victim, 3_000_000 + change)

    monkeypatch.setattr(atomic, "write_all", meddle)
    with pytest.raises(
        UserError, match=r"train/0\.tfrecord: changed while it was copied, byte \d+ of 3000000"
    ):
        stage(replace(source, files=source.folder("train")[:1]), target, Solo(), "replicate")
    assert contents(target) == {}


def test_a_full_file_system_is_refused_before_the_first_byte(
    source: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def small(path: Path) -> FileSystem:
        return FileSystem("tmpfs", Path("/local"), True, 5_000_000 if "node1" in str(path) else 10**12)

    monkeypatch.setattr(module, "filesystem_of", small)
    outcomes = on_ranks(2, 2, lambda w: stage(source, tmp_path / f"node{w.node}", w, "replicate"))
    fails_alike(outcomes, "node1: staging needs 14.7 MB, tmpfs on /local has 5 MB free (it is memory)")
    assert contents(tmp_path / "node0") == contents(tmp_path / "node1") == {}


def test_what_is_there_already_needs_no_room(
    source: Manifest, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage(source, target, Solo(), "replicate")
    (target / "train" / "5.tfrecord").unlink()
    monkeypatch.setattr(module, "filesystem_of", lambda path: FileSystem("ext4", Path("/"), False, 80_000))
    assert stage(source, target, Solo(), "replicate").files == 1


def test_a_write_that_fails_midway_leaves_no_half_file(source: Manifest, target: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000, hard))
    try:
        with pytest.raises(
            UserError, match=r"target/.*/0\.tfrecord: cannot be written: File too large; free"
        ):
            stage(source, target, Solo(), "replicate", workers=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert no_parts(target)
    assert "train/0.tfrecord" not in contents(target)


def test_a_disk_that_fills_midway_is_named_with_what_is_left(
    source: Manifest, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, written = atomic.write_all, [0]

    def full(fd: int, data: memoryview) -> None:
        written[0] += len(data)
        if written[0] > 4_000_000:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(fd, data)

    def stage_on_full_disk(world: Any) -> StagingReport:
        return stage(source, target, world, "replicate", workers=2)

    monkeypatch.setattr(atomic, "write_all", full)
    fails_alike(on_ranks(1, 2, stage_on_full_disk), "No space left on device (", " free); free some space")
    assert no_parts(target)
    monkeypatch.setattr(atomic, "write_all", real)
    report = on_ranks(1, 2, stage_on_full_disk)[0]
    assert isinstance(report, StagingReport)
    assert report.kept + report.files == 17
    assert contents(target) == contents(source.root)


def test_a_real_full_disk(source: Manifest, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same on a tmpfs of 4 MiB; where one may be mounted."""
    target.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m,mode=700", "tmpfs", str(target)]
    if os.geteuid() or shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("only root may mount")
    try:
        assert filesystem_of(target).type == "tmpfs"
        with pytest.raises(UserError, match=r"staging needs 14\.7 MB, tmpfs on .*target has 4\.19 MB free"):
            stage(source, target, Solo(), "replicate")
        assert contents(target) == {}
        roomy = FileSystem("tmpfs", target, True, 10**12)
        monkeypatch.setattr(module, "filesystem_of", lambda path: roomy)
        with pytest.raises(UserError, match="cannot be written: No space left on device"):
            stage(source, target, Solo(), "replicate", workers=2)
        assert no_parts(target)
    finally:
        subprocess.run(["umount", str(target)], check=True)


def test_a_target_that_cannot_be_made_is_one_line_on_every_rank(source: Manifest, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    outcomes = on_ranks(1, 2, lambda world: stage(source, tmp_path / "file" / "x", world, "replicate"))
    fails_alike(outcomes, f"{tmp_path / 'file' / 'x'}: cannot be written: ", "choose another --stage")


def test_a_target_without_permission(source: Manifest, target: Path) -> None:
    target.mkdir(mode=0o555)
    if os.access(target, os.W_OK):
        pytest.skip("root may write anywhere")
    with pytest.raises(UserError, match="cannot be written: Permission denied; choose another --stage"):
        stage(source, target, Solo(), "replicate")


def test_files_of_others_are_not_written_over(source: Manifest, target: Path) -> None:
    (target / "train").mkdir(parents=True)
    (target / "train" / "5.tfrecord").write_bytes(b"precious")
    outcomes = on_ranks(1, 2, lambda world: stage(source, target, world, "replicate"))
    fails_alike(outcomes, "train/5.tfrecord: exists, and staging did not put it there")
    assert contents(target) == {"train/5.tfrecord": b"precious"}


def test_another_data_set_is_not_written_over(source: Manifest, target: Path, tmp_path: Path) -> None:
    stage(source, target, Solo(), "replicate")
    before = contents(target)
    other = tmp_path / "other"
    shutil.copytree(source.root, other)
    (other / "train" / "5.tfrecord").write_bytes(b"\0" * 70_000)
    with pytest.raises(UserError, match="holds another data set, staged earlier"):
        stage(index(other, {}, Solo(), workers=1), target, Solo(), "replicate")
    with pytest.raises(UserError, match="holds a data set that staging did not put there"):
        stage(source, other, Solo(), "replicate")
    with pytest.raises(UserError, match="inside the data set itself"):
        stage(source, source.root / "train", Solo(), "replicate")
    assert contents(target) == before


def test_a_failure_inside_one_rank_stops_its_other_copies(
    source: Manifest, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While one file is being copied another fails: the first must not be finished at leisure."""
    begun = threading.Event()
    real = os.posix_fadvise
    real_write = atomic.write_all
    real_copy = copier._copy
    failures: list[object] = []  # that of the copier, once it is copying
    written: list[int] = []

    def watched(*arguments: Any) -> None:
        nonlocal failures
        failures = arguments[-1]
        real_copy(*arguments)

    def slow(fd: int, data: memoryview) -> None:
        real_write(fd, data)
        if len(data) == BLOCK:
            written.append(len(data))
            begun.set()
            wait_until(lambda: bool(failures))

    def fail(fd: int, *advice: int) -> None:
        if os.fstat(fd).st_size == 70_000:
            begun.wait(30)
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(fd, *advice)

    monkeypatch.setattr(copier, "_copy", watched)
    monkeypatch.setattr(atomic, "write_all", slow)
    monkeypatch.setattr(os, "posix_fadvise", fail)
    files = tuple(file for file in source.folder("train") if file.size in (3_000_000, 70_000))
    with pytest.raises(UserError, match="Input/output error"):
        stage(replace(source, files=files), target, Solo(), "replicate", workers=2)
    assert written == [BLOCK]
    assert contents(target) == {}


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.001)


# Whose folder it is


def test_a_new_target_is_the_users_own(source: Manifest, target: Path) -> None:
    stage(source, target, Solo(), "replicate")
    assert target.stat().st_mode & 0o777 == 0o700


def test_a_target_of_another_user_is_refused(
    source: Manifest, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files of the right size in it were kept and called verified: anybody could make /tmp/mlhpc-JOB first."""
    target.mkdir()
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    outcomes = on_ranks(1, 2, lambda world: stage(source, target, world, "replicate"))
    fails_alike(outcomes, f"{target}: belongs to ", "choose as --stage a folder of your own, or a new one")
    with pytest.raises(UserError, match="belongs to"):
        remove(target)
    assert contents(target) == {}


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o1777])
def test_a_target_that_others_may_write_to_is_refused(source: Manifest, target: Path, mode: int) -> None:
    target.mkdir()
    target.chmod(mode)
    with pytest.raises(UserError, match=r"other users may write to it; run chmod go-w .*target"):
        stage(source, target, Solo(), "replicate")
    assert contents(target) == {}


def test_a_link_in_the_target_is_neither_written_through_nor_emptied(
    source: Manifest, target: Path, tmp_path: Path
) -> None:
    stage(source, target, Solo(), "replicate")
    home = tmp_path / "home"
    (target / "train").rename(home)
    (target / "train").symlink_to(home)
    (home / "5.tfrecord").write_bytes(b"precious")
    before = contents(home)
    with pytest.raises(UserError, match=r"target/train: not a folder, or a link to one"):
        stage(source, target, Solo(), "replicate")
    remove(target)
    assert contents(home) == before and (home / "5.tfrecord").read_bytes() == b"precious"


def test_a_temporary_file_that_was_planted_is_not_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    monkeypatch.setattr("secrets.token_hex", lambda size: "abcd")
    (tmp_path / f".file.{socket.gethostname()}.{os.getpid()}.abcd.part").symlink_to(victim)
    with pytest.raises(FileExistsError):
        atomic.write_bytes(tmp_path / "file", b"other")
    assert victim.read_bytes() == b"precious" and not (tmp_path / "file").exists()


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("/tmp/mlhpc-4711", True),
        ("/tmp/4711/stage", True),
        ("/tmp/mlhpc-47110", False),
        ("/tmp/stage", False),
    ],
)
def test_a_target_named_by_the_job_is_recognised(path: str, names: bool) -> None:
    assert names_job(Path(path), {"SLURM_JOB_ID": "4711"}) is names
    assert not names_job(Path(path), {})


@pytest.mark.parametrize(("env", "kept"), [({"SLURM_JOB_ID": "4711"}, False), ({}, True)])
def test_an_aborted_run_removes_its_files_where_no_other_job_can_use_them(
    source: Manifest, tmp_path: Path, env: dict[str, str], kept: bool
) -> None:
    """Terabytes leaked: the next job has another number, and stages to another folder."""
    target = tmp_path / "mlhpc-4711"
    stage(source, target, Solo(), "replicate")
    remove_after_abort(target, env)
    assert target.exists() is kept
    assert contents(target) == (contents(source.root) if kept else {})


def test_the_targets_manifest_is_a_data_sets(source: Manifest, target: Path) -> None:
    stage(source, target, Solo(), "replicate")
    staged = load(target)
    assert staged.files == source.files
    assert {key: staged.facts[key] for key in source.facts} == source.facts
    assert zlib.crc32((target / "stats.h5").read_bytes()) == staged.files[0].crc32
    save(staged)
    assert load(target) == staged
