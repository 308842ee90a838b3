"""The plan of a staging against what staging does, and at the sizes of the published data set."""

from pathlib import Path

import numpy as np
import pytest
from helpers.thread_world import on_ranks

from mlhpc.common.data.manifest import File, index
from mlhpc.common.data.partition import Shards, balance
from mlhpc.common.ranks.world import Solo
from mlhpc.common.staging.plan import exchanged_bytes, plan
from mlhpc.common.staging.stage import StagingReport, stage

WAYS = [("replicate", False), ("replicate", True), ("shard", False), ("shard", True)]


@pytest.mark.parametrize(("mode", "read_once"), WAYS)
@pytest.mark.parametrize("local_size", [1, 2])
def test_staging_does_what_the_plan_says(tmp_path: Path, mode, read_once, local_size) -> None:
    source, rng = tmp_path / "source", np.random.default_rng(5)
    for folder, count in (("train", 11), ("validation", 4)):
        (source / folder).mkdir(parents=True)
        for i in range(count):
            (source / folder / f"{i}").write_bytes(rng.bytes(int(rng.integers(0, 5000))))
    (source / "stats.h5").write_bytes(b"statistics")
    manifest = index(source, {}, Solo(), workers=1)

    def work(world):
        return stage(manifest, tmp_path / f"node{world.node}", world, mode, read_once=read_once)

    report = on_ranks(3, local_size, work)[0]
    planned = plan(manifest.files, 3, mode, read_once=read_once, ranks_per_node=local_size)
    for node in range(3):
        target = tmp_path / f"node{node}"
        sizes = [p.stat().st_size for p in target.rglob("*") if p.is_file() and not p.name.startswith(".")]
        assert sum(sizes) - (target / "manifest.json").stat().st_size == planned.held[node]
    assert isinstance(report, StagingReport) and report.source_bytes == planned.read.sum()
    assert report.bytes - report.source_bytes == planned.sent


@pytest.mark.parametrize(("mode", "read_once"), [("replicate", True), ("shard", False)])
def test_half_a_million_files_on_1024_nodes_are_shared_evenly(mode, read_once) -> None:
    """As many files as CosmoFlow's training set has, of sizes that differ as if they were compressed."""
    rng = np.random.default_rng(1)
    sizes = (16_777_216 * (1 + 0.15 * rng.standard_normal(524_288)).clip(0.3)).astype(int).tolist()
    files = [File(f"train/{i:06d}", size) for i, size in enumerate(sizes)]
    planned = plan(files, 1024, mode, read_once=read_once)
    assert planned.imbalance <= 1.02
    assert planned.read.sum() == sum(sizes)  # once, however many nodes
    assert planned.opens == len(files) + 1
    assert planned.sent == (1023 * sum(sizes) if read_once else 0)


def test_every_node_reading_everything_costs_the_nodes_times_as_much() -> None:
    files = [File(f"train/{i}", 10) for i in range(100)]
    planned = plan(files, 64, "replicate")
    assert (planned.read.sum(), planned.opens, planned.sent) == (64 * 1000, 64 * 100 + 1, 0)


def test_nothing_to_stage_is_even() -> None:
    assert plan([], 4, "shard").imbalance == 1.0


def test_the_expected_bytes_of_an_exchange_are_the_mean_of_those_that_move():
    sizes = np.random.default_rng(1).integers(500, 1500, 600)
    files = [File(f"train/{i:03d}", int(size)) for i, size in enumerate(sizes)]
    shards = Shards(balance(sizes, 8), seed=2)
    moved = [sizes[shards.moves(epoch, epoch + 1)].sum() for epoch in range(30)]
    others = [File("stats.h5", 10**9), File("validation/1", 10**9)]
    spread = np.std(moved) / np.sqrt(len(moved))
    assert exchanged_bytes(sorted([*files, *others]), 8) == pytest.approx(np.mean(moved), abs=4 * spread)
