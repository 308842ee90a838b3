"""Nodes that send each other files through network cards of finite rates: a fluid model, event by event."""

import heapq
from collections import defaultdict, deque
from collections.abc import Iterable

import numpy as np

from mlhpc.common.data.partition import Shards, balance
from mlhpc.common.staging.moves import Moves, of_rank, rounds

COSMOFLOW = 16_777_744
"""Bytes of a file of the uncompressed training set, nearly: 128³ voxels, 4 redshifts, 2 bytes."""


def shards_of(nodes: int, files: int, spread: float = 0.0) -> tuple[Shards, np.ndarray]:
    """``files`` on each node, and their sizes, whose standard deviation is ``spread`` of the mean."""
    drawn = np.random.default_rng(0).standard_normal(nodes * files)
    sizes = np.maximum(1, COSMOFLOW * (1 + spread * drawn)).astype(np.int64)
    return Shards(balance(sizes, nodes), seed=1), sizes


def efficiency(moves: Moves, most: int, ranks: int, window: int) -> tuple[float, int]:
    """The time that the busiest card needs for the bytes of ``moves``, over what their plan takes where nodes of
    ``ranks`` ranks end each round of ``most`` bytes together; and the most flows of a node."""
    ideal = max(np.bincount(ends, moves.sizes).max() for ends in (moves.senders, moves.receivers))
    taken, flows = 0.0, 0
    for part in rounds(moves, most):
        own = [(of_rank(part, rank, ranks), rank) for rank in range(ranks)]
        files = [
            (*file, rank)
            for of, rank in own
            for file in zip(of.sizes.tolist(), of.senders.tolist(), of.receivers.tolist(), strict=True)
        ]
        network = Network(files, 1.0, window)
        taken += network.seconds()
        flows = max(flows, network.most_flows)
    return ideal / taken, flows


class Network:
    """Files ``(size, sender, receiver, rank)``: each goes from the rank of that number on the node ``sender`` to
    that on ``receiver``.

    A rank sends its files, and receives those that it is to receive, in the order given, ``window`` of either at a
    time: a file flows while both ends are at it. A node sends at most ``rate`` bytes per second and receives as
    much at the same time. Its flows share that equally; what one of them cannot use, since its other end is
    busier, is not given to the others. So the time is an upper bound.
    """

    def __init__(self, files: Iterable[tuple[float, int, int, int]], rate: float, window: int = 1) -> None:
        self.files, self.rate = list(files), rate
        self.sends: dict[tuple[int, int], deque[int]] = defaultdict(deque)  # by node and rank
        self.receives: dict[tuple[int, int], deque[int]] = defaultdict(deque)
        for number, (_, sender, receiver, rank) in enumerate(self.files):
            self.sends[sender, rank].append(number)
            self.receives[receiver, rank].append(number)
        self.leaving: dict[int, set[int]] = defaultdict(set)  # the flows of each node
        self.arriving: dict[int, set[int]] = defaultdict(set)
        self.ready: dict[int, int] = defaultdict(int)  # ends at which a file's turn has come
        self.flows: dict[int, tuple[float, float, float]] = {}  # bytes left, when, and the speed since then
        self.events: list[tuple[float, int]] = []
        self.now, self.most_flows = 0.0, 0
        queues = [*self.sends.values(), *self.receives.values()]
        self._change(
            [number for queue in queues for _ in range(window) for number in self._next(queue)], set()
        )

    def seconds(self) -> float:
        """How long it takes until all files have arrived."""
        arrived = 0
        while self.events:
            time, number = heapq.heappop(self.events)
            left, since, speed = self.flows.get(number, (0.0, 0.0, 0.0))
            if not speed or time != since + left / speed:
                continue  # its speed has changed since
            self.now, arrived = time, arrived + 1
            del self.flows[number]
            _, sender, receiver, rank = self.files[number]
            self.leaving[sender].remove(number)
            self.arriving[receiver].remove(number)
            begun = self._next(self.sends[sender, rank]) + self._next(self.receives[receiver, rank])
            self._change(begun, self.leaving[sender] | self.arriving[receiver])
        assert arrived == len(self.files), "files wait for each other"
        return self.now

    def _next(self, queue: deque[int]) -> list[int]:
        """The flow that begins when this end turns to its next file: none if the other end is not yet at it."""
        if not queue:
            return []
        number = queue.popleft()
        self.ready[number] += 1
        return [number] if self.ready[number] == 2 else []

    def _change(self, begun: list[int], others: set[int]) -> None:
        """Begin flows, and give them and all that they and ``others`` share a node with their speeds."""
        for number in begun:
            size, sender, receiver, _ = self.files[number]
            self.flows[number] = size, self.now, 0.0
            self.leaving[sender].add(number)
            self.arriving[receiver].add(number)
            self.most_flows = max(self.most_flows, len(self.leaving[sender]), len(self.arriving[receiver]))
            others |= self.leaving[sender] | self.arriving[receiver]
        for number in others:
            _, sender, receiver, _ = self.files[number]
            left, since, speed = self.flows[number]
            share = self.rate / max(len(self.leaving[sender]), len(self.arriving[receiver]))
            if share != speed:
                left -= (self.now - since) * speed
                self.flows[number] = left, self.now, share
                heapq.heappush(self.events, (self.now + left / share, number))
