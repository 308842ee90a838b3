"""Nodes exchange their shards between epochs: ranks as threads, each node with its own folder."""

import errno
import os
import re
import socket
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from helpers.shards import exchanged, shards_of, source_in, trained_on
from helpers.staging_files import damage_on_the_way, data_set

from mlhpc.common.data.manifest import File, Manifest, load
from mlhpc.common.data.partition import Shards, balance
from mlhpc.common.data.verify import verify
from mlhpc.common.files import atomic, locks
from mlhpc.common.ranks.links import linked
from mlhpc.common.staging import exchange as module
from mlhpc.common.staging import moves, transfer
from mlhpc.common.staging.exchange import EXCHANGE, Exchanged, transfers
from mlhpc.common.staging.moves import Moves, extra_space, moves_between, sizes_of
from mlhpc.common.staging.stage import remove
from mlhpc.common.staging.transfer import LinkBroken, send_file
from mlhpc.errors import AlreadyReported, UserError


@pytest.fixture
def source(tmp_path: Path) -> Manifest:
    return source_in(tmp_path)


def test_the_shares_of_epochs_are_independent_random_draws():
    """Of four nodes with 500 files each, a file stays on its own with probability 1/4."""
    shards = Shards(np.arange(2000) % 4, seed=1)
    epochs = [shards.nodes(epoch) for epoch in range(12)]
    for one in range(12):
        for other in range(one):
            stayed = np.count_nonzero(epochs[one] == epochs[other])
            assert stayed == pytest.approx(500, abs=5 * np.sqrt(2000 * 3 / 16))
    assert (Shards(np.arange(2000) % 4, seed=2).nodes(3) != epochs[3]).any()
    assert (Shards(np.arange(2000) % 4, seed=1).nodes(3) == epochs[3]).all()


@pytest.mark.parametrize(("nodes", "local_size"), [(2, 1), (2, 2), (3, 1), (4, 2)])
def test_each_file_is_intact_on_the_node_that_its_epoch_says(source, tmp_path, nodes, local_size):
    before = {file.path: (source.root / file.path).read_bytes() for file in source.folder("train")}
    for last in ([1], [1, 2], [1, 2, 3], [3]):
        outcomes = exchanged(source, tmp_path / f"to{last}", nodes, local_size, last)
        assert all(isinstance(outcome, list) for outcome in outcomes), outcomes
        held = trained_on(tmp_path / f"to{last}", nodes)
        assert sum(len(files) for files in held) == len(before)  # none twice
        node_of = shards_of(source, nodes).nodes(last[-1])
        for file, node in zip(source.folder("train"), node_of, strict=True):
            assert held[node][file.path] == before[file.path]
        for node in range(nodes):
            target = tmp_path / f"to{last}" / f"node{node}"
            assert verify(target, workers=1) == []  # its manifest lists the files, and checksums are right
            assert (target / "stats.h5").exists() and (target / "validation").exists()
            remove(target)
            assert not target.exists()


def test_files_under_way_at_once_between_two_nodes_do_not_mix(tmp_path):
    """They are larger than the buffer of the single connection between two nodes."""
    source = data_set(tmp_path / "source", {f"train/{i:02d}": 3_000_000 for i in range(16)})
    outcomes = exchanged(source, tmp_path, 2, 1, [1], most=10**9)
    assert all(isinstance(outcome, list) for outcome in outcomes), outcomes
    held = trained_on(tmp_path, 2)
    assert held[0] | held[1] == {f.path: (source.root / f.path).read_bytes() for f in source.folder("train")}
    assert len(held[0]) == len(held[1]) == 8


def test_bytes_are_those_of_the_files_whose_node_changed(source, tmp_path):
    outcomes = exchanged(source, tmp_path, 2, 1, [1])
    held = trained_on(tmp_path, 2)
    at_first = balance([file.size for file in source.folder("train")], 2)
    moved = [
        f.size for f, node in zip(source.folder("train"), at_first, strict=True) if f.path not in held[node]
    ]
    assert moved
    assert outcomes[0] == outcomes[1] == [Exchanged(len(moved), sum(moved))]


@pytest.mark.parametrize("nodes", [2, 3])
def test_a_disk_holds_no_more_than_its_share_a_round_and_a_file(tmp_path, monkeypatch, nodes):
    """Counted at every arrival; without deleting each round, a node would hold half as much again."""
    size = 1000
    source = data_set(tmp_path / "source", {f"train/{i:02d}": size for i in range(60)})
    largest, write = Counter(), transfer.write_verified

    def counting(file, target, *rest):
        write(file, target, *rest)
        largest[target.name] = max(largest[target.name], len(list((target / "train").glob("[0-9][0-9]"))))

    monkeypatch.setattr(transfer, "write_verified", counting)
    monkeypatch.setattr(moves, "FILE_OVERHEAD", 0)
    exchanged(source, tmp_path, nodes, 1, [1], most=2 * size)
    shards, files = shards_of(source, nodes), source.folder("train")
    extra = extra_space(moves_between(sizes_of(files), shards, 0, 1), nodes, 2 * size)
    for node in range(nodes):
        share = 60 // nodes
        assert share < largest[f"node{node}"] <= share + 2 + 1
        assert (largest[f"node{node}"] - share) * size == extra[node]


def test_bytes_damaged_on_the_way_are_found_and_no_file_is_lost(source, tmp_path, monkeypatch):
    damage_on_the_way(monkeypatch)
    outcomes = exchanged(source, tmp_path, 2, 1, [1])
    assert re.search(r"from rank \d: checksum", str(outcomes[0]))
    assert isinstance(outcomes[0], UserError) and isinstance(outcomes[1], AlreadyReported)
    everywhere = {path: content for held in trained_on(tmp_path, 2) for path, content in held.items()}
    assert everywhere == {f.path: (source.root / f.path).read_bytes() for f in source.folder("train")}


def test_a_disk_that_fills_up_is_one_line_and_leaves_every_file_somewhere(tmp_path, monkeypatch):
    """The files are larger than the buffers of a connection: the other rank is sending when the disk is full."""
    source = data_set(tmp_path / "source", {f"train/{i}": 8_000_000 for i in range(6)})
    real, victim = atomic.write_all, f"{tmp_path}/node1/train"

    def full(fd, data):
        if os.readlink(f"/proc/self/fd/{fd}").startswith(victim) and staged:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(fd, data)

    staged: list[bool] = []
    monkeypatch.setattr(atomic, "write_all", full)
    monkeypatch.setattr(module, "linked", lambda *a: staged.append(True) or linked(*a))
    outcomes = exchanged(source, tmp_path, 2, 1, [1])
    assert str(outcomes[0]).startswith("rank 1: ") and "No space left on device (" in str(outcomes[0]), (
        outcomes
    )
    assert "connection" not in str(outcomes[0])
    everywhere = {path: content for held in trained_on(tmp_path, 2) for path, content in held.items()}
    assert everywhere == {f.path: (source.root / f.path).read_bytes() for f in source.folder("train")}
    assert not list(tmp_path.rglob("*.part"))


def test_a_rank_that_only_sends_notices_that_the_other_has_failed(tmp_path, monkeypatch):
    """Its last file waits for room in the buffers, and nothing arrives on the connection any more."""
    source = data_set(tmp_path / "source", {f"train/{i}": 8_000_000 for i in range(6)})
    files, before = source.folder("train"), balance([8_000_000] * 6, 2)
    after = shards_of(source, 2).nodes(1)
    to_0 = [f.path for f, old, new in zip(files, before, after, strict=True) if (old, new) == (1, 0)]
    real = module.Receiver.next

    def failing(receiver, expected):
        if receiver._target.name == "node1":
            while not all((tmp_path / "node0" / path).exists() for path in to_0):
                time.sleep(0.01)
            time.sleep(0.3)  # now the buffers are full
            raise UserError("the disk is full")
        return real(receiver, expected)

    monkeypatch.setattr(module.Receiver, "next", failing)
    outcomes = exchanged(source, tmp_path, 2, 1, [1], most=10**9)
    assert to_0 and str(outcomes[0]) == "rank 1: the disk is full"


def test_missing_room_is_found_before_the_first_file_moves(source, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "extra_space", lambda moves, nodes, most: np.full(nodes, 10**18))
    outcomes = exchanged(source, tmp_path, 2, 1, [1])
    assert "exchanging shards needs 1 EB, " in str(outcomes[0]) and "staging.exchange=false" in str(
        outcomes[0]
    )
    at_first = balance([file.size for file in source.folder("train")], 2)
    held = trained_on(tmp_path, 2)
    assert all(file.path in held[node] for file, node in zip(source.folder("train"), at_first, strict=True))


class Counted(list):
    """Counts the files that are looked at."""

    looks = 0

    def __getitem__(self, at):
        self.looks += 1
        return super().__getitem__(at)


def test_a_node_looks_once_at_the_files_that_it_sends_and_receives_and_at_no_others():
    nodes, rng = 50, np.random.default_rng(4)
    senders, distances = rng.integers(0, nodes, 999), rng.integers(1, nodes, 999)
    receivers, numbers = (senders + distances) % nodes, np.arange(999)
    made = Moves(numbers, np.ones(999, np.int64), senders, receivers, numbers)
    files = Counted(File(f"train/{i}", 1) for i in range(999))
    sent, arriving = transfers(files, made, 7)
    for listed, own, other in ((sent, senders, receivers), (arriving, receivers, senders)):
        expected = [(other[i], i, f"train/{i}") for i in range(999) if own[i] == 7]
        assert [(node, number, file.path) for node, number, file in listed] == expected  # in order
    assert files.looks == np.count_nonzero((senders == 7) | (receivers == 7))


@pytest.mark.parametrize(
    ("number", "kind", "says"),
    [
        (errno.EIO, UserError, r"/a cannot be read: Input/output error; choose another --stage$"),
        (
            errno.ECONNRESET,
            LinkBroken,
            "^the exchange of shards: the connection to rank 3 broke .*staging keeps",
        ),
        (errno.EHOSTUNREACH, LinkBroken, "the connection to rank 3 broke"),
    ],
)
def test_a_failing_disk_is_not_a_broken_connection(tmp_path, monkeypatch, number, kind, says):
    def fail(self, file, count):
        raise OSError(number, os.strerror(number))

    (tmp_path / "a").write_bytes(b"12345")
    monkeypatch.setattr(socket.socket, "sendfile", fail)
    ends = socket.socketpair()
    with ends[0], ends[1], pytest.raises(UserError, match=says) as refused:
        send_file(ends[0], 0, File("a", 5), tmp_path, "rank 3", EXCHANGE)
    assert type(refused.value) is kind


def test_a_file_that_shrinks_while_it_is_sent_is_named(tmp_path, monkeypatch):
    (tmp_path / "a").write_bytes(b"12345")
    monkeypatch.setattr(socket.socket, "sendfile", lambda self, file, count: 3)
    ends = socket.socketpair()
    with ends[0], ends[1], pytest.raises(UserError, match="/a: changed during the exchange of shards; "):
        send_file(ends[0], 0, File("a", 5), tmp_path, "rank 3", EXCHANGE)


def test_a_target_that_another_run_uses_is_not_exchanged(source, tmp_path, monkeypatch):
    monkeypatch.setattr(locks, "in_use", lambda folder: folder.name == "node1")
    outcomes = exchanged(source, tmp_path, 2, 1, [1])
    assert str(outcomes[0]).startswith(f"rank 1: {tmp_path / 'node1'}: another run uses this shard")


def test_the_next_staging_into_an_exchanged_target_restores_its_shard(source, tmp_path):
    exchanged(source, tmp_path, 2, 1, [1])
    exchanged(source, tmp_path, 2, 1, [])
    held = trained_on(tmp_path, 2)
    at_first = balance([file.size for file in source.folder("train")], 2)
    for node in range(2):
        own = {f.path for f, of in zip(source.folder("train"), at_first, strict=True) if of == node}
        assert set(held[node]) == own
        assert {f.path for f in load(tmp_path / f"node{node}").folder("train")} == own
