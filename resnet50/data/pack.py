"""Packs JPEG files into TFRecord shards during staging, so that few files are written instead of many.

Packing takes place while the clock runs, in every run. Each node reads every image once and writes the shards that
``mlhpc data convert resnet50 --codec tfrecord`` would write, so a run reads bit-identical batches. Target locks,
the check of free space, and the removal after the run are those of staging. A shard is either complete or absent,
but interrupted packing is not resumed; the next run starts over.
"""

import os
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from isal import isal_zlib

from mlhpc.common.data import generate
from mlhpc.common.data import manifest as manifests
from mlhpc.common.data.manifest import File, Manifest
from mlhpc.common.files.filesystem import as_user_error
from mlhpc.common.host.progress import progress
from mlhpc.common.ranks.collectives import attempt, gather_or_raise, on_all_ranks, on_rank0
from mlhpc.common.ranks.world import World
from mlhpc.common.staging.record import identity, record_of
from mlhpc.common.staging.stage import RankReport, StagingReport, remove, report_of
from mlhpc.common.staging.target import (
    StagingGroup,
    check_room,
    exclusive,
    make_folders,
    remove_made_folder,
    staging_group,
    unlink,
)
from mlhpc.errors import UserError
from mlhpc.resnet50.data.convert import Shard, shards_of, write_shard
from mlhpc.resnet50.data.dataset import SPLITS, Split, open_splits
from mlhpc.resnet50.data.formats import Bytes, Files

_MODE = "packed"  # in the target's manifest, in place of the staging mode
# Upper bound, in bytes, for a record's framing and its features besides the image, with names of 255 bytes.
_RECORD_OVERHEAD = 1024


class _Checked(Files):
    """Images that are verified against the data set's manifest as they are read. Each thread reuses its memory for
    the next image, because allocating fresh pages takes longer than reading."""

    def __init__(self, images: Files, files: Sequence[File], root: Path) -> None:
        super().__init__(images.paths, images.labels, images.classes)
        self.files, self._remedy = files, f"see: mlhpc data verify {root}"
        self._own = threading.local()

    def read(self, index: int) -> tuple[Bytes, int]:
        path, file = self.paths[index], self.files[index]
        if len(getattr(self._own, "block", b"")) <= file.size:
            self._own.block = np.empty(2 * file.size + 1, np.uint8)
        data: Bytes = self._own.block[: file.size]
        count = 0
        with (
            as_user_error(Path(path), "cannot be read", self._remedy),
            open(path, "rb", buffering=0) as reader,
        ):
            actual = os.fstat(reader.fileno()).st_size
            while more := reader.readinto(data.data[count:]):
                count += more
        if actual != file.size or count < actual:
            raise UserError(f"{path}: {min(actual, count)} bytes, expected {file.size}; {self._remedy}")
        if file.crc32 is not None and (crc := isal_zlib.crc32(data)) != file.crc32:
            raise UserError(f"{path}: checksum {crc:08x}, expected {file.crc32:08x}; {self._remedy}")
        return data, self.labels[index]


def pack(
    dataset: Manifest, target: Path, world: World, classes: int, workers: int
) -> tuple[Manifest, StagingReport]:
    """Stage the JPEG files of ``dataset`` to ``target`` on every node as TFRecord shards. The ranks of a node
    divide the shards among them, and each writes ``workers`` at a time. Returns the manifest of ``target`` and the
    report, whose files are the images.

    Called by all ranks. Raises UserError, the same on all ranks, if the data set is already packed or does not
    have ``classes`` classes, if an image differs from the manifest or its size cannot be read, or if the target
    cannot be written, is too small (checked before the first byte if possible) or contains other files. If an
    image cannot be read or the target cannot be written, packed files are removed.
    """
    started = time.monotonic()
    images, names = _open(dataset, world, classes)
    shards = [(split, shard) for split in SPLITS for shard in shards_of(split, len(images[split]))]
    facts = dataset.facts | {"format": "tfrecord", "codec": "tfrecord", "lossy": False, "classes": names}
    files = manifests.Files.of(sorted(File(shard.name, 0) for _, shard in shards))
    packed = replace(dataset, root=target, files=files, facts=facts)  # sizes are filled in afterwards
    team = staging_group(dataset.root, target, world, "replicate")
    own_shards = shards[team.members.index(world.rank) :: len(team.members)]
    sources = [images[split].files[index] for split, shard in own_shards for index in shard.images]
    size = sum(file.size for file in sources)

    # Computed only once, and only on ranks that record the identity, since there may be a million files.
    of = identity(dataset) if team.leads else ""

    def write() -> RankReport:
        if not ready:
            _write(images, names, own_shards, target, workers, show=world.rank == 0)
        seconds = time.monotonic() - started
        count = len(sources)
        return (
            RankReport(0, 0, 0, count, count, seconds)
            if ready
            else RankReport(count, size, size, 0, 0, seconds)
        )

    ended = False
    try:
        with exclusive(target, world, team) as in_use:
            ready = on_all_ranks(world, lambda: _clear_target(packed, of, team, in_use))[team.members[0]]
            required = 0 if ready else size + len(sources) * _RECORD_OVERHEAD
            check_room(world.gather(required), target, team, world)
            # The record is written first, so that all files named in it are ours.
            on_all_ranks(world, lambda: None if ready else _record(packed, of, team))
            written, error = attempt(write)
            world.barrier()
            ended = True
            outcomes = gather_or_raise(world, written, error)
            on_all_ranks(world, lambda: _record(_measured(packed), of, team))
    except UserError:
        if ended and team.leads:  # before, other ranks of this node may still be writing
            remove(target)
        if team.leads:
            remove_made_folder(target)
        raise
    packed = on_rank0(world, lambda: manifests.load(target))
    return packed, report_of(outcomes, dataset, target, world, "replicate")


def _open(dataset: Manifest, world: World, classes: int) -> tuple[dict[Split, _Checked], list[str]]:
    """The images of both splits, and the names of the classes."""
    splits, names = open_splits(dataset, world, classes)
    by_name = {f"{dataset.root}/{file.path}": file for file in dataset.files}
    opened = {}
    for split, images in splits.items():
        if not isinstance(images, Files):
            raise UserError(f"{dataset.root} is already packed; omit staging.pack")
        opened[split] = _Checked(images, [by_name[path] for path in images.paths], dataset.root)
    assert names  # the names of the folders
    return opened, names


def _clear_target(packed: Manifest, of: str, team: StagingGroup, in_use: bool) -> bool:
    """Return whether another run has packed this data set in the target and is using it; always False except on
    the first rank of a team. Removes the files of an interrupted run, packed or not. Raises UserError for any
    other content."""
    if not team.leads:
        return False
    target = packed.root
    if (target / manifests.NAME).exists():
        before = manifests.load(target)
        staged = record_of(before)
        if staged is None:
            raise UserError(f"{target}: contains a data set not written by staging; choose another --stage")
        if staged["of"] != of:
            raise UserError(
                f"{target}: contains a different staged data set; remove it or choose another --stage"
            )
        if in_use and staged["mode"] != _MODE:
            raise UserError(
                f"{target}: another run uses this folder with the same data set unpacked; choose another --stage"
            )
        if in_use:
            return True
        unlink(target, (file.path for file in before.files))
    for file in packed.files:
        if (target / file.path).exists():
            raise UserError(
                f"{target / file.path} exists, but was not written by staging; choose another --stage"
            )
    return False


def _record(packed: Manifest, of: str, team: StagingGroup) -> None:
    """On the first rank of a team, write the manifest by which ``staging.remove`` recognises the target."""
    if not team.leads:
        return
    staged = {"of": of, "mode": _MODE}
    manifests.save(replace(packed, facts=packed.facts | {"staged": staged}))


def _measured(packed: Manifest) -> Manifest:
    sizes = (File(file.path, (packed.root / file.path).stat().st_size) for file in packed.files)
    return replace(packed, files=manifests.Files.of(sizes))


def _write(
    images: dict[Split, _Checked],
    names: Sequence[str],
    shards: Sequence[tuple[Split, Shard]],
    target: Path,
    workers: int,
    show: bool,
) -> None:
    count = sum(len(shard.images) for _, shard in shards)
    remedy = "free some space or choose another --stage"
    with (
        progress(count, "staging", "images", show, lines=False) as advance,
        as_user_error(target, "cannot be written", remedy),
    ):
        make_folders(target, SPLITS)

        def write_one(pair: tuple[Split, Shard]) -> None:
            split, shard = pair
            write_shard(images[split], names, target, advance, shard)

        generate.in_threads(write_one, shards, workers)
