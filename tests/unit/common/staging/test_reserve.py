"""The requirements of exchanges of shards are checked before training."""

import re
import resource
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.descriptors import open_descriptors
from helpers.shards import exchanged, shards_of, source_in
from helpers.staging_files import on_nodes

from mlhpc.common.data.manifest import Manifest
from mlhpc.common.files import locks
from mlhpc.common.files.filesystem import FileSystem
from mlhpc.common.staging import exchange as module
from mlhpc.common.staging import moves, transfer
from mlhpc.common.staging.exchange import reserve
from mlhpc.common.staging.stage import stage
from mlhpc.errors import AlreadyReported, UserError


@pytest.fixture
def source(tmp_path: Path) -> Manifest:
    return source_in(tmp_path)


def reserved(source: Manifest, folder: Path, nodes: int, epochs: list[int], local_size: int = 1) -> list:
    def work(world, target):
        stage(source, target, world, "shard", workers=2)
        reserve(source.folder("train"), shards_of(source, nodes), epochs, target, world, 50_000)

    return on_nodes(folder, nodes, local_size, work)


def test_the_room_of_all_epochs_is_required_before_the_first_moves(source, tmp_path, monkeypatch):
    """The space needed is what the disks hold at every arrival, over four exchanges."""
    monkeypatch.setattr(moves, "FILE_OVERHEAD", 0)
    peak, write = Counter(), transfer.write_verified

    def held(target):
        files = (path for path in (target / "train").rglob("*.tfrecord") if not path.name.startswith("."))
        return sum(path.stat().st_size for path in files)

    def measured(file, target, *rest):
        write(file, target, *rest)
        peak[target.name] = max(peak[target.name], held(target))

    epochs = [0, 1, 2, 5, 6]
    exchanged(source, tmp_path, 2, 1, [])
    at_first = {f"node{node}": held(tmp_path / f"node{node}") for node in range(2)}
    with monkeypatch.context() as patched:
        patched.setattr(transfer, "write_verified", measured)
        exchanged(source, tmp_path, 2, 1, epochs[1:])
    needed = max(peak[name] - at_first[name] for name in peak)
    for free, refused in ((needed, False), (needed - 1, True)):
        space = FileSystem("ext4", Path("/"), False, free)
        roomy = replace(space, free_bytes=10**12)  # for staging, before it writes the manifest
        monkeypatch.setattr(
            "mlhpc.common.staging.target.filesystem_of",
            lambda path, after=space, before=roomy: after if (path / "manifest.json").exists() else before,
        )
        outcomes = reserved(source, tmp_path / "reserved", 2, epochs, local_size=2)
        assert any(isinstance(outcome, UserError) for outcome in outcomes) == refused, outcomes
        assert ("exchanging shards needs " in str(outcomes[0])) == refused


def test_a_later_run_is_kept_out_of_a_target_whose_shards_will_move(source, tmp_path, monkeypatch):
    assert reserved(source, tmp_path, 2, [0, 1]) == [None, None]
    with monkeypatch.context() as patched:
        patched.setattr(locks, "in_use", lambda folder: True)
        outcomes = exchanged(source, tmp_path, 2, 1, [])
    assert "another run exchanges shards in this folder" in str(outcomes[0]), outcomes
    assert exchanged(source, tmp_path, 2, 1, []) == [[], []]  # the run has ended
    with monkeypatch.context() as patched:
        patched.setattr(locks, "in_use", lambda folder: True)
        assert exchanged(source, tmp_path, 2, 1, []) == [[], []]  # and left no mark


def test_ranks_share_the_planning_of_all_epochs(source, tmp_path, monkeypatch):
    planned, plan = [], module.moves_between

    def counted(sizes, shards, before, after):
        planned.append((before, after))
        return plan(sizes, shards, before, after)

    monkeypatch.setattr(module, "moves_between", counted)
    assert reserved(source, tmp_path, 2, list(range(10)), local_size=2) == [None] * 4
    assert sorted(planned) == [(epoch, epoch + 1) for epoch in range(9)]


def test_a_target_that_another_run_uses_is_not_reserved(source, tmp_path, monkeypatch):
    monkeypatch.setattr(locks, "in_use", lambda folder: folder.name == "node1")
    outcomes = reserved(source, tmp_path, 2, [0, 1])
    assert str(outcomes[0]).startswith(f"rank 1: {tmp_path / 'node1'}: another run uses this shard")


def test_descriptors_are_required_for_all_that_an_exchange_opens(source, tmp_path, monkeypatch):
    """Counted at every arrival: one socket per node for each rank, and little else."""
    required, opened, write = [], [], transfer.write_verified

    def sockets():
        return sum(name.startswith("socket:") for name in (open_descriptors() - before).elements())

    def counted(*words):
        write(*words)
        opened.append(sockets())

    monkeypatch.setattr(module, "require_descriptors", required.append)
    asked = {}
    for nodes in (2, 6):
        required.clear()
        opened.clear()
        reserved(source, tmp_path / f"{nodes}", nodes, [0, 1])
        with monkeypatch.context() as patched:
            patched.setattr(transfer, "write_verified", counted)
            before = open_descriptors()
            exchanged(source, tmp_path / f"{nodes}", nodes, 1, [1])
        assert max(opened) == nodes * nodes
        assert sockets() == 0
        asked[nodes] = min(required)
    assert asked[6] - asked[2] >= 4
    assert all(2 * module.AT_ONCE < count - nodes < 100 for nodes, count in asked.items())


def test_too_few_descriptors_are_one_line_before_training(source, tmp_path, monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda which: (40, 40))
    outcomes = reserved(source, tmp_path, 2, [0, 1])
    assert re.search(r"open files and connections, .* limit is 40; raise it with ulimit -n", str(outcomes[0]))
    assert isinstance(outcomes[1], AlreadyReported)
