"""Parses YAML of others, and finds the line of a key in TOML and YAML, which neither parser provides."""

import re
from collections.abc import Sequence
from typing import Any

_TABLE = re.compile(r"\s*\[\s*([^\[\]]+?)\s*\]\s*(#.*)?$")
LARGEST = 2**20
"""Characters of a YAML file; published workloads have a few thousand."""
MOST_NODES = 10_000
LONGEST = 2**16
"""Characters of a scalar: reading numbers of base 60 (``1:30:00``) takes quadratic time."""
_KEY = re.compile(r"""\s*((?:[A-Za-z0-9_-]+|"[^"]*")(?:\s*\.\s*[A-Za-z0-9_-]+)*)\s*=""")


def load_yaml(text: str) -> tuple[Any, Any]:
    """The node tree of a YAML document, for ``yaml_line``, and its value.

    Aliases (``*name``), which merge keys (``<<``) need too, are refused: a few hundred bytes of them stand for
    more values than fit into memory. Raises yaml.YAMLError, RecursionError, and ValueError for an invalid date
    and for a document that is too large.
    """
    import yaml

    if len(text) > LARGEST:
        raise ValueError(f"larger than {LARGEST // 2**20} MiB")

    class Loader(yaml.SafeLoader):
        nodes = 0

        def compose_node(self, parent: Any, index: Any) -> Any:
            event: Any = self.peek_event()  # type: ignore[no-untyped-call]
            self.nodes += 1
            problem = None
            if isinstance(event, yaml.AliasEvent):
                problem = f"aliases (*{event.anchor:.40}) are not supported; write the value out"
            elif self.nodes > MOST_NODES or len(getattr(event, "value", "")) > LONGEST:
                problem = f"more than {MOST_NODES} values, or one of more than {LONGEST} characters"
            if problem:
                raise yaml.composer.ComposerError(None, None, problem, event.start_mark)
            return super().compose_node(parent, index)

    loader = Loader(text)
    try:
        root = loader.get_single_node()
        return root, None if root is None else loader.construct_document(root)
    finally:
        loader.dispose()


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
