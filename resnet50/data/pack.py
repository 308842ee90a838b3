"""JPEG files packed into TFRecord shards on their way to the nodes: staging that writes few files, not many.

All of it is inside the clock, in every run. Each node reads every image once, and writes the shards that
``mlhpc data convert resnet50 --to tfrecord`` would: a run reads the same batches, bit for bit. What is shared
with staging is who may write to a target, how much room there must be, and what takes all away after the run.
A shard is whole or not there, but an interrupted packing is not gone on with: the next run packs anew.
"""

import os
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from isal import isal_zlib

from mlhpc.common.data import manifest as manifests
from mlhpc.common.data.manifest import File, Manifest
from mlhpc.common.files.filesystem import filesystem_of
from mlhpc.common.host.progress import progress
from mlhpc.common.ranks.collectives import attempt, gather_or_raise, on_all_ranks, on_rank0
from mlhpc.common.ranks.world import World
from mlhpc.common.staging.stage import StagingReport, identity, record_of, remove, report_of
from mlhpc.common.staging.target import (
    Need,
    StagingGroup,
    as_user_error,
    check_room,
    exclusive,
    make_folders,
    staging_group,
    unlink,
)
from mlhpc.errors import UserError
from mlhpc.resnet50.data.convert import Shard, in_threads, shards_of, write_shard
from mlhpc.resnet50.data.dataset import SPLITS, Split, open_splits
from mlhpc.resnet50.data.formats import Files
from mlhpc.resnet50.data.image import Bytes

_MODE = "packed"  # in the target's manifest, where staging has its mode
# More than a record's framing and features besides the image take, with names of 255 bytes.
_RECORD_OVERHEAD = 1024


class _Checked(Files):
    """Images that are held against the data set's manifest as they are read, into memory that is taken again
    for the thread's next image: fresh pages for each cost more than reading it."""

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
            found = os.fstat(reader.fileno()).st_size
            while more := reader.readinto(data.data[count:]):
                count += more
        if found != file.size or count < found:
            raise UserError(f"{path}: {min(found, count)} bytes, expected {file.size}; {self._remedy}")
        if file.crc32 is not None and (crc := isal_zlib.crc32(data)) != file.crc32:
            raise UserError(f"{path}: checksum {crc:08x}, expected {file.crc32:08x}; {self._remedy}")
        return data, self.labels[index]


def pack(
    dataset: Manifest, target: Path, world: World, classes: int, workers: int
) -> tuple[Manifest, StagingReport]:
    """Stage the JPEG files of ``dataset`` to ``target`` on every node as TFRecord shards, which the ranks of
    the node share, ``workers`` at a time in each rank. Returns what lies in ``target``, and the report, which
    counts the images.

    Called by all ranks. Raises UserError, the same on all ranks, when the data set is packed already or has
    not ``classes`` classes, an image is not as the manifest says or has no readable size, or the target
    cannot be written, is too small (before the first byte where that can be known) or holds other files.
    Where an image or the target fails, what was packed is taken away.
    """
    started = time.monotonic()
    images, names = _open(dataset, world, classes)
    shards = [(split, shard) for split in SPLITS for shard in shards_of(split, len(images[split]))]
    facts = dataset.facts | {"format": "tfrecord", "classes": names}
    files = tuple(sorted(File(shard.name, 0) for _, shard in shards))
    made = replace(dataset, root=target, files=files, facts=facts)  # sizes are known afterwards
    team = staging_group(dataset.root, target, world, "replicate")
    mine = shards[team.members.index(world.rank) :: len(team.members)]
    sources = [images[split].files[index] for split, shard in mine for index in shard.images]
    size = sum(file.size for file in sources)

    # A million files: once, and by those who write it down.
    of = identity(dataset) if team.leads else ""

    def need() -> Need:
        wanted = 0 if there else size + len(sources) * _RECORD_OVERHEAD
        return Need(wanted, team.members[0], target, filesystem_of(target) if team.leads else None)

    def write() -> tuple[int, int, int, int, float]:
        if not there:
            _write(images, names, mine, target, workers, show=world.rank == 0)
        seconds = time.monotonic() - started
        return (0, 0, len(sources), len(sources), seconds) if there else (len(sources), size, 0, 0, seconds)

    ended = False
    try:
        with exclusive(target, world, team) as in_use:
            there = on_all_ranks(world, lambda: _make_way(made, of, team, in_use))[team.members[0]]
            check_room(on_all_ranks(world, need))
            # First, so that whatever has a name in it was put there by us.
            on_all_ranks(world, lambda: None if there else _record(made, of, team))
            written, error = attempt(write)
            world.barrier()
            ended = True
            done = gather_or_raise(world, written, error)
            on_all_ranks(world, lambda: _record(_measured(made), of, team))
    except UserError:
        if ended and team.leads:  # before, others of this node may be writing yet
            remove(target)
        raise
    packed = on_rank0(world, lambda: manifests.load(target))
    return packed, report_of(done, dataset, target, world, "replicate")


def _open(dataset: Manifest, world: World, classes: int) -> tuple[dict[Split, _Checked], list[str]]:
    """The images of both splits, and the names of the classes."""
    splits, names = open_splits(dataset, world, classes)
    known = {f"{dataset.root}/{file.path}": file for file in dataset.files}
    opened = {}
    for split, images in splits.items():
        if not isinstance(images, Files):
            raise UserError(f"{dataset.root}: is packed already; leave out staging.pack")
        opened[split] = _Checked(images, [known[path] for path in images.paths], dataset.root)
    assert names  # those of the folders
    return opened, names


def _make_way(made: Manifest, of: str, team: StagingGroup, in_use: bool) -> bool:
    """By the first of a team: whether another run has packed this data set there, and uses it. What an
    interrupted run staged of it, packed or not, is taken away; anything else is refused."""
    if not team.leads:
        return False
    target = made.root
    if (target / manifests.NAME).exists():
        before = manifests.load(target)
        staged = record_of(before)
        if staged is None:
            raise UserError(
                f"{target}: holds a data set that staging did not put there; choose another --stage"
            )
        if staged["of"] != of:
            raise UserError(
                f"{target}: holds another data set, staged earlier; remove it or choose another --stage"
            )
        if in_use and staged["mode"] != _MODE:
            raise UserError(
                f"{target}: another run uses this data set there, not packed; choose another --stage"
            )
        if in_use:
            return True
        unlink(target, (file.path for file in before.files))
    for file in made.files:
        if (target / file.path).exists():
            raise UserError(
                f"{target / file.path}: exists, and staging did not put it there; choose another --stage"
            )
    return False


def _record(made: Manifest, of: str, team: StagingGroup) -> None:
    """By the first of a team: write the manifest of the target, by which ``staging.remove`` knows it."""
    if not team.leads:
        return
    path = made.root / manifests.NAME
    before = record_of(manifests.load(made.root)) if path.exists() else None
    staged = {
        "of": of,
        "mode": _MODE,
        "made_folder": bool(before and before["made_folder"]) or team.made_folder,
    }
    manifests.save(replace(made, facts=made.facts | {"staged": staged}))


def _measured(made: Manifest) -> Manifest:
    sizes = (File(file.path, (made.root / file.path).stat().st_size) for file in made.files)
    return replace(made, files=tuple(sizes))


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
        progress(count, "staging", "images", show) as advance,
        as_user_error(target, "cannot be written", remedy),
    ):
        make_folders(target, SPLITS)

        def one(pair: tuple[Split, Shard]) -> None:
            split, shard = pair
            write_shard(images[split], names, target, advance, shard)

        in_threads(one, shards, workers)
