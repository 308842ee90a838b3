"""A data set whose training files two or more nodes hold shards of, and exchange: ranks as threads."""

from pathlib import Path

from helpers.staging_files import data_set, on_nodes

from mlhpc.common.data.manifest import Manifest
from mlhpc.common.data.partition import Shards, balance
from mlhpc.common.staging.exchange import exchange
from mlhpc.common.staging.stage import stage

SIZES = [90_000, 0, 1, 26_214, 262_145, 7_000, 7_000, 5, 31, 40_000, 300]


def source_in(folder: Path) -> Manifest:
    """Two files of each size, one of them in one of several folders of training files."""
    named = [(f"{i:02d}.tfrecord", i, size) for i, size in enumerate(SIZES)]
    training = {f"train/{i // 2}/{name}": size for name, i, size in named}
    return data_set(folder / "source", training | {f"validation/{name}": size for name, _, size in named})


def shards_of(source: Manifest, nodes: int, seed: int = 5) -> Shards:
    return Shards(balance([file.size for file in source.folder("train")], nodes), seed)


def trained_on(folder: Path, nodes: int) -> list[dict[str, bytes]]:
    roots = [folder / f"node{node}" for node in range(nodes)]
    return [
        {str(p.relative_to(r)): p.read_bytes() for p in r.rglob("train/**/*") if p.is_file()} for r in roots
    ]


def exchanged(
    source: Manifest, folder: Path, nodes: int, local_size: int, epochs: list[int], most: int = 50_000
) -> list:
    """Stage shards and exchange them through ``epochs``; what every rank got, or its error."""

    def work(world, target):
        stage(source, target, world, "shard", workers=2)
        shards, files = shards_of(source, nodes), source.folder("train")
        done, before = [], 0
        for epoch in epochs:
            done.append(exchange(files, shards, before, epoch, target, world, most))
            before = epoch
        return done

    return on_nodes(folder, nodes, local_size, work)
