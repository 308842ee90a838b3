"""Which files a rank reads."""

from pathlib import Path

import pytest
from helpers.thread_world import ThreadWorld, on_ranks

from mlhpc.common.data.assign import RankSamples, assign_samples
from mlhpc.common.data.manifest import File, Files, Manifest
from mlhpc.common.data.partition import Mode
from mlhpc.common.data.sharding import train_batches
from mlhpc.errors import UserError

DATA = Manifest(
    Path("/data"),
    Files.of(File(f"{f}/{i:02d}", 1) for f, n in (("train", 24), ("validation", 12)) for i in range(n)),
)


def assigned(nodes: int, local_size: int, mode: Mode, spatial_size: int = 1) -> list[RankSamples | Exception]:
    def work(world: ThreadWorld) -> RankSamples:
        return assign_samples(
            DATA, Path("/stage"), mode, world, train_samples=24, eval_samples=12, spatial_size=spatial_size
        )

    return on_ranks(nodes, local_size, work)


def first_epoch(samples: RankSamples) -> list[Path]:
    steps = samples.train_pool.samples // samples.train_pool.ranks
    indices = train_batches(samples.train_pool, samples.pool_rank, 1, steps, seed=1, epoch=1)
    return [samples.train[i] for i in indices.ravel()]


@pytest.mark.parametrize("mode", ["replicate", "shard"])
@pytest.mark.parametrize("spatial_size", [1, 2])
def test_ranks_of_a_spatial_group_read_the_same_samples_and_groups_divide_them(
    mode: Mode, spatial_size: int
) -> None:
    read = [first_epoch(samples) for samples in assigned(2, 4, mode, spatial_size)]  # type: ignore[arg-type]
    groups = [read[i : i + spatial_size] for i in range(0, 8, spatial_size)]
    assert all(files == group[0] for group in groups for files in group)
    everything = sorted(path for group in groups for path in group[0])
    assert everything == [Path("/stage") / file.path for file in DATA.folder("train")]


def test_sharding_refuses_spatial_groups_that_do_not_fill_a_node() -> None:
    for error in assigned(2, 3, "shard", spatial_size=2):
        assert isinstance(error, UserError) and "3 ranks cannot form spatial groups of 2" in str(error)
    assert all(isinstance(samples, RankSamples) for samples in assigned(2, 3, "replicate", spatial_size=2))
