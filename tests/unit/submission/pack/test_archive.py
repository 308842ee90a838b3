"""Archives of submissions: complete ones are unpacked unchanged, others are refused and leave nothing."""

import gzip
import hashlib
import io
import os
import random
import subprocess
import tarfile
import zlib

import pytest

from mlhpc import cli
from mlhpc.errors import UserError
from mlhpc.submission.pack.archive import unpack, write_archive
from mlhpc.submission.result_sets import result_sets

FILES = {
    "results/cluster/strong/cosmoflow/result_3.txt": random.Random(1).randbytes(100_000),
    "benchmarks/cosmoflow/implementations/cluster/setup.sh": b"#!/bin/sh\n",
    "systems/cluster.json": b"{}\n",
}


@pytest.fixture
def archive(tmp_path):
    for name, data in FILES.items():
        path = tmp_path / "made" / "Lab" / name
        path.parent.mkdir(parents=True)
        path.write_bytes(data)
        path.chmod(0o755 if name.endswith(".sh") else 0o644)
    return write_archive(tmp_path / "made", "Lab")


def test_file_permissions_are_preserved(archive, tmp_path):
    tree = unpack(archive, tmp_path / "there")
    files = {p.relative_to(tree).as_posix(): p for p in tree.rglob("*") if p.is_file()}
    assert {name: path.read_bytes() for name, path in files.items()} == FILES
    assert [name for name, path in files.items() if path.stat().st_mode & 0o100] == [sorted(FILES)[0]]


def rewritten(archive, to, change):
    """``archive`` with its members as ``change`` makes them of name and data; None drops one."""
    with tarfile.open(archive) as old, tarfile.open(to, "w:gz") as new:
        for member in old:
            if changed := change(member.name, old.extractfile(member).read()):
                info = tarfile.TarInfo(changed[0])
                info.size = len(changed[1])
                new.addfile(info, io.BytesIO(changed[1]))
    return to


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda n, d: (n, d[:-1] + b"9") if n.endswith("result_3.txt") else (n, d), "the checksum of"),
        (lambda n, d: None if n.endswith("result_3.txt") else (n, d), "missing"),
        (lambda n, d: (f"../{n}", d) if n.endswith("result_3.txt") else (n, d), "not part of a submission"),
        (lambda n, d: None if n.endswith(".sha256") else (n, d), "checksums"),
        (lambda n, d: (n + ".py", d) if n.endswith("setup.sh") else (n, d), "setup.sh.py' has no checksum"),
    ],
)  # fmt: skip
def test_a_damaged_archive_is_refused_and_leaves_nothing(archive, tmp_path, change, said):
    bad = rewritten(archive, tmp_path / "bad.tar.gz", change)
    with pytest.raises(UserError, match=said):
        unpack(bad, tmp_path / "there")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bad.tar.gz", "made"]


@pytest.mark.parametrize("content", [b"", b"no archive", None])
def test_a_file_that_is_not_an_archive_is_a_one_line_error(archive, tmp_path, content, capsys):
    bad = tmp_path / "x.tar.gz"
    whole = archive.read_bytes()
    bad.write_bytes(whole[: len(whole) // 2] if content is None else content)
    assert cli.main(["unpack", str(bad), str(tmp_path / "there")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "there").exists()


def test_every_damaged_byte_of_an_archive_is_detected(archive, tmp_path):
    """A damaged header makes tarfile stop early without an error, and damaged checksums hid missing files."""
    whole = gzip.decompress(archive.read_bytes())
    rng = random.Random(7)
    places = [*range(0, 1600, 7), *(rng.randrange(len(whole)) for _ in range(60))]
    for place in places:
        damaged = bytearray(whole)
        damaged[place] ^= 1 << rng.randrange(8)
        bad = tmp_path / "bad.tar.gz"
        packed = bytearray(gzip.compress(bytes(damaged), 1))
        packed[-8:-4] = zlib.crc32(whole).to_bytes(4, "little")  # of the file as it was
        bad.write_bytes(packed)
        with pytest.raises(UserError):
            unpack(bad, tmp_path / "there")
        assert not (tmp_path / "there").exists()


def test_an_archive_cut_after_a_member_with_checksums_cut_to_match_is_refused(archive, tmp_path):
    def shorten(name, data):
        if name.endswith(".sha256"):
            return name, data.replace(b"  Lab/results", b" Lab/results")
        return None if name.endswith("result_3.txt") else (name, data)

    with pytest.raises(UserError, match="is not a valid checksum line"):
        unpack(rewritten(archive, tmp_path / "bad.tar.gz", shorten), tmp_path / "there")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("Lab/results/again", tarfile.SYMTYPE),
        ("Lab/results/again", tarfile.LNKTYPE),
        ("Lab/results/null", tarfile.CHRTYPE),
        ("Lab/results/pipe", tarfile.FIFOTYPE),
        ("/tmp/absolute", tarfile.REGTYPE),
        ("../Lab.sha256", tarfile.REGTYPE),
    ],
)
@pytest.mark.parametrize("first", [True, False])
def test_what_leads_out_of_the_folder_is_refused(archive, tmp_path, name, kind, first):
    """As the first member, which has the checksums, and as the last."""
    bad = tmp_path / "bad.tar.gz"
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, "/etc/passwd"
    with tarfile.open(archive) as read, tarfile.open(bad, "w:gz") as written:
        if first:
            written.addfile(info)
        for member in read:
            written.addfile(member, read.extractfile(member))
        if not first:
            written.addfile(info)
    with pytest.raises(UserError, match="not part of a submission"):
        unpack(bad, tmp_path / "there")
    assert not (tmp_path / "there").exists() and not list(tmp_path.glob(".*"))


def test_a_sparse_file_is_refused_with_a_one_line_error(tmp_path):
    info = tarfile.TarInfo("Lab.sha256")
    info.type, info.size = tarfile.GNUTYPE_SPARSE, 0
    raw = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    raw[386:398], raw[398:410] = b"00000000000\0", b"00000000000\0"
    raw[483:495] = b"77777777777\0"  # real size: 8 GiB
    raw[148:156] = b"        "
    raw[148:156] = f"{sum(raw[:512]):06o}\0 ".encode()
    bad = tmp_path / "bad.tar.gz"
    bad.write_bytes(gzip.compress(bytes(raw) + bytes(1024)))
    with pytest.raises(UserError, match="not part of a submission") as refused:
        unpack(bad, tmp_path / "there")
    assert "\n" not in str(refused.value) and not (tmp_path / "there").exists()


def test_an_archive_that_expands_too_much_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("mlhpc.submission.pack.archive.FREE_EXPANSION", 2**20)
    folder = tmp_path / "made" / "Lab"
    folder.mkdir(parents=True)
    (folder / "result_1.txt").write_bytes(bytes(30 * 2**20))
    with pytest.raises(UserError, match="expands to more than"):
        unpack(write_archive(tmp_path / "made", "Lab"), tmp_path / "there")
    assert not (tmp_path / "there").exists()


def packed(to, members, org="org"):
    """An archive as write_archive makes it, of members that it would not."""
    sums = "".join(f"{hashlib.sha256(content).hexdigest()}  {name}\n" for name, content in members)
    with tarfile.open(to, "w:gz", format=tarfile.PAX_FORMAT) as tar:
        for name, content in ((f"{org}.sha256", sums.encode()), *members):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return to


def test_deep_folders_are_refused_and_leave_nothing(tmp_path):
    """481 bytes: the folder that was begun could not be removed again."""
    deep = [("org/" + "a/" * depth + "f", b"1") for depth in (400, 800, 1200, 1600, 1900)]
    path = packed(tmp_path / "deep.tar.gz", [*deep, ("org/z", b"z")])
    with pytest.raises(UserError, match="not part of a submission") as refused:
        unpack(path, tmp_path / "there")
    assert len(str(refused.value)) < 1000 and not (tmp_path / "there").exists()


@pytest.mark.parametrize("org", ["\x1b]0;title\x07", ".", "..", ".hidden", "a\nb", "\u202e"])
def test_a_submission_has_a_name_that_pack_would_accept(tmp_path, org):
    path = packed(tmp_path / "a.tar.gz", [(f"{org}/f", b"1")], org)
    with pytest.raises(UserError, match=r"does not start with checksums|not part of|damaged") as refused:
        unpack(path, tmp_path / "there")
    assert "\x1b" not in str(refused.value) and not (tmp_path / "there").exists()


def test_a_tree_of_deep_folders_is_a_one_line_error(tmp_path):
    os.makedirs(tmp_path / "/".join("a" * 400))
    at = os.open(tmp_path / "/".join("a" * 400), os.O_RDONLY)
    for _ in range(1200):
        os.mkdir("a", dir_fd=at)
        at, before = os.open("a", os.O_RDONLY, dir_fd=at), at
        os.close(before)
    os.close(at)
    try:
        with pytest.raises(UserError, match=r"nested too deeply|too long"):
            result_sets(tmp_path)
    finally:
        subprocess.run(["rm", "-rf", tmp_path / "a"], check=True)
