"""Nodes forward files to each other: ranks as threads, each node with its own folder."""

import os
import re
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
from helpers.staging_files import contents, damage_on_the_way, data_set, on_nodes
from helpers.thread_world import on_ranks
from hypothesis import given
from hypothesis import strategies as st

from mlhpc.common.data.manifest import File, Manifest
from mlhpc.common.data.partition import files_of_ring
from mlhpc.common.data.verify import verify
from mlhpc.common.staging import copier
from mlhpc.common.staging import transfer as module
from mlhpc.common.staging.stage import StagingReport, stage
from mlhpc.errors import AlreadyReported, UserError

SIZES = [900_000, 0, 1, 262_144, 262_145, 70_000, 70_000, 5, 31]


@pytest.fixture
def source(tmp_path: Path) -> Manifest:
    folders = ("train", "validation/deep")
    sizes = {f"{folder}/{i}.tfrecord": size for folder in folders for i, size in enumerate(SIZES)}
    return data_set(tmp_path / "source", sizes)


def read_once(source: Manifest, folder: Path, nodes: int, local_size: int, mode: str = "replicate") -> list:
    def work(world, target):
        return stage(source, target, world, mode, workers=2, read_once=True)

    return on_nodes(folder, nodes, local_size, work)


@given(st.lists(st.integers(0, 10**7), max_size=200), st.integers(1, 4), st.integers(1, 64))
def test_each_file_is_in_one_ring_and_read_by_one_node_of_it(
    sizes: list[int], rings: int, nodes: int
) -> None:
    files = [File(f"train/{i:03d}", size) for i, size in enumerate(sizes)]
    in_rings: list[File] = []
    loads: list[int] = []
    for ring in range(rings):
        passed, readers = files_of_ring(files, ring, rings, nodes)
        assert set(readers) <= set(range(nodes))
        in_rings += passed
        loads += [sum(f.size for f, r in zip(passed, readers, strict=True) if r == n) for n in range(nodes)]
    assert sorted(in_rings) == files
    assert max(loads) - min(loads) <= max(sizes, default=0)


@pytest.mark.parametrize(("nodes", "local_size"), [(2, 1), (2, 2), (3, 1), (5, 2)])
def test_every_node_gets_everything_and_the_source_is_read_once(source, tmp_path, nodes, local_size):
    reports = read_once(source, tmp_path, nodes, local_size)
    assert all(isinstance(report, StagingReport) for report in reports), reports
    assert reports[0].source_bytes == source.bytes
    assert (reports[0].files, reports[0].bytes) == (nodes * len(source.files), nodes * source.bytes)
    assert reports[0].read_once and reports[0].verified and reports[0].shuffle_scope == "sample"
    for node in range(nodes):
        assert contents(tmp_path / f"node{node}") == contents(source.root)
        assert verify(tmp_path / f"node{node}", workers=1) == []
    times = {(tmp_path / f"node{n}" / "stats.h5").stat().st_mtime_ns for n in range(nodes)}
    assert times == {(source.root / "stats.h5").stat().st_mtime_ns}


def test_shards_pass_on_only_what_all_nodes_hold(source, tmp_path):
    reports = read_once(source, tmp_path, 3, 1, mode="shard")
    assert reports[0].source_bytes == source.bytes
    assert reports[0].bytes == source.bytes + 2 * len(b"statistics")
    assert reports[0].shuffle_scope == "node"
    for node in range(3):
        assert (tmp_path / f"node{node}" / "stats.h5").read_bytes() == b"statistics"


@pytest.mark.parametrize("node", [0, 1, 2])
def test_what_one_node_lacks_comes_from_the_node_that_read_it(source, tmp_path, node):
    read_once(source, tmp_path, 3, 1)
    (tmp_path / f"node{node}" / "train" / "0.tfrecord").unlink()
    (tmp_path / "node2" / "train" / "3.tfrecord").write_bytes(b"x" * SIZES[3])  # damaged since
    reports = read_once(source, tmp_path, 3, 1)
    files, readers = files_of_ring(source.files, 0, 1, 3)
    reader = next(r for f, r in zip(files, readers, strict=True) if f.path == "train/0.tfrecord")
    assert reports[0].source_bytes == SIZES[3] + (SIZES[0] if reader == node else 0)
    for each in range(3):
        assert contents(tmp_path / f"node{each}") == contents(source.root)


@pytest.mark.parametrize("damage", ["missing", "other bytes", "truncated"])
def test_a_bad_source_file_ends_all_ranks_with_its_own_message(source, tmp_path, damage):
    bad = source.root / "train" / "4.tfrecord"
    match damage:
        case "missing":
            bad.unlink()
        case "other bytes":
            bad.write_bytes(b"x" * SIZES[4])
        case "truncated":
            os.truncate(bad, 7)
    outcomes = read_once(source, tmp_path, 4, 1)
    assert {str(outcome) for outcome in outcomes} == {str(outcomes[0])}
    assert str(bad) in str(outcomes[0]) and "connection" not in str(outcomes[0])
    assert isinstance(outcomes[0], UserError) and isinstance(outcomes[3], AlreadyReported)
    for node in range(4):
        whole = contents(source.root)
        for path, content in contents(tmp_path / f"node{node}").items():
            assert not path.endswith(".part") and path != "train/4.tfrecord"
            assert content == whole[path]


def test_a_link_that_breaks_halfway_leaves_no_partial_file(source, tmp_path, monkeypatch):
    """As when the node before is lost: the connection ends in the middle of a file."""
    real = module._pieces

    def cut(connection, size, *more):
        for piece in real(connection, size, *more):
            yield piece
            if size > 300_000:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    monkeypatch.setattr(module, "_pieces", cut)
    outcomes = read_once(source, tmp_path, 3, 1)
    assert all("the connection to rank " in str(outcome) for outcome in outcomes), outcomes
    whole = contents(source.root)
    for node in range(3):
        kept = contents(tmp_path / f"node{node}")
        assert kept.items() <= whole.items()
    monkeypatch.undo()
    read_once(source, tmp_path, 3, 1)
    assert contents(tmp_path / "node0") == contents(tmp_path / "node2") == whole


def test_a_rank_that_sends_notices_that_its_successor_has_failed(tmp_path, monkeypatch):
    """The failed rank reads no more, while its predecessor waits for room in the buffers between them."""
    source = data_set(tmp_path / "source", {f"train/{i}": 8_000_000 for i in range(6)})
    real = module.Receiver.next

    def failing(receiver, expected):
        if receiver._target.name == "node1":
            time.sleep(1)  # now the buffers are full
            raise UserError("the disk is full")
        return real(receiver, expected)

    monkeypatch.setattr(module.Receiver, "next", failing)
    assert str(read_once(source, tmp_path, 2, 1)[0]) == "rank 1: the disk is full"


def test_a_rank_stops_copying_its_own_share_when_another_rank_of_its_ring_fails(tmp_path, monkeypatch):
    """A file that only the last rank reads is missing; all the others have hours of copying before them."""
    root = tmp_path / "source"
    source = data_set(root, {f"train/{i:03d}": 1000 for i in range(300)})
    files, readers = files_of_ring(source.files, 0, 1, 3)
    bad = next(file for file, reader in zip(files, readers, strict=True) if reader == 2)
    (root / bad.path).unlink()
    real, copied = copier._copy, []

    def slow(file, *rest):
        if file != bad:
            time.sleep(0.05)
        real(file, *rest)
        copied.append(file)

    monkeypatch.setattr(copier, "_copy", slow)
    outcomes = read_once(source, tmp_path, 3, 1)
    assert {str(outcome) for outcome in outcomes} == {str(outcomes[0])}
    assert str(outcomes[0]).startswith(f"rank 2: {root / bad.path} cannot be read")
    assert len(copied) < 100


def test_a_rank_that_cannot_start_a_thread_ends_all(source, tmp_path, monkeypatch):
    real, started = threading.Thread.start, []

    def start(thread):
        if thread.name.startswith("ring"):
            started.append(thread)
            if len(started) == 1:  # as when a limit on processes is reached
                raise RuntimeError("can't start new thread")
        real(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    outcomes = read_once(source, tmp_path, 2, 1)
    assert all("can't start new thread" in str(outcome) for outcome in outcomes), outcomes


def test_bytes_damaged_on_the_way_are_found(source, tmp_path, monkeypatch):
    damage_on_the_way(monkeypatch)
    outcomes = read_once(source, tmp_path, 2, 1)
    assert re.search(r"from rank \d: checksum", str(outcomes[0]))


def test_nodes_that_share_one_folder_need_no_ring(source, tmp_path):
    outcomes = on_ranks(3, 1, lambda w: stage(source, tmp_path / "shared", w, "replicate", read_once=True))
    assert outcomes[0].source_bytes == outcomes[0].bytes == source.bytes
    assert not outcomes[0].read_once  # nothing was passed on


def test_nodes_with_unequal_numbers_of_ranks(source, tmp_path):
    """Three ranks, two of them on node 0: one ring, and the rank beyond it copies nothing."""

    def work(world):
        node, local = ((0, 0), (0, 1), (1, 0))[world.rank]
        object.__setattr__(world, "node", node)
        object.__setattr__(world, "nodes", 2)
        object.__setattr__(world, "local_rank", local)
        return stage(source, tmp_path / f"node{node}", world, "replicate", read_once=True)

    outcomes = on_ranks(3, 1, work)
    assert outcomes[0].source_bytes == source.bytes
    assert contents(tmp_path / "node0") == contents(tmp_path / "node1") == contents(source.root)
