"""Predicts the load of staging to many nodes on the shared file system and the network, with the same
functions as staging itself, without copying anything."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import numpy.typing as npt

from mlhpc.common.data.manifest import File
from mlhpc.common.data.partition import Mode, balance


@dataclass(frozen=True)
class StagingPlan:
    """Bytes and operations of one staging mode. ``held``: bytes that each node writes; ``read``: bytes that
    each node reads from the shared file system. ``opens``: files opened there by all nodes, including the
    manifest once; each open comes with one fstat(2) and one close(2). ``sent``: bytes sent between nodes,
    total."""

    mode: Mode
    read_once: bool
    held: npt.NDArray[np.int64]
    read: npt.NDArray[np.int64]
    opens: int
    sent: int

    @property
    def imbalance(self) -> float:
        """The largest number of bytes that a node reads from the shared file system, over the mean; ideally 1."""
        return float(self.read.max() / self.read.mean()) if self.read.any() else 1.0


def plan(
    files: Sequence[File], nodes: int, mode: Mode, *, read_once: bool = False, ranks_per_node: int = 1
) -> StagingPlan:
    """The plan for staging ``files``, sorted by path, to ``nodes`` nodes with separate targets."""
    held, read = np.zeros(nodes, dtype=np.int64), np.zeros(nodes, dtype=np.int64)
    opens, sent = 1, 0
    everywhere: list[File] = []
    for folder, group in groupby(files, key=lambda file: file.folder):
        members = list(group)
        if mode == "replicate" or not folder:
            everywhere += members
            continue
        part = _bytes_by_bin(members, nodes)
        held, read, opens = held + part, read + part, opens + len(members)
    total = sum(file.size for file in everywhere)
    held = held + total
    if read_once:
        by_reader = (
            _bytes_by_bin(everywhere, ranks_per_node * nodes).reshape(ranks_per_node, nodes).sum(axis=0)
        )
        read, opens, sent = read + by_reader, opens + len(everywhere), (nodes - 1) * total
    else:
        read, opens = read + total, opens + nodes * len(everywhere)
    return StagingPlan(mode, read_once, held, read, opens, sent)


def exchanged_bytes(files: Sequence[File], nodes: int) -> float:
    """Expected bytes that all nodes send before an epoch with ``staging.exchange``: a file of
    ``train/`` stays on its node with probability 1 / ``nodes``."""
    return sum(file.size for file in files if file.folder == "train") * (nodes - 1) / nodes


def _bytes_by_bin(files: Sequence[File], bins: int) -> npt.NDArray[np.int64]:
    sizes = np.array([file.size for file in files], dtype=np.int64)
    sums = np.zeros(bins, dtype=np.int64)
    np.add.at(sums, balance(sizes, bins), sizes)  # exact, unlike a weighted bincount, which adds float64
    return sums
