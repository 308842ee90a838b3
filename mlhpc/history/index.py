"""The index of a store: an SQLite database, with its digest, in a file in the user's cache. It has a row for each
record and is derived only from the store.

An index file never changes: new records are added to a copy, which replaces the file by a rename. Processes that
read an index are therefore not disturbed, and no lock is needed. A missing or damaged index, or one of a different
version, is rebuilt. Slow imports take place only when records are read.
"""

import contextlib
import hashlib
import json
import os
import re
import sqlite3
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlhpc.common.files import atomic
from mlhpc.common.files.filesystem import cache_folder
from mlhpc.common.files.untrusted import printable
from mlhpc.errors import UserError, did_you_mean, few
from mlhpc.history.rows import ROW, TEXTS
from mlhpc.quantities import count, parse_quantity

VERSION = 4
"""Version of the index; an index of a different version is rebuilt."""
_SCHEMA = """
PRAGMA page_size=16384;
CREATE TABLE files(file TEXT PRIMARY KEY, size INTEGER, problem TEXT);
CREATE TABLE records(name TEXT, at TEXT, kind TEXT, target TEXT, body TEXT, runs TEXT,
                     PRIMARY KEY(at DESC, name)) WITHOUT ROWID;
"""
"""Records are stored in the order in which they are listed, many to a page, which makes reading much faster."""
_DIGEST_BYTES = 16
_CONDITION = re.compile(r"\s*([a-z][\w.]*)\s*(<=|>=|!=|=|<|>)\s*(.*?)\s*")
_NOT_MEASURED = ("withdrawal", "annotation")


@dataclass(frozen=True)
class Index:
    """The records of a store."""

    db: sqlite3.Connection

    def rows(self, where: Sequence[str] = (), *, withdrawn: bool = False) -> list[str]:
        """The rows of measurements that meet all conditions, as JSON texts, in order of time. Raises UserError for
        an invalid condition."""
        return [body for (body,) in self._select("body", where, withdrawn)]

    def measured(self, where: Sequence[str]) -> list[tuple[dict[str, Any], list[dict[str, Any]]]]:
        """The rows that meet all conditions, each with the measurements of its runs. Raises UserError for an
        invalid condition."""
        chosen = self._select("body, runs", where, False)
        return [(json.loads(body), json.loads(runs)) for body, runs in chosen]

    def name_of(self, prefix: str) -> str:
        """The name of the record whose name begins with ``prefix``. Raises UserError unless there is exactly one
        such record."""
        found = self.db.execute("SELECT name FROM records WHERE name GLOB ?", [f"{prefix}*"]).fetchall()
        if len(found) != 1:
            what = f"the names of {count(len(found), 'record')} begin with it" if found else "no such record"
            raise UserError(f"{prefix}: {what}; mlhpc history list shows all names")
        return str(found[0][0])

    def notes(self, kind: str) -> list[dict[str, Any]]:
        """The rows of all notes of a ``kind`` (withdrawal or annotation), with their keys ``of`` and ``text``."""
        found = self.db.execute("SELECT body FROM records WHERE kind = ? ORDER BY at", [kind])
        return [json.loads(body) for (body,) in found]

    def years(self) -> list[tuple[str, str]]:
        """Name and year of every record with a time."""
        return self.db.execute("SELECT name, substr(at, 1, 4) FROM records WHERE at > ''").fetchall()

    def _select(self, columns: str, where: Sequence[str], withdrawn: bool) -> list[tuple[str, ...]]:
        conditions, values, last = ["kind NOT IN (?, ?)"], list(_NOT_MEASURED), -1
        if not withdrawn:
            targets = "SELECT target FROM records WHERE kind = 'withdrawal' AND target IS NOT NULL"
            conditions.append(f"name NOT IN ({targets})")
        for condition in where:
            key, sign, value = self._parsed(condition)
            if key == "last":
                last = int(value)
                continue
            left = "name" if key == "name" else f"json_extract(body, '$.\"{key}\"')"
            if key in TEXTS:
                sign = {"=": "GLOB", "!=": "NOT GLOB"}.get(sign, sign)
            conditions.append(f"{left} {sign} ?")
            values.append(f"{value}*" if key == "name" else value)
        query = f"SELECT {columns} FROM records WHERE {' AND '.join(conditions)}"
        return self.db.execute(f"{query} ORDER BY at DESC, name LIMIT ?", [*values, last]).fetchall()[::-1]

    def _parsed(self, condition: str) -> tuple[str, str, Any]:
        match = _CONDITION.fullmatch(condition)
        if not match or not match[3]:
            example = "benchmark=cosmoflow or time_to_train_s<5min"
            raise UserError(f"{condition!r} is not a condition; write one such as {example}")
        key, sign, text = match.groups()
        if key == "last":
            if sign != "=" or not re.fullmatch("[0-9]{1,9}", text):
                raise UserError(f"{condition}: write last=N for the newest N records")
            return key, sign, text
        if key not in ROW and key not in (known := {"last", *ROW} | self._others()):
            raise UserError(f"{condition}: no key {key!r}; {did_you_mean(key, known)}")
        if key in TEXTS:
            return key, sign, text
        try:
            return key, sign, parse_quantity(text, "s", bare="s") if key.endswith("_s") else float(text)
        except ValueError:
            raise UserError(f"{condition}: {text!r} is not a number; write {key}{sign}NUMBER") from None

    def _others(self) -> set[str]:
        """The keys that occur in rows of records other than runs and result sets."""
        others = "SELECT DISTINCT key FROM records, json_each(body) WHERE kind NOT IN ('run', 'result set')"
        return {str(key) for (key,) in self.db.execute(others)}


def conditions(text: str) -> list[str]:
    """The conditions of a comma-separated SELECTION. A digest is short for the condition ``name=DIGEST``."""
    is_name = re.fullmatch("[0-9a-f]{6,64}", text)
    return [f"name={text}"] if is_name else [part for part in text.split(",") if part]


def cache_of(store: Path) -> Path:
    """The path of the index of ``store``."""
    key = hashlib.sha256(os.fsencode(store.resolve())).hexdigest()[:16]
    return cache_folder() / f"history-{key}.index"


@contextlib.contextmanager
def opened(store: Path, *, quiet: bool = False) -> Iterator[Index]:
    """Context manager that yields the up-to-date index of ``store``. Unless ``quiet``, prints a line on standard
    error about files that contain no records of this version. Raises UserError if the store cannot be read."""
    from mlhpc.history.store import files

    path, there = cache_of(store), files(store)
    db = _loaded(path)
    known = _unchanged(db, store)
    if known - there:  # if files are gone, their records may be, too
        db.executescript("DELETE FROM files; DELETE FROM records")
        known = set()
    if known != there:
        _fill(db, store, there, known)
        _save(db, path)
    problems = [why for (why,) in db.execute("SELECT problem FROM files WHERE problem > ''")]
    if problems and not quiet:
        sys.stderr.write(f"mlhpc: {store}: not listed: {few(problems, 3, '; ')}\n")
    with contextlib.closing(db):
        yield Index(db)


def _unchanged(db: sqlite3.Connection, store: Path) -> set[str]:
    """The files in the index that need not be read again. A file that had a problem is read again if its size has
    changed, since an interrupted copy may have been repeated."""
    files = db.execute("SELECT * FROM files")
    return {file for file, size, problem in files if not problem or _size(store / file) == size}


def _size(path: Path) -> int:
    with contextlib.suppress(OSError):
        return path.stat().st_size
    return -1


def _loaded(path: Path) -> sqlite3.Connection:
    """The index at ``path``, loaded into memory; an empty index if the file is missing, damaged or of a different
    version."""
    db = sqlite3.connect(":memory:")
    with contextlib.suppress(OSError, sqlite3.Error):
        content = memoryview(path.read_bytes())
        if content[:_DIGEST_BYTES] == _digest(content[_DIGEST_BYTES:]):
            db.deserialize(content[_DIGEST_BYTES:])
            return db
    db.executescript(_SCHEMA)
    return db


def _save(db: sqlite3.Connection, path: Path) -> None:
    """Write the index to ``path``; if the cache cannot be written, the index remains in memory only."""
    with contextlib.suppress(OSError, sqlite3.Error):
        path.parent.mkdir(parents=True, exist_ok=True)
        content = db.serialize()
        atomic.write_bytes(path, _digest(content) + content)


def _digest(content: bytes | memoryview) -> bytes:
    """Of this version of the index only. SQLite itself does not notice a changed letter or digit."""
    return hashlib.blake2b(content, digest_size=_DIGEST_BYTES, person=f"index {VERSION}".encode()).digest()


def _fill(db: sqlite3.Connection, store: Path, there: set[str], known: set[str]) -> None:
    """Add the records in those files of ``there`` that are not in ``known``; for a file without valid records of
    this version, add the reason."""
    from mlhpc.history.store import contents, files

    for _ in range(3):  # records may be moved into a pack meanwhile
        for file in sorted(there - known):
            with contextlib.suppress(FileNotFoundError):
                added = [(name, _add(db, name, data)) for name, data in contents(store, file)]
                bad = [f"{printable(name[:16])} is {why}" for name, why in added if why]
                values = (file, _size(store / file), bad[0] if bad else "")
                db.execute("INSERT OR REPLACE INTO files VALUES (?, ?, ?)", values)
        known, there = known | there, files(store)
    db.commit()


def _add(db: sqlite3.Connection, name: str, data: bytes | str) -> str:
    """Add one record. Returns "", or the reason if the record is not one of this version."""
    from pydantic import ValidationError

    from mlhpc.common.files.untrusted import clean, finite, parse_json
    from mlhpc.history.rows import row_of
    from mlhpc.record.fields import first_problem
    from mlhpc.record.history import FORMAT, HistoryRecord

    if isinstance(data, str):
        return data
    try:
        value = clean(parse_json(data.decode()))
        version = value.get("history") if isinstance(value, dict) else None
        if version != FORMAT:
            other = f"of version {version!r:.20} of the history; this mlhpc reads version {FORMAT}"
            return other if version else "no record"
        record = HistoryRecord.model_validate(value)
    except ValueError as error:
        reason = first_problem(error) if isinstance(error, ValidationError) else str(error)
        return f"no record ({reason[:80]})"
    row = row_of(name, record)
    if record.kind in _NOT_MEASURED:
        row |= {"of": record.of, "text": record.text}
    runs = [run.model_dump(exclude_defaults=True) for run in record.runs]
    body, figures = (json.dumps(finite(each), ensure_ascii=False) for each in (row, runs))
    values = (name, record.when or "", record.kind, record.of, body, figures)
    db.execute("INSERT OR REPLACE INTO records VALUES (?, ?, ?, ?, ?, ?)", values)
    return ""
