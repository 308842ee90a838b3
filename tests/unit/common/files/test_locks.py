"""Which runs use a folder, also where locks do not reach other nodes."""

import fcntl
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from mlhpc.common.files import filesystem, locks

HERE = socket.gethostname()
Mount = Callable[[str, str], None]


@pytest.fixture
def mount(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mount:
    """Make the folder of the test a mount of that type with these options, as /proc/mounts has them."""

    def mount(kind: str, options: str) -> None:
        answer = (tmp_path, kind, frozenset(options.split(",")))
        monkeypatch.setattr(filesystem, "_mount", lambda path: answer)

    return mount


@pytest.mark.parametrize(
    ("kind", "options", "in_use"),
    [
        ("lustre", "rw,flock", False),
        ("lustre", "rw,localflock", True),  # its lock cannot be seen here
        ("lustre", "rw", True),
        ("nfs4", "rw,local_lock=none", False),
        ("nfs", "rw,local_lock=all", True),
        ("ext4", "rw", False),
    ],
)
def test_a_run_on_another_node_counts_as_alive_if_its_lock_is_not_visible(
    tmp_path: Path, mount: Mount, kind: str, options: str, in_use: bool
) -> None:
    """It looked unused, and a shared stage was emptied during a run."""
    mount(kind, options)
    other = tmp_path / ".use.another-node.1.abcd"
    other.touch()
    assert locks.in_use(tmp_path) is in_use
    assert other.exists() is in_use


def test_a_dead_process_of_this_node_is_recognised_on_any_file_system(tmp_path: Path, mount: Mount) -> None:
    mount("lustre", "rw,localflock")
    dead = tmp_path / f".use.{HERE}.1.abcd"
    dead.touch()
    assert not locks.in_use(tmp_path) and not dead.exists()


def test_without_locks_only_ended_processes_of_this_node_count_as_dead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(fd: int, operation: int) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    files = {
        f".use.{HERE}.{ended.pid}.abcd": False,
        f".use.{HERE}.{os.getppid()}.abcd": True,
        ".use.another-node.1.abcd": True,
    }
    for name in files:
        (tmp_path / name).touch()
    assert locks.in_use(tmp_path)
    assert {name: (tmp_path / name).exists() for name in files} == files


def test_a_link_with_the_name_of_a_use_file_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    (tmp_path / ".use.a.1.b").symlink_to(victim)
    assert locks.in_use(tmp_path)
    assert victim.read_bytes() == b"precious" and (tmp_path / ".use.a.1.b").is_symlink()
