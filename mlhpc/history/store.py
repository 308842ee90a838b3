"""The store of a history: a folder with one file per record, and packs of past years, each a file with one line
per record that contains the record's name and content.

No file ever changes, and none needs a lock: a file is renamed to its final name once it is complete and on disk,
names are digests of the content, and a file is removed only after its content is in a different file. Writers
therefore need no coordination, and stores are merged by copying files.
"""

import contextlib
import hashlib
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from mlhpc.common.files import atomic
from mlhpc.common.files.filesystem import as_user_error
from mlhpc.common.files.regular import open_regular
from mlhpc.common.files.untrusted import LARGEST
from mlhpc.errors import UserError
from mlhpc.quantities import binary_text

if TYPE_CHECKING:  # listing only reads file names, without pydantic
    from mlhpc.record.history import HistoryRecord

SINGLE = re.compile(r"([0-9a-f]{64})\.json")
PACK = re.compile(r"\d{4}-[0-9a-f]{64}\.jsonl")


def digest(data: bytes) -> str:
    """The name of a record with the content ``data``."""
    return hashlib.sha256(data).hexdigest()


def put(store: Path, record: "HistoryRecord") -> tuple[str, bool]:
    """Write ``record`` to the folder ``store``. Returns the record's name and whether it is new; when this
    function returns, the record would survive a power failure. Raises UserError if the store cannot be written."""
    data = record.canonical()
    name = digest(data)
    path = store / f"{name}.json"
    if len(data) > LARGEST:
        raise UserError(f"the {record.kind} record exceeds {binary_text(LARGEST)}, so it was not added")
    with as_user_error(store, "cannot be written", "choose another --store, or free some space"):
        if not store.is_dir():
            store.mkdir(parents=True, exist_ok=True)
            _sync(store.parent)
        with contextlib.suppress(OSError):
            if digest(path.read_bytes()) == name:  # otherwise copying the store was interrupted
                return name, False
        _write(path, data)
    return name, True


def _write(path: Path, data: bytes) -> None:
    with atomic.writing(path) as fd:
        atomic.write_all(fd, memoryview(data))
        os.fsync(fd)
    _sync(path.parent)


def _sync(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def files(store: Path) -> set[str]:
    """The names of the files in ``store`` that contain records. Raises UserError if ``store`` is not a readable
    folder."""
    if not store.is_dir():
        raise UserError(f"{store}: no such folder; pass the folder that mlhpc history add wrote to")
    with as_user_error(store, "cannot be read", "choose another --store"):
        return {name for name in os.listdir(store) if SINGLE.fullmatch(name) or PACK.fullmatch(name)}


def contents(store: Path, file: str) -> Iterator[tuple[str, bytes | str]]:
    """Yield the name and the bytes of each record in one file; for an invalid record, its name and a message about
    the problem. Raises FileNotFoundError if a different process has packed the file meanwhile."""
    single = SINGLE.fullmatch(file)
    where = "(its name is not the digest of its content)" if single else "in a pack"
    try:
        with os.fdopen(open_regular(store / file, os.O_NOFOLLOW), "rb") as opened:
            for name, data in [(single[1], opened.read(LARGEST + 1))] if single else _packed(opened):
                yield name, data if digest(data) == name else f"truncated or changed {where}"
    except FileNotFoundError:
        raise
    except OSError as error:
        yield file, f"not readable ({error.strerror})"


def _packed(pack: BinaryIO) -> Iterator[tuple[str, bytes]]:
    """The names and records in the lines of a pack."""
    while line := pack.readline(LARGEST + 66):
        name, _, data = line.rstrip(b"\n").partition(b" ")
        yield name.decode(errors="replace"), data


def content_of(store: Path, name: str) -> bytes:
    """The content of the record ``name``. Raises UserError if it is no longer in the store."""
    for file in sorted(files(store), key=lambda file: file != f"{name}.json"):
        if file == f"{name}.json" or PACK.fullmatch(file):
            for found, data in contents(store, file):
                if found == name and isinstance(data, bytes):
                    return data
    raise UserError(f"{name[:12]} is no longer in {store}")


def compact(store: Path, years: Iterable[tuple[str, str]], before: int) -> tuple[int, int]:
    """Pack the records of all years up to and including ``before``, each year into one file. ``years``: name and
    year of every record. Returns the numbers of packed records and of replaced files. Raises UserError if the
    store cannot be read or written.

    A file is removed only when all its records are on disk in the new packs, so concurrent compactions may leave
    duplicate records, but never lose one.
    """
    year_of = {name: int(year) for name, year in years if int(year) <= before}
    packs: dict[int, dict[str, bytes]] = {}
    replaced = []
    with as_user_error(store, "cannot be written", "free some space"):
        for file in sorted(files(store)):
            with contextlib.suppress(FileNotFoundError):
                found = list(contents(store, file))
                whole = {name: data for name, data in found if isinstance(data, bytes) and name in year_of}
                if found and len(whole) == len(found):
                    replaced.append(file)
                    for name, data in whole.items():
                        packs.setdefault(year_of[name], {})[name] = data
        for year, records in packs.items():
            data = b"".join(name.encode() + b" " + records[name] + b"\n" for name in sorted(records))
            pack = f"{year:04}-{digest(data)}.jsonl"
            if pack in replaced:
                replaced.remove(pack)  # this pack already contains all records of its year
            else:
                _write(store / pack, data)
        for file in replaced:
            (store / file).unlink(missing_ok=True)
    atomic.sweep([store])
    return sum(map(len, packs.values())) if replaced else 0, len(replaced)
