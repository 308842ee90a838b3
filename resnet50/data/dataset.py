"""Finds the images of a data set's two splits in its files, for all formats.

``train/`` and ``validation/`` (or ``val/``) contain one of these: a folder of images for each class; TFRecord
shards, which may also be in one folder for both splits; ``data.mdb``; ``pixels.raw`` with ``index.npy``.
"""

from collections import Counter
from collections.abc import Container, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from mlhpc.benchmarks.resnet50 import Data
from mlhpc.common.data.assign import RankSamples, pool_of
from mlhpc.common.data.manifest import Manifest
from mlhpc.common.data.partition import Mode, files_of_node
from mlhpc.common.data.sharding import Pool
from mlhpc.common.formats.tfrecord import record_extents
from mlhpc.common.ranks.collectives import on_all_ranks, on_each_rank
from mlhpc.common.ranks.world import World
from mlhpc.errors import UserError
from mlhpc.quantities import count
from mlhpc.resnet50.data.formats import INDEX, LMDB, PIXELS, SHARD, SUFFIXES, Files, Images, Lmdb, Raw, Shards

Format = Literal["jpeg", "tfrecord", "lmdb", "raw"]
Split = Literal["train", "validation"]
SPLITS: tuple[Split, Split] = ("train", "validation")
_FOLDERS = {"train": ("train",), "validation": ("validation", "val")}
_SWITCH = {"train": "data.train_samples", "validation": "data.eval_samples"}


def select(dataset: Manifest, data: Data) -> Manifest:
    """The part of a data set that a run needs: the files of its two splits. These must contain exactly the number
    of images in ``data``, because a smaller number of files would contain only the first classes.

    Raises UserError if a split is missing, has mixed formats, or has a different number of images according to
    names and facts (TFRecord, LMDB and raw arrays without a count in the manifest are counted by
    ``assign_samples``).
    """
    selected = []
    for split, expected in zip(SPLITS, (data.train_samples, data.eval_samples), strict=True):
        names = files_of(dataset, split)
        stated = dataset.facts.get("samples", {})
        counts = [stated[folder] for folder in _FOLDERS[split] if folder in stated]
        if format_of(dataset, names) == "jpeg":
            counts.append(len(names))
        for images in counts:
            _require_count(dataset.root, split, int(images), expected)
        selected += names
    wanted_names = set(selected)
    files = dataset.files.at(np.array([file.path in wanted_names for file in dataset.files], np.bool_))
    samples = {"train": data.train_samples, "validation": data.eval_samples}
    return replace(dataset, files=files, facts=dataset.facts | {"samples": samples})


def files_of(dataset: Manifest, split: Split) -> list[str]:
    """The files of a split, sorted. Raises UserError if the split has no files, or has two folders."""
    folders = {folder: [file.path for file in dataset.folder(folder)] for folder in _FOLDERS[split]}
    folders_with_files = [folder for folder, names in folders.items() if names]
    if len(folders_with_files) > 1:
        raise UserError(f"{dataset.root} has both {' and '.join(folders_with_files)}; remove one of them")
    if folders_with_files:
        return folders[folders_with_files[0]]
    # TensorFlow's scripts write both splits into one folder.
    names = [file.path for file in dataset.files if (m := SHARD.fullmatch(file.path)) and m[1] == split]
    if not names:
        raise UserError(f"{dataset.root} has no images in {split}/; pass the folder of an image data set")
    return names


def format_of(dataset: Manifest, names: Sequence[str]) -> Format:
    """The format of a split's files ``names``. Raises UserError if they have no known format or more than one."""
    strangers = [name for name in names if not name.lower().endswith(SUFFIXES) or name.count("/") < 2]
    if not strangers:
        return "jpeg"
    base = {_base(name) for name in strangers}
    if LMDB in base:
        return _require_no_others(dataset, names, {LMDB, "lock.mdb"}, "lmdb")
    if PIXELS in base or INDEX in base:
        return _require_no_others(dataset, names, {PIXELS, INDEX}, "raw")
    matches = [match for name in strangers if (match := SHARD.fullmatch(_base(name)))]
    if not matches:
        raise UserError(f"{dataset.root / strangers[0]}: not an image ({', '.join(SUFFIXES)}); remove it")
    for name in names:
        if not SHARD.fullmatch(_base(name)):
            raise UserError(f"{dataset.root / name}: not a TFRecord shard; remove it")
    counts = {int(match[3]) for match in matches}
    if counts != {len(names)}:
        raise UserError(
            f"{dataset.root / names[0]}: only {len(names)} of {max(counts)} shards found; copy the others"
        )
    return "tfrecord"


def assign_samples(
    dataset: Manifest,
    staged: Path | None,
    mode: Mode,
    world: World,
    *,
    classes: int,
    train_samples: int,
    eval_samples: int,
) -> RankSamples:
    """This rank's part, as ``Images``, of the data set that ``select`` has returned. ``staged``: the folder to
    which the data set was staged in ``mode``; None: all ranks read it in place. Called by all ranks.

    Raises UserError, the same on all ranks, if a file cannot be read, or if the number of images differs from the
    run's, or the number of classes from ``classes``.
    """
    mode = mode if staged else "replicate"
    root = staged or dataset.root
    here = None
    if mode == "shard":
        here = {file.path for file in files_of_node(dataset.files, world.node, world.nodes, mode)}
    mesh, number = pool_of(world, mode)
    splits, _ = open_splits(dataset, world, classes, root, here, mode)
    for split, expected in zip(SPLITS, (train_samples, eval_samples), strict=True):
        n_images = len(splits[split])
        if mode == "shard":  # the ranks of a node read the same files: count them once
            n_images = int(world.sum(n_images if mesh.data_rank == 0 else 0))
        _require_count(dataset.root, split, n_images, expected)
    train, evaluation = (splits[split] for split in SPLITS)
    pool, eval_pool = (Pool(len(images), mesh.data_size, number) for images in (train, evaluation))
    return RankSamples(train, evaluation, pool, eval_pool, mesh.data_rank)


def open_splits(
    dataset: Manifest,
    world: World,
    classes: int | None = None,
    root: Path | None = None,
    here: Container[str] | None = None,
    mode: Mode = "replicate",
) -> tuple[dict[Split, Images], list[str] | None]:
    """The images of both splits, and the names of the classes if known. Images are read from ``root`` (None: the
    data set's root), to which they were staged in ``mode``, and limited to the files in ``here`` (None: all). If
    ``classes`` is None, the number of classes is not checked. Called by all ranks. Raises UserError like
    ``assign_samples``.
    """
    names = {split: files_of(dataset, split) for split in SPLITS}
    kinds = {split: format_of(dataset, names[split]) for split in SPLITS}
    of_folders = _classes(dataset, {split: names[split] for split in SPLITS if kinds[split] == "jpeg"})
    class_names = of_folders or dataset.facts.get("classes")
    if class_names and classes is not None and len(class_names) != classes:
        raise UserError(
            f"{dataset.root} has {len(class_names)} classes, not {classes}; set network.classes={len(class_names)}"
        )
    number = {name: label for label, name in enumerate(of_folders)}
    classes = classes or (len(class_names) if class_names else 1 << 30)
    root = root or dataset.root
    opened: dict[Split, Images] = {}
    for split in SPLITS:
        own_names = names[split] if here is None else [name for name in names[split] if name in here]
        if kinds[split] == "jpeg":
            paths = [f"{root}/{name}" for name in own_names]
            opened[split] = Files(paths, [number[_class(name)] for name in own_names], classes)
        elif kinds[split] == "tfrecord":
            opened[split] = Shards(_extents(root, own_names, mode, world), classes)
        elif mode == "shard":
            raise UserError(
                f"{dataset.root}: staging.mode=shard cannot divide a single file; set "
                "staging.mode=replicate, or convert to tfrecord"
            )
        else:
            open_one = partial(_open_one, kinds[split], (root / own_names[0]).parent, classes)
            opened[split] = on_each_rank(world, open_one)
    return opened, class_names


def _open_one(kind: Format, folder: Path, classes: int) -> Images:
    return Lmdb(folder, classes) if kind == "lmdb" else Raw(folder, classes)


def _classes(dataset: Manifest, names: dict[Split, list[str]]) -> list[str]:
    """The names of the classes, which are those of the folders, sorted; a label is an index into them. Raises
    UserError unless each split has images of every class."""
    in_split = {split: {_class(name) for name in names[split]} for split in names}
    class_names = set().union(dataset.facts.get("classes", ()) if in_split else (), *in_split.values())
    for split in in_split:
        for name in sorted(class_names - in_split[split]):
            raise UserError(
                f"{dataset.root}: class {name} has no image in {split}; add one, or remove the class"
            )
    return sorted(class_names)


def _extents(root: Path, names: Sequence[str], mode: Mode, world: World) -> dict[Path, npt.NDArray[np.int64]]:
    """The extents of the records in every shard under ``root``. Nodes may have different shards; ranks that read
    the same shards divide the reading of their headers."""
    ranks, pool_rank = (world.local_size, world.local_rank) if mode == "shard" else (world.size, world.rank)
    own_names = names[pool_rank::ranks]
    parts = on_all_ranks(world, lambda: [(name, record_extents(root / name)) for name in own_names])
    extents = {name: extents for part in parts for name, extents in part}
    empty = np.empty((0, 2), np.int64)
    return {root / name: extents[name] for name in names} or {Path("no shard"): empty}


def _class(name: str) -> str:
    return name.split("/", 2)[1]


def _base(name: str) -> str:
    return name.rpartition("/")[2]


def _require_no_others(dataset: Manifest, names: Sequence[str], expected: set[str], kind: Format) -> Format:
    counts = Counter(map(_base, names))
    for name in names:
        if _base(name) not in expected or counts[_base(name)] > 1 or name.count("/") != 1:
            raise UserError(
                f"{dataset.root / name} must not be in one data set with {' and '.join(sorted(expected))}; "
                "remove it"
            )
    if kind == "raw" and len(counts) < 2:
        raise UserError(f"{dataset.root}: {PIXELS} or {INDEX} is missing; copy both")
    return kind


def _require_count(root: Path, split: Split, images: int, expected: int) -> None:
    if images != expected:
        raise UserError(
            f"{root}: {count(images, 'image')} in {split}, but {expected} {'is' if expected == 1 else 'are'} "
            f"expected; set {_SWITCH[split]}={images}, or choose another data set"
        )
