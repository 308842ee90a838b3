"""Failed staging: one line on every rank, and no partial files."""

import errno
import os
import resource
import shutil
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers.staging_files import contents, fails_alike
from helpers.thread_world import on_ranks

from mlhpc.common.data.manifest import Files, Manifest, index
from mlhpc.common.files import atomic
from mlhpc.common.files.filesystem import FileSystem, filesystem_of
from mlhpc.common.ranks.world import Solo
from mlhpc.common.staging import copier
from mlhpc.common.staging.copier import BLOCK
from mlhpc.common.staging.stage import StagingReport, stage
from mlhpc.errors import UserError


def no_parts(target: Path) -> bool:
    return not [name for name in contents(target) if name.endswith((".part", ".probe"))]


@pytest.mark.parametrize(
    "spoil, words",
    [
        (lambda path: path.unlink(), ["3.tfrecord cannot be read: No such file"]),
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
    with pytest.raises(UserError, match=r"train/0\.tfrecord changed during the copy \(\d+ of 3000000 bytes"):
        stage(replace(source, files=source.folder("train")[:1]), target, Solo(), "replicate")
    assert contents(target) == {}


def test_a_full_file_system_is_refused_before_the_first_byte(
    source: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def small(path: Path) -> FileSystem:
        return FileSystem("tmpfs", Path("/local"), True, 5_000_000 if "node1" in str(path) else 10**12)

    monkeypatch.setattr("mlhpc.common.staging.target.filesystem_of", small)
    outcomes = on_ranks(2, 2, lambda w: stage(source, tmp_path / f"node{w.node}", w, "replicate"))
    fails_alike(
        outcomes, "node1: staging needs 14.7 MB, but tmpfs on /local has only 5 MB free (it is memory)"
    )
    assert not (tmp_path / "node0").exists() and not (tmp_path / "node1").exists()


def test_what_is_there_already_needs_no_room(
    source: Manifest, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage(source, target, Solo(), "replicate")
    (target / "train" / "5.tfrecord").unlink()
    monkeypatch.setattr(
        "mlhpc.common.staging.target.filesystem_of", lambda path: FileSystem("ext4", Path("/"), False, 80_000)
    )
    assert stage(source, target, Solo(), "replicate").files == 1


def test_a_write_that_fails_midway_leaves_no_half_file(source: Manifest, target: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000, hard))
    try:
        with pytest.raises(UserError, match=r"target/.*/0\.tfrecord cannot be written: File too large; free"):
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


def test_a_record_that_cannot_be_written_is_named(
    source: Manifest, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with a quota, which free space does not show; errors of os.write have no file name."""

    def full(manifest: Manifest) -> None:
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    monkeypatch.setattr("mlhpc.common.data.manifest.save", full)
    outcomes = on_ranks(1, 2, lambda world: stage(source, target, world, "replicate"))
    fails_alike(outcomes, f"{target}/manifest.json cannot be written: Disk quota exceeded (", ")")
    assert " free)" not in str(outcomes)
    assert not target.exists()


def test_a_real_full_disk(source: Manifest, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same on a tmpfs of 4 MiB; where one may be mounted."""
    target.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m,mode=700", "tmpfs", str(target)]
    if os.geteuid() or shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("only root may mount")
    try:
        assert filesystem_of(target).type == "tmpfs"
        with pytest.raises(
            UserError, match=r"staging needs 14\.7 MB, but tmpfs on .*target has only 4\.19 MB free"
        ):
            stage(source, target, Solo(), "replicate")
        assert contents(target) == {}
        roomy = FileSystem("tmpfs", target, True, 10**12)
        monkeypatch.setattr("mlhpc.common.staging.target.filesystem_of", lambda path: roomy)
        with pytest.raises(UserError, match="cannot be written: No space left on device"):
            stage(source, target, Solo(), "replicate", workers=2)
        assert no_parts(target)
    finally:
        subprocess.run(["umount", str(target)], check=True)


def test_a_target_that_cannot_be_made_is_one_line_on_every_rank(source: Manifest, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    outcomes = on_ranks(1, 2, lambda world: stage(source, tmp_path / "file" / "x", world, "replicate"))
    fails_alike(outcomes, f"{tmp_path / 'file' / 'x'} cannot be written: ", "choose another --stage")


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
    fails_alike(outcomes, "train/5.tfrecord exists, but was not written by staging")
    assert contents(target) == {"train/5.tfrecord": b"precious"}


def test_another_data_set_is_not_written_over(source: Manifest, target: Path, tmp_path: Path) -> None:
    stage(source, target, Solo(), "replicate")
    before = contents(target)
    other = tmp_path / "other"
    shutil.copytree(source.root, other)
    (other / "train" / "5.tfrecord").write_bytes(b"\0" * 70_000)
    with pytest.raises(UserError, match="has a different staged data set"):
        stage(index(other, {}, Solo(), workers=1), target, Solo(), "replicate")
    with pytest.raises(UserError, match="contains a data set not written by staging"):
        stage(source, other, Solo(), "replicate")
    with pytest.raises(UserError, match="inside the data set to be staged"):
        stage(source, source.root / "train", Solo(), "replicate")
    assert contents(target) == before


def test_an_unreadable_record_is_not_answered_with_an_index(source: Manifest, target: Path) -> None:
    stage(source, target, Solo(), "replicate")
    (target / "manifest.json").write_text("")
    before = contents(target)
    with pytest.raises(UserError, match="not a readable staging record; remove the folder") as caught:
        stage(source, target, Solo(), "replicate")
    assert "data index" not in str(caught.value)
    assert contents(target) == before


def test_a_failure_inside_one_rank_stops_its_other_copies(
    source: Manifest, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file fails while another is being copied: that copy must stop, too."""
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
    files = Files.of(file for file in source.folder("train") if file.size in (3_000_000, 70_000))
    with pytest.raises(UserError, match="Input/output error"):
        stage(replace(source, files=files), target, Solo(), "replicate", workers=2)
    assert written == [BLOCK]
    assert contents(target) == {}


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.001)
