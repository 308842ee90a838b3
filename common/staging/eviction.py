"""Drops files of the data set from the page cache of every node before a run: on each node, the files that this
node will read."""

import shlex
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from mlhpc.benchmarks.schema import Staging
from mlhpc.common.data.manifest import NAME, File, Manifest, in_threads
from mlhpc.common.data.partition import files_read_by_node
from mlhpc.common.files import pagecache
from mlhpc.common.files.filesystem import SHARED_TYPES, as_user_error, filesystem_of
from mlhpc.common.ranks.collectives import on_all_ranks
from mlhpc.common.ranks.world import World
from mlhpc.errors import UserError

HOOK = "MLHPC_DROP_CACHES"
"""The variable with a site's command that drops the page cache of the node on which it runs."""


class Eviction(NamedTuple):
    """Sums over all ranks: files opened, their total size in bytes, and files with pages still in memory. Also the
    seconds that the slowest rank took."""

    files: int
    bytes: int
    kept: int
    seconds: float

    @property
    def complete(self) -> bool:
        """Whether, as far as is known, no node has pages of the dropped files in memory."""
        return self.kept == 0


def evict(dataset: Manifest, stage: Path | None, how: Staging, world: World) -> Eviction:
    """Drop the files of ``dataset`` that each node will read, either to stage them to ``stage`` or (if that is
    None) to train from them in place. The ranks of a node divide its files among them, and open each file once.
    Called by all ranks.

    Raises UserError, the same on all ranks, if a file cannot be opened.
    """
    started = time.monotonic()
    rings = 0
    if stage and how.read_once and filesystem_of(stage).type not in SHARED_TYPES:
        rings = -int(world.max(-world.local_size))
    mode = how.mode if stage else "replicate"
    files = files_read_by_node(dataset.files, world.node, world.nodes, mode, rings)
    own = files[world.local_rank :: world.local_size]
    if world.rank == 0 and (dataset.root / NAME).exists():  # only this rank has read the manifest
        own.append(File(NAME, 0))

    def drop(file: File) -> tuple[int, float]:
        path = dataset.root / file.path
        with as_user_error(path, "cannot be dropped from the page cache", "see: mlhpc data verify"):
            return pagecache.drop(path)

    def work() -> Eviction:
        done = in_threads(drop, own, how.workers)
        size, kept = sum(size for size, _ in done), sum(left > 0 for _, left in done)
        return Eviction(len(done), size, kept, time.monotonic() - started)

    files_, sizes, kept, seconds = zip(*on_all_ranks(world, work), strict=True)
    return Eviction(sum(files_), sum(sizes), sum(kept), max(seconds))


def drop_by_hook(env: Mapping[str, str], data: Path, world: World) -> Eviction | None:
    """Instead of ``evict``, run the site's command once on each node, with the folder ``data`` as its argument.
    Returns None if the site has no such command. Called by all ranks. Raises UserError, the same on all ranks, if
    the command fails."""
    command = env.get(HOOK)
    if not command:
        return None
    started = time.monotonic()

    def work() -> float:
        if world.local_rank == 0:
            try:
                subprocess.run([*shlex.split(command), str(data)], check=True, stdin=subprocess.DEVNULL)
            except (OSError, ValueError, subprocess.SubprocessError) as error:
                why = str(error).rstrip(".")
                raise UserError(f"{HOOK}={command!r}: {why}; correct the command, or unset it") from error
        return time.monotonic() - started

    return Eviction(0, 0, 0, max(on_all_ranks(world, work)))
