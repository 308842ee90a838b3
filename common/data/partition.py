"""Which files each node holds after staging, and which of them each of its ranks copies: pure functions."""

from collections.abc import Sequence
from itertools import groupby
from typing import Literal

import numpy as np
import numpy.typing as npt

from mlhpc.common.data.manifest import File

Mode = Literal["replicate", "shard"]


def balance(sizes: npt.ArrayLike, parts: int) -> npt.NDArray[np.int64]:
    """Which of ``parts`` hands each of the sizes goes to. Hands differ by one in number at most, and in sum
    by no more than the largest size.

    Largest first, round by round; in each round the hand that has least takes the largest left. A round
    changes the spread of the sums to at most the larger of what it was and the range of the round's sizes.
    """
    size = np.asarray(sizes, dtype=np.int64)
    hand = np.empty(len(size), dtype=np.int64)
    order = np.argsort(-size, kind="stable")
    if parts == 1 or len(size) == 0 or size[order[0]] == size[order[-1]]:
        hand[order] = np.arange(len(size)) % parts  # what the rounds come to, quicker
        return hand
    held = np.zeros(parts, dtype=np.int64)
    for start in range(0, len(size), parts):
        dealt = order[start : start + parts]
        takers = np.argsort(held, kind="stable")[: len(dealt)]
        hand[dealt] = takers
        held[takers] += size[dealt]
    return hand


def part(files: Sequence[File], node: int, nodes: int, mode: Mode) -> list[File]:
    """The files that ``node`` of ``nodes`` holds after staging, in the order of ``files``, which is by path.

    In mode ``shard`` the parts are disjoint but for files outside folders, and their union is everything;
    each folder is dealt on its own, so that the parts of it differ by one file at most.
    """
    if mode == "replicate" or nodes == 1:
        return list(files)
    kept: list[File] = []
    for folder, group in groupby(files, key=lambda file: file.path.rpartition("/")[0].partition("/")[0]):
        members = list(group)
        if folder:
            hands = balance([file.size for file in members], nodes)
            members = [members[i] for i in np.flatnonzero(hands == node)]
        kept += members
    return kept


def plan(
    files: Sequence[File], node: int, nodes: int, local_rank: int, local_size: int, mode: Mode
) -> list[File]:
    """What one rank copies: its share, balanced in bytes, of its node's ``part``."""
    return share(part(files, node, nodes, mode), local_rank, local_size)


def share(files: list[File], index: int, size: int) -> list[File]:
    hands = balance([file.size for file in files], size)
    return [files[i] for i in np.flatnonzero(hands == index)]
