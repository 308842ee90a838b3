"""Copies a data set from the shared file system to node-local storage, within the time measured.

There are two modes. ``replicate``: each node gets every file. ``shard``: each node gets a part of every folder;
files outside folders go to all nodes. Validation data is partitioned like training data: at the official size it
takes more than 1 TB uncompressed, and a metric summed over ranks is exact for parts too. The ranks of a node
divide the node's files among them, and each copies several at a time.

If nodes share a target (a shared scratch folder), their ranks divide the work of ``replicate`` instead of
repeating it on each node, and ``shard`` is refused. Otherwise, with ``read_once``, nodes forward files that
several of them need, instead of each reading them from the shared file system. Concurrent runs may also share a
target: one copies the files, the others wait and use them, and the last one to end removes them.

The target must be a folder of the user that others cannot write (``target.require_own``). The manifest in it,
which is written before the first file, records what was staged. So a listed file with the right size was written
by staging: files get their final name only once they are complete and their checksum matches. Files that are
already present are also checksummed before the report states ``verified``. An interrupted staging resumes;
``remove`` removes the staged files and no others.
"""

import contextlib
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from mlhpc.common.data import manifest as manifests
from mlhpc.common.data.manifest import File, Files, Manifest
from mlhpc.common.data.partition import (
    Mode,
    ShuffleScope,
    files_of_node,
    files_of_rank,
    files_of_ring,
    held_by_one_or_all,
    shuffle_scope,
)
from mlhpc.common.files import locks
from mlhpc.common.files.filesystem import filesystem_of
from mlhpc.common.host.progress import progress
from mlhpc.common.ranks.collectives import on_all_ranks, on_each_rank, on_rank0
from mlhpc.common.ranks.world import World
from mlhpc.common.staging.copier import Copied, copy_all
from mlhpc.common.staging.record import prepare, record_of, write_record
from mlhpc.common.staging.ring import Share, Todo, copy_and_pass_on
from mlhpc.common.staging.target import (
    FILE_OVERHEAD,
    StagingGroup,
    check_room,
    exclusive,
    names_job,
    remove_made_folder,
    require_own,
    staging_group,
    unlink,
)
from mlhpc.errors import UserError


@dataclass(frozen=True)
class StagingReport:
    """Result of staging, summed over all ranks; the same on every rank.

    ``files``, ``bytes``: what was copied. ``kept``: number of files that were already in place, left by an
    interrupted staging or, for ``shared`` of them, in use by another run. ``seconds``: time of the slowest rank;
    ``rank_seconds``: time of each rank. ``verified``: whether every file, copied or kept, was verified against its
    checksum. ``source_bytes``: bytes read from the source; ``read_once``: whether nodes forwarded files.
    ``shuffle_scope``: as in ``partition.shuffle_scope``. ``overlapped``: whether training ran concurrently; at the
    end of its first epoch it then waited ``waited_s`` seconds for the slowest rank's copying.
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
    source_bytes: int = 0
    read_once: bool = False
    shuffle_scope: ShuffleScope = "sample"
    overlapped: bool = False
    waited_s: float = 0.0


class RankReport(NamedTuple):
    """Result of one rank: number of files and bytes written, and bytes read from the source to write them; number
    of files kept, and how many of these another run uses; seconds that the rank took."""

    files: int
    bytes: int
    source_bytes: int
    kept: int
    shared: int
    seconds: float


def stage(
    manifest: Manifest, target: Path, world: World, mode: Mode, workers: int = 8, read_once: bool = False
) -> StagingReport:
    """Copy the files of ``manifest`` to ``target`` on every node, at most ``workers`` at a time in each rank.

    ``read_once``: files that several nodes need are read by one of them and forwarded over the network (``ring``).
    Checksums are computed from the bytes as they are copied. Afterwards, ``target`` is a data set with a manifest.

    Called by all ranks. Raises UserError, the same on all ranks, if the target does not belong to the user, cannot
    be written, is too small (before the first byte, if that can be predicted) or contains other files, or if a
    source file is missing, truncated or different from the manifest. No incomplete files are left; complete files
    are kept for the next attempt.
    """
    started = time.monotonic()
    with prepared(manifest, target, world, mode, read_once) as ready:
        count = len(ready.share.alone) + len(ready.share.passed)
        with progress(count, "staging", "files", show=world.rank == 0, lines=False) as advance:

            def copy(todo: Todo, in_place: Callable[[File], None], failures: list[BaseException]) -> Copied:
                return copy_all(
                    todo.missing, todo.present, manifest.root, target, workers, in_place, failures
                )

            def report(copied: Copied, received: Sequence[File] = ()) -> RankReport:
                return ready.report(copied, started, received)

            if ready.read_once:
                done = copy_and_pass_on(world, ready.share, ready.todo, target, copy, report, advance)
            else:
                done = on_all_ranks(world, lambda: report(copy(ready.todo, lambda file: advance(1), [])))
    return report_of(done, manifest, target, world, mode, ready.read_once)


@dataclass(frozen=True)
class Ready:
    """The files that this rank copies, once the target is locked, has enough space and contains the record."""

    share: Share
    todo: Todo
    in_use: bool
    read_once: bool

    def report(self, copied: Copied, started: float, received: Sequence[File] = ()) -> RankReport:
        """The rank's result since the time ``started`` (of the monotonic clock)."""
        size = copied.bytes + sum(file.size for file in received)
        shared, seconds = copied.kept if self.in_use else 0, time.monotonic() - started
        return RankReport(copied.files + len(received), size, copied.bytes, copied.kept, shared, seconds)


@contextlib.contextmanager
def prepared(manifest: Manifest, target: Path, world: World, mode: Mode, read_once: bool) -> Iterator[Ready]:
    """Prepare the target, which is locked while the block runs. Called by all ranks. Raises UserError like
    ``stage``."""
    try:
        group = staging_group(manifest.root, target, world, mode)
        read_once = read_once and len(group.all) > 1
        files_of_group = files_of_node(manifest.files, world.node, world.nodes, mode)
        share = _share_of_rank(manifest.files, files_of_group, world.rank, group, mode, read_once)
        todo = Todo([], [])

        def survey() -> int:
            _survey([*share.alone, *share.passed], manifest.root, target, staged_before, todo)
            return sum(file.size + FILE_OVERHEAD for file in todo.missing)

        with exclusive(target, world, group) as in_use:
            known = on_all_ranks(world, lambda: prepare(manifest, target, files_of_group, group, in_use))
            staged_before = known[group.members[0]]
            check_room(on_all_ranks(world, survey), target, group, world)
            on_each_rank(world, lambda: write_record(manifest, target, files_of_group, group, mode))
            yield Ready(share, todo, in_use, read_once)
    except BaseException:
        if world.local_rank == 0:
            remove_made_folder(target)
        raise


def _share_of_rank(
    files: Sequence[File],
    files_of_group: Files,
    rank: int,
    group: StagingGroup,
    mode: Mode,
    read_once: bool,
) -> Share:
    """The files that ``rank`` copies only for its own node, and those that its ring forwards: with ``read_once``,
    the files that all nodes store."""
    index, groups = group.members.index(rank), group.all
    if not read_once or len(groups) == 1:
        return Share(files_of_rank(files_of_group, index, len(group.members)))
    _, everywhere = held_by_one_or_all(Files.of(files), mode)
    alone, _ = held_by_one_or_all(files_of_group, mode)
    alone = files_of_rank(alone, index, len(group.members))
    rings = min(len(members) for members in groups)
    if index >= rings:  # nodes have different numbers of ranks
        return Share(alone)
    passed, readers = files_of_ring(everywhere, index, rings, len(groups))
    return Share(alone, passed, readers.tolist(), tuple(members[index] for members in groups))


def report_of(
    done: Sequence[RankReport],
    manifest: Manifest,
    target: Path,
    world: World,
    mode: Mode,
    read_once: bool = False,
) -> StagingReport:
    """The report on ``done``, the results of all ranks. Called by all ranks."""
    seconds = tuple(rank.seconds for rank in done)
    filesystem = on_rank0(world, lambda: filesystem_of(target))
    return StagingReport(
        files=sum(rank.files for rank in done),
        bytes=sum(rank.bytes for rank in done),
        seconds=max(seconds),
        slowest_rank=seconds.index(max(seconds)),
        mode=mode,
        target_filesystem=filesystem.type,
        target_is_ram=filesystem.is_ram,
        kept=sum(rank.kept for rank in done),
        shared=sum(rank.shared for rank in done),
        verified=manifest.checked,
        rank_seconds=seconds,
        source_bytes=sum(rank.source_bytes for rank in done),
        read_once=read_once,
        shuffle_scope=shuffle_scope(mode, world.nodes),
    )


def remove(target: Path) -> None:
    """Remove the staged files in ``target`` and the folders that become empty, and nothing else. Files that
    another run uses are kept until the last run removes them.

    Called by one rank per node. Raises UserError if ``target`` was not written by staging or does not belong
    to the user.
    """
    if target.exists():
        require_own(target)
    locks.unregister(target)
    if (staged := _staged_in(target)) is None:
        return
    _require_staged(staged)
    try:
        while (fd := locks.try_lock(target)) is None:
            if locks.in_use(target):
                return
            time.sleep(0.05)
    except FileNotFoundError:
        return  # another run ended last and removed it
    try:
        if locks.in_use(target):
            return
        if (staged := _staged_in(target)) is not None:
            _require_staged(staged)
            unlink(target, (file.path for file in staged.files))
            (target / manifests.NAME).unlink()
    finally:
        locks.unlock(target, fd)
    remove_made_folder(target)


def _staged_in(target: Path) -> manifests.Manifest | None:
    """The manifest of ``target``; None if it has none, for instance because another run has just removed it."""
    try:
        return manifests.load(target)
    except UserError:
        if (target / manifests.NAME).exists():
            raise
        return None


def _require_staged(staged: manifests.Manifest) -> None:
    """Raise UserError unless the data set ``staged`` was written by staging."""
    if record_of(staged) is None:
        raise UserError(f"{staged.root}: not written by staging, so nothing was removed; remove it by hand")


def remove_after_abort(target: Path, env: Mapping[str, str]) -> None:
    """After an aborted run: ``remove`` the files if the path of ``target`` contains the batch job's identifier,
    since no later job could use them. Otherwise they are kept, so that the next run can resume. Called by one rank
    per node."""
    if names_job(target, env):
        if (target / manifests.NAME).exists():
            remove(target)
        else:
            locks.unregister(target)
            remove_made_folder(target)


def _survey(files: list[File], source: Path, target: Path, staged_before: bool, todo: Todo) -> None:
    """Add ``files`` to ``todo``. A file counts as present if it is in the target with the right size and, without
    a checksum, the right modification time. ``staged_before``: whether staging wrote the files in the target."""
    for file in files:
        try:
            status = (target / file.path).lstat()
        except FileNotFoundError:
            todo.missing.append(file)
            continue
        if not staged_before:
            raise UserError(
                f"{target / file.path} exists, but was not written by staging; choose another --stage"
            )
        # Without a checksum in the manifest, only the modification time reveals that a file of the same size has
        # different content.
        same = file.crc32 is not None or status.st_mtime_ns == (source / file.path).stat().st_mtime_ns
        regular = stat.S_ISREG(status.st_mode)
        (todo.present if regular and same and status.st_size == file.size else todo.missing).append(file)
