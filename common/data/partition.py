"""Pure functions that assign files to nodes after staging, and to the ranks that copy them."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from mlhpc.common.data.manifest import File, Files

Mode = Literal["replicate", "shard"]
ShuffleScope = Literal["sample", "node", "global"]
Indices = npt.NDArray[np.int64]
_EXCHANGE = 0x65786368
"""Seeds the exchange differently from ``sharding``, which uses the same seed and epoch."""


def shuffle_scope(mode: Mode, nodes: int, exchange: bool = False) -> ShuffleScope:
    """Scope of an epoch's shuffle. "sample": the samples of the whole data set. "node": the samples of each
    node, which stay there for the whole run. "global": the samples of each node, which nodes ``exchange`` between
    epochs. The rules of MLPerf Training ("Training Data Order") allow any sharding as long as the order is random
    overall and each datum appears once."""
    if mode == "replicate" or nodes == 1:
        return "sample"
    return "global" if exchange else "node"


def balance(sizes: npt.ArrayLike, bins: int) -> npt.NDArray[np.int64]:
    """Assign each of ``sizes`` to a bin, from 0 to ``bins - 1``, such that the numbers of sizes per bin differ by
    at most one, and the sums by at most the largest size. ``sizes`` and the result are [n].

    The sizes are sorted and divided into groups of ``bins``, one size per bin. Pairs of groups are merged, the
    largest sum of one with the smallest of the other, until one group is left; the sums of a merged group differ
    by no more than the sums of either group did. This is the differencing method (Karmarkar and Karp 1982) on the
    rows of arrays.
    """
    size = np.asarray(sizes, dtype=np.int64)
    if bins == 1 or len(size) == 0 or size.min() == size.max():
        return np.arange(len(size)) % bins  # what the groups would yield, but faster
    order = np.argsort(-size, kind="stable").astype(np.int32)
    sums = np.zeros((-(-len(size) // bins), bins), np.int64)
    sums.ravel()[: len(size)] = size[order]
    pairings = []
    while len(sums) > 1:
        if len(sums) % 2:
            sums = np.vstack([sums, np.zeros(bins, np.int64)])
        ranked = np.argsort(sums, axis=1, kind="stable").astype(np.int32)
        ranked[::2] = ranked[::2, ::-1]
        sums = np.take_along_axis(sums, ranked, 1)
        sums = sums[::2] + sums[1::2]
        pairings.append(ranked)
    bins_of = np.arange(bins, dtype=np.int32)[np.newaxis]
    for ranked in reversed(pairings):
        of_pair = np.repeat(bins_of, 2, axis=0)[: len(ranked)]
        bins_of = np.empty_like(of_pair)
        np.put_along_axis(bins_of, ranked, of_pair, 1)
    bin_of = np.empty(len(size), dtype=np.int64)
    bin_of[order] = bins_of.ravel()[: len(size)]
    return bin_of


def files_of_node(files: Sequence[File], node: int, nodes: int, mode: Mode) -> Files:
    """The files on ``node`` of ``nodes`` after staging, in the order of ``files``, which are sorted by
    path.

    In mode ``shard`` the parts are disjoint except for files outside folders, which are on all nodes, and
    their union is the data set; each folder is partitioned separately, so its parts differ by at most one file.
    """
    files = Files.of(files)
    if mode == "replicate" or nodes == 1:
        return files
    kept = np.ones(len(files), np.bool_)
    for folder, members in files.folders():
        if folder:
            kept[members] = balance(files.sizes[members], nodes) == node
    return files.at(kept)


def files_read_by_node(
    files: Sequence[File], node: int, nodes: int, mode: Mode, rings: int = 0
) -> list[File]:
    """The files that staging reads from the source on ``node`` of ``nodes``, each to a separate place on this
    node. ``rings``: with ``read_once``, the number of rings in which nodes forward the files that all of them
    store; 0 without it."""
    if not rings or nodes == 1:
        return list(files_of_node(files, node, nodes, mode))
    alone, everywhere = held_by_one_or_all(Files.of(files), mode)
    reader = balance(everywhere.sizes, rings * nodes) % nodes
    return [*files_of_node(alone, node, nodes, mode), *everywhere.at(reader == node)]


def held_by_one_or_all(files: Files, mode: Mode) -> tuple[Files, Files]:
    """The files stored by a single node after staging, and the files stored by every node."""
    everywhere = np.ones(len(files), np.bool_) if mode == "replicate" else files.outside()
    return files.at(~everywhere), files.at(everywhere)


def files_of_ring(
    files: Sequence[File], ring: int, rings: int, nodes: int
) -> tuple[Files, npt.NDArray[np.int64]]:
    """The files that nodes forward in ring number ``ring`` (of ``rings`` rings), in the order of ``files``, and an
    array [number of files] with the node, 0 to ``nodes - 1``, that reads each of these files from the source. The
    bytes are balanced over rings and nodes."""
    files = Files.of(files)
    bin_of = balance(files.sizes, rings * nodes)
    chosen = bin_of // nodes == ring
    return files.at(chosen), bin_of[chosen] % nodes


class Shards:
    """Assigns files to nodes in each epoch if nodes exchange files; the result is the same on all ranks.

    ``at_first``: the node of each file after staging, in epoch 0. Each node has as many slots as it has files in
    epoch 0. Each later epoch assigns files to slots by a separate random permutation, seeded by the run's
    ``seed``, so it does not depend on earlier epochs, and a node's share is a random sample of all files.
    """

    def __init__(self, at_first: Indices, seed: int) -> None:
        self._seed = seed
        self._node_of_slot = np.sort(at_first)
        self._first_slots = np.argsort(np.argsort(at_first, kind="stable"), kind="stable")

    def nodes(self, epoch: int) -> Indices:
        """The node, counted from 0, of each file in ``epoch``: [files]."""
        node_of: Indices = self._node_of_slot[self._slots(epoch)]
        return node_of

    def moves(self, before: int, after: int) -> Indices:
        """The indices of the files that change nodes from epoch ``before`` to ``after``: [moves]."""
        return np.flatnonzero(self.nodes(before) != self.nodes(after))

    def _slots(self, epoch: int) -> Indices:
        if epoch == 0:
            return self._first_slots
        return np.random.default_rng([self._seed, epoch, 0, _EXCHANGE]).permutation(len(self._first_slots))


def files_of_rank(files: Sequence[File], index: int, size: int) -> Files:
    """The files of rank ``index``, in the order of ``files``, when ``size`` ranks divide them so that each rank
    has about the same number of bytes."""
    files = Files.of(files)
    return files.at(balance(files.sizes, size) == index)
