"""Reads untrusted files: only regular files of bounded size with a bounded number of values. Text in the result is
printable.

Logs, result trees and run folders may come from anywhere. They cannot hang the reader (a FIFO, an endless
file), move the cursor of a terminal (escape sequences), break an encoder (lone surrogates) or overflow a
calculation (integers beyond the range of floats).
"""

import json
import math
import os
import unicodedata
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlhpc.common.files.regular import open_regular
from mlhpc.quantities import binary_text

LARGEST = 16 * 2**20
"""Maximum bytes of a result.json, config.toml, env.json or system description. Those of a run on 100,000 ranks
take less than 10 MB."""
MOST_VALUES = 2**20
"""Maximum number of commas, colons and brackets in a JSON text: a value of two bytes (``{}``) takes 80 bytes of
memory or more."""
LARGEST_INTEGER = 2**128
"""Largest integer accepted: larger than any count, seed or checksum, and its square still fits in a float."""


def read_text(path: Path, errors: str = "strict", flags: int = 0) -> str:
    """The text of a regular file; ``errors`` as for ``bytes.decode``, ``flags`` as for ``open_regular``.

    Raises FileNotFoundError if ``path`` does not exist, OSError if it cannot be read or is not a regular file,
    ValueError if it is not UTF-8 or is larger than ``LARGEST``.
    """
    with os.fdopen(open_regular(path, flags), "rb") as file:
        data = file.read(LARGEST + 1)
    if len(data) > LARGEST:
        raise ValueError(f"larger than {binary_text(LARGEST)}")
    return data.decode("utf-8", errors)


def read_object(path: Path, flags: int = 0) -> dict[str, Any]:
    """The JSON object in a file, after ``clean``. Raises like :func:`read_text`, and ValueError if the file does
    not contain a JSON object."""
    value = clean(parse_json(read_text(path, flags=flags)))
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    return value


def parse_json(text: str, most: int = MOST_VALUES, **options: Any) -> Any:
    """``json.loads`` of an untrusted ``text``. Raises ValueError if it is not JSON, if it has more than ``most``
    values (``count_values``), or if it is nested too deeply."""
    if count_values(text) > most:
        raise ValueError(f"more than {most} values")
    try:
        return json.loads(text, **options)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def count_values(text: str) -> int:
    """An upper bound on the number of values in a JSON text: each follows a bracket, a comma or a colon."""
    return sum(map(text.count, "[{,:"))


def clean(value: Any) -> Any:
    """A JSON value, with strings made printable and integers limited to the range of a float. Raises ValueError if
    it is nested too deeply."""
    try:
        return _clean(value)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, int) and abs(value) > LARGEST_INTEGER:
        return math.inf if value > 0 else -math.inf
    if isinstance(value, list):
        return [_clean(item) for item in value]
    if isinstance(value, dict):
        return {printable(key): _clean(item) for key, item in value.items()}
    return value


def printable(text: str, keep: str = "") -> str:
    """``text`` with escapes (``\\x1b``) for non-printable characters, except those in ``keep``: control
    characters, lone surrogates, and marks that change the direction of writing."""
    if text.isprintable():
        return text
    # In pieces: a list of single characters takes 60 times the memory of the text.
    return "".join(_printable(text[at : at + 4096], keep) for at in range(0, len(text), 4096))


def _printable(text: str, keep: str) -> str:
    return "".join(
        c if c.isprintable() or c in keep or unicodedata.category(c) == "Zs"
        else c.encode("unicode_escape").decode()
        for c in text
    )  # fmt: skip


def finite(value: Any) -> Any:
    """``value`` for a strict JSON writer: NaN and infinity become None."""
    if isinstance(value, Mapping):
        return {str(key): finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
