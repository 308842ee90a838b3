"""Parses TOML from untrusted files, and finds the line of a key, for messages about its value: the standard
library's parser does not provide it."""

import re
import tomllib
from typing import Any

END = ""
"""Key of the last line of the text."""


def parse_toml(text: str) -> dict[str, Any]:
    """The tables of the TOML ``text``. Raises ValueError if it is not TOML, or nested too deeply to parse."""
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def toml_lines(text: str) -> dict[str, int]:
    """The line of each ``[table]`` and ``table.key`` of the TOML ``text``, from 1, and of its :data:`END`.
    Keys in inline tables are missing."""
    rows = text.splitlines()
    lines, table = {END: max(1, len(rows))}, ""
    for number, line in enumerate(rows, 1):
        if header := re.match(r"\s*\[\s*([\w.-]+)\s*\]", line):
            table = header[1]
            lines[table] = number
        elif key := re.match(r"\s*([\w.-]+)\s*=", line):
            lines[f"{table}.{key[1]}" if table else key[1]] = number
    return lines
