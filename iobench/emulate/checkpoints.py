"""Writes checkpoints and reads them back. Each writing rank writes its files in pieces and syncs them to the
device."""

import contextlib
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from mlhpc.common.files import pagecache
from mlhpc.common.files.filesystem import nearest_existing
from mlhpc.common.ranks.world import World
from mlhpc.common.timing.waiting import clock
from mlhpc.errors import UserError
from mlhpc.iobench.dataset.content import Content
from mlhpc.iobench.definition.schema import Checkpoint
from mlhpc.quantities import bytes_text

BUFFER = 64 << 20
"""Bytes of the content that is written repeatedly, each time changed, so that storage with compression or
deduplication has no advantage."""


@dataclass(frozen=True)
class Transfer:
    """One checkpoint written or read by one rank, from ``start_s`` to ``end_s`` on this process's clock.
    ``seconds`` is the time of opening, reading or writing, syncing to the device and closing; it excludes
    generating the data and dropping it from the page cache."""

    kind: Literal["write", "read"]
    number: int
    start_s: float
    end_s: float
    bytes: int
    seconds: float
    fsync_s: float


class Checkpoints:
    """The checkpoints of a rank under ``folder``; the last one is kept until ``remove``."""

    def __init__(self, settings: Checkpoint, folder: Path, world: World) -> None:
        self._settings, self._folder, self._rank = settings, folder, world.rank
        writers = world.size if settings.ranks == "all" else 1
        self.sizes: tuple[int, ...] = ()
        if world.rank < writers:
            self.sizes = settings.files
            if settings.total_bytes:
                share, more = divmod(settings.total_bytes, writers)
                self.sizes = (share + (world.rank < more),)
        self.transfers: list[Transfer] = []
        self._written = 0
        if self.sizes:
            room = min(max(self.sizes), BUFFER)
            self._buffer = Content(world.rank).sample(0, 0, max(room, settings.transfer_bytes))

    def write(self) -> None:
        """Write the next checkpoint, and remove the previous one once the new one is complete. If writing fails,
        for example because the disk is full, removes the incomplete checkpoint and raises UserError."""
        if not self.sizes:
            return
        begin, seconds, fsync_s = clock(), 0.0, 0.0
        paths = self._paths(self._written)
        try:
            paths[0].parent.mkdir(parents=True, exist_ok=True)
            for path, size in zip(paths, self.sizes, strict=True):
                spent, synced = self._write_file(path, size)
                seconds, fsync_s = seconds + spent, fsync_s + synced
        except OSError as error:
            for path in paths:
                path.unlink(missing_ok=True)
            raise UserError(
                f"{paths[0].parent}: the checkpoint cannot be written: {error.strerror or error}; check "
                f"free space, or choose another folder with --checkpoints"
            ) from error
        if self._written:
            self._remove(self._written - 1)
        total = sum(self.sizes)
        self.transfers.append(Transfer("write", self._written, begin, clock(), total, seconds, fsync_s))
        self._written += 1

    def read(self) -> None:
        """Drop the last checkpoint from the page cache and read it. Raises UserError if it is damaged."""
        if not self.sizes:
            return
        paths = self._paths(self._written - 1)
        step = self._settings.transfer_bytes
        buffer = np.empty(step, np.uint8)
        begin, seconds = clock(), 0.0
        try:
            pagecache.evict(paths)
            for path, size in zip(paths, self.sizes, strict=True):
                start = clock()
                fd, done = os.open(path, os.O_RDONLY | os.O_CLOEXEC), 0
                try:
                    while count := os.preadv(fd, [buffer.data], done):
                        done += count
                finally:
                    os.close(fd)
                seconds += clock() - start
                if done != size:
                    raise UserError(f"{path} is damaged: it has {done} bytes, but {size} were written")
        except OSError as error:
            raise UserError(
                f"{paths[0].parent}: the checkpoint cannot be read: {error.strerror or error}"
            ) from error
        number = sum(transfer.kind == "read" for transfer in self.transfers)
        self.transfers.append(Transfer("read", number, begin, clock(), sum(self.sizes), seconds, 0.0))

    def remove(self) -> None:
        """Remove this rank's checkpoints."""
        for number in range(max(0, self._written - 1), self._written + 1):
            self._remove(number)
        with contextlib.suppress(OSError):
            self._folder.rmdir()

    def _remove(self, number: int) -> None:
        for path in self._paths(number):
            path.unlink(missing_ok=True)
        # Not empty: it contains files of other ranks; the last rank removes it.
        with contextlib.suppress(OSError):
            (self._folder / f"checkpoint-{number}").rmdir()

    def _paths(self, number: int) -> list[Path]:
        folder = self._folder / f"checkpoint-{number}"
        return [folder / f"rank{self._rank}-{file}" for file in range(len(self.sizes))]

    def _write_file(self, path: Path, size: int) -> tuple[float, float]:
        """Write a file; returns the seconds taken, and how many of them were spent in fsync."""
        buffer, step = self._buffer, self._settings.transfer_bytes
        start = clock()
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        seconds, synced = clock() - start, 0.0
        try:
            left, at = size, 0
            while left:
                if at + min(step, left) > len(buffer):
                    at = 0
                    np.add(buffer, 1, out=buffer)  # bytes differ from the previous checkpoint
                start = clock()
                count = os.write(fd, buffer[at : at + min(step, left)].data)
                seconds += clock() - start
                left, at = left - count, at + count
            if self._settings.fsync:
                start = clock()
                os.fsync(fd)
                synced = clock() - start
        finally:
            start = clock()
            os.close(fd)
        return seconds + synced + clock() - start, synced


def require_space(settings: Checkpoint, folder: Path, world: World) -> None:
    """Raise UserError if there is no space for two checkpoints, the last and the next. Called on rank 0."""
    writers = world.size if settings.ranks == "all" else 1
    needed = 2 * (settings.total_bytes or writers * sum(settings.files))
    free = shutil.disk_usage(nearest_existing(folder)).free
    if needed > free:
        raise UserError(
            f"{folder}: two checkpoints need {bytes_text(needed)}, but only {bytes_text(free)} is free; choose "
            f"another folder with --checkpoints, or reduce their size"
        )
