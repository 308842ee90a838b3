"""What is dropped from page caches before a run, against the files that staging then opens on each node."""

import os
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers.thread_world import on_ranks

from mlhpc.benchmarks.schema import Staging
from mlhpc.common.data.manifest import Manifest, index
from mlhpc.common.files import pagecache
from mlhpc.common.ranks.world import Solo
from mlhpc.common.staging.eviction import HOOK, drop_by_hook, evict
from mlhpc.common.staging.plan import plan
from mlhpc.common.staging.stage import stage
from mlhpc.errors import UserError

OPENED: list[str] = []


def _record(event: str, arguments: tuple[object, ...]) -> None:
    if event == "open" and isinstance(arguments[0], str | os.PathLike):
        OPENED.append(os.fspath(arguments[0]))


sys.addaudithook(_record)  # every open of this process, also those of libraries


@pytest.fixture
def data(tmp_path: Path) -> Manifest:
    source, rng = tmp_path / "source", np.random.default_rng(5)
    for folder, count in (("train", 23), ("validation", 8)):
        (source / folder).mkdir(parents=True)
        for i in range(count):
            (source / folder / f"{i}").write_bytes(rng.bytes(int(rng.integers(1, 50_000))))
    (source / "stats.h5").write_bytes(b"statistics")
    return index(source, {}, Solo(), workers=1)


def opened_by_node(dataset: Manifest, nodes: int, local_size: int, work) -> list[Counter[str]]:
    """How often each node opened each file of the data set, which it sees under a path of its own."""
    roots = [dataset.root.with_name(f"seen_by_{node}") for node in range(nodes)]
    for root in roots:
        if not root.exists():
            root.symlink_to(dataset.root)
    OPENED.clear()
    results = on_ranks(nodes, local_size, lambda world: work(replace(dataset, root=roots[world.node]), world))
    assert not [result for result in results if isinstance(result, Exception)], results
    opened = [path for path in OPENED if not path.endswith("manifest.json")]
    return [
        Counter(path.removeprefix(f"{root}/") for path in opened if path.startswith(f"{root}/"))
        for root in roots
    ]


@pytest.mark.parametrize("local_size", [1, 2])
@pytest.mark.parametrize(
    ("mode", "read_once"), [("replicate", False), ("replicate", True), ("shard", False), ("shard", True)]
)
def test_each_node_opens_once_what_it_will_stage(data, tmp_path, mode, read_once, local_size):
    how = Staging(mode=mode, read_once=read_once, workers=3)
    target = tmp_path / "node"
    evicted = opened_by_node(
        data, 3, local_size, lambda seen, world: evict(seen, target / str(world.node), how, world)
    )
    staged = opened_by_node(
        data,
        3,
        local_size,
        lambda seen, world: stage(seen, target / str(world.node), world, mode, 3, read_once),
    )
    assert evicted == staged
    assert {times for node in evicted for times in node.values()} == {1}
    planned = plan(data.files, 3, mode, read_once=read_once, ranks_per_node=local_size)
    assert [sum(node.values()) for node in evicted] == planned.files.tolist()


def test_in_place_every_node_may_read_every_file(data):
    evicted = opened_by_node(data, 2, 2, lambda seen, world: evict(seen, None, Staging(mode="shard"), world))
    assert evicted == [Counter(file.path for file in data.files)] * 2


def test_the_ranks_of_a_node_divide_its_files(data):
    """By the files that each drops itself."""
    parts: dict[int, list[str]] = {}

    def work(world):
        seen = replace(data, root=data.root.with_name(f"rank{world.rank}"))
        seen.root.symlink_to(data.root)
        return evict(seen, None, Staging(), world)

    OPENED.clear()
    results = on_ranks(1, 4, work)
    for path in OPENED:
        for rank in range(4):
            if f"/rank{rank}/" in path:
                parts.setdefault(rank, []).append(path.partition(f"/rank{rank}/")[2])
    everything = [*(file.path for file in data.files), "manifest.json"]
    assert sorted(path for part in parts.values() for path in part) == sorted(everything)
    assert sorted(map(len, parts.values())) == [8, 8, 8, 9]  # 32 files, and the manifest that rank 0 has read
    assert results[0].files == 33 and results[0].bytes > data.bytes


@pytest.mark.parametrize(("resident", "synced"), [(1.0, True), (0.0, False)])
def test_only_files_whose_pages_stay_in_memory_are_synced(data, monkeypatch, resident, synced):
    """New files, whose pages are dirty; those that were only read are dropped at once."""
    calls: list[int] = []
    monkeypatch.setattr(pagecache, "resident_fraction_fd", lambda fd: resident)
    monkeypatch.setattr(pagecache.os, "fsync", calls.append)
    evicted = evict(data, None, Staging(), Solo())
    assert evicted.complete is not synced
    assert len(calls) == (evicted.files if synced else 0)


def test_a_missing_file_is_named_on_all_ranks(data):
    (data.root / "train/7").unlink()
    errors = on_ranks(2, 2, lambda world: evict(data, None, Staging(), world))
    assert all(isinstance(error, UserError) and "train/7" in str(error) for error in errors)


def test_a_sites_command_runs_once_per_node(tmp_path):
    command = tmp_path / "drop"
    command.write_text(f'#!/bin/sh\necho "$1" >> {tmp_path}/ran\n')
    command.chmod(0o755)
    done = on_ranks(3, 2, lambda world: drop_by_hook({HOOK: str(command)}, Path("/data"), world))
    assert all(one.complete for one in done)
    assert (tmp_path / "ran").read_text().splitlines() == ["/data"] * 3
    assert drop_by_hook({}, Path("/data"), Solo()) is None


@pytest.mark.parametrize("command", ["false", "/no/such/command", "'"])
def test_a_sites_command_that_fails_ends_the_run(command):
    with pytest.raises(UserError, match="MLHPC_DROP_CACHES"):
        drop_by_hook({HOOK: command}, Path("/data"), Solo())
