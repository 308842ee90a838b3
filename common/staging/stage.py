"""Copying a data set from the shared file system to storage of the nodes, inside the clock.

Two modes. ``replicate``: each node gets every file. ``shard``: each node gets its part of every folder, files
outside folders go to all. Validation data is partitioned like training data: at the official size it is more than
1 TB uncompressed, and a metric summed over ranks is exact on parts too. The ranks of a node share the node's
files, and each copies several at a time.

Where nodes see one and the same target (a shared scratch folder), their ranks share the work of ``replicate``
instead of doing it once per node, and ``shard`` is refused. Concurrent runs may share a target too: one copies,
the others wait for it and find the files; the last to end removes them.

The target is a folder of the user that nobody else may write to (``target.require_own``). The record of what was
staged is the manifest in it, written before the first file, so whatever is listed there with the right size was
put there by staging: files get their name only when they are complete and their checksum was right. Files that are
present already are checksummed too before the report says ``verified``. An interrupted staging resumes; ``remove``
removes these files and no others.
"""

import contextlib
import hashlib
import stat
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mlhpc.common.data import manifest as manifests
from mlhpc.common.data.manifest import File, Manifest
from mlhpc.common.data.partition import Mode, files_of_node, files_of_rank
from mlhpc.common.files import atomic, locks
from mlhpc.common.files.filesystem import filesystem_of
from mlhpc.common.host.progress import progress
from mlhpc.common.ranks.collectives import on_all_ranks, on_rank0
from mlhpc.common.ranks.world import World
from mlhpc.common.staging.copier import copy_all
from mlhpc.common.staging.target import (
    Need,
    StagingGroup,
    check_room,
    exclusive,
    names_job,
    require_own,
    staging_group,
    unlink,
)
from mlhpc.errors import UserError

# What a file may take beyond its size: up to a block of data and a directory entry and inode.
_FILE_OVERHEAD = 4096


@dataclass(frozen=True)
class StagingReport:
    """What staging did, summed over all ranks; the same on every rank.

    ``files`` and ``bytes`` were copied, ``kept`` files were in place: left by an interrupted staging or,
    ``shared`` of them, in use by another run at that time. ``seconds`` is the time of the slowest rank,
    ``rank_seconds`` that of each. ``verified``: every file, copied or kept, was checked against its checksum.
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
        """10^6 bytes per second over all ranks; 0 when nothing was copied."""
        return self.bytes / 1e6 / self.seconds if self.bytes else 0.0


def stage(manifest: Manifest, target: Path, world: World, mode: Mode, workers: int = 8) -> StagingReport:
    """Copy the files of ``manifest`` to ``target`` on every node, at most ``workers`` at a time in each rank.

    Checksums are computed from the bytes as they are copied. Afterwards ``target`` is a data set with a
    manifest of its own.

    Called by all ranks. Raises UserError, the same on all ranks, when the target is not the user's own, cannot be
    written, is too small (before the first byte where that can be predicted) or holds other files, or when a
    source file is missing, truncated or differs from the manifest. No incomplete file is left; complete files
    stay for the next try.
    """
    started = time.monotonic()
    source = manifest.root
    group = staging_group(source, target, world, mode)
    files_of_group = files_of_node(manifest.files, world.node, world.nodes, mode)
    files = files_of_rank(files_of_group, group.members.index(world.rank), len(group.members))
    missing: list[File] = []
    present: list[File] = []

    def survey() -> Need:
        lacking, in_place = _survey(files, source, target, staged_before)
        missing.extend(lacking)
        present.extend(in_place)
        size = sum(file.size + _FILE_OVERHEAD for file in missing)
        return Need(size, group.members[0], target, filesystem_of(target) if group.leads else None)

    def copy() -> tuple[int, int, int, int, float]:
        with progress(len(files), "staging", "files", show=world.rank == 0) as advance:
            copied = copy_all(missing, present, source, target, workers, advance)
        seconds = time.monotonic() - started
        return copied.files, copied.bytes, copied.kept, copied.kept if in_use else 0, seconds

    with exclusive(target, world, group) as in_use:
        prepared = on_all_ranks(world, lambda: _prepare(manifest, target, files_of_group, group, in_use))
        staged_before = prepared[group.members[0]]
        check_room(on_all_ranks(world, survey))
        on_all_ranks(world, lambda: _record(manifest, target, files_of_group, group, mode))
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
    filesystem = on_rank0(world, lambda: filesystem_of(target))
    return StagingReport(
        files=sum(files),
        bytes=sum(sizes),
        seconds=max(seconds),
        slowest_rank=seconds.index(max(seconds)),
        mode=mode,
        target_filesystem=filesystem.type,
        target_is_ram=filesystem.is_ram,
        kept=sum(kept),
        shared=sum(shared),
        verified=manifest.checked,
        rank_seconds=seconds,
    )


def remove(target: Path) -> None:
    """Remove what staging put into ``target``, and the folders this leaves empty; nothing else. What another run
    uses stays: the last one removes it.

    Called by one rank per node. Raises UserError when ``target`` was not made by staging or is not the user's own.
    """
    if target.exists():
        require_own(target)
    locks.unregister(target)
    try:
        while (fd := locks.try_lock(target)) is None:
            if locks.in_use(target):
                return
            time.sleep(0.05)
    except FileNotFoundError:
        return  # another run was the last, and removed it
    made_folder = False
    try:
        if not locks.in_use(target) and (target / manifests.NAME).exists():
            staged = manifests.load(target)
            if (record := record_of(staged)) is None:
                raise UserError(
                    f"{target}: not put there by staging, so nothing was removed; remove it by hand"
                )
            unlink(target, (file.path for file in staged.files))
            (target / manifests.NAME).unlink()
            made_folder = record["made_folder"]
    finally:
        locks.unlock(target, fd)
    if made_folder:
        with contextlib.suppress(OSError):  # it has other files of the user, or the next run's
            target.rmdir()


def remove_after_abort(target: Path, env: Mapping[str, str]) -> None:
    """After an aborted run: ``remove``, where the name of ``target`` contains the batch job's identifier, since no
    later job could use it. Elsewhere the files stay, for the next run to resume. Called by one rank per node."""
    if names_job(target, env) and (target / manifests.NAME).exists():
        remove(target)


def record_of(manifest: Manifest) -> dict[str, Any] | None:
    """What staging recorded in the manifest of a target; None where it did not stage it."""
    record = manifest.facts.get("staged")
    kinds = {"of": str, "mode": str, "made_folder": bool}
    if not isinstance(record, dict) or any(type(record.get(key)) is not kind for key, kind in kinds.items()):
        return None
    return record


def _prepare(manifest: Manifest, target: Path, files: list[File], group: StagingGroup, in_use: bool) -> bool:
    """By the first rank of a group: whether the target holds a staging of this data set. Removes files of it that
    the node no longer holds, because the number of nodes changed; refuses where another run may use them."""
    if not group.leads or not (target / manifests.NAME).exists():
        return False
    before = manifests.load(target)
    record = record_of(before)
    if record is None:
        raise UserError(f"{target}: holds a data set that staging did not put there; choose another --stage")
    if record["of"] != identity(manifest):
        raise UserError(
            f"{target}: holds another data set, staged earlier; remove it or choose another --stage"
        )
    atomic.sweep({(target / file.path).parent for file in before.files})
    needed = {file.path for file in files}
    if in_use and needed != {file.path for file in before.files}:
        raise UserError(
            f"{target}: another run uses another part of the data set there; choose another --stage"
        )
    unlink(target, (file.path for file in before.files if file.path not in needed))
    return True


def _survey(
    files: list[File], source: Path, target: Path, staged_before: bool
) -> tuple[list[File], list[File]]:
    """The files that the target lacks, and those that are present by their size and, without a checksum, their
    time. ``staged_before``: what is in the target was put there by staging."""
    missing: list[File] = []
    present: list[File] = []
    for file in files:
        try:
            status = (target / file.path).lstat()
        except FileNotFoundError:
            missing.append(file)
            continue
        if not staged_before:
            raise UserError(
                f"{target / file.path}: exists, and staging did not put it there; choose another --stage"
            )
        # Without a checksum in the manifest another file of that size can only be recognised by its time.
        same = file.crc32 is not None or status.st_mtime_ns == (source / file.path).stat().st_mtime_ns
        regular = stat.S_ISREG(status.st_mode)
        (present if regular and same and status.st_size == file.size else missing).append(file)
    return missing, present


def _record(manifest: Manifest, target: Path, files: list[File], group: StagingGroup, mode: Mode) -> None:
    """By the first rank of a group: write the manifest of what the target is to hold."""
    if not group.leads:
        return
    facts = dict(manifest.facts)
    if len(files) < len(manifest.files):
        facts.pop("samples", None)  # they are the whole data set's
    before = record_of(manifests.load(target)) if (target / manifests.NAME).exists() else None
    # Of runs that start at once, the one that made the folder need not be the first to write in it.
    facts["staged"] = {
        "of": identity(manifest),
        "mode": mode,
        "made_folder": bool(before and before["made_folder"]) or group.made_folder,
    }
    manifests.save(replace(manifest, root=target, files=tuple(files), facts=facts))


def identity(manifest: Manifest) -> str:
    """A digest of every path, size and checksum: the same for the same data set wherever it lies."""
    digest = hashlib.sha256()
    for file in manifest.files:
        digest.update(repr(tuple(file)).encode())
    return digest.hexdigest()
