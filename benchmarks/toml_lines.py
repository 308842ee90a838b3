"""Which line of a TOML text a key stands on, for messages about its value: the standard library's parser does not
say."""

import re

END = ""
"""Stands for the text's last line."""


def toml_lines(text: str) -> dict[str, int]:
    """The line of each ``[table]`` and ``table.key`` of the TOML ``text``, from 1, and of its :data:`END`. Keys
    inside inline tables have none."""
    rows = text.splitlines()
    lines, table = {END: max(1, len(rows))}, ""
    for number, line in enumerate(rows, 1):
        if header := re.match(r"\s*\[\s*([\w.-]+)\s*\]", line):
            table = header[1]
            lines[table] = number
        elif key := re.match(r"\s*([\w.-]+)\s*=", line):
            lines[f"{table}.{key[1]}" if table else key[1]] = number
    return lines
