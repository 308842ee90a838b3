"""Which files of a data set a rank reads: its share of all, or of the shard that was staged to its node."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from mlhpc.common.data.manifest import Manifest
from mlhpc.common.data.partition import Mode, part
from mlhpc.common.data.sharding import Pool
from mlhpc.common.ranks.world import World
from mlhpc.errors import UserError, count


@dataclass(frozen=True)
class RankSamples:
    """The sample files of the pools that a rank reads from, in order of path, and its place in them."""

    train_files: list[Path]
    eval_files: list[Path]
    train_pool: Pool
    eval_pool: Pool
    place: int


def assign_samples(
    dataset: Manifest,
    staged: Path | None,
    mode: Mode,
    world: World,
    *,
    train_samples: int,
    eval_samples: int,
    is_sample: Callable[[Path], bool] = lambda path: True,
) -> RankSamples:
    """The share of this rank in ``train/`` and ``validation/``, one sample a file; ``is_sample`` says which
    files stand for one. ``staged`` is the folder that the data set was staged to in ``mode``; None: it is
    read where it lies, by all. Called by all ranks.

    Raises UserError when the files are not as many as the run has samples, when nodes that hold shards have
    unequal numbers of ranks, or when a sample of two files would be torn apart by sharding.
    """
    mode = mode if staged else "replicate"
    for folder, wanted in (("train", train_samples), ("validation", eval_samples)):
        files = dataset.folder(folder)
        samples = [file for file in files if is_sample(Path(file.path))]
        if mode == "shard" and len(samples) < len(files):
            raise UserError(
                f"{dataset.root / folder}: its samples are more than a file each, which staging.mode=shard "
                "would put on different nodes; set staging.mode=replicate"
            )
        if len(samples) < wanted or (len(samples) != wanted and len(samples) == len(files)):
            raise UserError(
                f"{dataset.root / folder}: {count(len(samples), 'sample file')}, but the manifest counts the "
                f"{count(wanted, 'sample')} of this run, one a file; see: mlhpc data verify {dataset.root}"
            )
    if mode == "shard" and len(set(world.gather(world.local_size))) > 1:
        raise UserError(
            "staging.mode=shard gives nodes equal numbers of samples, and theirs of ranks are unequal: "
            "start as many on each, or replicate"
        )
    root = staged or dataset.root
    here = [root / file.path for file in part(dataset.files, world.node, world.nodes, mode)]
    train_files, eval_files = (
        [path for path in here if path.is_relative_to(root / folder) and is_sample(path)]
        for folder in ("train", "validation")
    )
    if mode == "replicate":
        train_files, eval_files = train_files[:train_samples], eval_files[:eval_samples]
    ranks, place = (world.local_size, world.local_rank) if mode == "shard" else (world.size, world.rank)
    number = world.node if mode == "shard" else 0
    return RankSamples(
        train_files,
        eval_files,
        Pool(len(train_files), ranks, number),
        Pool(len(eval_files), ranks, number),
        place,
    )
