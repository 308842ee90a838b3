"""Verifies the files of a data set against its manifest."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from mlhpc.common.data.manifest import NAME, File, in_threads, load, walk
from mlhpc.common.files.checksum import checksum
from mlhpc.common.files.filesystem import as_user_error
from mlhpc.common.ranks.collectives import on_all_ranks, on_rank0
from mlhpc.common.ranks.world import World
from mlhpc.errors import UserError
from mlhpc.quantities import count


@dataclass(frozen=True)
class Problem:
    """A file that differs from its entry in the manifest, and the difference."""

    path: Path
    what: str

    def __str__(self) -> str:
        return f"{self.path}: {self.what}"


def verify(root: Path, workers: int, progress: Callable[[int], None] = lambda size: None) -> list[Problem]:
    """Check every file under ``root`` against its manifest: missing, extra, wrong size, wrong checksum.

    Reads all bytes, ``workers`` files at a time; ``progress`` as for ``index``. Returns the problems, sorted by
    path. Raises UserError if there is no manifest.
    """
    manifest = load(root)

    def check(file: File) -> Problem | None:
        path = root / file.path
        try:
            size = path.stat().st_size
            if size != file.size:
                return Problem(path, f"{count(size, 'byte')}, expected {file.size}")
            _, crc = checksum(path)
            if file.crc32 is not None and crc != file.crc32:
                return Problem(path, f"checksum {crc:08x}, expected {file.crc32:08x}")
        except FileNotFoundError:
            return Problem(path, "missing")
        except OSError as error:
            return Problem(path, f"cannot be read: {error.strerror}")
        finally:
            progress(file.size)
        return None

    problems = [problem for problem in in_threads(check, manifest.files, workers) if problem]
    extra = set(walk(root)) - {file.path for file in manifest.files}
    return sorted(
        problems + [Problem(root / name, "not in the manifest") for name in extra], key=lambda p: p.path
    )


def require_listed(root: Path, world: World, workers: int, of: Callable[[str], bool]) -> None:
    """If ``root`` has a manifest, require that every listed file for which ``of(path)`` is true exists and has the
    size stated in the manifest. No content is read; the look-ups are divided among the ranks, each of which uses
    ``workers`` threads.

    Called by all ranks. Raises UserError, the same on all ranks, naming the first file that differs.
    """
    if not on_rank0(world, lambda: (root / NAME).exists()):
        return
    files = [file for file in on_rank0(world, lambda: load(root)).files if of(file.path)]

    def look(file: File) -> str | None:
        path = root / file.path
        try:
            size = path.stat().st_size
        except (FileNotFoundError, NotADirectoryError):
            return f"{path}: listed in the manifest but missing"
        except OSError as error:
            return f"{path} cannot be read: {error.strerror}"
        return None if size == file.size else f"{path}: {count(size, 'byte')}, expected {file.size}"

    parts = on_all_ranks(world, lambda: in_threads(look, files[world.rank :: world.size], workers))
    problem = min((problem for part in parts for problem in part if problem), default=None)
    if problem:
        raise UserError(f"{problem}; see: mlhpc data verify {root}")


def checksums(root: Path, world: World) -> dict[Path, int]:
    """The CRC-32 of each file whose checksum is in the manifest of ``root``; empty without a manifest. Called by
    all ranks; all get the same. Raises UserError if the manifest is invalid."""

    def read() -> dict[Path, int]:
        listed = load(root).files if (root / NAME).exists() else ()
        return {root / file.path: file.crc32 for file in listed if file.crc32 is not None}

    return on_rank0(world, read)


def require_checksum(path: Path, expected: Mapping[Path, int]) -> None:
    """Raise UserError if the CRC-32 of ``path`` differs from the one in ``expected``. Used for formats without
    checksums: conversion would otherwise give damaged samples valid checksums."""
    if path not in expected:
        return
    with as_user_error(path, "cannot be read", "copy or regenerate the file"):
        _, crc = checksum(path)
    if crc != expected[path]:
        raise UserError(
            f"{path}: checksum {crc:08x}, not {expected[path]:08x}; copy the file again, or run "
            "mlhpc data index if the change is intended"
        )
