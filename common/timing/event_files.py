"""Where the ranks of a run write their events: in at most ``PER_FOLDER`` files per folder, since a parallel file
system creates the files in a folder one after another."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

PER_FOLDER = 256
_NAME = re.compile(r"events\.rank(0|[1-9]\d{0,8})\.jsonl")
_FOLDER = re.compile(r"events\.ranks[1-9]\d{0,8}-\d{1,9}")


def events_path(folder: Path, rank: int) -> Path:
    """The event file of ``rank`` in a run's ``folder``. The files of the first ranks, and in early versions those
    of all ranks, are directly in ``folder``."""
    first = rank // PER_FOLDER * PER_FOLDER
    below = folder / f"events.ranks{first}-{first + PER_FOLDER - 1}" if first else folder
    return below / f"events.rank{rank}.jsonl"


def rank_of(name: str) -> int | None:
    """The rank whose events are in the file ``name``; None for other files."""
    match = _NAME.fullmatch(name)
    return int(match[1]) if match else None


def event_files(folder: Path) -> dict[int, Path]:
    """The event files in a run's folder by rank, without links. Raises OSError."""
    return dict(sorted(_files(folder)))


def _files(folder: Path) -> Iterator[tuple[int, Path]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            rank = rank_of(entry.name)
            if rank is not None and entry.is_file(follow_symlinks=False):
                yield rank, Path(entry.path)
            elif _FOLDER.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False):
                yield from _files(Path(entry.path))
