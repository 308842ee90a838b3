"""Runs that share a target: one copies, and the last removes."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from helpers.staging_files import contents, fails_alike
from helpers.thread_world import on_ranks

from mlhpc.common.data.manifest import Manifest
from mlhpc.common.files import locks
from mlhpc.common.ranks.world import Solo
from mlhpc.common.staging.stage import remove, stage
from mlhpc.common.staging.target import exclusive, remove_made_folder, require_own

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


def test_runs_that_end_at_the_same_time_leave_no_folder(
    source: Manifest, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second waits for the first's lock, and gets it before the first can remove the folder it is in."""
    stage(source, target, Solo(), "replicate")
    waits, has_lock, first_done = (threading.Event() for _ in range(3))
    first, second = threading.current_thread(), threading.Thread(target=remove, args=(target,))
    in_use, try_lock, unlock = locks.in_use, locks.try_lock, locks.unlock

    def in_use_of_both(folder: Path) -> bool:
        if threading.current_thread() is first:  # it has the lock
            second.start()
            assert waits.wait(60)
        return in_use(folder)

    def try_lock_of_both(folder: Path) -> int | None:
        fd = try_lock(folder)
        if threading.current_thread() is second:
            (waits if fd is None else has_lock).set()
        return fd

    def unlock_of_both(folder: Path, fd: int) -> None:
        if threading.current_thread() is second:
            assert first_done.wait(60)
        unlock(folder, fd)
        if threading.current_thread() is first:
            assert has_lock.wait(60)

    monkeypatch.setattr(locks, "in_use", in_use_of_both)
    monkeypatch.setattr(locks, "try_lock", try_lock_of_both)
    monkeypatch.setattr(locks, "unlock", unlock_of_both)
    remove(target)
    first_done.set()
    second.join(60)
    assert not second.is_alive() and not target.exists()


@pytest.mark.parametrize("moment", ["while it looks who shares the folder", "before it has the lock"])
def test_the_last_run_removes_the_folder_that_a_run_before_it_made(
    source: Manifest, target: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """The first ends just as the second begins, without noticing it: the files and their record are removed."""
    stage(source, target, Solo(), "replicate")

    class Second(Solo):
        def gather(self, value):
            if moment.startswith("while") and list(target.glob(".*.probe")):
                remove(target)
                assert target.exists()
            return super().gather(value)

    @contextmanager
    def late(*words: Any) -> Iterator[bool]:
        if moment.startswith("before"):
            remove(target)
            assert not target.exists()
        with exclusive(*words) as in_use:
            yield in_use

    monkeypatch.setattr("mlhpc.common.staging.stage.exclusive", late)
    report = stage(source, target, Second(), "replicate")
    assert (report.files, contents(target)) == (17, contents(source.root))
    remove(target)
    assert not target.exists()


def test_a_run_begins_while_another_removes_the_folder(
    source: Manifest, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target.mkdir(mode=0o700)
    real, times = require_own, iter([True, False, True])

    def removed_meanwhile(folder: Path) -> None:
        if next(times, False):
            folder.rmdir() if not os.listdir(folder) else remove_made_folder(folder)
        real(folder)

    monkeypatch.setattr("mlhpc.common.staging.target.require_own", removed_meanwhile)
    assert stage(source, target, Solo(), "replicate").files == 17
    assert next(times, None) is None
    remove(target)
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
        fails_alike(outcomes, "node0: another run uses a different part of the data set")
        assert contents(tmp_path / "node0") == contents(source.root)
        end(one)


def test_many_runs_that_share_two_nodes_all_come_through(source: Manifest, tmp_path: Path) -> None:
    """Each locks both nodes' targets, in different orders: no deadlock."""
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
