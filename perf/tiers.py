"""Where a node's part of the data set is (memory, node-local storage or the shared file system: Ibrahim et al.
2021, section VI), and the share of reads that memory serves if the data is elsewhere."""

import math
from dataclasses import dataclass, replace
from typing import Literal

from mlhpc.errors import UserError
from mlhpc.perf.machines import Machine
from mlhpc.quantities import bytes_text, count

FILE_SYSTEM = "shared file system"

Scope = Literal["sample", "node"]
"""Scope of the shuffle. "sample": the whole data set, of which a node reads a different part in every epoch;
"node": each node's own samples, which stay the same for the whole run (docs/guide/data.md, "Shuffle scope")."""


@dataclass(frozen=True)
class Tier:
    """Where a node's part of the data set is stored. ``read``: bytes/s of one node, None if unknown. ``cached``:
    share of the bytes that are in the node's memory from earlier epochs and need not be read again. ``opening``:
    seconds per file that a node opens on the shared file system, whose servers are contacted even if the file's
    content is in memory."""

    name: str
    read: float | None
    key: str
    cached: float = 0.0
    opening: float = 0.0


def tiers(machine: Machine, nodes: int) -> list[tuple[Tier, float]]:
    """The tiers that can store a node's part of the data set, the fastest first, with their capacities in
    bytes."""
    fitting: list[tuple[Tier, float]] = []
    if (size := machine.get("host.memory")) is not None:
        fitting.append((Tier("host memory", machine.get("host.memory_bandwidth"), "host.memory"), size))
    elif machine.get("links.host") is None:  # accelerator and host share one memory
        fitting.append((Tier("memory", machine.get("accelerator.bandwidth"), "accelerator.memory"),
                      machine.figures["accelerator.memory"] * machine.per_node))  # fmt: skip
    if (size := machine.get("storage.local")) is not None:
        fitting.append((Tier("node-local storage", machine.get("storage.local_read"), "storage.local"), size))
    if machine.nodes != 1 or machine.get("storage.shared_read") is not None:
        capacity = machine.get("storage.shared") or float("inf")
        rate = shared_rate(machine, nodes)
        shared = Tier(FILE_SYSTEM, rate, "storage.shared_read", opening=_opening(machine))
        fitting.append((shared, capacity / nodes))
    return fitting


def _opening(machine: Machine) -> float:
    """Seconds that a node takes to open a file on the shared file system; 0 if the machine file has no figure for
    it."""
    return machine.get("storage.shared_open") or 0.0


def shared_rate(machine: Machine, nodes: int) -> float | None:
    """Bytes/s that each of ``nodes`` reads from the shared file system if all read concurrently; None if the
    machine file has no figure."""
    whole = machine.get("storage.shared_read")
    rates = [whole / nodes if whole else None, machine.get("storage.shared_read_node")]
    return min((rate for rate in rates if rate), default=None)


def cached_share(size: float, memory: float, nodes: float = 1) -> float:
    """Share of a node's reads served by its cache of ``memory`` bytes from earlier epochs, with LRU
    replacement; 1 if everything fits. ``size``: bytes that ``nodes`` nodes read once per epoch, reshuffled
    over all nodes every epoch; ``nodes`` is 1 for a shard that only one node reads.

    After the share u of an epoch, the node has read u / nodes of the data in this epoch, which is not read
    again in it. The rest of the share m = memory / size in its cache is from earlier epochs, and all other
    samples are equally likely to be next: such a sample is cached with probability (m - u / nodes) / (1 - u /
    nodes). The mean over u is nodes · (w + (1 - m)·ln(1 - w)), where w is the smaller of m and 1 / nodes: 15% on
    one node if half of the data fits, and never more than m on many nodes.
    """
    if size <= memory:
        return 1.0
    held = memory / size
    read = min(held, 1 / nodes)
    return nodes * (read + (1 - held) * math.log1p(-read))


def tier_of(
    machine: Machine,
    size: float,
    nodes: int,
    *,
    together: int = 1,
    staged: bool = True,
    scope: Scope = "node",
) -> Tier:
    """The fastest tier with room for ``size`` bytes of data. As nodes are added, this is first the file system,
    then node-local storage, then memory (Ibrahim et al. 2021, section VI). ``together``: accelerators that read
    the same sample. ``scope`` "node": each node has a fixed share; "sample": each node may read all samples.
    ``staged`` False: data that does not fit in memory is read from the shared file system. In both cases the
    host's memory is used as a cache.

    Raises UserError if no tier is large enough.
    """
    copies = spanned(machine, together)
    share = size * copies / nodes
    part, readers = (share, 1.0) if scope == "node" else (size, max(1.0, nodes / copies))
    options = tiers(machine, nodes)
    memory = machine.get("host.memory")
    for tier, capacity in options:
        needed = share if tier.name == FILE_SYSTEM else part
        if needed <= capacity and (staged or tier.name != "node-local storage"):
            if not staged:  # its files stay on the shared file system
                tier = replace(tier, opening=_opening(machine))
            if memory is None or tier.key == "host.memory":
                return tier
            return replace(tier, cached=cached_share(part, memory, readers))
    raise _refusal(machine, nodes, options, share, part, scope)


def _refusal(
    machine: Machine, nodes: int, options: list[tuple[Tier, float]], share: float, part: float, scope: Scope
) -> UserError:
    """The error that says why none of ``options`` can hold the data: ``part`` bytes per node, or ``share`` bytes
    per node in the file system."""
    if not options:
        return UserError(
            f"{machine.at('storage')}: no storage to read from; add host.memory, storage.local or "
            "storage.shared_read"
        )
    largest, capacity = max(options, key=lambda option: option[1])
    shared = largest.name == FILE_SYSTEM
    smaller = shared or scope == "sample" or machine.nodes == 1
    size = f"{bytes_text(share if shared else part)} per node on {count(nodes, 'node')}"
    return UserError(
        f"{machine.at('storage.shared' if shared else largest.key)}: the data set, {size}, is larger than every "
        f"tier of {machine.name} (largest: {largest.name}, {bytes_text(capacity)} per node); "
        f"{'use a smaller data set' if smaller else 'use more nodes'}"
    )


def spanned(machine: Machine, together: int) -> float:
    """Number of nodes that read the same sample if ``together`` accelerators share it: one if these accelerators
    fit in a node."""
    return max(1.0, together / machine.per_node)


def room(machine: Machine) -> float:
    """Capacity in bytes of the largest tier of a node."""
    return max((size for tier, size in tiers(machine, 1) if tier.name != FILE_SYSTEM), default=0.0)
