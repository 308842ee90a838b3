"""Data sets with many samples per file: the mapping of samples to archives, and writing archives.

The archives of a folder, sorted by name, contain its samples, sorted by name: ``samples_per_archive`` (a fact in
the manifest) in each archive, except that the last may have fewer. Sample i is therefore the same whether or not
the data set is packed, and a run reads the same batches.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path

from mlhpc.common.data import generate
from mlhpc.common.data.manifest import NAME, File, Files, Manifest
from mlhpc.common.formats.archive import SUFFIX, Member, write
from mlhpc.common.host.progress import progress
from mlhpc.common.ranks.collectives import on_rank0
from mlhpc.common.ranks.world import World
from mlhpc.errors import UserError
from mlhpc.quantities import count

FACT = "samples_per_archive"
"""The fact in a manifest with the number of samples per archive; absent if samples are files."""


def samples_per_archive(dataset: Manifest) -> int | None:
    """Number of samples per archive of ``dataset``; None if samples are not packed. Raises UserError."""
    if FACT not in dataset.facts:
        return None
    number = dataset.facts[FACT]
    if type(number) is not int or number < 1:
        raise UserError(
            f"{dataset.root / NAME}: {FACT} is {number!r:.80}, but must be at least 1; convert the data set again"
        )
    return number


def require_unpacked(dataset: Manifest) -> None:
    """Raise UserError if the samples of ``dataset`` are packed, because converters read one file per sample."""
    if samples_per_archive(dataset):
        raise UserError(
            f"{dataset.root} contains archives; convert the original data set, or unpack this one (unzip every "
            f"*{SUFFIX} in its folder, delete the archives, run mlhpc data index)"
        )


def require_none(root: Path, files: Files) -> None:
    """Raise UserError if an archive is among the sample ``files`` of a data set whose manifest has none."""
    if f"{SUFFIX}\0".encode() not in files.names:
        return  # no path in the manifest ends like an archive's
    if packed := next((file.path for file in files if file.path.endswith(SUFFIX)), None):
        raise UserError(f"{root / packed} is an archive without a manifest; copy {NAME} to {root} too")


def described(each: int | None) -> str:
    """A phrase that says how samples are packed, for the last line that a conversion prints."""
    return f", {each} per archive" if each else ""


def members(dataset: Manifest, folder: str, files: Sequence[File], root: Path, samples: int) -> list[Member]:
    """The samples, in order, that are in the archives ``files`` under ``root`` and among the first ``samples``
    samples of ``folder``. ``files`` may be only part of the folder's archives; no archive is opened. Raises
    UserError if the folder's archives do not match the numbers in the manifest.
    """
    each, archives = samples_per_archive(dataset), dataset.folder(folder)
    available = dataset.samples(folder)
    assert each is not None
    if len(archives) != -(-available // each) or not all(file.path.endswith(SUFFIX) for file in archives):
        raise UserError(
            f"{dataset.root / folder}: {count(available, 'sample')} at {each} per archive make "
            f"{count(-(-available // each), f'*{SUFFIX} file')}, but the manifest lists {len(archives)}; "
            f"convert the data set again"
        )
    if available < samples:
        raise UserError(
            f"{dataset.root / folder}: only {available} of the {samples} samples needed; use a smaller preset"
        )
    first = {file.path: number * each for number, file in enumerate(archives)}
    listed = []
    for file in files:
        if file.path in first:
            path, start = root / file.path, first[file.path]
            listed += [Member(path, number) for number in range(min(each, samples - start))]
    return listed


def grouped(names: Sequence[str], each: int) -> dict[str, list[str]]:
    """The archives to write for the samples ``names`` (``folder/file``), with ``each`` samples per archive: a
    dictionary from the archives' names to lists of sample names."""
    archives = {}
    for folder, group in groupby(sorted(names), key=lambda name: name.rpartition("/")[0]):
        of_folder = list(group)
        for start in range(0, len(of_folder), each):
            archives[f"{folder}/samples-{start // each:06d}{SUFFIX}"] = of_folder[start : start + each]
    return archives


def write_missing(
    out: Path,
    archives: dict[str, list[str]],
    content: Callable[[str], bytes | bytearray | memoryview],
    world: World,
    workers: int,
) -> None:
    """Write those ``archives`` (from ``grouped``) that are missing in ``out``; ``content(name)`` returns the
    content of a sample's file. The ranks divide the archives among them; each rank uses ``workers`` threads, and
    each thread keeps one sample in memory at a time.

    Called by all ranks. Raises UserError, the same on all ranks, if ``content`` raises one or the disk is full.
    """
    lacking = set(on_rank0(world, lambda: generate.missing(out, list(archives))))
    todo = [name for name in archives if name in lacking][world.rank :: world.size]

    def write_one(advance: Callable[[int], None], name: str) -> None:
        def files() -> Iterator[tuple[str, bytes | bytearray | memoryview]]:
            for sample in archives[name]:
                yield os.path.basename(sample), content(sample)
                advance(1)

        write(out / name, files())

    samples = sum(len(archives[name]) for name in todo)
    with progress(samples, "convert", "samples", show=world.rank == 0) as advance:
        work = partial(write_one, advance)
        generate.write_on_all_ranks(world, out, lambda: generate.in_threads(work, todo, workers))
