"""Predicts the load that staging to many nodes puts on the shared file system and the network. The prediction uses
the same functions as staging itself, but copies nothing."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mlhpc.common.data.manifest import File, Files
from mlhpc.common.data.partition import Mode, balance, held_by_one_or_all


@dataclass(frozen=True)
class StagingPlan:
    """Bytes and operations of one staging mode. ``held``: bytes that each node writes. ``read``: bytes that each
    node reads from the shared file system, in ``files`` files. ``sent``: total bytes sent between nodes."""

    mode: Mode
    read_once: bool
    held: npt.NDArray[np.int64]
    read: npt.NDArray[np.int64]
    files: npt.NDArray[np.int64]
    sent: int

    @property
    def opens(self) -> int:
        """Number of times that all nodes together open files on the shared file system, including the manifest
        once. Each open is followed by one fstat(2) and one close(2). Dropping the files from the page cache before
        the run opens as many files again."""
        return 1 + int(self.files.sum())

    @property
    def imbalance(self) -> float:
        """The largest number of bytes that a node reads from the shared file system, divided by the mean; ideally
        1."""
        return float(self.read.max() / self.read.mean()) if self.read.any() else 1.0


def plan(
    files: Sequence[File], nodes: int, mode: Mode, *, read_once: bool = False, ranks_per_node: int = 1
) -> StagingPlan:
    """The plan for staging ``files``, sorted by path, to ``nodes`` nodes with separate targets."""
    alone, everywhere = held_by_one_or_all(Files.of(files), mode)
    loads = np.zeros((2, nodes), np.int64)  # the bytes and the number of files that each node reads
    for _, members in alone.folders():
        loads += _by_bin(alone[members], nodes)
    held = loads[0] + everywhere.size
    if read_once:
        of_ranks = _by_bin(everywhere, ranks_per_node * nodes)
        loads += of_ranks.reshape(2, ranks_per_node, nodes).sum(axis=1)
    else:
        loads += [[everywhere.size], [len(everywhere)]]
    sent = (nodes - 1) * everywhere.size if read_once else 0
    return StagingPlan(mode, read_once, held, *loads, sent)


def exchanged_bytes(files: Sequence[File], nodes: int) -> float:
    """Expected bytes that all nodes together send before an epoch with ``staging.exchange``: a file in ``train/``
    stays on its node with probability 1 / ``nodes``."""
    return Files.of(files).folder("train").size * (nodes - 1) / nodes


def _by_bin(files: Files, bins: int) -> npt.NDArray[np.int64]:
    """The bytes and the number of files in each bin, [2, bins]."""
    loads = np.zeros((2, bins), np.int64)
    bin_of = balance(files.sizes, bins)
    np.add.at(loads[0], bin_of, files.sizes)  # exact, unlike a weighted bincount, which adds float64
    loads[1] = np.bincount(bin_of, minlength=bins)
    return loads
