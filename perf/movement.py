"""Where bytes lie and move, and what that costs: paper 000, section V-C and figure 4.

The gap of a byte is the reciprocal of the bandwidth that limits it, relative to that of the accelerator's own
memory. The cost of a sample is the sum of bytes times gap over model and activations, the sample itself, and the
all-reduce of the gradients, whose share of one sample falls with the local batch. It is a lower bound: everything
overlaps, and memory runs at its peak.
"""

import math
from dataclasses import dataclass, replace
from typing import Literal

from mlhpc.benchmarks.schema import Staging
from mlhpc.errors import UserError
from mlhpc.perf.machines import Machine
from mlhpc.perf.parts import parts
from mlhpc.perf.samples import SampleBytes
from mlhpc.perf.scaling import Triple
from mlhpc.perf.units import written

GIB, MIB = 2.0**30, 2.0**20

FILE_SYSTEM = "shared file system"

Scope = Literal["sample", "node"]
"""Scope of the shuffle: the whole data set, of which a node reads a different part in every epoch, or the
samples of each node, the same for the whole run (docs/data.md, "Shuffle scope")."""


@dataclass(frozen=True)
class Tier:
    """Where a node's part of the data set lies. ``read``: bytes/s of one node, None if unknown. ``cached``:
    share of the bytes that the node's memory holds from earlier epochs, so that they are not read again."""

    name: str
    read: float | None
    key: str
    cached: float = 0.0


@dataclass(frozen=True)
class StagedBytes:
    """What a staging moves, as ``mlhpc data plan`` counts it. ``held``: bytes that each node writes; ``source``:
    read from the shared file system, and ``sent``: from node to node, by all nodes together."""

    held: float
    source: float
    sent: float


def staged_bytes(staging: Staging, size: float, nodes: int, copies: float = 1.0) -> StagedBytes:
    """Of a data set of ``size`` bytes, training and evaluation, in files that every mode divides evenly.
    ``copies``: nodes that read the same sample."""
    if staging.mode == "shard":
        return StagedBytes(size * copies / nodes, size * copies, 0.0)
    if staging.read_once:
        return StagedBytes(size, size, (nodes - 1) * size)
    return StagedBytes(size, nodes * size, 0.0)


@dataclass(frozen=True)
class Placement:
    """Where the training data lies, what staging moves for that (None: nothing is staged), and what is to be said
    of it."""

    tier: Tier
    moved: StagedBytes | None
    notes: tuple[str, ...] = ()


def gap(machine: Machine, bandwidth: float) -> float:
    """Cost of a byte at ``bandwidth``, relative to one of the accelerator's memory."""
    return machine.figures["accelerator.bandwidth"] / bandwidth


def tiers(machine: Machine, nodes: int) -> list[tuple[Tier, float]]:
    """The tiers that can hold a node's part of the data set, the fastest first, with their capacity in bytes."""
    found: list[tuple[Tier, float]] = []
    if (size := machine.get("host.memory")) is not None:
        found.append((Tier("host memory", machine.get("host.memory_bandwidth"), "host.memory"), size))
    elif machine.get("links.host") is None:  # a processor, or one chip with both: its memory is the host's
        found.append((Tier("memory", machine.get("accelerator.bandwidth"), "accelerator.memory"),
                      machine.figures["accelerator.memory"] * machine.per_node))  # fmt: skip
    if (size := machine.get("storage.local")) is not None:
        found.append((Tier("node-local storage", machine.get("storage.local_read"), "storage.local"), size))
    share = machine.get("storage.shared_read")
    rates = [share / nodes if share else None, machine.get("storage.shared_read_node")]
    rate = min((r for r in rates if r), default=None)
    if machine.nodes != 1 or share is not None:
        capacity = machine.get("storage.shared") or float("inf")
        found.append((Tier(FILE_SYSTEM, rate, "storage.shared_read"), capacity / nodes))
    return found


def cached_share(size: float, memory: float, nodes: float = 1) -> float:
    """Share of what a node reads that its cache of ``memory`` bytes still holds from earlier epochs, if it drops
    what was used longest ago; 1 where all fits. ``size``: bytes that ``nodes`` nodes read once an epoch,
    reshuffled over all of them every epoch; 1 node for a shard that only one node reads.

    Where the share u of an epoch is done, the node has read u / nodes of the data in this epoch, which nobody
    reads again in it. Of the share m = memory / size that it holds, the rest is of earlier epochs, and any other
    sample is as likely to be the next: it is held with the probability (m - u / nodes) / (1 - u / nodes). The mean
    over u is nodes · (w + (1 - m)·ln(1 - w)) with w the smaller of m and 1 / nodes: for half of the data 15% on
    one node, and never more than m on many.
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
    """The fastest tier that holds ``size`` bytes of data: file system, then node-local storage, then memory, as
    nodes are added (paper 000, section VI). ``together``: accelerators that read a sample. ``scope`` "node": each
    node has its share, the same in every epoch; "sample": each may read all of it. ``staged`` False: data that
    does not fit memory is read from the shared file system. Either way the host's memory caches what it can hold.

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
            if memory is None or tier.key == "host.memory":
                return tier
            return replace(tier, cached=cached_share(part, memory, readers))
    if not options:
        raise UserError(
            f"{machine.at('storage')}: no place for the data set; add host.memory, storage.local or "
            "storage.shared_read"
        )
    largest, capacity = max(options, key=lambda option: option[1])
    shared = largest.name == FILE_SYSTEM
    part = share if shared else part
    where = machine.at("storage.shared" if shared else largest.key)
    smaller = shared or scope == "sample" or machine.nodes == 1
    raise UserError(
        f"{where}: the data set, {written(part, 'bytes')} a node on {nodes} nodes, is larger than every tier of "
        f"{machine.name} (largest: {largest.name}, {written(capacity, 'bytes')} a node); "
        f"{'take a smaller data set' if smaller else 'take more nodes'}"
    )


def unstaged(
    machine: Machine,
    train: float,
    nodes: int,
    together: int,
    scope: Scope = "sample",
    notes: tuple[str, ...] = (),
) -> Placement:
    """``train`` bytes of training data on the shared file system."""
    return Placement(
        tier_of(machine, train, nodes, together=together, staged=False, scope=scope), None, notes
    )


def place(
    machine: Machine, staging: Staging, train: float, whole: float, nodes: int, together: int
) -> Placement:
    """Staged data, of ``train`` bytes to train on and ``whole`` with those of the evaluation. With
    ``staging.mode=replicate`` every node holds the whole set; where no node has room for it, nothing is staged.

    Raises UserError if no tier is large enough.
    """
    copies = spanned(machine, together)
    scope: Scope = "node" if staging.mode == "shard" else "sample"
    tier = tier_of(machine, whole, nodes, together=together, scope=scope)
    if tier.name != FILE_SYSTEM:
        if lies_there(machine):
            return Placement(tier, None)
        return Placement(tier, staged_bytes(staging, whole, nodes, copies), _notes(staging, nodes))
    if staging.mode == "shard":
        why = (
            "the data set fits neither memory nor node-local storage: every epoch reads the part outside "
            "memory from the shared file system"
        )
        return Placement(tier, None, (why, _rate_of_file_system(tier)))
    space = room(machine)
    needed = math.ceil(whole / space) if space else math.inf
    shards = f"staging.mode=shard fits on {needed} nodes or more"
    if not space or needed > (machine.nodes or math.inf):
        shards = "staging.mode=shard does not fit either, on any number of its nodes"
    why = (
        f"the whole data set, {written(whole, 'bytes')}, fits neither the memory nor the local storage of a node, "
        f"as staging.mode=replicate needs, and is read from the shared file system; {shards}"
    )
    return unstaged(machine, train, nodes, together, notes=(why, _rate_of_file_system(tier)))


def _rate_of_file_system(tier: Tier) -> str:
    """What a prediction rests on that reads from the shared file system, ``tier``, though it was to be staged."""
    if tier.read is None:
        return "reading from the shared file system is not counted: the machine file has no bandwidth for it"
    middle, slow, fast = (written(rate, "bytes/s") for rate in parts().staging_rate)
    return (
        "the shared file system is read at the bandwidth in the machine file, usually its peak; in "
        f"published sets each node copied {middle} from theirs ({slow} to {fast})"
    )


def _notes(staging: Staging, nodes: int) -> tuple[str, ...]:
    notes = []
    if staging.read_once and staging.mode == "replicate" and nodes > 1:
        notes.append(
            "nodes forward files read by one of them (staging.read_once): counted at the full bandwidth of "
            "one network card, a lower bound"
        )
    if staging.overlap:
        notes.append(
            "staging.overlap hides part of T_staging behind the first epoch, but all of it is counted"
        )
    return tuple(notes)


def spanned(machine: Machine, together: int) -> float:
    """Nodes that read the same sample where ``together`` accelerators share it: one where they fit in it."""
    return max(1.0, together / machine.per_node)


def room(machine: Machine) -> float:
    """Bytes that the largest of a node's own tiers holds."""
    return max((size for tier, size in tiers(machine, 1) if tier.name != FILE_SYSTEM), default=0.0)


def lies_there(machine: Machine) -> bool:
    """Whether the data set is on the machine already: one node, and no shared file system."""
    return machine.nodes == 1 and machine.get("storage.shared_read") is None


def staging_seconds(machine: Machine, held: float, nodes: int, tier: Tier, received: float = 0.0) -> Triple:
    """In which each of ``nodes`` gets ``held`` bytes into ``tier``: ``received`` of them from other nodes, the
    rest from the shared file system, at what published sets reached per node, within what the machine's figures
    allow. Nodes pass on at the bandwidth of one network card, as in :func:`exchange_seconds`, while they read and
    write: the slowest of the three counts. At best the host's memory holds at the end what it can, and node-local
    storage has written the rest: a bound, Linux keeps 20% of it dirty (vm.dirty_ratio). Raises UserError if
    nodes pass on without a figure of the network."""
    if lies_there(machine):
        return 0.0, 0.0, 0.0
    shared = machine.get("storage.shared_read")
    rates = [machine.get("storage.shared_read_node"), shared and shared / nodes]
    read = min((rate for rate in rates if rate), default=math.inf)
    write = math.inf
    if tier.name == "node-local storage":
        write = machine.get("storage.local_write") or math.inf
    passed = 0.0
    if received:
        passed = received / machine.need("network.bandwidth", "staging.read_once on several nodes")

    def seconds(rate: float, unwritten: float = 0.0) -> float:
        return max((held - received) / min(rate, read), (held - unwritten) / write, passed)

    middle, slow, fast = parts().staging_rate
    return seconds(middle), seconds(fast, machine.get("host.memory") or 0.0), seconds(slow)


def exchange_seconds(machine: Machine, size: float, tier: Tier) -> float:
    """In which a node sends ``size`` bytes of its shard to other nodes, and writes as many of theirs to ``tier``:
    a lower bound, from the machine's figures. All connections of a node go to one address, so to one of its
    network cards, however many it has (``links.listening``). Raises UserError without a figure of the network."""
    rates: list[float | None] = [machine.need("network.bandwidth", "an exchange of shards between nodes")]
    if tier.name == "node-local storage":
        rates += [machine.get("storage.local_write"), machine.get("storage.local_read")]
    return size / min(rate for rate in rates if rate)


@dataclass(frozen=True)
class Costs:
    """Cost of moving one sample's data, in bytes of the accelerator's memory (figure 4). ``sample``: the lower
    bound, over the host's link, and the upper, from node-local storage; None if the machine has no figure."""

    activations: float
    sample: tuple[float | None, float | None]
    all_reduce: float

    @property
    def binding(self) -> str:
        seconds = {"activations and model": self.activations, "all-reduce": self.all_reduce,
                   "samples": max((s for s in self.sample if s is not None), default=0.0)}  # fmt: skip
        return max(seconds, key=lambda name: seconds[name])


def costs(machine: Machine, *, moved: float, sample: float, gradients: float, local_batch_size: int) -> Costs:
    """Figure 4. ``moved``: bytes of activations and model that a sample moves in the accelerator's memory;
    ``sample``: bytes of a sample as the accelerator receives it; ``gradients``: bytes of all of them in float32.
    The ring moves them twice in the limit of many ranks, and in both directions at once: gap of one card.
    """
    link, local = machine.get("links.host"), machine.get("storage.local_read")
    nic = machine.get("network.bandwidth")
    # Every accelerator has its share of the node's storage (paper 000 takes 3.2 GB/s for eight, hence 2250).
    return Costs(
        moved,
        (
            sample * gap(machine, link) if link else None,
            sample * gap(machine, local / machine.per_node) if local else None,
        ),
        gradients * gap(machine, nic) / local_batch_size if nic else 0.0,
    )


def required_bandwidth(flops: float, bytes_moved: float, peak: float) -> float:
    """Bytes/s that feed ``peak`` FLOP/s at ``flops`` per ``bytes_moved`` (paper 000, section VII)."""
    return peak * bytes_moved / flops


def input_seconds(
    machine: Machine, benchmark: str, size: SampleBytes, local: int, tier: Tier
) -> dict[str, float]:
    """Seconds that each stage of the input path takes for a step of ``local`` samples per accelerator, as far as
    the machine file has rates; stages overlap. Every accelerator of a group reads the whole sample (paper 001,
    section 4.2.1). What the host does to a sample (inflate, decode, normalise: paper 000, section V-D and figure
    8) takes all cores of the node."""
    samples = local * machine.per_node
    times = {}
    if tier.read:
        times[f"read from {tier.name}"] = samples * size.stored * (1 - tier.cached) / tier.read
    if link := machine.get("links.host"):
        times["moved to the accelerator"] = local * size.received / link
    if rate := machine.get(f"preparation.{benchmark}"):
        cores = int(machine.facts["host.cores"])
        times["prepared on the host"] = samples * size.received / (cores * rate)
    return times
