"""``manifest.json``: every file of a data set with its size and checksum, and the facts of the data set.

The checksum (``common/files/checksum.py``) detects truncated, damaged and mixed-up files, but not forgery.
"""

import json
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

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
_VERSION = 1
_OUTSIDE = frozenset({"", ".", ".."})  # path components of absolute paths and of paths not in normal form
T = TypeVar("T")


class File(NamedTuple):
    """A file: ``path`` relative to the data set's root, ``size`` in bytes, CRC-32 of its content if known."""

    path: str
    size: int
    crc32: int | None = None

    @property
    def folder(self) -> str:
        """The top-level folder; empty for a file outside folders."""
        return self.path.rpartition("/")[0].partition("/")[0]


@dataclass(frozen=True)
class Manifest:
    """The files under ``root``, sorted by path, and facts about the data set as a whole.

    ``facts`` is what the producer of the data set wrote. Common code reads two of them: ``benchmark``, and
    ``samples``, the number of samples by folder (``{"train": 2048, "validation": 512}``); without it, each file of
    a folder counts as one sample, as in the published data sets.
    """

    root: Path
    files: tuple[File, ...]
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        """Total size of the files."""
        return sum(file.size for file in self.files)

    @property
    def checked(self) -> bool:
        """Whether every file has a checksum."""
        return all(file.crc32 is not None for file in self.files)

    def folder(self, name: str) -> tuple[File, ...]:
        """The files under the top-level folder ``name``, sorted by path."""
        return tuple(file for file in self.files if file.path.startswith(f"{name}/"))

    def samples(self, folder: str) -> int:
        """Number of samples in ``folder``."""
        stated = self.facts.get("samples", {}).get(folder)
        return len(self.folder(folder)) if stated is None else int(stated)


LARGEST = 2**30
"""Bytes of a manifest; a file takes about 70 of them, and four commas and brackets."""


def load(root: Path) -> Manifest:
    """Read ``root/manifest.json``.

    Raises UserError if ``root`` is not a folder, has no manifest, or the manifest is malformed: it is not
    trusted, and paths that lead out of the data set are rejected.
    """
    path = root / NAME
    try:
        with open(open_regular(path), "rb") as file:
            if os.fstat(file.fileno()).st_size > LARGEST:
                raise ValueError(f"larger than {binary_text(LARGEST)}")
            data = file.read()  # without a size, for which memory would be reserved
        content = parse_json(data.decode(), MOST_VALUES + len(data) // 8)
        del data
        if content["version"] != _VERSION:
            raise UserError(
                f"{path}: version {content['version']}, expected {_VERSION}; index the data set again"
            )
        files = tuple(sorted(_file(*row) for row in content["files"]))
        facts = _checked_facts(content["facts"])
    except FileNotFoundError as error:
        require_folder(root)
        raise UserError(f"{path}: no manifest; make one with 'mlhpc data index {root}'") from error
    except OSError as error:
        require_folder(root)
        raise UserError(f"{path} cannot be read: {error.strerror}; check the data set") from error
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise UserError(
            f"{path}: not a valid manifest ({error}); regenerate it with 'mlhpc data index {root}'"
        ) from error
    if repeated := next((one.path for one, two in pairwise(files) if one.path == two.path), None):
        raise UserError(f"{path}: lists {repeated} twice; regenerate it with 'mlhpc data index {root}'")
    return Manifest(root, files, facts)


def _file(path: object, size: object, crc: object) -> File:
    """A row of a manifest. Raises ValueError if it is malformed."""
    if type(path) is not str or "\0" in path or not _OUTSIDE.isdisjoint(path.split("/")) or path == NAME:
        raise ValueError(f"{path!r:.80} is not a path in the data set")
    os.fsencode(path)  # raises ValueError for characters not allowed in file names
    if type(size) is not int or not 0 <= size < 1 << 63:
        raise ValueError(f"the size of {path} is {size!r:.80}")
    crc32 = None if crc is None else int(crc, 16) if type(crc) is str else -1
    if crc32 is not None and not 0 <= crc32 < 1 << 32:
        raise ValueError(f"the checksum of {path} is {crc!r:.80}")
    return File(path, size, crc32)


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
    return Manifest(root, tuple(sorted(chain.from_iterable(parts))))


def require_folder(root: Path) -> None:
    """Raise UserError unless ``root`` is a folder; its content is not read."""
    if not root.exists():
        raise UserError(f"{root}: no such folder; pass the folder of a data set")
    if not root.is_dir():
        raise UserError(f"{root}: not a folder; pass the folder of a data set")


def describe(root: Path, world: World, benchmark: str | None = None, workers: int = 8) -> Manifest:
    """The manifest of ``root``, or its listing if it has none. Called by all ranks; all get the same.

    Only rank 0 reads the manifest. Raises UserError, the same on all ranks; also when its manifest names
    another benchmark than ``benchmark``.
    """
    has_one = on_rank0(world, lambda: (root / NAME).exists() or not root.is_dir())
    manifest = on_rank0(world, lambda: load(root)) if has_one else listing(root, world, workers)

    def checked() -> Manifest:
        if benchmark and (of := manifest.facts.get("benchmark", benchmark)) != benchmark:
            raise UserError(f"{root} is a data set of {of}; pass one of {benchmark} with --data")
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

    The files are divided among the ranks, with ``workers`` threads in each; ``progress`` is called with the size
    of each file that this rank has read, from any thread. Hidden files and the manifest itself are not listed.

    Called by all ranks; all get the manifest. Raises UserError, the same on all ranks, if ``root`` is not
    a folder or contains no files, a file cannot be read, or the manifest cannot be written.
    """

    def entry(name: str) -> File:
        size, crc = checksum(root / name)
        progress(size)
        return File(name, size, crc)

    names = _names(root, world)[world.rank :: world.size]
    parts = on_all_ranks(world, lambda: in_threads(entry, names, workers))
    manifest = Manifest(root, tuple(sorted(chain.from_iterable(parts))), facts)

    def write() -> None:
        with as_user_error(root / NAME, "cannot be written", "check free space and permissions"):
            save(manifest)

    on_rank0(world, write)
    return manifest


def save(manifest: Manifest) -> None:
    """Write ``manifest.root/manifest.json`` atomically, one file per line; an unknown checksum is ``null``.

    Raises OSError.
    """
    rows = (
        json.dumps([file.path, file.size, None if file.crc32 is None else f"{file.crc32:08x}"])
        for file in manifest.files
    )
    head = json.dumps({"version": _VERSION, "facts": manifest.facts}, indent=1, sort_keys=True)
    text = head.removesuffix("\n}") + ',\n "files": [\n  ' + ",\n  ".join(rows) + "\n ]\n}\n"
    atomic.write_bytes(manifest.root / NAME, text.encode())


def take(manifest: Manifest, **samples: int) -> Manifest:
    """The part of a data set that a run needs: the first samples of each named folder, sorted by path, and
    no other folders; files outside folders are kept. ``take(manifest, train=2048, validation=512)``.

    If a folder's files contain more than one sample each, all its files are taken; of archives (fact
    ``samples_per_archive``), only those with the first samples.

    Raises UserError naming the folder, the number of its samples and the number needed, if it has fewer.
    """
    files = [file for file in manifest.files if "/" not in file.path]
    selected = {}
    for folder, needed in samples.items():
        available, of_folder = manifest.samples(folder), manifest.folder(folder)
        if available < needed:
            raise UserError(
                f"{manifest.root / folder}: {count(available, 'sample')}, but {needed:,} "
                f"{'is' if needed == 1 else 'are'} needed; choose a smaller preset, or make or download more data"
            )
        each = 1 if available == len(of_folder) else manifest.facts.get("samples_per_archive")
        if isinstance(each, int) and each > 0:
            of_folder = of_folder[: -(-needed // each)]
            available = min(available, len(of_folder) * each)
        files += of_folder
        selected[folder] = available
    return replace(manifest, files=tuple(sorted(files)), facts=manifest.facts | {"samples": selected})


def _names(root: Path, world: World) -> list[str]:
    def list_names() -> list[str]:
        names = sorted(walk(root))
        if not names:
            raise UserError(f"{root}: contains no files; expected folders such as train/ and validation/")
        return names

    return on_rank0(world, list_names)


def walk(root: Path) -> Iterable[str]:
    """The paths of the files below ``root`` that a manifest lists, in no order. Raises UserError."""
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
    """``work`` of each item, in their order, by ``workers`` threads."""
    with ThreadPoolExecutor(max(1, workers)) as pool:
        # One future per batch: half a million futures would cost more than the work.
        batches = [items[i : i + 256] for i in range(0, len(items), 256)]
        if len(batches) < 4 * workers:
            return list(pool.map(work, items))
        return list(chain.from_iterable(pool.map(lambda batch: [work(item) for item in batch], batches)))
