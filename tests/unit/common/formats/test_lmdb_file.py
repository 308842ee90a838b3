"""LMDB files read without the library, compared with the library."""

import os
import pickle
import random
import subprocess
import sys
import threading
from pathlib import Path

import lmdb
import pytest
from helpers.descriptors import open_descriptors

from mlhpc.common.formats.lmdb_file import LmdbFile
from mlhpc.errors import UserError

VERSIONS = {1: 0, 3: 1}  # of the format: lmdb.open's lib_version


def write(path: Path, entries, version=1, transactions=1, delete=(), **options) -> Path:
    """A file made by the library: the entries in as many transactions, then one that deletes keys."""
    entries = list(entries)
    with lmdb.open(
        str(path), subdir=False, map_size=1 << 28, lock=False, lib_version=VERSIONS[version], **options
    ) as environment:
        for n in range(transactions):
            with environment.begin(write=True) as transaction:
                for key, value in entries[n::transactions]:
                    transaction.put(key, value)
        if delete:
            with environment.begin(write=True) as transaction:
                for key in delete:
                    assert transaction.delete(key)
    return path


def by_the_library(path: Path) -> list[tuple[bytes, bytes]]:
    with (
        lmdb.open(str(path), subdir=False, readonly=True, lock=False) as environment,
        environment.begin() as transaction,
    ):
        return [(bytes(key), bytes(value)) for key, value in transaction.cursor()]


def ours(path: Path) -> list[tuple[bytes, bytes]]:
    file = LmdbFile(path)
    return [(file.key(index), file.value(index).tobytes()) for index in range(len(file))]


def numbered(count: int, size=lambda n: n % 50) -> list[tuple[bytes, bytes]]:
    return [(b"%08d" % n, random.Random(n).randbytes(size(n))) for n in range(count)]


CASES = {
    "empty": {"entries": []},
    "one key": {"entries": [(b"k", b"v")]},
    "an empty value": {"entries": [(b"k", b"")]},
    "one long value": {"entries": numbered(1, lambda n: 1_000_003)},
    "many short values": {"entries": numbered(20_000)},
    "values about the size of a page": {"entries": numbered(60, lambda n: 1960 + 40 * n)},
    "long and short values": {"entries": numbered(400, lambda n: 9000 if n % 3 else 30)},
    "keys of 1 to 511 bytes": {"entries": [(b"%c" % (n % 251) * n, b"v" * n) for n in range(1, 512)]},
    "many transactions": {"entries": numbered(300, lambda n: 3000 * (n % 2)), "transactions": 7},
    "an odd number of transactions": {"entries": numbered(300), "transactions": 8},
    "deleted keys": {
        "entries": numbered(3000, lambda n: 6000 * (n % 5 == 0)),
        "transactions": 3,
        "delete": [b"%08d" % n for n in range(3000) if n % 7],
    },
    "all keys deleted": {"entries": numbered(10), "delete": [b"%08d" % n for n in range(10)]},
    "written through the map": {"entries": numbered(500, lambda n: 5000 * (n % 2)), "writemap": True},
}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("case", CASES)
def test_keys_and_values_are_those_that_the_library_reads(tmp_path, case, version):
    path = write(tmp_path / "data.mdb", version=version, **CASES[case])
    assert ours(path) == by_the_library(path)


def test_a_tree_of_several_levels_is_read_in_order(tmp_path):
    path = write(
        tmp_path / "data.mdb", [(bytes([n % 256, n // 256]) * 200, b"%d" % n) for n in range(30_000)]
    )
    with lmdb.open(str(path), subdir=False, readonly=True, lock=False) as environment:
        assert environment.stat()["depth"] >= 4
    assert ours(path) == by_the_library(path)


SYSCONF = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>
long sysconf(int name) {
    if (name == _SC_PAGESIZE) return atol(getenv("PAGE_BYTES"));
    return ((long (*)(int))dlsym(RTLD_NEXT, "sysconf"))(name);
}
"""


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("page", [8192, 16384, 65536])
def test_files_of_machines_with_larger_pages_are_read(tmp_path, page, version):
    """LMDB's pages have the size of the machine's, but at most 32 KiB in version 1. Here the library is made to
    use larger ones while it writes; it can read files of any page size."""
    (tmp_path / "sysconf.c").write_text(SYSCONF)
    library = str(tmp_path / "sysconf.so")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, tmp_path / "sysconf.c", "-ldl"], check=True)
    program = f"""
import lmdb
with lmdb.open("data.mdb", subdir=False, map_size=1 << 26, lock=False, lib_version={VERSIONS[version]}) as e:
    with e.begin(write=True) as transaction:
        for n in range(3000):
            transaction.put(b"%08d" % n, b"%d" % n * (6000 if n % 50 == 0 else 9))
"""
    subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"LD_PRELOAD": library, "PAGE_BYTES": str(page)},
        cwd=tmp_path,
        check=True,
    )
    path = tmp_path / "data.mdb"
    with lmdb.open(str(path), subdir=False, readonly=True, lock=False) as environment:
        assert environment.stat()["psize"] == (min(page, 32768) if version == 1 else page)
    assert ours(path) == by_the_library(path)


def test_it_is_used_by_threads_and_sent_to_processes(tmp_path):
    entries = numbered(200, lambda n: 5000 * (n % 2))
    file = pickle.loads(pickle.dumps(LmdbFile(write(tmp_path / "data.mdb", entries))))
    values: dict[int, bytes] = {}

    def read(part: int) -> None:
        values.update({n: file.value(n).tobytes() for n in range(part, 200, 4)})

    threads = [threading.Thread(target=read, args=(part,)) for part in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [values[n] for n in range(200)] == [value for _, value in entries]


def test_no_descriptor_stays_open(tmp_path):
    path = write(tmp_path / "data.mdb", numbered(10))
    before = open_descriptors()
    file = LmdbFile(path)
    file.value(3)
    del file
    assert not open_descriptors() - before


# --- damage ---------------------------------------------------------------------------------------


def refused(path: Path, reason: str) -> None:
    with pytest.raises(UserError, match=rf"data\.mdb:? .*{reason}") as raised:
        ours(path)
    assert "\n" not in str(raised.value)


def patched(path: Path, offset: int, data: bytes) -> Path:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)
    return path


def root_page(path: Path) -> int:
    """By the meta page of the newer transaction, which has the root at 112 and the transaction at 128."""
    data = path.read_bytes()
    metas = [data[page + 16 :] for page in (0, 4096)]
    newer = max(metas, key=lambda meta: meta[128:136][::-1])
    return int.from_bytes(newer[112:120], "little")


@pytest.fixture
def path(tmp_path) -> Path:
    return write(tmp_path / "data.mdb", numbered(600, lambda n: 5000 if n % 10 == 0 else 60))


def test_a_tree_that_leads_back_to_its_root_is_refused(path):
    root = 4096 * root_page(path)
    first = root + int.from_bytes(path.read_bytes()[root + 16 : root + 18], "little")
    refused(patched(path, first, (root // 4096).to_bytes(4, "little")), r"page \d+ occurs twice")


def test_a_page_that_two_branches_share_is_refused(path):
    data, root = path.read_bytes(), 4096 * root_page(path)
    first, second = (root + int.from_bytes(data[root + at : root + at + 2], "little") for at in (16, 18))
    refused(patched(path, second, data[first : first + 6]), r"page \d+ occurs twice")


@pytest.mark.parametrize("depth", [0, 1, 3, 33, 65535])
def test_a_tree_of_another_depth_is_refused(path, depth):
    for page in (0, 4096):
        patched(path, page + 16 + 78, depth.to_bytes(2, "little"))
    refused(path, r"(is not a (leaf|branch)|a tree of depth)")


@pytest.mark.parametrize("size", [0, 1, 15, 16, 151, 152, 4095, 4096, 4100, 8191, 8192])
def test_a_file_without_whole_meta_pages_is_refused(path, size):
    os.truncate(path, size)
    refused(path, r"(no meta page|truncated|cannot be read)")


def test_a_truncated_file_is_refused_wherever_it_ends(path):
    whole = path.read_bytes()
    for size in range(8192, len(whole), 32 * 1024 + 512):
        os.truncate(path, size)
        refused(path, "truncated")
        path.write_bytes(whole)


def test_every_other_page_size_is_refused(path):
    for size in (0, 1, 128, 1000, 4097, 1 << 17, 1 << 31):
        refused(patched(path, 16 + 24, size.to_bytes(4, "little")), f"pages of {size} bytes")


def test_named_databases_are_refused(tmp_path):
    path = tmp_path / "data.mdb"
    with lmdb.open(str(path), subdir=False, max_dbs=2, lock=False) as environment:
        environment.open_db(b"images")
    refused(path, "duplicate keys or named databases")


def test_a_wrong_number_of_entries_is_refused(path):
    for page in (0, 4096):
        patched(path, page + 16 + 104, (599).to_bytes(8, "little"))
    refused(path, "600 entries, its header counts 599")


def test_a_fifo_is_refused_instead_of_waited_for(tmp_path):
    os.mkfifo(tmp_path / "data.mdb")
    refused(tmp_path / "data.mdb", "cannot be read")


def test_a_file_that_shrinks_while_it_is_in_use_is_an_error_and_not_a_signal(path):
    file = LmdbFile(path)
    os.truncate(path, 8192)
    with pytest.raises(UserError, match=r"data\.mdb: truncated"):
        file.value(0)


def test_one_changed_bit_changes_a_value_or_is_refused(tmp_path):
    """Of the header and tree: whatever is read then has the keys' number of entries and lies within the file."""
    path = write(tmp_path / "data.mdb", numbered(40, lambda n: 5000 if n % 10 == 0 else 30))
    whole = path.read_bytes()
    for position in random.Random(1).sample(range(8 * len(whole)), 300):
        changed = bytearray(whole)
        changed[position // 8] ^= 1 << position % 8
        path.write_bytes(changed)
        try:
            entries = ours(path)
        except UserError:
            continue
        assert len(entries) == 40 and all(len(value) <= len(whole) for _, value in entries)
