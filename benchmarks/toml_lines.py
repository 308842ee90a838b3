"""Parses TOML from untrusted files, and finds the line of each key for messages, since the standard library's
parser does not report lines."""

import errno
import re
import tomllib
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from mlhpc.errors import UserError, did_you_mean, shown
from mlhpc.quantities import binary_text

LARGEST = 2**20
"""Maximum characters of a TOML file; the suite's own files have up to 20,000."""
MOST_VALUES = 50_000
MOST_PARTS = 32
_PART = r"""(?:[\w-]+|"[^"\n]*"|'[^'\n]*')[ \t]*"""
_DEEP = re.compile(rf"(?<![\w.-]){_PART}(?:\.[ \t]*{_PART}){{{MOST_PARTS}}}")
_DOTTED = rf"({_PART}(?:\.[ \t]*{_PART})*)"
_TABLE = re.compile(rf"\s*\[\s*{_DOTTED}\]")
_KEY = re.compile(rf"\s*{_DOTTED}=")
END = ""
"""Key under which ``toml_lines`` returns the last line of the text."""


def parse_toml(text: str) -> dict[str, Any]:
    """The tables of the TOML ``text``. Raises ValueError if it is not TOML, is nested too deeply to parse, or
    would take far more memory or time than a configuration: each table takes a kilobyte of memory, and a key of n
    parts takes n² steps to parse."""
    if len(text) > LARGEST or sum(map(text.count, "[{,=")) > MOST_VALUES:
        raise ValueError(f"more than {binary_text(LARGEST)}, or more than {MOST_VALUES:,} values")
    if _DEEP.search(text):
        raise ValueError(f"a key of more than {MOST_PARTS} parts")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def read_toml(path: Path, remedy: str) -> tuple[str, dict[str, Any]]:
    """The text of a TOML file and its parsed tables. Raises UserError, ending with ``remedy``, if the file cannot
    be read or is not TOML."""
    try:
        if path.exists() and not path.is_file():  # reading a FIFO or a device might never end
            raise OSError(errno.EINVAL, "not a file")
        text = path.read_text("utf-8")
        return text, parse_toml(text)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; {remedy}") from None
    except ValueError as error:
        raise UserError(f"{path}: invalid TOML ({error}); {remedy}") from None


def parse_value(text: str) -> Any:
    """The value of the TOML expression ``text``; a bare word is a string."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def toml_lines(text: str) -> dict[str, int]:
    """The line number, from 1, of each ``[table]`` and ``table.key`` in the TOML ``text``, and the last line under
    the key :data:`END`. Quotes and blanks around the parts of names are removed. Keys in inline tables are
    omitted."""
    rows = text.splitlines()
    lines, table = {END: max(1, len(rows))}, ""
    for number, line in enumerate(rows, 1):
        if header := _TABLE.match(line):
            table = _bare(header[1])
            lines[table] = number
        elif key := _KEY.match(line):
            lines[f"{table}.{_bare(key[1])}" if table else _bare(key[1])] = number
    return lines


def setting_problem(
    error: ValidationError, model: type[BaseModel], short: type[BaseModel] | None = None
) -> tuple[tuple[str, ...], str]:
    """The key of the first problem with the settings of a ``model``, and a description of the problem in one line.
    An unknown key is reported before a missing key, since it may be a misspelling of the missing key. ``short``:
    see :func:`setting_names`."""
    problem = min(error.errors(), key=lambda each: each["type"] != "extra_forbidden")
    keys, value = [str(part) for part in problem["loc"]], problem["input"]
    if problem["type"] == "extra_forbidden":
        while isinstance(value, dict) and value:  # an unknown table: its first key shows what was meant
            key, value = next(iter(value.items()))
            keys.append(str(key))
        place = ".".join(keys)
        return tuple(keys), f"unknown key {place!r}; {did_you_mean(place, setting_names(model, short))}"
    message = problem["msg"].removeprefix("Value error, ")
    got = "" if isinstance(value, dict | BaseModel) else f"; got {shown(value)}"
    # A message about several tables has no position, and names its keys itself.
    return tuple(keys), f"{'.'.join(keys)}: {message}{got}" if keys else message


def setting_names(
    model: type[BaseModel], short: type[BaseModel] | None = None, prefix: str = ""
) -> list[str]:
    """Dotted names of all settings of a ``model``. A nested model of class ``short``, which a file may also write
    as a single value, counts as one setting."""
    names = []
    for name, field in model.model_fields.items():
        inner = [t for t in (field.annotation, *getattr(field.annotation, "__args__", ())) if _is_model(t)]
        is_table = inner and inner[0] is not short
        names += setting_names(inner[0], short, f"{prefix}{name}.") if is_table else [prefix + name]
    return names


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _bare(dotted: str) -> str:
    return ".".join(part.strip().strip("\"'") for part in dotted.split("."))
