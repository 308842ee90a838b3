"""Copying a data set from the shared file system to storage of the nodes, inside the clock.

Two modes. ``replicate``: each node gets every file. ``shard``: each node gets its part of every folder, the
files outside folders go to all. Validation data is dealt out like training data: at the official size it is
more than 1 TB uncompressed, and a metric summed over ranks is as exact on parts. The ranks of a node share
the node's files, and each copies several at a time.

Where nodes turn out to see one and the same target (a shared scratch folder), their ranks share the work of
``replicate`` instead of doing it once a node, and ``shard`` is refused. Runs at the same time may share a
target too: one copies, the others wait for it and find the files there; the last to end removes them.

The record of what was staged is the manifest in the target. It is written before the first file, so whatever
has a name in it and the right size was put there by staging: files get their name only when they are complete
and their checksum was right. An interrupted staging goes on where it was; ``remove`` takes away these files
and no others.
"""

import contextlib
import hashlib
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from io import FileIO
from pathlib import Path

from isal import isal_zlib

from mlhpc.common.data import manifest as manifests
from mlhpc.common.data.manifest import File, Manifest
from mlhpc.common.data.partition import Mode, files_of_node, files_of_rank
from mlhpc.common.files import atomic, locks
from mlhpc.common.files.filesystem import filesystem_of
from mlhpc.common.host.progress import progress
from mlhpc.common.ranks.collectives import on_all_ranks, on_rank0
from mlhpc.common.ranks.world import World
from mlhpc.common.staging.target import (
    Need,
    StagingGroup,
    as_user_error,
    check_room,
    exclusive,
    staging_group,
    unlink,
)
from mlhpc.errors import UserError

# What a file may take beyond its size: up to a block of data and a directory entry and inode.
_FILE_OVERHEAD = 4096


@dataclass(frozen=True)
class StagingReport:
    """What staging did, summed over all ranks; the same on every rank.

    ``files`` and ``bytes`` were copied, ``kept`` files were there: left by an interrupted staging or,
    ``shared`` of them, in use by another run at that time. ``seconds`` is the time of the slowest rank,
    ``rank_seconds`` that of each. ``verified``: every file was held against a checksum.
    """

    files: int
    bytes: int
    seconds: float
    slowest_rank: int
    mode: Mode
    target_filesystem: str
    target_is_ram: bool
    kept: int
    verified: bool
    rank_seconds: tuple[float, ...]
    shared: int = 0

    @property
    def megabytes_per_second(self) -> float:
        """10^6 bytes a second over all ranks; 0 when nothing was copied."""
        return self.bytes / 1e6 / self.seconds if self.bytes else 0.0


def stage(manifest: Manifest, target: Path, world: World, mode: Mode, workers: int = 4) -> StagingReport:
    """Copy the files of ``manifest`` to ``target`` on every node, ``workers`` files at a time in each rank.

    Checksums are computed from the bytes as they are copied. Afterwards ``target`` is a data set with a
    manifest of its own.

    Called by all ranks. Raises UserError, the same on all ranks, when the target cannot be written, is too
    small (before the first byte where that can be known), holds other files, or a source file is missing,
    truncated or not as the manifest says. Nothing half-written is left; complete files stay for the next try.
    """
    started = time.monotonic()
    source = manifest.root
    team = staging_group(source, target, world, mode)
    all_of_team = files_of_node(manifest.files, world.node, world.nodes, mode)
    mine = files_of_rank(all_of_team, team.members.index(world.rank), len(team.members))
    todo: list[File] = []

    def survey() -> Need:
        todo.extend(_missing(mine, source, target, known))
        size = sum(file.size + _FILE_OVERHEAD for file in todo)
        return Need(size, team.members[0], target, filesystem_of(target) if team.leads else None)

    def copy() -> tuple[int, int, int, int, float]:
        with progress(len(todo), "staging", "files", show=world.rank == 0) as advance:
            _copy_all(todo, source, target, workers, advance)
        kept = len(mine) - len(todo)
        seconds = time.monotonic() - started
        return len(todo), sum(file.size for file in todo), kept, kept if in_use else 0, seconds

    with exclusive(target, world, team) as in_use:
        prepared = on_all_ranks(world, lambda: _prepare(manifest, target, all_of_team, team, in_use))
        known = prepared[team.members[0]]
        check_room(on_all_ranks(world, survey))
        on_all_ranks(world, lambda: _record(manifest, target, all_of_team, team, mode))
        done = on_all_ranks(world, copy)
    return report_of(done, manifest, target, world, mode)


def report_of(
    done: Sequence[tuple[int, int, int, int, float]],
    manifest: Manifest,
    target: Path,
    world: World,
    mode: Mode,
) -> StagingReport:
    """The report on what each rank has ``done``: files and bytes copied, files kept, those of them shared,
    seconds. Called by all ranks."""
    files, sizes, kept, shared, seconds = zip(*done, strict=True)
    there = on_rank0(world, lambda: filesystem_of(target))
    return StagingReport(
        files=sum(files),
        bytes=sum(sizes),
        seconds=max(seconds),
        slowest_rank=seconds.index(max(seconds)),
        mode=mode,
        target_filesystem=there.type,
        target_is_ram=there.is_ram,
        kept=sum(kept),
        shared=sum(shared),
        verified=manifest.checked,
        rank_seconds=seconds,
    )


def remove(target: Path) -> None:
    """Take away what staging put into ``target``, and the folders this leaves empty; nothing else. What
    another run uses stays: the last one takes it away.

    Called by one rank a node. Raises UserError when ``target`` was not made by staging.
    """
    locks.unregister(target)
    try:
        while (fd := locks.try_lock(target)) is None:
            if locks.in_use(target):
                return
            time.sleep(0.05)
    except FileNotFoundError:
        return  # the other run was the last, and has done it
    made_folder = False
    try:
        if not locks.in_use(target) and (target / manifests.NAME).exists():
            staged = manifests.load(target)
            if "staged" not in staged.facts:
                raise UserError(
                    f"{target}: not put there by staging, so nothing was removed; remove it by hand"
                )
            unlink(target, (file.path for file in staged.files))
            (target / manifests.NAME).unlink()
            made_folder = staged.facts["staged"]["made_folder"]
    finally:
        locks.unlock(target, fd)
    if made_folder:
        with contextlib.suppress(OSError):  # something of the user's is in it, or the next run
            target.rmdir()


def _prepare(manifest: Manifest, target: Path, files: list[File], team: StagingGroup, in_use: bool) -> bool:
    """By the first of a team: whether the target holds a staging of this data set. Takes away what of it is
    not wanted any more, because the nodes are others now; refuses where another run may want it."""
    if not team.leads or not (target / manifests.NAME).exists():
        return False
    before = manifests.load(target)
    staged = before.facts.get("staged")
    if staged is None:
        raise UserError(f"{target}: holds a data set that staging did not put there; choose another --stage")
    if staged["of"] != identity(manifest):
        raise UserError(
            f"{target}: holds another data set, staged earlier; remove it or choose another --stage"
        )
    atomic.sweep({(target / file.path).parent for file in before.files})
    wanted = {file.path for file in files}
    if in_use and wanted != {file.path for file in before.files}:
        raise UserError(
            f"{target}: another run uses another part of the data set there; choose another --stage"
        )
    unlink(target, (file.path for file in before.files if file.path not in wanted))
    return True


def _missing(files: list[File], source: Path, target: Path, known: bool) -> list[File]:
    """The files that are yet to be copied. ``known``: what is in the target was put there by staging."""
    todo = []
    for file in files:
        try:
            status = (target / file.path).stat()
        except FileNotFoundError:
            todo.append(file)
            continue
        if not known:
            raise UserError(
                f"{target / file.path}: exists, and staging did not put it there; choose another --stage"
            )
        # Without a checksum in the manifest another file of that size can be told by its time alone.
        same = file.crc32 is not None or status.st_mtime_ns == (source / file.path).stat().st_mtime_ns
        if status.st_size != file.size or not same:
            todo.append(file)
    return todo


def _record(manifest: Manifest, target: Path, files: list[File], team: StagingGroup, mode: Mode) -> None:
    """By the first of a team: write the manifest of what the target is to hold."""
    if not team.leads:
        return
    facts = dict(manifest.facts)
    if len(files) < len(manifest.files):
        facts.pop("samples", None)  # they are the whole data set's
    before = manifests.load(target).facts["staged"] if (target / manifests.NAME).exists() else {}
    # Of runs that begin at once, the one that made the folder need not be the first to write in it.
    facts["staged"] = {
        "of": identity(manifest),
        "mode": mode,
        "made_folder": before.get("made_folder", False) or team.made_folder,
    }
    manifests.save(replace(manifest, root=target, files=tuple(files), facts=facts))


def _copy_all(
    files: Sequence[File], source: Path, target: Path, workers: int, advance: Callable[[int], None]
) -> None:
    """Copy with ``workers`` threads, and ``advance(1)`` for each file; at the first failure all stop."""
    with as_user_error(target, "cannot be written", "choose another --stage"):
        for folder in {(target / file.path).parent for file in files}:
            folder.mkdir(parents=True, exist_ok=True)
    # Threads take files from one iterator; half a million futures would cost half a gigabyte.
    queue = iter(files)
    failures: list[BaseException] = []

    def work() -> None:
        block = memoryview(bytearray(manifests.BLOCK))
        for file in queue:
            try:
                _copy(file, source, target, block, failures)
                advance(1)
            except BaseException as failure:
                failures.append(failure)
            if failures:
                return

    with ThreadPoolExecutor(max(1, workers)) as pool:
        try:
            for future in [pool.submit(work) for _ in range(min(max(1, workers), len(files)))]:
                future.result()
        except BaseException as interrupt:
            failures.append(interrupt)
    if failures:
        raise failures[0]


def _copy(file: File, source: Path, target: Path, block: memoryview, failures: Sequence[object]) -> None:
    """Copy one file through ``block``. Ends early once others failed."""
    origin, copy = source / file.path, target / file.path
    remedy = f"see: mlhpc data verify {source}"
    with as_user_error(origin, "cannot be read", remedy):
        reader = origin.open("rb", buffering=0)
    with reader, as_user_error(copy, "cannot be written", "free some space or choose another --stage"):
        with as_user_error(origin, "cannot be read", remedy):
            status = os.fstat(reader.fileno())
            if status.st_size != file.size:
                raise UserError(f"{origin}: {status.st_size} bytes, expected {file.size}; {remedy}")
            # Doubles the read-ahead window (posix_fadvise(2)).
            os.posix_fadvise(reader.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
        with atomic.writing(copy) as fd:
            size = crc = 0
            while count := _read(reader, block, origin, remedy):
                crc = isal_zlib.crc32(block[:count], crc)
                size += count
                if failures or size > file.size:
                    break
                atomic.write_all(fd, block[:count])
            if failures:
                raise UserError(f"{copy}: given up, another file failed")
            if size != file.size:
                raise UserError(
                    f"{origin}: changed while it was copied, byte {size} of {file.size}; {remedy}"
                )
            if file.crc32 is not None and crc != file.crc32:
                raise UserError(f"{origin}: checksum {crc:08x}, expected {file.crc32:08x}; {remedy}")
            os.utime(fd, ns=(status.st_atime_ns, status.st_mtime_ns))


def _read(reader: FileIO, block: memoryview, origin: Path, remedy: str) -> int:
    with as_user_error(origin, "cannot be read", remedy):
        return reader.readinto(block) or 0


def identity(manifest: Manifest) -> str:
    """A digest of every path, size and checksum: the same for the same data set wherever it lies."""
    digest = hashlib.sha256()
    for file in manifest.files:
        digest.update(repr(tuple(file)).encode())
    return digest.hexdigest()
