"""The files of a data set that a rank reads: its part of the whole data set, or of the shard staged to its
node."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self, overload

import numpy as np

from mlhpc.common.data import archives
from mlhpc.common.data.arriving import Arriving
from mlhpc.common.data.manifest import File, Files, Manifest
from mlhpc.common.data.partition import Mode, files_of_node
from mlhpc.common.data.sharding import Pool
from mlhpc.common.formats.archive import Sample
from mlhpc.common.ranks.mesh import Mesh, mesh_of
from mlhpc.common.ranks.world import World
from mlhpc.errors import UserError
from mlhpc.quantities import count


@dataclass(frozen=True)
class RankSamples:
    """This rank's samples for training and for evaluation, the pools of ranks that share them, and the rank's
    number in each pool. ``train`` and ``evaluation`` are whatever the loader's source reads; in this module, they
    are sequences of samples sorted by path."""

    train: Any
    evaluation: Any
    train_pool: Pool
    eval_pool: Pool
    pool_rank: int

    def arriving(self, staged: Path, source: Path) -> Self:
        """The same samples, readable while they are being copied from ``source`` to ``staged``."""
        train, evaluation = (Arriving(s, staged, source) for s in (self.train, self.evaluation))
        return replace(self, train=train, evaluation=evaluation)


@dataclass(frozen=True)
class Paths(Sequence[Path]):
    """The paths of ``files`` under ``root``, each created when it is requested."""

    files: Files
    root: Path

    def __len__(self) -> int:
        return len(self.files)

    @overload
    def __getitem__(self, index: int) -> Path: ...
    @overload
    def __getitem__(self, index: slice) -> "Paths": ...

    def __getitem__(self, index: int | slice) -> "Path | Paths":
        if isinstance(index, slice):
            return Paths(self.files[index], self.root)
        return self.root / self.files[index].path


def assign_samples(
    dataset: Manifest,
    staged: Path | None,
    mode: Mode,
    world: World,
    *,
    train_samples: int,
    eval_samples: int,
    is_sample: Callable[[str], bool] | None = None,
    spatial_size: int = 1,
) -> RankSamples:
    """The samples of ``train/`` and ``validation/`` that this rank reads, one per file or packed into archives
    (``archives``).

    ``staged`` is the folder that the data set was staged to in ``mode``; None: all ranks read it in place.
    ``is_sample`` selects the files that are samples (None: all). The ``spatial_size`` ranks of a spatial group
    share their samples. Called by all ranks. Raises UserError if there are more or fewer files than the run has
    samples, if nodes with shards have unequal numbers of ranks, if the ranks of a pool cannot be divided into
    complete spatial groups, or if sharding would separate the files of a sample.
    """
    mode = mode if staged else "replicate"
    packed = archives.samples_per_archive(dataset) is not None
    mesh, number = pool_of(world, mode, spatial_size)
    root = staged or dataset.root
    node_files = files_of_node(dataset.files, world.node, world.nodes, mode)

    def samples_in(folder: str, needed: int) -> Sequence[Sample]:
        if not packed:
            _require_samples(dataset, folder, needed, mode, is_sample)
        files = samples_of(dataset, folder, node_files, root, needed, is_sample)
        return files[:needed] if mode == "replicate" else files

    train, evaluation = samples_in("train", train_samples), samples_in("validation", eval_samples)
    pool, eval_pool = (Pool(len(samples), mesh.data_size, number) for samples in (train, evaluation))
    return RankSamples(train, evaluation, pool, eval_pool, mesh.data_rank)


def samples_of(
    dataset: Manifest,
    folder: str,
    files: Sequence[File],
    root: Path,
    needed: int,
    is_sample: Callable[[str], bool] | None = None,
) -> Sequence[Sample]:
    """The samples of ``folder``, in order, that are in ``files``, a subset of the data set's files, under
    ``root``. ``needed``: the number of samples that the run needs from the whole folder. Raises UserError if
    archives do not match the manifest."""
    if archives.samples_per_archive(dataset) is not None:
        return archives.members(dataset, folder, files, root, needed)
    selected = Files.of(files).folder(folder)
    archives.require_none(dataset.root, selected)
    return Paths(_filtered(selected, is_sample), root)


def _filtered(files: Files, is_sample: Callable[[str], bool] | None) -> Files:
    return files.at(np.array([is_sample(file.path) for file in files], np.bool_)) if is_sample else files


def exchangeable(dataset: Manifest) -> int:
    """Number of training files that nodes can exchange: all except the last archive, which may have fewer
    samples."""
    return len(dataset.folder("train")) - (archives.samples_per_archive(dataset) is not None)


def pool_of(world: World, mode: Mode, spatial_size: int = 1) -> tuple[Mesh, int]:
    """This rank's coordinates in its pool, and the pool's number: one pool of all ranks, or one per node for a
    sharded data set. Called by all ranks. Raises UserError if nodes with shards have unequal numbers of ranks, or
    if the ranks of a pool cannot be divided into complete spatial groups.
    """
    if mode == "replicate":
        return mesh_of(world.rank, world.size, spatial_size), 0
    most, fewest = world.max([world.local_size, -world.local_size])
    if most != -fewest:
        raise UserError(
            "staging.mode=shard requires the same number of ranks on every node; set staging.mode=replicate"
        )
    return mesh_of(world.local_rank, world.local_size, spatial_size), world.node


def _require_samples(
    dataset: Manifest, folder: str, needed: int, mode: Mode, is_sample: Callable[[str], bool] | None
) -> None:
    files = dataset.folder(folder)
    samples = _filtered(files, is_sample)
    if mode == "shard" and len(samples) < len(files):
        raise UserError(
            f"{dataset.root / folder}: shards require one file per sample; set staging.mode=replicate"
        )
    if len(samples) < needed or (len(samples) != needed and len(samples) == len(files)):
        raise UserError(
            f"{dataset.root / folder}: {count(len(samples), 'sample file')}, but the manifest lists "
            f"{needed}; see: mlhpc data verify {dataset.root}"
        )
