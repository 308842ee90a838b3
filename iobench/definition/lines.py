"""The line of a key in a TOML or YAML file, which neither parser provides."""

import re
from collections.abc import Sequence
from typing import Any

_TABLE = re.compile(r"\s*\[\s*([^\[\]]+?)\s*\]\s*(#.*)?$")
_KEY = re.compile(r"""\s*((?:[A-Za-z0-9_-]+|"[^"]*")(?:\s*\.\s*[A-Za-z0-9_-]+)*)\s*=""")


def toml_line(text: str, keys: Sequence[str]) -> int | None:
    """The line, from 1, of the innermost part of the dotted ``keys`` found in the text; None if none is found.

    Workloads have plain tables and keys; keys inside an inline table have the line of that table.
    """
    best: tuple[int, int] | None = None
    table: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        if match := _TABLE.match(line):
            table = _parts(match[1])
            place = table
        elif match := _KEY.match(line):
            place = table + _parts(match[1])
        else:
            continue
        depth = len(place) if list(keys[: len(place)]) == place else 0
        if depth and (best is None or depth > best[0]):
            best = (depth, number)
    return best[1] if best else None


def _parts(dotted: str) -> list[str]:
    return [part.strip().strip('"') for part in dotted.split(".")]


def yaml_line(root: Any, keys: Sequence[str]) -> int | None:
    """The line, from 1, of the innermost part of ``keys`` in a node tree of ``yaml.compose``."""
    line, node = None, root
    for key in keys:
        for name, value in getattr(node, "value", ()) if getattr(node, "id", "") == "mapping" else ():
            if name.value == key:
                line, node = name.start_mark.line + 1, value
                break
        else:
            break
    return line
