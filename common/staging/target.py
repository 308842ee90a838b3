"""The folder that is staged to: which ranks and which runs share it, what it has room for, what goes wrong."""

import contextlib
import errno
import random
import secrets
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from mlhpc.common.data.partition import Mode
from mlhpc.common.files import atomic, locks
from mlhpc.common.files.filesystem import FileSystem, filesystem_of
from mlhpc.common.ranks.collectives import attempt, gather_or_raise, on_all_ranks
from mlhpc.common.ranks.world import World
from mlhpc.errors import UserError


@dataclass(frozen=True)
class StagingGroup:
    """The ranks that see one target: as a rule those of one node."""

    members: tuple[int, ...]
    leads: bool
    made_folder: bool


class Need(NamedTuple):
    """Bytes that a rank is to write, the first rank of its team, and from that rank the file system."""

    size: int
    leader: int
    target: Path
    filesystem: FileSystem | None


def staging_group(source: Path, target: Path, world: World, mode: Mode) -> StagingGroup:
    """Make the target and find out which nodes share it, by a file that each node puts there. Called by all
    ranks; raises UserError, the same on all, when the target cannot be written, or ``mode`` cannot share it.
    """
    token = world.broadcast(secrets.token_hex(8))
    probe = target / f".{token}.{world.node}.probe"

    def begin() -> bool:
        if target.resolve().is_relative_to(source.resolve()):
            raise UserError(f"{target}: inside the data set itself; choose another --stage")
        with as_user_error(target, "cannot be written", "choose another --stage"):
            made = not target.exists()
            target.mkdir(parents=True, exist_ok=True)
            if world.local_rank == 0:
                probe.touch()
        return made

    try:
        made = on_all_ranks(world, begin)
        seen = [int(path.name.split(".")[2]) for path in target.glob(f".{token}.*.probe")]
        lowest = world.gather((world.node, min(seen, default=world.node)))
    finally:
        if world.local_rank == 0:
            with contextlib.suppress(OSError):  # what stands in the way has been told already
                probe.unlink()
    if mode == "shard" and any(node != low for node, low in lowest):
        node, low = next(pair for pair in lowest if pair[0] != pair[1])
        raise UserError(
            f"{target}: nodes {low} and {node} see the same folder, shards need storage of each node's own; "
            "choose another --stage, or mode replicate"
        )
    members = tuple(rank for rank in range(world.size) if lowest[rank][1] == lowest[world.rank][1])
    return StagingGroup(members, world.rank == members[0], any(made[rank] for rank in members))


@contextlib.contextmanager
def exclusive(target: Path, world: World, team: StagingGroup) -> Iterator[bool]:
    """While no other run changes the target, on any node; yields whether another uses it.

    Called by all ranks. A run that cannot have the targets of all its nodes lets go of those it has, so that
    two cannot wait for each other; the pause differs by chance.
    """

    def take() -> tuple[int | None, bool]:
        if not team.leads:
            return None, False
        with as_user_error(target, "cannot be written", "choose another --stage"):
            target.mkdir(parents=True, exist_ok=True)  # the last run may just have removed it
            try:
                fd = locks.try_lock(target)
            except FileNotFoundError:
                return None, False
            return fd, locks.in_use(target)

    def changed(fd: int | None) -> None:
        if fd is not None:
            locks.unlock(target, fd)

    while True:
        got, error = attempt(take)
        fd, used = got or (None, False)
        try:
            outcomes = gather_or_raise(world, (fd is not None or not team.leads, used), error)
        except BaseException:
            changed(fd)
            raise
        if all(had for had, _ in outcomes):
            break
        changed(fd)
        time.sleep(random.uniform(0.02, 0.2))
    try:
        if team.leads:
            locks.register(target)
        yield outcomes[team.members[0]][1]
    except BaseException:
        if team.leads:
            locks.unregister(target)
        raise
    finally:
        changed(fd)


def check_room(needs: Sequence[Need]) -> None:
    """Refuse what cannot end well, on every rank alike."""
    sizes: Counter[int] = Counter()
    for need in needs:
        sizes[need.leader] += need.size
    for need in needs:
        there, size = need.filesystem, sizes[need.leader]
        if there is not None and size > there.free_bytes:
            raise UserError(
                f"{need.target}: staging needs {_gb(size)}, {there.type} on {there.mount_point} has "
                f"{_gb(there.free_bytes)} free{' (it is memory)' if there.is_ram else ''}; "
                "free some, choose another --stage, or stage in shards over more nodes"
            )


def unlink(target: Path, paths: Iterable[str]) -> None:
    """Remove files, what dead processes left beside them, and the folders below ``target`` left empty."""
    folders: set[Path] = set()
    for path in paths:
        (target / path).unlink(missing_ok=True)
        folders.update((target / path).parents)
    inside = [folder for folder in folders if folder.is_relative_to(target)]
    atomic.sweep(inside)
    for folder in sorted(set(inside) - {target}, reverse=True):
        with contextlib.suppress(OSError):
            folder.rmdir()


def in_use(target: Path) -> bool:
    """Whether another run uses what is staged in ``target``."""
    return locks.in_use(target)


@contextlib.contextmanager
def as_user_error(path: Path, what: str, remedy: str) -> Iterator[None]:
    """Make an OSError a UserError that names ``path``, and the file system when it is full."""
    try:
        yield
    except OSError as error:
        where = ""
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            there = filesystem_of(path)
            where = f" ({there.type} on {there.mount_point}, {_gb(there.free_bytes)} free)"
        raise UserError(f"{path}: {what}: {error.strerror}{where}; {remedy}") from error


def _gb(size: int) -> str:
    return f"{size / 1e9:.3g} GB" if size >= 1e9 else f"{size / 1e6:.3g} MB"
