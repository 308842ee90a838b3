"""``manifest.json``: every file of a data set with its size and checksum, and facts about the data set.

The checksum (``common/files/checksum.py``) detects truncated, damaged and mixed-up files, but not forgery.
"""

import json
import os
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, islice, pairwise
from operator import lt
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, overload

import numpy as np
import numpy.typing as npt

from mlhpc.common.files import atomic
from mlhpc.common.files.checksum import checksum
from mlhpc.common.files.filesystem import as_user_error
from mlhpc.common.files.regular import open_regular
from mlhpc.common.files.untrusted import MOST_VALUES, parse_json
from mlhpc.common.ranks.collectives import on_all_ranks, on_each_rank, on_rank0
from mlhpc.common.ranks.world import World
from mlhpc.errors import UserError
from mlhpc.quantities import binary_text, count

NAME = "manifest.json"
_VERSION = 2
_UNKNOWN = 8 * "-"  # in place of an unknown checksum
_CHUNK = 1 << 12  # elements of a column at a time: as Python objects they take four times the memory
_OUTSIDE = frozenset({"", ".", ".."})  # path components of absolute paths and of paths not in normal form
T = TypeVar("T")


class File(NamedTuple):
    """A file: ``path`` relative to the data set's root, ``size`` in bytes, and the CRC-32 of its content if
    known."""

    path: str
    size: int
    crc32: int | None = None

    @property
    def folder(self) -> str:
        """The top-level folder; empty for a file outside folders."""
        return self.path.rpartition("/")[0].partition("/")[0]


@dataclass(frozen=True, eq=False)
class Files(Sequence[File]):
    """Files as columns, sorted by path: half a million files take 40 MB, a sixth of what separate objects would
    take.

    ``names``: the paths, encoded as in the file system, each followed by a zero byte. ``sizes`` in bytes, int64
    [n]; ``crc32``, uint32 [n], valid where ``known``, bool [n], is true. ``starts``: where in ``names`` each path
    begins, int [n]; None: the paths follow one another.
    """

    names: bytes
    sizes: npt.NDArray[np.int64]
    crc32: npt.NDArray[np.uint32]
    known: npt.NDArray[np.bool_]
    starts: npt.NDArray[np.int32] | None = None

    @classmethod
    def of(cls, files: Iterable[File]) -> "Files":
        """Convert ``files``, which must be sorted by path, to columns."""
        if isinstance(files, Files):
            return files
        rows = list(files)
        crcs = [file.crc32 for file in rows]
        return cls(
            _joined(file.path for file in rows),
            np.array([file.size for file in rows], np.int64),
            np.array([crc or 0 for crc in crcs], np.uint32),
            np.array([crc is not None for crc in crcs], np.bool_),
        )

    @cached_property
    def _starts(self) -> npt.NDArray[np.int32]:
        if self.starts is not None:
            return self.starts
        data = np.frombuffer(self.names, np.uint8)
        ends = [np.flatnonzero(data[at : at + (1 << 20)] == 0) + at for at in range(0, len(data), 1 << 20)]
        return np.concatenate([[0], *(part + 1 for part in ends)])[:-1].astype(np.int32)

    def __len__(self) -> int:
        return len(self.sizes)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or len(self) != len(other):
            return False
        return all(one == two for one, two in zip(self, other, strict=True))

    @overload
    def __getitem__(self, index: int) -> File: ...
    @overload
    def __getitem__(self, index: slice) -> "Files": ...

    def __getitem__(self, index: int | slice) -> "File | Files":
        if isinstance(index, slice):
            return self.at(index)
        crc = int(self.crc32[index]) if self.known[index] else None
        return File(self._path(int(self._starts[index])), int(self.sizes[index]), crc)

    def __iter__(self) -> Iterator[File]:
        columns = self._starts, self.sizes, self.crc32, self.known
        for at in range(0, len(self), _CHUNK):
            part = (column[at : at + _CHUNK].tolist() for column in columns)
            for start, size, crc, known in zip(*part, strict=True):
                yield File(self._path(start), size, crc if known else None)

    def _path(self, start: int) -> str:
        return os.fsdecode(self.names[start : self.names.index(b"\0", start)])

    def at(self, chosen: slice | npt.NDArray[Any]) -> "Files":
        """The files at the indices ``chosen`` (a slice or [m]), in order, or those for which ``chosen`` [n] is
        true."""
        sizes, starts = self.sizes[chosen], self._starts[chosen]
        return Files(self.names, sizes, self.crc32[chosen], self.known[chosen], starts)

    def joined(self) -> bytes:
        """``names`` with the paths of these files only."""
        if self.starts is None:
            return self.names
        return b"".join(self.names[at : self.names.index(b"\0", at) + 1] for at in self.starts.tolist())

    @property
    def size(self) -> int:
        """Total bytes of the files."""
        return int(self.sizes.sum())

    def folder(self, name: str) -> "Files":
        """The files under the top-level folder ``name``."""
        start = self._first(f"{name}/", 0)
        return self[start : self._first(f"{name}0", start)]

    def folders(self) -> Iterator[tuple[str, slice]]:
        """Each top-level folder and the range of the files in it; each file outside folders is listed with an
        empty name."""
        start = 0
        while start < len(self):
            name = self[start].folder
            end = self._first(f"{name}0", start) if name else start + 1
            yield name, slice(start, end)
            start = end

    def outside(self) -> npt.NDArray[np.bool_]:
        """A mask, bool [n], that is true for files outside all folders."""
        outside = np.zeros(len(self), np.bool_)
        for name, members in self.folders():
            outside[members] = not name
        return outside

    def _first(self, path: str, start: int) -> int:
        """The first index from ``start`` on whose path does not sort before ``path``. The files of a folder end
        where ``folder0`` would sort, because 0 follows / in ASCII."""
        return bisect_left(range(len(self)), path, start, key=lambda index: self[index].path)


def _joined(paths: Iterable[str]) -> bytes:
    return os.fsencode("\0".join([*paths, ""]))


@dataclass(frozen=True)
class Manifest:
    """The files under ``root``, sorted by path, and facts about the data set as a whole.

    ``facts`` is what the producer of the data set wrote. Common code reads two of them: ``benchmark``, and
    ``samples``, the number of samples by folder (``{"train": 2048, "validation": 512}``); without it, each file of
    a folder counts as one sample, as in the published data sets.
    """

    root: Path
    files: Files
    facts: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "files", Files.of(self.files))  # ``files`` may also be a tuple

    @property
    def bytes(self) -> int:
        """Total size of the files."""
        return self.files.size

    @property
    def checked(self) -> bool:
        """Whether every file has a checksum."""
        return bool(self.files.known.all())

    def folder(self, name: str) -> Files:
        """The files under the top-level folder ``name``, sorted by path."""
        return self.files.folder(name)

    def samples(self, folder: str) -> int:
        """Number of samples in ``folder``."""
        stated = self.facts.get("samples", {}).get(folder)
        return len(self.folder(folder)) if stated is None else int(stated)


LARGEST = 2**30
"""Maximum size of a manifest in bytes; the entry of each file takes about 70 bytes and has three commas."""


def facts_of(root: Path) -> dict[str, Any]:
    """The facts in the manifest of the folder ``root``; empty if there is no manifest. Raises UserError like
    ``load``."""
    return load(root).facts if (root / NAME).exists() else {}


def load(root: Path) -> Manifest:
    """Read ``root/manifest.json``.

    Raises UserError if ``root`` is not a folder or has no manifest, or if the manifest is malformed or contains
    paths outside the data set: it is untrusted input.
    """
    path = root / NAME
    try:
        with open(open_regular(path), "rb") as file:
            if os.fstat(file.fileno()).st_size > LARGEST:
                raise ValueError(f"larger than {binary_text(LARGEST)}")
            data = file.read()  # passing a size would allocate that much memory
        content = parse_json(data.decode(), MOST_VALUES + len(data) // 8)
        del data
        version = content["version"]
        if version not in (1, _VERSION):
            raise UserError(
                f"{path}: manifest version {version!r:.80}, expected 1 or {_VERSION}; index the data set again"
            )
        columns = content["files"]
        if version == 1:
            paths, sizes, crcs = map(list, zip(*columns, strict=True) if columns else ([], [], []))
            digits = " ".join(_digits(*row) for row in zip(paths, crcs, strict=True))
        else:
            paths, sizes, digits = (columns[name] for name in ("paths", "sizes", "crc32"))
        files = _checked_files(paths, sizes, digits)
        facts = _checked_facts(content["facts"])
    except FileNotFoundError as error:
        require_folder(root)
        raise UserError(f"{path}: no manifest; make one with 'mlhpc data index {root}'") from error
    except OSError as error:
        require_folder(root)
        raise UserError(f"{path} cannot be read: {error.strerror}; check the data set") from error
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        raise UserError(
            f"{path}: not a valid manifest ({error}); regenerate it with 'mlhpc data index {root}'"
        ) from error
    return Manifest(root, files, facts)


def _digits(path: object, crc: object) -> str:
    """The checksum ``crc`` of the file ``path`` as eight hexadecimal digits, from a manifest of version 1. Raises
    ValueError if it is malformed."""
    if crc is None:
        return _UNKNOWN
    with suppress(ValueError, OverflowError):
        if isinstance(crc, str):
            return int(crc, 16).to_bytes(4, "big").hex()
    raise ValueError(f"the checksum of {path!r:.80} is {crc!r:.80}")


def _checked_files(paths: Any, sizes: Any, digits: Any) -> Files:
    """The files of a manifest. Raises ValueError or TypeError if a file is malformed or listed twice. There may be
    a million files, so no Python code runs for each file, except to find the one to name in an error."""
    if (type(paths), type(sizes), type(digits)) != (list, list, str):
        raise ValueError("files is not a table of paths, sizes and crc32")
    parts = (paths[at : at + _CHUNK] for at in range(0, len(paths), _CHUNK))
    names = b"".join(map(_checked_names, parts))
    column = np.array(sizes, np.int64) if set(map(type, sizes)) <= {int} else np.array([-1])
    if (column < 0).any() or column.sum(dtype=np.float64) >= 1 << 63:
        pairs = zip(paths, sizes, strict=False)
        path, size = next(
            (p for p in pairs if type(p[1]) is not int or not 0 <= p[1] < 1 << 63), ("all", "8 EiB")
        )
        raise ValueError(f"the size of {path} is {size!r:.80}")
    known = np.ones(len(paths), np.bool_)
    if "-" in digits:
        known = np.array([word != _UNKNOWN for word in digits.split()], np.bool_)
    crc32 = np.frombuffer(bytes.fromhex(digits.replace("-", "0")), ">u4").astype(np.uint32)
    if not len(paths) == len(sizes) == len(known) == len(crc32):
        raise ValueError(f"{len(paths)} paths, {len(sizes)} sizes and {len(crc32)} checksums")
    files = Files(names, column, crc32, known)
    if not all(map(lt, paths, islice(paths, 1, None))):
        files = Files.of(sorted(files, key=lambda file: file.path))
        if repeated := next((one.path for one, two in pairwise(files) if one.path == two.path), None):
            raise ValueError(f"{repeated} is listed twice")
    return files


def _checked_names(paths: Sequence[str]) -> bytes:
    """The result of ``_joined`` for ``paths``. Raises ValueError or TypeError if a path is malformed."""
    inside = "/".join(["", *paths, ""])
    hidden = "/." in inside and ("/./" in inside or "/../" in inside)
    if "\0" in inside or "//" in inside or hidden or NAME in paths:
        wrong = (p for p in paths if "\0" in p or not _OUTSIDE.isdisjoint(p.split("/")) or p == NAME)
        raise ValueError(f"{next(wrong)!r:.80} is not a path in the data set")
    return _joined(paths)  # raises ValueError for characters not allowed in file names


def _checked_facts(facts: object) -> dict[str, Any]:
    """The facts of a manifest. Raises ValueError if facts used by common code have the wrong type."""
    if not isinstance(facts, dict):
        raise ValueError("facts is not a table")
    samples = facts.get("samples", {})
    if not isinstance(samples, dict) or any(
        type(n) is not int or not 0 <= n < 1 << 63 for n in samples.values()
    ):
        raise ValueError("facts.samples is not a table of counts")
    if type(facts.get("benchmark", "")) is not str:
        raise ValueError("facts.benchmark is not a name")
    return facts


def listing(root: Path, world: World, workers: int = 8) -> Manifest:
    """A manifest without checksums, from names and sizes only, for a data set without a manifest.

    Rank 0 lists the folders; the ranks divide the file size look-ups among them. Hidden files are left out.
    Called by all ranks. Raises UserError, the same on all, if ``root`` is not a folder or contains no files.
    """
    names = _names(root, world)[world.rank :: world.size]
    parts = on_all_ranks(
        world, lambda: in_threads(lambda name: File(name, (root / name).stat().st_size), names, workers)
    )
    return Manifest(root, Files.of(sorted(chain.from_iterable(parts))))


def require_folder(root: Path) -> None:
    """Raise UserError unless ``root`` is a folder; its content is not read."""
    if not root.exists():
        raise UserError(f"{root}: no such folder; pass the folder of a data set")
    if not root.is_dir():
        raise UserError(f"{root}: not a folder; pass the folder of a data set")


def describe(root: Path, world: World, benchmark: str | None = None, workers: int = 8) -> Manifest:
    """The manifest of ``root``, or a ``listing`` if it has none. Called by all ranks; all get the same result.

    Only rank 0 reads the manifest. Raises UserError, the same on all ranks, like ``load`` and ``listing``, and if
    the manifest names a benchmark other than ``benchmark``.
    """
    has_one = on_rank0(world, lambda: (root / NAME).exists() or not root.is_dir())
    manifest = on_rank0(world, lambda: load(root)) if has_one else listing(root, world, workers)

    def checked() -> Manifest:
        if benchmark and (of := manifest.facts.get("benchmark", benchmark)) != benchmark:
            raise UserError(f"{root} is a data set for {of}; pass one for {benchmark} with --data")
        return manifest

    return on_each_rank(world, checked)


def index(
    root: Path,
    facts: dict[str, Any],
    world: World,
    workers: int,
    progress: Callable[[int], None] = lambda size: None,
) -> Manifest:
    """Read every file under ``root`` once and write ``root/manifest.json``.

    The files are divided among the ranks, each of which uses ``workers`` threads. ``progress`` is called, from any
    thread, with the size of each file that this rank has read. Hidden files and the manifest itself are not
    listed.

    Called by all ranks; all get the manifest. Raises UserError, the same on all ranks, if ``root`` is not
    a folder or contains no files, a file cannot be read, or the manifest cannot be written.
    """

    def entry(name: str) -> File:
        size, crc = checksum(root / name)
        progress(size)
        return File(name, size, crc)

    names = _names(root, world)[world.rank :: world.size]
    parts = on_all_ranks(world, lambda: in_threads(entry, names, workers))
    manifest = Manifest(root, Files.of(sorted(chain.from_iterable(parts))), facts)

    def write() -> None:
        with as_user_error(root / NAME, "cannot be written", "check free space and permissions"):
            save(manifest)

    on_rank0(world, write)
    return manifest


def save(manifest: Manifest) -> None:
    """Write ``manifest.root/manifest.json`` atomically, with one path per line.

    Raises OSError.
    """
    files = manifest.files
    digits = files.crc32.astype(">u4").tobytes().hex(" ", 4)
    if not files.known.all():
        words = zip(digits.split(), files.known.tolist(), strict=True)
        digits = " ".join(word if known else _UNKNOWN for word, known in words)
    columns = f'"crc32": {json.dumps(digits)},\n  "sizes": {json.dumps(files.sizes.tolist())}'
    paths = json.dumps(os.fsdecode(files.joined()).split("\0")[:-1], separators=(",\n   ", ": "))
    head = json.dumps({"version": _VERSION, "facts": manifest.facts}, indent=1, sort_keys=True)
    text = f'{head.removesuffix(chr(10) + "}")},\n "files": {{\n  {columns},\n  "paths": {paths}\n }}\n}}\n'
    atomic.write_bytes(manifest.root / NAME, text.encode())


def take(manifest: Manifest, **samples: int) -> Manifest:
    """The part of a data set that a run needs: the first samples, sorted by path, of each named folder, and all
    files outside folders. The samples needed from each folder are keyword arguments: ``take(manifest, train=2048,
    validation=512)``.

    If each file of a folder contains several samples, all files are taken. If the files are archives (fact
    ``samples_per_archive``), only the archives with the first samples are taken.

    Raises UserError naming the folder, the number of its samples and the number needed, if it has fewer.
    """
    kept, selected = {}, {}
    for folder, needed in samples.items():
        available, number = manifest.samples(folder), len(manifest.folder(folder))
        if available < needed:
            raise UserError(
                f"{manifest.root / folder}: {count(available, 'sample')}, but {needed:,} "
                f"{'is' if needed == 1 else 'are'} needed; choose a smaller preset, or add samples"
            )
        each = 1 if available == number else manifest.facts.get("samples_per_archive")
        if isinstance(each, int) and each > 0:
            number = min(number, -(-needed // each))
            available = min(available, number * each)
        kept[folder], selected[folder] = number, available
    parts = [
        np.arange(members.start, min(members.stop, members.start + kept.get(folder, not folder)))
        for folder, members in manifest.files.folders()
    ]
    files = manifest.files
    if sum(map(len, parts)) < len(files):
        files = files.at(np.concatenate(parts))
    return replace(manifest, files=files, facts=manifest.facts | {"samples": selected})


def _names(root: Path, world: World) -> list[str]:
    def list_names() -> list[str]:
        names = sorted(walk(root))
        if not names:
            raise UserError(f"{root}: contains no files; expected folders such as train/ and validation/")
        return names

    return on_rank0(world, list_names)


def walk(root: Path) -> Iterable[str]:
    """The paths, in no particular order, of the files under ``root`` that a manifest would list. Raises
    UserError."""
    require_folder(root)
    stack = [""]
    while stack:
        below = stack.pop()
        with os.scandir(root / below) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                if entry.is_dir():
                    stack.append(f"{below}{entry.name}/")
                elif below or entry.name != NAME:
                    yield below + entry.name


def in_threads(work: Callable[[Any], T], items: Sequence[Any], workers: int) -> list[T]:
    """The results of ``work`` for each item, in order, computed by ``workers`` threads."""
    with ThreadPoolExecutor(max(1, workers)) as pool:
        # One future per batch: half a million futures would cost more than the work.
        batches = [items[i : i + 256] for i in range(0, len(items), 256)]
        if len(batches) < 4 * workers:
            return list(pool.map(work, items))
        return list(chain.from_iterable(pool.map(lambda batch: [work(item) for item in batch], batches)))
