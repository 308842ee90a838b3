"""A small data set to stage to the folders of several nodes, and what has been staged of it."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.thread_world import T, ThreadWorld, on_ranks

from mlhpc.common.data.manifest import Manifest, index
from mlhpc.common.ranks.world import Solo
from mlhpc.common.staging import transfer
from mlhpc.common.staging.target import MADE
from mlhpc.errors import UserError


def data_set(root: Path, sizes: Mapping[str, int], **facts: object) -> Manifest:
    """Files of random bytes, of these ``sizes`` by path, and statistics outside any folder; with a manifest."""
    rng = np.random.default_rng(3)
    for path, size in sizes.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(rng.bytes(size))
    (root / "stats.h5").write_bytes(b"statistics")
    return index(root, {"benchmark": "b", **facts}, Solo(), workers=2)


def on_nodes(
    folder: Path, nodes: int, local_size: int, work: Callable[[ThreadWorld, Path], T]
) -> list[T | Exception]:
    """``work(world, target)`` on all ranks of ``nodes``, each of which has its own target in ``folder``: its
    result or exception by rank."""
    return on_ranks(nodes, local_size, lambda world: work(world, folder / f"node{world.node}"))


def damage_on_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bit of every piece that one node receives from another is not the one that was sent."""
    real = transfer._pieces

    def damaged(*words):
        for piece in real(*words):
            piece[0] ^= 1
            yield piece

    monkeypatch.setattr(transfer, "_pieces", damaged)


def contents(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file()
        and path.name != "manifest.json"
        and not path.name.startswith((".use.", ".lock", MADE))
    }


def fails_alike(outcomes: list[Any], *words: str) -> None:
    assert all(isinstance(error, UserError) for error in outcomes), outcomes
    (message,) = {str(error) for error in outcomes}
    assert "\n" not in message
    for word in words:
        assert word in message
