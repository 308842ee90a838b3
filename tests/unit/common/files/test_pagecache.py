import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mlhpc.common.files.filesystem import filesystem_of
from mlhpc.common.files.pagecache import evict, resident_fraction

PAGE = os.sysconf("SC_PAGESIZE")


@pytest.fixture
def on_disk(tmp_path: Path) -> Path:
    if filesystem_of(tmp_path).is_ram:
        pytest.skip("the test's folder is memory: nothing can be evicted from it")
    path = tmp_path / "file"
    path.write_bytes(os.urandom(40 * PAGE + 1))
    return path


def test_written_pages_are_resident_and_eviction_drops_even_dirty_ones(on_disk: Path) -> None:
    assert resident_fraction(on_disk) == 1
    evict([on_disk])
    assert resident_fraction(on_disk) == 0
    assert len(on_disk.read_bytes()) == 40 * PAGE + 1
    assert resident_fraction(on_disk) == 1


def test_residency_counts_pages(on_disk: Path) -> None:
    evict([on_disk])
    with on_disk.open("rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)  # no read-ahead
        os.pread(file.fileno(), 1, 3 * PAGE)
        os.pread(file.fileno(), 1, 40 * PAGE)
    assert 2 / 41 <= resident_fraction(on_disk) < 1


def test_an_empty_file_has_no_resident_pages(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    evict([tmp_path / "empty"])
    assert resident_fraction(tmp_path / "empty") == 0


def test_memory_files_stay_resident() -> None:
    memory = Path("/dev/shm")
    if not (memory.is_dir() and os.access(memory, os.W_OK)):
        pytest.skip("no /dev/shm")
    path = memory / f"mlhpc-test-{os.getpid()}"
    try:
        path.write_bytes(b"x" * 10 * PAGE)
        evict([path])
        assert resident_fraction(path) == 1
        assert filesystem_of(path).is_ram
    finally:
        path.unlink(missing_ok=True)


def test_the_file_system_is_the_one_that_df_reports(tmp_path: Path) -> None:
    filesystem = filesystem_of(tmp_path / "not" / "made" / "yet")
    assert 0 < filesystem.free_bytes <= shutil.disk_usage(tmp_path).free * 1.01
    assert tmp_path.resolve().is_relative_to(filesystem.mount_point)
    if filesystem.type != "unknown":  # in a chroot /proc/mounts may lack the root
        assert os.stat(filesystem.mount_point).st_dev == os.stat(tmp_path).st_dev
        answer = subprocess.run(["stat", "-f", "-c", "%T", tmp_path], capture_output=True, text=True).stdout
        assert filesystem.type[:3] == answer[:3]  # stat says ext2/ext3 for all of them
    assert filesystem_of(Path("/proc/self")).type == "proc"


def test_without_a_mount_of_the_root_the_type_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a plain chroot: /proc/mounts lists only mounts below it."""
    monkeypatch.setattr(Path, "read_bytes", lambda self: b"proc /proc proc rw,nosuid 0 0\n")
    filesystem = filesystem_of(tmp_path)
    assert (filesystem.type, filesystem.mount_point, filesystem.is_ram) == ("unknown", Path("/"), False)


NAMES = (b"a b", b"tab\tand\nline", rb"back\slash\040", "Z\u00fcrich".encode(), b"\xff\x85", "\x85\u2028".encode(),
         b"\v\f\r\x1c")  # fmt: skip
LOOKS_THEM_UP = """
import sys
from pathlib import Path
from mlhpc.common.files.filesystem import filesystem_of

table, *folders = map(Path, sys.argv[1:])
read = Path.read_bytes
Path.read_bytes = lambda path: read(table if path == Path("/proc/self/mounts") else path)
for folder in folders:
    found = filesystem_of(folder / "later")
    print(found.type, found.mount_point == folder)
"""


@pytest.mark.parametrize("locale", [{}, {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}])
def test_mount_points_have_any_name_in_any_locale(tmp_path: Path, locale: dict[str, str]) -> None:
    """Names that contain what Python takes for the end of a line ended there: ValueError."""
    table, lines = tmp_path / "mounts", b"/dev/sda1 / ext4 rw 0 0\n"
    folders = [os.fsencode(tmp_path.resolve()) + b"/" + name for name in NAMES]
    for folder in folders:
        os.mkdir(folder)
        escaped = re.sub(rb"[ \t\n\\#]", lambda m: b"\\%03o" % ord(m[0]), folder)
        lines += b"a@o2ib:/x " + escaped + b" lustre rw,flock 0 0\n"
    table.write_bytes(lines)
    command = [sys.executable, "-c", LOOKS_THEM_UP, str(table), *map(os.fsdecode, folders)]
    ran = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=os.environ | locale, check=True)
    assert ran.stdout.splitlines() == ["lustre True"] * len(folders)
