"""Archives of samples: how ZIP tools read them, and what is refused."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from mlhpc.common.formats import archive
from mlhpc.errors import UserError

CONTENTS = {f"data-{i:03d}.mlc": np.random.default_rng(i).bytes(1000 * i) for i in range(5)}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    archive.write(tmp_path / "a.zip", CONTENTS.items())
    return tmp_path / "a.zip"


def test_members_are_read_as_written_in_order(path: Path) -> None:
    read = [bytes(archive.read(member)) for member in archive.members(path)]
    assert read == list(CONTENTS.values())


def test_any_zip_tool_unpacks_an_archive(path: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    subprocess.run([sys.executable, "-m", "zipfile", "-e", path, out], check=True)
    assert {file.name: file.read_bytes() for file in out.iterdir()} == CONTENTS


def test_an_archive_of_another_tool_is_read(tmp_path: Path) -> None:
    """With times of files in extra fields of the headers, and a comment at the end."""
    path = tmp_path / "b.zip"
    with zipfile.ZipFile(path, "w") as other:
        for name, content in CONTENTS.items():
            entry = zipfile.ZipInfo(name)
            entry.extra = b"UT\x05\x00\x03abcd"
            other.writestr(entry, content)
        other.comment = b"made elsewhere"
    assert [bytes(archive.read(member)) for member in archive.members(path)] == list(CONTENTS.values())


def test_the_same_members_give_the_same_bytes(path: Path, tmp_path: Path) -> None:
    archive.write(tmp_path / "again.zip", CONTENTS.items())
    assert (tmp_path / "again.zip").read_bytes() == path.read_bytes()


def test_a_replaced_archive_is_not_taken_for_the_one_before(path: Path) -> None:
    archive.members(path)
    archive.write(path, [("x", b"new")])
    (member,) = archive.members(path)
    assert bytes(archive.read(member)) == b"new"


def test_a_failure_while_writing_leaves_nothing(tmp_path: Path) -> None:
    def members():
        yield "a", b"content"
        raise ValueError

    with pytest.raises(ValueError):
        archive.write(tmp_path / "a.zip", members())
    assert list(tmp_path.iterdir()) == []


def test_members_compressed_by_zip_are_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as other:
        other.writestr("data.mlc", b"0" * 1000)
    with pytest.raises(UserError, match=r"a\.zip: member 0: ZIP compression and encryption are not"):
        archive.members(tmp_path / "a.zip")


def test_a_truncated_archive_is_one_line(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(
        UserError, match=r"a\.zip: not a readable ZIP archive \(.*\); copy or convert it again"
    ):
        archive.members(path)


def test_damaged_content_is_one_line_that_names_the_member(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[data.index(CONTENTS["data-003.mlc"]) + 7] ^= 1
    path.write_bytes(data)
    members = archive.members(path)
    with pytest.raises(UserError, match=r"a\.zip: member 3: checksum [0-9a-f]{8}, expected [0-9a-f]{8}"):
        archive.read(members[3])
    assert bytes(archive.read(members[2])) == CONTENTS["data-002.mlc"]


def test_an_archive_with_fewer_members_than_expected_is_one_line(path: Path) -> None:
    with pytest.raises(UserError, match=r"a\.zip has only 5 members, so no member 5"):
        archive.read(archive.Member(path, 5))


def test_a_missing_archive_is_one_line(path: Path) -> None:
    member = archive.members(path)[1]
    shutil.move(path, path.with_suffix(".gone"))
    with pytest.raises(UserError, match=r"a\.zip cannot be read: No such file"):
        archive.read(member)
