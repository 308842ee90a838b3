"""The target folder of staging: its owner, how ranks and runs share it, and its free space."""

import contextlib
import grp
import os
import pwd
import random
import re
import secrets
import stat
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mlhpc.common.data.partition import Mode
from mlhpc.common.files import atomic, locks
from mlhpc.common.files.filesystem import as_user_error, filesystem_of
from mlhpc.common.ranks.collectives import attempt, gather_or_raise, on_each_rank
from mlhpc.common.ranks.world import World
from mlhpc.errors import UserError
from mlhpc.quantities import bytes_text

MADE = ".made_by_staging"
"""A file that marks targets created by staging, so that the last run also removes the folder. The manifest cannot
be the mark: it is removed with the last file, when the next run may already use the folder."""

FILE_OVERHEAD = 4096
"""Bytes that a file may take beyond its size: part of a block, a directory entry and an inode."""


@dataclass(frozen=True)
class StagingGroup:
    """The ranks that share a target, usually those of one node. ``all``: the groups of all targets, in order of
    their first ranks."""

    members: tuple[int, ...]
    leads: bool
    all: tuple[tuple[int, ...], ...]


def staging_group(source: Path, target: Path, world: World, mode: Mode) -> StagingGroup:
    """Create the target, and determine which nodes share it, by means of a file that each node writes.

    Called by all ranks. Raises UserError, the same on all ranks, if the target cannot be written, does not belong
    to the user (``require_own``), or is shared in mode ``shard``.
    """
    token = world.broadcast(secrets.token_hex(8))
    probe = target / f".{token}.{world.node}.probe"

    def begin() -> None:
        if target.resolve().is_relative_to(source.resolve()):
            raise UserError(f"{target}: inside the data set to be staged; choose another --stage")
        with as_user_error(target, "cannot be written", "choose another --stage"):
            for tries_left in reversed(range(10)):
                try:
                    _make_own(target)
                    require_own(target)
                    if world.local_rank == 0:
                        _make_file(probe)
                    return
                except FileNotFoundError:  # another run, the last one in the folder, has just removed it
                    if not tries_left:
                        raise

    try:
        on_each_rank(world, begin)
        seen = [int(path.name.split(".")[2]) for path in target.glob(f".{token}.*.probe")]
        lowest = world.gather((world.node, min(seen, default=world.node)))
    finally:
        if world.local_rank == 0:
            with contextlib.suppress(OSError):  # the reason has been reported already
                probe.unlink()
    if mode == "shard" and any(node != low for node, low in lowest):
        node, low = next(pair for pair in lowest if pair[0] != pair[1])
        raise UserError(
            f"{target}: nodes {low} and {node} see the same folder, but shards need node-local storage; "
            "choose another --stage, or set staging.mode=replicate"
        )
    by_target: dict[int, list[int]] = {}
    for rank, (_, low) in enumerate(lowest):
        by_target.setdefault(low, []).append(rank)
    members = tuple(by_target[lowest[world.rank][1]])
    groups = tuple(tuple(ranks) for ranks in by_target.values())
    return StagingGroup(members, world.rank == members[0], groups)


@contextlib.contextmanager
def exclusive(target: Path, world: World, group: StagingGroup) -> Iterator[bool]:
    """Context manager for exclusive access to the targets of all nodes; yields whether another run uses one of
    them.

    Called by all ranks. To avoid deadlock, a run that cannot lock the targets of all its nodes releases those that
    it has locked, and tries again after a random pause.
    """

    def take() -> tuple[int | None, bool]:
        if not group.leads:
            return None, False
        with as_user_error(target, "cannot be written", "choose another --stage"):
            try:
                _make_own(target)  # the last run may have just removed it, or be removing it
                require_own(target)
                fd = locks.try_lock(target)
            except FileNotFoundError:
                return None, False
            return fd, locks.in_use(target)

    def release(fd: int | None) -> None:
        if fd is not None:
            locks.unlock(target, fd)

    while True:
        taken, error = attempt(take)
        fd, used = taken or (None, False)
        try:
            outcomes = gather_or_raise(world, (fd is not None or not group.leads, used), error)
        except BaseException:
            release(fd)
            raise
        if all(locked for locked, _ in outcomes):
            break
        release(fd)
        time.sleep(random.uniform(0.02, 0.2))
    try:
        if group.leads:
            locks.register(target)
        yield outcomes[group.members[0]][1]
    except BaseException:
        if group.leads:
            locks.unregister(target)
        raise
    finally:
        release(fd)


def check_room(sizes: Sequence[int], target: Path, group: StagingGroup, world: World) -> None:
    """Raise UserError, the same on all ranks, if a target has too little space. ``sizes``: the bytes that each
    rank must write. Called by all ranks."""

    def check() -> None:
        if group.leads:
            size = sum(sizes[rank] for rank in group.members)
            require_room(target, size, "staging", "use staging.mode=shard over more nodes")

    on_each_rank(world, check)


def require_room(target: Path, size: int, purpose: str, remedy: str) -> None:
    """Raise UserError if ``purpose`` needs more space in ``target``, ``size`` bytes, than there is."""
    filesystem = filesystem_of(target)
    if size > filesystem.free_bytes:
        raise UserError(
            f"{target}: {purpose} needs {bytes_text(size)}, but {filesystem.type} on {filesystem.mount_point} has "
            f"only {bytes_text(filesystem.free_bytes)} free{' (it is memory)' if filesystem.is_ram else ''}; "
            f"free some space, choose another --stage, or {remedy}"
        )


def require_own(target: Path) -> None:
    """Raise UserError unless ``target`` is a folder owned by this user and not writable by others.

    If another user owned the folder or a link to it, that user could plant files of the right size, which training
    would read, and redirect files that staging writes and removes.
    """
    link, status = target.lstat(), target.stat()
    own = (os.geteuid(), 0)
    if not stat.S_ISDIR(status.st_mode):
        raise UserError(f"{target}: not a folder; choose another --stage")
    if status.st_uid != own[0] or link.st_uid not in own:
        other = status.st_uid if status.st_uid != own[0] else link.st_uid
        raise UserError(
            f"{target}: belongs to {_user(other)}; choose a --stage folder of your own, or a new one"
        )
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise UserError(
            f"{target}: other users may write to it; run chmod go-w {target}, or choose another --stage"
        )
    for parent in target.resolve().parents:
        if _others_may_replace(parent.stat()):
            raise UserError(
                f"{target}: other users may write to {parent} and replace this folder with their own; choose "
                "another --stage"
            )


def _others_may_replace(status: os.stat_result) -> bool:
    """Return whether users other than a folder's owner may rename its content. They may if they can write to the
    folder, unless it is sticky, as /tmp is. A group without other members, which distributions create for every
    user, does not count."""
    if status.st_mode & stat.S_ISVTX:
        return False
    if status.st_mode & stat.S_IWOTH:
        return True
    if not status.st_mode & stat.S_IWGRP:
        return False
    try:
        return status.st_gid != pwd.getpwuid(os.geteuid()).pw_gid or bool(grp.getgrgid(status.st_gid).gr_mem)
    except KeyError:
        return True


def make_folders(target: Path, folders: Iterable[str]) -> None:
    """Create ``folders``, relative to ``target``. Raises UserError if a folder cannot be created or is a link."""
    with as_user_error(target, "cannot be written", "choose another --stage"):
        paths = {path for folder in folders for path in (Path(folder), *Path(folder).parents)}
        for path in sorted(target / path for path in paths - {Path()}):
            with contextlib.suppress(FileExistsError):
                path.mkdir()
            if not stat.S_ISDIR(path.lstat().st_mode):
                raise UserError(
                    f"{path} must be a folder, not a symbolic link to one; choose another --stage"
                )


def unlink(target: Path, paths: Iterable[str]) -> None:
    """Remove files, leftovers of dead processes next to them, and folders under ``target`` that are then empty.
    Links to folders are not followed."""
    real: dict[Path, bool] = {target: True}

    def is_real(folder: Path) -> bool:
        if folder not in real:
            real[folder] = is_real(folder.parent) and folder.is_dir() and not folder.is_symlink()
        return real[folder]

    for path in paths:
        if is_real((target / path).parent):
            (target / path).unlink(missing_ok=True)
    inside = [folder for folder, is_own in real.items() if is_own]
    atomic.sweep(inside)
    for folder in sorted(set(inside) - {target}, reverse=True):
        with contextlib.suppress(OSError):
            folder.rmdir()


def names_job(target: Path, env: Mapping[str, str]) -> bool:
    """Return whether the path of ``target`` contains the identifier of the batch job in ``env``, as in
    ``/tmp/mlhpc-12345``. If so, no later job can resume the staging, and an aborted run should remove the target
    too."""
    jobs = [env[name] for name in ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "FLUX_JOB_ID") if env.get(name)]
    return any(re.search(rf"(?<![0-9A-Za-z]){re.escape(job)}(?![0-9A-Za-z])", str(target)) for job in jobs)


def _make_own(target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        target.mkdir(mode=0o700)
        _make_file(target / MADE)


def remove_made_folder(target: Path) -> None:
    """Remove ``target`` if it was created by staging and is empty. If another run that is starting to stage has
    created a file in it, the folder and its mark are kept, and that run removes them."""
    with contextlib.suppress(OSError):  # another run was faster
        if os.listdir(target) != [MADE]:
            return
        (target / MADE).unlink()
        try:
            target.rmdir()
        except OSError:  # another run started in between
            _make_file(target / MADE)


def _make_file(path: Path) -> None:
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600))


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"
