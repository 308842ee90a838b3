"""``mlhpc io generate``: generates the files of a workload with several ranks and processes, and resumes after an
interruption."""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from mlhpc.common.data.generate import in_processes, write_on_all_ranks
from mlhpc.common.files.atomic import write_all
from mlhpc.common.files.filesystem import filesystem_of
from mlhpc.common.host.progress import progress
from mlhpc.common.ranks.collectives import on_each_rank, on_rank0
from mlhpc.common.ranks.world import World
from mlhpc.errors import UserError
from mlhpc.iobench.dataset.content import Content
from mlhpc.iobench.dataset.layout import SPLITS, Layout, Root, Split
from mlhpc.iobench.definition.schema import Dataset
from mlhpc.iobench.formats.counting import ReadStatistics
from mlhpc.iobench.formats.formats import FORMATS
from mlhpc.quantities import bytes_text, count

FRAMING = 1.02
"""Factor on the required free space, for the overhead of formats."""
_content: dict[tuple[int, float], Content] = {}  # generated once per process, 8 MiB


@dataclass(frozen=True)
class Generated:
    """Number of ``files`` in the data set, how many were ``made`` now, how many of these replaced ``damaged``
    ones, and the bytes written."""

    files: int
    made: int
    damaged: int
    bytes: int


def generate(dataset: Dataset, root: Root, world: World, workers: int) -> Generated:
    """Write the missing and incomplete files of ``dataset`` to ``root``. The files are the same for any number of
    ranks and ``workers``. Called by all ranks.

    Files get their final names once they are complete. Raises UserError, the same on all ranks, if ``root``
    contains a different data set, the format's library is missing, or the files do not fit into the file system.
    """
    layout = Layout(root, dataset)
    on_each_rank(world, FORMATS[dataset.format].load)
    on_rank0(world, lambda: _require_dlios_own(layout) if layout.is_dlio else _claim(layout))
    files = {
        layout.name(split, file): (split, file) for split in SPLITS for file in range(layout.files(split))
    }

    def is_whole(path: Path, name: str) -> bool:
        return FORMATS[dataset.format].is_whole(path, layout.sizes(*files[name]), dataset)

    folders = map(layout.folder, SPLITS)
    present = on_rank0(world, lambda: set[str]().union(*map(layout.place.present, folders)))
    lacking = on_rank0(world, lambda: layout.place.missing(list(files), is_whole))
    own_files = lacking[world.rank :: world.size]
    on_rank0(world, lambda: layout.place.require_space(_stored_bytes(dataset, len(lacking))))
    written: list[int] = []

    def write() -> None:
        with progress(len(own_files), f"generating {root}", "files", show=world.rank == 0) as advance:
            tasks = [(layout, name, *files[name]) for name in own_files]
            written.extend(in_processes(_write_file, tasks, workers, advance))

    write_on_all_ranks(world, str(root), write)
    total = world.sum(float(sum(written)))
    return Generated(len(files), len(lacking), len(present.intersection(lacking)), int(total))


def _claim(layout: Layout) -> None:
    """Reserve the root for this data set. Raises UserError, before anything is written, if a new data set does not
    fit or the root belongs to a different data set."""
    if layout.place.record() is None:
        layout.place.require_space(_stored_bytes(layout.dataset, _all_files(layout)))
    layout.place.claim(layout.record())


def _all_files(layout: Layout) -> int:
    return sum(map(layout.files, SPLITS))


def _require_dlios_own(layout: Layout) -> None:
    """Create DLIO's folders. Raises UserError, and overwrites nothing, if the root contains unrelated files or a
    different data set."""
    place, root = layout.place, layout.root
    if place.record() is not None:
        raise UserError(f"{place}: {_OWN_LAYOUT}; choose another folder, or --set dataset.layout=mlhpc")
    if isinstance(root, Path):
        if root.exists() and any(root.iterdir()) and not (root / "train").exists():
            raise UserError(f"{root}: not empty, but has no folder train; choose another folder")
        place.require_space(0 if root.exists() else _stored_bytes(layout.dataset, layout.dataset.files))
        for split in SPLITS:
            (root / layout.folder(split)).mkdir(parents=True, exist_ok=True)
    for split in SPLITS:
        there = layout.dlio_files(split)
        if len(there) < layout.files(split):
            other = sorted(set(there) - set(layout.new_dlio_names(split)))
            if other:
                raise UserError(
                    f"{place} contains {other[0]}, which is not one of the workload's "
                    f"{count(layout.files(split), 'file')}; choose another folder"
                )
        first = next((file for file in range(layout.files(split)) if layout.name(split, file) in there), None)
        if first is not None:
            _require_same(layout, split, first, damaged=True)


_OWN_LAYOUT = "contains a data set in mlhpc's own layout, not DLIO's"


def _require_same(layout: Layout, split: Split, file: int, *, damaged: bool = False) -> None:
    """Raise UserError if the samples in one of DLIO's files belong to a different workload, or, unless files may
    be ``damaged``, if they cannot be read."""
    dataset, name, sizes = layout.dataset, layout.name(split, file), layout.sizes(split, file)
    opened = layout.place.open(name, ReadStatistics())
    last = dataset.samples_per_file - 1
    try:
        samples = FORMATS[dataset.format].open_samples(opened, sizes, dataset)
        samples.read(last)
        size = samples.size(last)
    except UserError:
        if damaged:
            return
        raise
    finally:
        opened.close()
    if not dataset.sample_bytes_stdev and size != sizes[0]:
        raise UserError(
            f"{layout.place}/{name}: its samples have {size} bytes, not the workload's {sizes[0]}; "
            "choose another folder with --data"
        )


def _require_dlio_data(layout: Layout) -> None:
    """Raise UserError unless all of DLIO's files exist and the first of each split matches the workload."""
    command = f"generate them with 'mlhpc io generate WORKLOAD --data {layout.root}'"
    for split in SPLITS:
        files, there = layout.files(split), len(layout.dlio_files(split))
        where = f"{layout.place}/{layout.folder(split)}"
        if there < files:
            raise UserError(f"{where} has only {there} of {files} .{layout.suffix} files; {command}")
        if files and there > files:
            print(f"{where}: only the first {files} of {there} files are used", file=sys.stderr)
        if files:
            _require_same(layout, split, 0)


def generate_if_new(dataset: Dataset, root: Root, world: World, workers: int) -> None:
    """If there is no data set yet, announce and ``generate`` it. Called by all ranks."""
    layout = Layout(root, dataset)

    def is_new() -> bool:
        return not layout.dlio_files("train") if layout.is_dlio else layout.place.record() is None

    if on_rank0(world, is_new):
        if world.rank == 0:
            files = _all_files(layout)
            need = bytes_text(_stored_bytes(dataset, files))
            free = f" of {bytes_text(filesystem_of(root).free_bytes)} free" if isinstance(root, Path) else ""
            print(f"{root}: generating {count(files, 'file')}, about {need}{free}", file=sys.stderr)
        generate(dataset, root, world, workers)


def require_data(dataset: Dataset, root: Root) -> None:
    """Raise UserError unless ``root`` contains the complete data set generated for ``dataset``, or one that
    differs only in having more files."""
    layout = Layout(root, dataset)
    command = f"generate it with 'mlhpc io generate WORKLOAD --data {root}'"
    recorded = layout.place.record()
    if layout.is_dlio:
        if recorded is not None:
            raise UserError(f"{root}: {_OWN_LAYOUT}; choose another folder, or --set dataset.layout=mlhpc")
        return _require_dlio_data(layout)
    if recorded is None:
        raise UserError(f"{root}: not a data set made by mlhpc io; {command}")
    wanted = layout.record()
    keys = sorted(key for key in recorded.keys() | wanted.keys() if recorded.get(key) != wanted.get(key))
    if keys and not _is_part(keys, layout, recorded):
        differing = "; ".join(f"{key} is {recorded.get(key)}, not {wanted.get(key)}" for key in keys[:3])
        raise UserError(f"{root} has data for a different workload ({differing}); choose another --data")
    for split in SPLITS:
        if not layout.files(split):
            continue
        present = layout.place.present(split)
        lacking = sum(layout.name(split, file) not in present for file in range(layout.files(split)))
        if lacking:
            raise UserError(
                f"{layout.place}/{split}: {lacking} of {layout.files(split)} files are missing; {command}"
            )


def _is_part(keys: Sequence[str], layout: Layout, recorded: Mapping[str, Any]) -> bool:
    """Return whether a recorded data set that differs from ``layout`` in ``keys`` only has more files, with the
    same names and sizes."""
    dataset, stored = layout.dataset, {key: recorded.get(key) for key in keys}
    if not set(keys) <= {"files", "eval_files"} or not all(isinstance(n, int) for n in stored.values()):
        return False
    if any(files < getattr(dataset, key) for key, files in stored.items()):
        return False
    numbered_alike = not dataset.eval_files or not dataset.sample_bytes_stdev or "files" not in keys
    return numbered_alike and Layout(layout.root, dataset.model_copy(update=stored)).digits == layout.digits


def _stored_bytes(dataset: Dataset, files: int) -> int:
    """Approximate total size in bytes of ``files`` files of the data set."""
    stored = dataset.samples_per_file * dataset.sample_bytes * FRAMING
    if dataset.compression != "none":
        stored /= dataset.compressibility
    return int(files * stored)


def _write_file(task: tuple[Layout, str, Split, int]) -> int:
    """Write one file; returns its size in bytes."""
    layout, name, split, file = task
    dataset = layout.dataset
    key = (dataset.seed, dataset.compressibility)
    if key not in _content:
        _content.clear()
        _content[key] = Content(*key)
    content, number = _content[key], layout.number(split, file)
    begin_writeback = _Writeback()

    sizes = layout.sizes(split, file)
    if layout.is_dlio and dataset.format == "binary":
        for suffix, index in FORMATS["binary"].load().index(sizes).items():
            layout.place.write(name + suffix, partial(write_all, data=memoryview(index)))

    def fill(fd: int) -> None:
        def make(sample: int, size: int) -> Any:
            begin_writeback(fd)
            return content.sample(number, sample, size)

        FORMATS[dataset.format].write(fd, sizes, make, dataset)
        begin_writeback(fd, least=0)

    return layout.place.write(name, fill)


class _Writeback:
    """Starts asynchronous write-back of a file's dirty pages. By default the kernel starts only when a tenth
    of the memory is dirty, so the device would be idle while samples are generated."""

    def __init__(self) -> None:
        self._begun = 0

    def __call__(self, fd: int, least: int = 16 << 20) -> None:
        """Start write-back of the bytes written since the last call, if there are at least ``least`` of them."""
        size = os.fstat(fd).st_size
        if size - self._begun >= least:
            # With this advice Linux starts writing dirty pages and drops clean ones (mm/fadvise.c).
            os.posix_fadvise(fd, self._begun, 0, os.POSIX_FADV_DONTNEED)
            self._begun = size
