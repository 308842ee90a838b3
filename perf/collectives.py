"""The cost of communication: all-reduce by algorithm, parameter servers, halo exchange. Times in seconds.

α-β model: a message of n bytes takes α + n/β. Symbols: M bytes of gradients, N ranks (or W workers), α the latency
of a message between nodes, β the bandwidth of a rank or node. The bandwidth terms of ring and tree are from
Thakur, Rabenseifner and Gropp 2005 ("Optimization of Collective Communication Operations in MPICH").
"""

import math
from dataclasses import dataclass

from mlhpc.perf.machines import Machine


def ring(size: float, ranks: int, bandwidth: float, latency: float = 0.0) -> float:
    """Reduce-scatter and all-gather around a ring: 2·(N−1) messages of M/N bytes."""
    return 2 * (ranks - 1) * latency + ring_bytes(size, ranks) / bandwidth


def ring_bytes(size: float, ranks: int) -> float:
    """Bytes that each rank of a ring sends, 2·M·(N−1)/N; it receives the same number concurrently."""
    return 2 * size * (ranks - 1) / ranks


def server_bytes(size: float, workers: int, servers: int) -> float:
    """Bytes that one parameter server receives and sends in total, 2·M·W/P."""
    return 2 * size * workers / servers


def tree(size: float, ranks: int, bandwidth: float, latency: float = 0.0) -> float:
    """Pipelined reduction to the root and broadcast: M bytes pass every rank's link once up and once down the tree
    of log2(N) levels."""
    return 2 * (math.ceil(math.log2(ranks)) * latency + size / bandwidth) if ranks > 1 else 0.0


def parameter_servers(size: float, workers: int, servers: int, bandwidth: float) -> float:
    """Each of W workers sends M bytes, divided among P servers, and fetches the sum. The servers' links need
    2·M·W/(P·B) seconds, each worker's link 2·M/B; the longer time counts."""
    return max(server_bytes(size, workers, servers), 2 * size) / bandwidth


@dataclass(frozen=True)
class AllReduce:
    """The ``seconds`` of the fastest all-reduce ``algorithm``, and the seconds of each algorithm. ``bound``: what
    limits it, bandwidth or latency; "measured" if the machine file has a measured rate that is lower than the
    model's."""

    seconds: float
    algorithm: str
    bound: str
    by_algorithm: dict[str, float]


def all_reduce(machine: Machine, size: float, nodes: int, per_node: int) -> AllReduce:
    """The time of an all-reduce of ``size`` bytes over ``nodes`` with ``per_node`` ranks each, by the fastest
    algorithm, since communication libraries choose this one.

    ring: one ring through all ranks. A hop within a node has the bandwidth between peers, a hop between nodes the
    combined bandwidth of a node's network cards, since NCCL runs one ring per card. tree: a tree with the same
    bandwidths. hierarchical: reduce-scatter within the node, a ring over the nodes, all-gather within the node.

    Raises UserError if the machine file has no network and there are several nodes.
    """
    ranks = nodes * per_node
    if ranks == 1:
        return AllReduce(0.0, "none", "one rank", {})
    inside = (
        machine.get("links.peers") or machine.get("links.host") or machine.get("accelerator.bandwidth") or 1.0
    )
    if nodes == 1:
        seconds = ring(size, ranks, inside)
        return AllReduce(seconds, "ring", "bandwidth", {"ring": seconds})
    between, latency = machine.node_network, machine.latency
    narrow = min(between, inside) if per_node > 1 else between
    local = ring(size, per_node, inside)
    times = {
        "ring": ring(size, ranks, narrow, latency),
        "tree": tree(size, nodes, narrow, latency),
        "hierarchical": local + ring(size, nodes, between, latency),
    }
    algorithm = min(times, key=lambda name: times[name])
    without = {"ring": ring(size, ranks, narrow), "tree": tree(size, nodes, narrow),
               "hierarchical": local + ring(size, nodes, between)}[algorithm]  # fmt: skip
    seconds, bound = times[algorithm], "bandwidth" if without >= 0.5 * times[algorithm] else "latency"
    measured = machine.get("network.allreduce")
    if measured and size / measured > seconds:
        return AllReduce(size / measured, algorithm, "measured rate", times)
    return AllReduce(seconds, algorithm, bound, times)
