"""A small data set to stage, and what has been staged of it."""

from pathlib import Path
from typing import Any

from mlhpc.errors import UserError


def contents(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file() and path.name != "manifest.json" and not path.name.startswith((".use.", ".lock"))
    }


def fails_alike(outcomes: list[Any], *words: str) -> None:
    assert all(isinstance(error, UserError) for error in outcomes), outcomes
    (message,) = {str(error) for error in outcomes}
    assert "\n" not in message
    for word in words:
        assert word in message
