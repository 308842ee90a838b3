"""Exchange of shards between nodes before each epoch: in every epoch, each node has a new random share of the
training files, and each file is on one node (determined by ``partition.Shards``).

Files move in rounds, which are the same on all ranks. In a round, a rank sends files over TCP to the ranks with
the same local rank on other nodes and receives files from them, up to ``AT_ONCE`` concurrently in each direction,
in the order of their steps (``moves``). Each file is verified against its checksum, if it has one, before it gets
its final name. When all ranks have finished the round, the sent files are deleted. So a file is on one node or,
until its round has ended, on two, and no failure loses a file. A node needs free space for the files received in a
round (at most ``ROUND`` bytes, or one file), and for the amount by which the files received so far are larger than
those sent.
"""

import os
import socket
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, pairwise
from pathlib import Path
from threading import Lock
from typing import NamedTuple

import numpy as np

from mlhpc.common.data import manifest as manifests
from mlhpc.common.data.manifest import File, Files, Manifest
from mlhpc.common.data.partition import Indices, Shards
from mlhpc.common.files.filesystem import as_user_error
from mlhpc.common.ranks.collectives import attempt, gather_or_raise, on_all_ranks, on_each_rank
from mlhpc.common.ranks.links import linked, require_descriptors
from mlhpc.common.ranks.world import World
from mlhpc.common.staging.moves import (
    Moves,
    bytes_by_node,
    extra_space,
    moves_between,
    of_rank,
    rounds,
    sizes_of,
)
from mlhpc.common.staging.record import mark_exchanging
from mlhpc.common.staging.target import StagingGroup, exclusive, make_folders, require_room, unlink
from mlhpc.common.staging.transfer import Activity, Links, Receiver, cause_of, send_file
from mlhpc.errors import UserError

ROUND = 1 << 30
"""Maximum bytes (or one file) that a node receives before the files that it has sent are deleted."""

AT_ONCE = 4
"""Number of a rank's concurrent transfers in each direction. File sizes differ, and a node may have no file in a
step; with several transfers, the others continue while one waits for its peer (docs/reference/performance.md)."""

EXCHANGE = Activity(
    "the exchange of shards",
    "start the run again: staging keeps the files that belong on each node and copies the others",
)
_NEED = "exchanging shards", "set staging.exchange=false"
_SPARE_DESCRIPTORS = 64
"""File descriptors for a listener, the files being transferred, and files that the run opens meanwhile."""


@dataclass(frozen=True)
class Exchanged:
    """Totals of all nodes."""

    files: int
    bytes: int


def reserve(
    files: Sequence[File],
    shards: Shards,
    epochs: Sequence[int],
    target: Path,
    world: World,
    most: int = ROUND,
) -> None:
    """Before training: check that ``files`` can be exchanged through ``epochs``, the first of which uses the files
    as staged, and reserve the ``target`` of each node for this run.

    Called by all ranks, which divide the planning of the epochs among them, since half a million files take almost
    a second per epoch. Raises UserError, the same on all ranks, if a node has too little space or too few
    descriptors, or if another run uses the target.
    """
    sizes = sizes_of(files)

    def peak() -> Indices:
        grown = np.zeros(world.nodes, np.int64)
        for before, after in list(pairwise(epochs))[world.rank :: world.size]:
            grows = bytes_by_node(sizes, shards, before, world.nodes) - at_first
            extra = extra_space(moves_between(sizes, shards, before, after), world.nodes, most)
            grown = np.maximum(grown, grows + extra)
        return grown

    at_first = bytes_by_node(sizes, shards, epochs[0], world.nodes)
    on_each_rank(world, lambda: require_descriptors(world.nodes + _SPARE_DESCRIPTORS))
    needed = np.max(on_all_ranks(world, peak), axis=0)
    group = _group(world)

    def require() -> None:
        _require_alone(target, in_use)
        if group.leads:
            require_room(target, int(needed[world.node]), *_NEED)
            mark_exchanging(target)

    with exclusive(target, world, group) as in_use:
        on_each_rank(world, require)


def exchange(
    files: Sequence[File],
    shards: Shards,
    before: int,
    after: int,
    target: Path,
    world: World,
    most: int = ROUND,
) -> Exchanged:
    """Move ``files`` from the nodes that have them in epoch ``before`` to those in epoch ``after``. Each node
    keeps its files in ``target``.

    Called by all ranks. Raises UserError, the same on all ranks, if another run uses the target, if a node lacks
    space (before the first file moves, if that can be predicted), or if a file cannot be sent or written or does
    not match its checksum.
    """
    mine = world.node
    moves = moves_between(sizes_of(files), shards, before, after)
    group = _group(world)

    def prepare() -> None:
        _require_alone(target, in_use)
        if group.leads:
            require_room(target, int(extra_space(moves, world.nodes, most)[mine]), *_NEED)
            arriving = [files[number] for number in moves.numbers[moves.receivers == mine]]
            make_folders(target, {os.path.dirname(file.path) for file in arriving})
            # Checked before the first file arrives, because only files written by staging may be listed.
            held = manifests.load(target)
            listed = {file.path for file in held.files}
            _save(held, [*held.files, *(file for file in arriving if file.path not in listed)])

    def finish() -> None:
        if group.leads:
            _forget(target, {files[number].path for number in moves.numbers[moves.senders == mine]})

    ranks = {place: rank for rank, place in enumerate(world.gather((mine, world.local_rank)))}
    peers = [ranks[node, world.local_rank] for node in range(world.nodes)]
    lower, higher = ([r for r in peers if r < world.rank], [r for r in peers if r > world.rank])
    with exclusive(target, world, group) as in_use:
        on_each_rank(world, prepare)
        with linked(world, lower, higher) as both:
            connections = dict(zip(lower + higher, chain(*both), strict=True))
            for part in rounds(moves, most):
                own = of_rank(part, world.local_rank, world.local_size)
                sent, arriving = transfers(files, own, mine)
                _run_round(sent, arriving, connections, peers, target, world)
                on_each_rank(world, partial(_delete, [each.file for each in sent], target))
        on_each_rank(world, finish)
    return Exchanged(len(moves.numbers), int(moves.sizes.sum()))


class Transfer(NamedTuple):
    """A transfer of file ``number`` of the exchanged files, to or from a node."""

    node: int
    number: int
    file: File


def transfers(files: Sequence[File], moves: Moves, node: int) -> tuple[list[Transfer], list[Transfer]]:
    """The transfers that ``node`` sends, and those that it receives, in the order of ``moves``."""

    def chosen(here: Indices, there: Indices) -> list[Transfer]:
        own = np.flatnonzero(here == node)
        partners, numbers = there[own].tolist(), moves.numbers[own].tolist()
        return [Transfer(*pair, files[pair[1]]) for pair in zip(partners, numbers, strict=True)]

    return chosen(moves.senders, moves.receivers), chosen(moves.receivers, moves.senders)


def _group(world: World) -> StagingGroup:
    """This node's ranks. Called by all ranks."""
    members = tuple(rank for rank, node in enumerate(world.gather(world.node)) if node == world.node)
    return StagingGroup(members, world.local_rank == 0, ())


def _require_alone(target: Path, in_use: bool) -> None:
    if in_use:
        raise UserError(
            f"{target}: another run uses this shard, so it cannot be exchanged; choose another --stage"
        )


def _run_round(
    sent: Sequence[Transfer],
    arriving: Sequence[Transfer],
    connections: dict[int, socket.socket],
    peers: Sequence[int],
    target: Path,
    world: World,
) -> None:
    """Send and receive this rank's files in order. ``peers``: this rank's partner on each node. Called by all
    ranks. Raises UserError, the same on all ranks."""
    links = Links(connections.values())
    expected: dict[int, dict[int, File]] = defaultdict(dict)
    for each in arriving:
        expected[each.node][each.number] = each.file
    sending, receiving = ({node: Lock() for node in range(world.nodes)} for _ in range(2))

    # There is no deadlock: of all files being transferred, the first in the order of steps, or another file on
    # the same link, is active at both ends.
    def send(node: int, number: int, file: File) -> None:
        rank = peers[node]
        with sending[node]:
            send_file(connections[rank], number, file, target, f"rank {rank}", EXCHANGE)

    def receive(node: int) -> None:
        rank = peers[node]
        with receiving[node]:
            Receiver(connections[rank], target, rank, f"rank {rank}", EXCHANGE).next(expected[node])

    def work() -> None:
        with ThreadPoolExecutor(AT_ONCE) as senders, ThreadPoolExecutor(AT_ONCE) as receivers:
            going_on = [senders.submit(links.attempt, partial(send, *each)) for each in sent]
            going_on += [receivers.submit(links.attempt, partial(receive, each.node)) for each in arriving]
            links.attempt(lambda: wait(going_on))
        links.raise_failure()

    _, error = attempt(work)
    gather_or_raise(world, None, cause_of(world, error))


def _delete(files: Sequence[File], target: Path) -> None:
    for file in files:
        with as_user_error(target / file.path, "cannot be removed", "choose another --stage"):
            (target / file.path).unlink()


def _forget(target: Path, gone: set[str]) -> None:
    held = manifests.load(target)
    _save(held, [file for file in held.files if file.path not in gone])
    unlink(target, gone)  # also removes folders that are empty now


def _save(held: Manifest, files: Sequence[File]) -> None:
    with as_user_error(held.root / manifests.NAME, "cannot be written", "free some space"):
        manifests.save(replace(held, files=Files.of(sorted(files))))
