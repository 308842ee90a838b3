"""Samples packed into archives are assigned to ranks as if they were files."""

from dataclasses import replace
from pathlib import Path

import pytest
from helpers.thread_world import ThreadWorld, on_ranks

from mlhpc.common.data.archives import FACT, grouped
from mlhpc.common.data.assign import RankSamples, assign_samples
from mlhpc.common.data.manifest import File, Files, Manifest, take
from mlhpc.common.data.partition import Mode
from mlhpc.common.data.sharding import eval_batches, train_batches
from mlhpc.common.formats.archive import Member
from mlhpc.errors import UserError

EACH = 7
NAMES = [f"{folder}/{i:03d}.mlc" for folder, n in (("train", 60), ("validation", 16)) for i in range(n)]
FILES = Manifest(Path("/data"), Files.of(File(name, 1) for name in NAMES))
PACKED = Manifest(
    Path("/packed"),
    Files.of(File(name, len(names)) for name, names in grouped(NAMES, EACH).items()),
    {FACT: EACH, "samples": {"train": 60, "validation": 16}},
)


def assigned(data: Manifest, nodes: int, local_size: int, mode: Mode, train: int = 60, staged: bool = True):
    def work(world: ThreadWorld) -> RankSamples:
        part = take(data, train=train, validation=16)
        stage = Path("/stage") if staged else None
        return assign_samples(part, stage, mode, world, train_samples=train, eval_samples=16)

    return on_ranks(nodes, local_size, work)


def number_of(sample: Path | Member) -> int:
    """The number of a sample in the data set before it was packed."""
    if isinstance(sample, Member):
        return int(sample.archive.stem.removeprefix("samples-")) * EACH + sample.number
    return int(sample.stem)


def epoch(samples: RankSamples, steps: int, epoch: int) -> list[int]:
    indices = train_batches(samples.train_pool, samples.pool_rank, 2, steps, seed=1, epoch=epoch)
    return [number_of(samples.train[i]) for i in indices.ravel()]


@pytest.mark.parametrize("train", [60, 41, 7])
def test_a_rank_reads_the_same_batches_from_archives_as_from_files(train: int) -> None:
    for staged in (True, False):
        ways = [assigned(data, 2, 2, "replicate", train, staged) for data in (FILES, PACKED)]
        for one, other in zip(*ways, strict=True):
            assert epoch(one, train // 8, 3) == epoch(other, train // 8, 3)
            assert [number_of(s) for s in one.evaluation] == [number_of(s) for s in other.evaluation]


@pytest.mark.parametrize("nodes", [1, 2, 3, 8])
@pytest.mark.parametrize("train", [60, 41])
def test_nodes_with_shards_share_every_sample_once(nodes: int, train: int) -> None:
    ranks = [rank for rank in assigned(PACKED, nodes, 2, "shard", train) if rank.pool_rank == 0]
    assert sorted(number_of(s) for rank in ranks for s in rank.train) == list(range(train))
    evaluated = [
        number_of(rank.evaluation[i])
        for rank in assigned(PACKED, nodes, 2, "shard", train)
        for batch in eval_batches(rank.eval_pool, rank.pool_rank, 3)
        for i in batch
    ]
    assert sorted(evaluated) == list(range(16))


def test_only_the_archives_that_a_preset_needs_are_taken() -> None:
    part = take(PACKED, train=15, validation=16)
    assert [len(part.folder(name)) for name in ("train", "validation")] == [3, 3]
    assert part.samples("train") == 21


@pytest.mark.parametrize("facts", [{FACT: 7, "samples": {"train": 80}}, {FACT: 8}, {FACT: 0}, {FACT: "7"}])
def test_a_manifest_that_is_not_true_of_the_archives_is_one_line(facts: dict) -> None:
    samples = {"samples": PACKED.facts["samples"] | facts.get("samples", {})}
    wrong = replace(PACKED, facts=PACKED.facts | facts | samples)

    def work(world: ThreadWorld) -> RankSamples:
        return assign_samples(wrong, None, "replicate", world, train_samples=60, eval_samples=16)

    (error,) = on_ranks(1, 1, work)
    assert isinstance(error, UserError) and "/packed" in str(error) and "convert" in str(error)


def test_archives_without_their_manifest_are_one_line() -> None:
    bare = replace(PACKED, facts={})

    def work(world: ThreadWorld) -> RankSamples:
        return assign_samples(bare, None, "replicate", world, train_samples=9, eval_samples=3)

    (error,) = on_ranks(1, 1, work)
    assert isinstance(error, UserError)
    assert "samples-000000.zip is an archive without a manifest" in str(error)
