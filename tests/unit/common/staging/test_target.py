"""The target folder: its owner, and what is removed from it."""

import os
import socket
import zlib
from pathlib import Path

import pytest
from helpers.staging_files import contents, fails_alike
from helpers.thread_world import on_ranks

from mlhpc.common.data.manifest import Manifest, load, save
from mlhpc.common.files import atomic
from mlhpc.common.ranks.world import Solo
from mlhpc.common.staging.stage import remove, remove_after_abort, stage
from mlhpc.common.staging.target import names_job
from mlhpc.errors import UserError

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
    with pytest.raises(UserError, match="not written by staging"):
        remove(source.root)
    assert contents(source.root) == before


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
    fails_alike(outcomes, f"{target}: belongs to ", "choose a --stage folder of your own, or a new one")
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


@pytest.mark.parametrize(("mode", "refused"), [(0o777, True), (0o1777, False), (0o755, False)])
def test_a_target_that_others_could_replace_is_refused(
    source: Manifest, tmp_path: Path, mode: int, refused: bool
) -> None:
    parent = tmp_path / "project"
    parent.mkdir()
    parent.chmod(mode)
    if refused:
        with pytest.raises(UserError, match="replace this folder with their own"):
            stage(source, parent / "stage", Solo(), "replicate")
        assert list(parent.iterdir()) == []
    else:
        stage(source, parent / "stage", Solo(), "replicate")
        assert (parent / "stage").is_dir()


def test_a_link_in_the_target_is_neither_written_through_nor_emptied(
    source: Manifest, target: Path, tmp_path: Path
) -> None:
    stage(source, target, Solo(), "replicate")
    home = tmp_path / "home"
    (target / "train").rename(home)
    (target / "train").symlink_to(home)
    (home / "5.tfrecord").write_bytes(b"precious")
    before = contents(home)
    with pytest.raises(UserError, match=r"target/train must be a folder, not a symbolic link to one"):
        stage(source, target, Solo(), "replicate")
    remove(target)
    assert contents(home) == before and (home / "5.tfrecord").read_bytes() == b"precious"


def test_a_temporary_file_that_was_planted_is_not_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    monkeypatch.setattr("os.urandom", lambda size: bytes.fromhex("abcd"))
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
    """Terabytes leaked: the next job has another id, and stages to another folder."""
    target = tmp_path / "mlhpc-4711"
    stage(source, target, Solo(), "replicate")
    remove_after_abort(target, env)
    assert target.exists() is kept
    assert contents(target) == (contents(source.root) if kept else {})


@pytest.mark.parametrize("end", [KeyboardInterrupt, SystemExit])
def test_a_run_that_ends_before_the_first_file_leaves_no_folder(
    source: Manifest, target: Path, monkeypatch: pytest.MonkeyPatch, end: type[BaseException]
) -> None:
    def ended(*words: object) -> None:
        assert target.exists()
        raise end

    monkeypatch.setattr("mlhpc.common.staging.stage.check_room", ended)
    with pytest.raises(end):
        stage(source, target, Solo(), "replicate")
    assert not target.exists()


def test_the_targets_manifest_is_a_data_sets(source: Manifest, target: Path) -> None:
    stage(source, target, Solo(), "replicate")
    staged = load(target)
    assert staged.files == source.files
    assert {key: staged.facts[key] for key in source.facts} == source.facts
    assert zlib.crc32((target / "stats.h5").read_bytes()) == staged.files[0].crc32
    save(staged)
    assert load(target) == staged
