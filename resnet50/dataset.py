"""From the files of a data set to the images of its two splits, in whatever format they lie there.

``train/`` and ``validation/`` (or ``val/``) hold one of: a folder of images for each class; TFRecord shards,
which may also lie beside each other without folders; ``data.mdb``; ``pixels.raw`` with ``index.npy``.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Literal

import numpy as np
import numpy.typing as npt

from mlhpc.benchmarks.resnet50 import Data
from mlhpc.common.data.manifest import Manifest
from mlhpc.common.data.sharding import Pool
from mlhpc.common.data.staging import Mode, part
from mlhpc.common.data.tfrecord import record_extents
from mlhpc.common.data.together import together
from mlhpc.common.errors import UserError
from mlhpc.common.ranks.world import World
from mlhpc.resnet50.formats import INDEX, LMDB, PIXELS, SHARD, SUFFIXES, Files, Images, Lmdb, Raw, Shards

Format = Literal["jpeg", "tfrecord", "lmdb", "raw"]
Split = Literal["train", "validation"]
SPLITS: tuple[Split, Split] = ("train", "validation")
_FOLDERS = {"train": ("train",), "validation": ("validation", "val")}
_SWITCH = {"train": "data.train_samples", "validation": "data.eval_samples"}


@dataclass(frozen=True)
class Share:
    """The images that a rank reads from, its pools, and its place in them."""

    train: Images
    evaluation: Images
    train_pool: Pool
    eval_pool: Pool
    place: int


def select(dataset: Manifest, data: Data) -> Manifest:
    """The part of a data set that a run needs: the files of its two splits, which hold exactly as many images
    as ``data`` says. A part of them would be the first classes alone.

    Raises UserError when a split is missing, mixed or of another number of images, where names and facts tell
    (of TFRecord, LMDB and raw arrays without a count in the manifest, ``share_of`` counts).
    """
    kept = []
    for split, wanted in zip(SPLITS, (data.train_samples, data.eval_samples), strict=True):
        names = files_of(dataset, split)
        stated = dataset.facts.get("samples", {})
        found = [stated[folder] for folder in _FOLDERS[split] if folder in stated]
        if format_of(dataset, names) == "jpeg":
            found.append(len(names))
        for count in found:
            _require_count(dataset.root, split, int(count), wanted)
        kept += names
    wanted_names = set(kept)
    files = tuple(file for file in dataset.files if file.path in wanted_names)
    samples = {"train": data.train_samples, "validation": data.eval_samples}
    return replace(dataset, files=files, facts=dataset.facts | {"samples": samples})


def files_of(dataset: Manifest, split: Split) -> list[str]:
    """The files of a split, sorted. Raises UserError when it has none, or two folders."""
    folders = {folder: [file.path for file in dataset.folder(folder)] for folder in _FOLDERS[split]}
    found = [folder for folder, names in folders.items() if names]
    if len(found) > 1:
        raise UserError(f"{dataset.root}: has both {' and '.join(found)}; leave one of them in it")
    if found:
        return folders[found[0]]
    # TensorFlow's scripts write both splits into one folder.
    names = [file.path for file in dataset.files if (m := SHARD.fullmatch(file.path)) and m[1] == split]
    if not names:
        raise UserError(
            f"{dataset.root}: has no {split}/ with images; give the folder of an ImageNet-like data set"
        )
    return names


def format_of(dataset: Manifest, names: Sequence[str]) -> Format:
    """The format that the files of a split are in. Raises UserError for none, or more than one, of them."""
    base = [PurePosixPath(name).name for name in names]
    if any(name == LMDB for name in base):
        return _alone(dataset, names, {LMDB, "lock.mdb"}, "lmdb")
    if any(name in (PIXELS, INDEX) for name in base):
        return _alone(dataset, names, {PIXELS, INDEX}, "raw")
    shards = [SHARD.fullmatch(name) for name in base]
    if any(shards):
        odd = [name for name, match in zip(names, shards, strict=True) if not match]
        if odd:
            raise UserError(f"{dataset.root / odd[0]}: not a TFRecord shard, among shards; take it away")
        counts = {match[3] for match in shards if match}
        if len(counts) > 1 or len(names) != int(max(counts)):
            raise UserError(
                f"{dataset.root / names[0]}: one of {int(max(counts))} shards by its name, and {len(names)} "
                "are there; copy the missing ones, and leave no others"
            )
        return "tfrecord"
    for name in names:
        if not name.lower().endswith(SUFFIXES) or name.count("/") < 2:
            raise UserError(
                f"{dataset.root / name}: not an image in a class's folder ({', '.join(SUFFIXES)}); take it "
                "away"
            )
    return "jpeg"


def classes_of(dataset: Manifest, classes: int | None) -> list[str]:
    """The names of the classes of folders of images, sorted: labels count them. Both splits must have images
    of each, and there must be ``classes`` of them (None: any number).

    Raises UserError naming the folder that is empty, or the numbers that differ.
    """
    found = {split: {_class(name) for name in files_of(dataset, split)} for split in SPLITS}
    known = found["train"] | found["validation"] | set(dataset.facts.get("classes", ()))
    for split in SPLITS:
        for name in sorted(known - found[split]):
            raise UserError(
                f"{dataset.root}: class {name} has no image in {split}; add some, or remove the class"
            )
    _require_classes(dataset.root, len(known), classes)
    return sorted(known)


def share_of(
    dataset: Manifest,
    staged: Path | None,
    mode: Mode,
    world: World,
    *,
    classes: int,
    train_samples: int,
    eval_samples: int,
) -> Share:
    """The share of this rank in the data set that ``select`` gave; ``staged`` is the folder that it was
    staged to in ``mode``, None: it is read where it lies, by all. Called by all ranks.

    Raises UserError, the same on all, when a file cannot be read, the images are not as many as the run has
    samples, or the classes not as many as ``classes``.
    """
    mode = mode if staged else "replicate"
    root = staged or dataset.root
    here = {file.path for file in part(dataset.files, world.node, world.nodes, mode)}
    ranks, place = (world.local_size, world.local_rank) if mode == "shard" else (world.size, world.rank)
    if mode == "shard" and len(set(world.gather(world.local_size))) > 1:
        raise UserError(
            "staging.mode=shard gives nodes equal numbers of images, and theirs of ranks are unequal: "
            "start as many on each, or replicate"
        )
    if "classes" in dataset.facts:
        _require_classes(dataset.root, len(dataset.facts["classes"]), classes)
    splits: list[Images] = []
    for split, wanted in zip(SPLITS, (train_samples, eval_samples), strict=True):
        names = files_of(dataset, split)
        images = _open(dataset, split, root, [name for name in names if name in here], classes, mode, world)
        # Pools that see the same files count them once.
        counted = len(images) if mode == "replicate" or place == 0 else 0
        found = counted if mode == "replicate" else sum(world.gather(counted))
        _require_count(dataset.root, split, found, wanted)
        splits.append(images)
    train, evaluation = splits
    number = world.node if mode == "shard" else 0
    return Share(
        train, evaluation, Pool(len(train), ranks, number), Pool(len(evaluation), ranks, number), place
    )


def open_split(dataset: Manifest, split: Split, classes: int | None, world: World) -> Images:
    """All images of a split where they lie; ``classes`` None: as many as there are. Called by all ranks.

    Raises UserError as ``share_of``.
    """
    if classes is None:
        jpeg = format_of(dataset, files_of(dataset, split)) == "jpeg"
        stated = dataset.facts.get("classes")
        classes = len(classes_of(dataset, None)) if jpeg else len(stated) if stated else 1 << 30
    return _open(dataset, split, dataset.root, files_of(dataset, split), classes, "replicate", world)


def _open(
    dataset: Manifest, split: Split, root: Path, names: list[str], classes: int, mode: Mode, world: World
) -> Images:
    kind = format_of(dataset, files_of(dataset, split))
    paths = [root / name for name in names]
    if kind == "jpeg":
        number = {name: label for label, name in enumerate(classes_of(dataset, classes))}
        return Files(paths, [number[_class(name)] for name in names], classes)
    if kind == "tfrecord":
        return Shards(_extents(paths, mode, world), classes)
    if mode == "shard":
        raise UserError(
            f"{dataset.root}: staging.mode=shard gives nodes whole files, and {kind} is one for all images; "
            "set staging.mode=replicate, or convert to tfrecord"
        )
    folder = paths[0].parent

    def open_one() -> Images:
        return Lmdb(folder / LMDB, classes) if kind == "lmdb" else Raw(folder, classes)

    return together(world, open_one)[world.rank]


def _extents(paths: list[Path], mode: Mode, world: World) -> dict[Path, npt.NDArray[np.int64]]:
    """The records of every shard; ranks that see the same shards read the headers of a part each."""
    ranks, place = (world.local_size, world.local_rank) if mode == "shard" else (world.size, world.rank)
    mine = paths[place::ranks]
    parts = together(world, lambda: [(path, record_extents(path)) for path in mine])
    found = {path: extents for part in parts for path, extents in part}
    empty = np.empty((0, 2), np.int64)
    return {path: found[path] for path in paths} or {Path("no shard"): empty}


def _class(name: str) -> str:
    return PurePosixPath(name).parts[1]


def _alone(dataset: Manifest, names: Sequence[str], wanted: set[str], kind: Format) -> Format:
    counts = Counter(PurePosixPath(name).name for name in names)
    for name in names:
        base = PurePosixPath(name).name
        if base not in wanted or counts[base] > 1 or name.count("/") != 1:
            raise UserError(f"{dataset.root / name}: does not belong beside {', '.join(sorted(wanted))}")
    if kind == "raw" and len(counts) < 2:
        raise UserError(f"{dataset.root / names[0]}: {PIXELS} and {INDEX} go together; copy the other")
    return kind


def _require_classes(root: Path, found: int, wanted: int | None) -> None:
    if wanted is not None and found != wanted:
        raise UserError(
            f"{root}: {found} classes, and the network has {wanted}; set network.classes={found}, or give "
            "another data set"
        )


def _require_count(root: Path, split: Split, found: int, wanted: int) -> None:
    if found != wanted:
        raise UserError(
            f"{root}: {found} images in {split}, {wanted} are expected; set {_SWITCH[split]}={found}, or "
            "give another data set"
        )
