"""Staging: complete, verified, and continued after an interruption."""

import errno
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from helpers.staging_files import contents
from helpers.thread_world import on_ranks

from mlhpc.common.data.manifest import File, Manifest, listing
from mlhpc.common.data.partition import Mode, files_of_node
from mlhpc.common.data.verify import verify
from mlhpc.common.files import atomic
from mlhpc.common.files.filesystem import filesystem_of
from mlhpc.common.ranks.world import Solo
from mlhpc.common.staging import copier
from mlhpc.common.staging.stage import StagingReport, stage
from mlhpc.errors import UserError
from mlhpc.record.result import Staging

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
    assert asdict(report).keys() <= Staging.model_fields.keys()


@pytest.mark.parametrize("mode", ["replicate", "shard"])
def test_nodes_with_storage_of_their_own(source: Manifest, tmp_path: Path, mode: Mode) -> None:
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
    unchecked = listing(source.root, Solo())
    assert not stage(unchecked, target, Solo(), "replicate").verified
    assert contents(target) == contents(source.root)
    assert stage(unchecked, target, Solo(), "replicate").files == 0
    changed = source.root / "train" / "5.tfrecord"
    changed.write_bytes(b"\0" * 70_000)  # as big as before, but newer
    assert stage(unchecked, target, Solo(), "replicate").files == 1
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
    assert (second.files, second.bytes, second.kept) == (0, 0, 17)


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
