"""The files that change nodes between two epochs, and the order in which they move, the same on all ranks.

Files move in steps. In a step, each node sends one file and receives one, or does neither. Ranks do not wait at
the end of a step, but send and receive in the order of the steps. If the order ignored the receivers, several
nodes would queue for one receiver while others are idle, and transfers would form chains in which each waits for
another.

A node sends as many files as it receives, since it has the same number of files in every epoch. Files are the
edges of a bipartite graph between the nodes as senders and the nodes as receivers. At each end, a node's files are
paired by similar size. These pairs form cycles, along which files are assigned alternately to the first and the
second half of the steps. Each half thus has half of the files, and about half of the bytes, that a node sends and
receives, and is then divided recursively (H. Gabow, "Using Euler partitions to edge color bipartite multigraphs",
International Journal of Computer and Information Sciences 5, 1976).
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mlhpc.common.data.manifest import File, Files
from mlhpc.common.data.partition import Indices, Shards
from mlhpc.common.staging.target import FILE_OVERHEAD


class Moves(NamedTuple):
    """Files that change nodes, in the order of their steps: in step ``steps[i]``, file ``numbers[i]`` of the
    exchanged files, of ``sizes[i]`` bytes, goes from node ``senders[i]`` to node ``receivers[i]``. They are int64
    arrays [moves] because half a million moves would take 100 MB in every rank as objects."""

    numbers: Indices
    sizes: Indices
    senders: Indices
    receivers: Indices
    steps: Indices

    def part(self, chosen: slice | npt.NDArray[np.bool_]) -> "Moves":
        """The moves that are ``chosen``, by a slice or a mask [moves], in order."""
        return Moves(*(column[chosen] for column in self))


def moves_between(sizes: Indices, shards: Shards, before: int, after: int) -> Moves:
    """The moves from epoch ``before`` to ``after`` of files with these ``sizes`` [files] in bytes."""
    numbers = shards.moves(before, after)
    senders, receivers = shards.nodes(before)[numbers], shards.nodes(after)[numbers]
    order, steps = in_steps(sizes[numbers], senders, receivers)
    numbers = numbers[order]
    return Moves(numbers, sizes[numbers], senders[order], receivers[order], steps)


def in_steps(sizes: Indices, senders: Indices, receivers: Indices) -> tuple[Indices, Indices]:
    """Indices of the moves in the order in which they are made, and the step (from 0) in which each is made. All
    arrays have shape [moves]. Each node must occur equally often in ``senders`` and ``receivers``. The number of
    steps is less than twice the largest number of files that a node sends."""
    if not len(sizes):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    sent = np.bincount(senders)
    nodes, width = len(sent), int(sent.max())
    # Pad with files that do not move, so that all nodes have the same number of files. The loop below pads again
    # wherever that number is odd.
    staying = np.repeat(np.arange(nodes), width - sent)
    by_size = np.argsort(np.append(sizes, np.zeros(len(staying), np.int64)), kind="stable")
    files, by_receiver = (
        by_size[np.argsort(np.append(ends, staying)[by_size].astype(np.int32), kind="stable")]
        for ends in (senders, receivers)
    )
    # Each part and node has a row of ``width``: in ``files``, the files that the node sends; in ``received``, the
    # positions in ``files`` of the files that it receives.
    received = _put(np.arange(len(files)), files)[by_receiver]
    while width > 1:
        if width % 2:
            files = _with_column(files, width, np.full(len(files) // width, len(by_size)))
            moved_on = received + received // width + 1
            width += 1
            received = _with_column(moved_on, width - 1, np.arange(0, len(files), width))
        is_second = _alternating(received)
        block, width = nodes * width, width // 2
        halved = np.arange(0, len(files), block)[:, np.newaxis] + np.repeat(np.arange(block // 2), 2)
        place = halved.reshape(-1) + is_second * (block // 2)
        place_received = halved.reshape(-1) + is_second[received] * (block // 2)
        files, received = _put(files, place), _put(place[received], place_received)
    moving = np.flatnonzero(files < len(senders))
    return files[moving], moving // nodes


def _with_column(values: Indices, width: int, column: Indices) -> Indices:
    """``values`` [rows · width], with ``column`` [rows] inserted before the first element of each row, and
    flattened again."""
    return np.insert(values.reshape(-1, width), 0, column, axis=1).reshape(-1)


def _alternating(received: Indices) -> npt.NDArray[np.bool_]:
    """A mask [files] of the files that belong to the second half of the steps. Exactly one of the files at 2i and
    2i + 1, which share a sender, belongs to it, and exactly one of those at ``received[2i]`` and ``received[2i +
    1]``, which share a receiver."""
    other = np.empty_like(received)
    other[received[::2]], other[received[1::2]] = received[1::2], received[::2]
    # ``onwards`` leads from a file to the one two further along its cycle; the files between are passed in the
    # opposite direction. So each cycle becomes two circles, each identified by its lowest file, which is found
    # with strides that double.
    onwards, lowest = other ^ 1, np.arange(len(received), dtype=np.int32)
    while True:
        lower = np.minimum(lowest, np.take(lowest, onwards, mode="clip"))  # twice as fast as indexing
        if np.array_equal(lower, lowest):
            return np.asarray(lowest > lowest[other])
        onwards, lowest = np.take(onwards, onwards, mode="clip"), lower


def _put(values: Indices, places: Indices) -> Indices:
    moved = np.empty_like(values)
    moved[places] = values
    return moved


def rounds(moves: Moves, most: int) -> Iterator[Moves]:
    """``moves`` divided into rounds of whole steps. In a round, a node receives at most ``most`` bytes, or a
    single larger file."""
    if not len(moves.steps):
        return
    ends = [*(np.flatnonzero(np.diff(moves.steps)) + 1).tolist(), len(moves.steps)]
    received = np.zeros(moves.receivers.max() + 1, np.int64)
    start = at = 0
    for end in ends:
        receivers, sizes = moves.receivers[at:end], moves.sizes[at:end]
        received[receivers] += sizes  # one file per receiver
        if start < at and received[receivers].max() > most:
            yield moves.part(slice(start, at))
            start = at
            received[:] = 0
            received[receivers] = sizes
        at = end
    yield moves.part(slice(start, at))


def of_rank(part: Moves, local_rank: int, local_size: int) -> Moves:
    """The moves that ranks with this ``local_rank`` make in the round ``part``: an equal share, consisting of
    consecutive steps."""
    steps, of_step = np.unique(part.steps, return_inverse=True)
    return part.part(of_step * local_size // len(steps) == local_rank)


def extra_space(moves: Moves, nodes: int, most: int) -> Indices:
    """The largest increase in bytes on each node, [nodes], at any time during ``moves``."""
    grown, largest = np.zeros(nodes, np.int64), np.zeros(nodes, np.int64)
    for part in rounds(moves, most):
        np.add.at(grown, part.receivers, part.sizes + FILE_OVERHEAD)
        largest = np.maximum(largest, grown)
        np.subtract.at(grown, part.senders, part.sizes + FILE_OVERHEAD)
    return largest


def sizes_of(files: Sequence[File]) -> Indices:
    """The sizes of ``files`` in bytes, of shape (files,)."""
    return Files.of(files).sizes


def bytes_by_node(sizes: Indices, shards: Shards, epoch: int, nodes: int) -> Indices:
    """Bytes on each node, [nodes], in ``epoch``, for files with these ``sizes`` [files]."""
    held = np.zeros(nodes, np.int64)
    np.add.at(held, shards.nodes(epoch), sizes)
    return held
