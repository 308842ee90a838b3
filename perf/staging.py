"""What staging moves, where it puts the data, and how long it takes."""

import math
from dataclasses import dataclass

from mlhpc.benchmarks.schema import Staging
from mlhpc.perf.machines import Machine
from mlhpc.perf.parts import parts
from mlhpc.perf.scaling import Triple
from mlhpc.perf.tiers import FILE_SYSTEM, Scope, Tier, room, shared_rate, spanned, tier_of
from mlhpc.quantities import bytes_text


@dataclass(frozen=True)
class StagedBytes:
    """Bytes moved by staging, as counted by ``mlhpc data plan``. ``held``: bytes that each node writes. All nodes
    together read ``source`` bytes from the shared file system and send ``sent`` bytes to other nodes."""

    held: float
    source: float
    sent: float


def staged_bytes(staging: Staging, size: float, nodes: int, copies: float = 1.0) -> StagedBytes:
    """The bytes moved by staging a data set of ``size`` bytes, including evaluation data, if files can be divided
    evenly. ``copies``: nodes that read the same sample."""
    if staging.mode == "shard":
        return StagedBytes(size * copies / nodes, size * copies, 0.0)
    if staging.read_once:
        return StagedBytes(size, size, (nodes - 1) * size)
    return StagedBytes(size, nodes * size, 0.0)


@dataclass(frozen=True)
class Placement:
    """The location of the training data, the bytes moved by staging (None: nothing is staged), and notes."""

    tier: Tier
    moved: StagedBytes | None
    notes: tuple[str, ...] = ()


def unstaged(
    machine: Machine,
    train: float,
    nodes: int,
    together: int,
    scope: Scope = "sample",
    notes: tuple[str, ...] = (),
) -> Placement:
    """The placement of ``train`` bytes of training data that stay on the shared file system."""
    return Placement(
        tier_of(machine, train, nodes, together=together, staged=False, scope=scope), None, notes
    )


def place(
    machine: Machine, staging: Staging, train: float, whole: float, nodes: int, together: int
) -> Placement:
    """The placement of staged data with ``train`` bytes of training data, or ``whole`` bytes including evaluation
    data. With ``staging.mode=replicate`` every node stores the whole set; if it does not fit, nothing is staged.

    Raises UserError if no tier is large enough.
    """
    copies = spanned(machine, together)
    scope: Scope = "node" if staging.mode == "shard" else "sample"
    tier = tier_of(machine, whole, nodes, together=together, scope=scope)
    if tier.name != FILE_SYSTEM:
        if machine.holds_data:
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
        shards = "staging.mode=shard does not fit on any number of its nodes either"
    why = (
        f"the whole data set, {bytes_text(whole)}, fits neither the memory nor the local storage of a node, "
        f"as staging.mode=replicate requires, so it is read from the shared file system; {shards}"
    )
    return unstaged(machine, train, nodes, together, notes=(why, _rate_of_file_system(tier)))


def _rate_of_file_system(tier: Tier) -> str:
    """A note on the rate of the shared file system, ``tier``, from which data is read although it should be
    staged."""
    if tier.read is None:
        return "reading from the shared file system is not counted: the machine file has no bandwidth for it"
    middle, slow, fast = (bytes_text(rate, "/s") for rate in parts().staging_rate)
    return (
        "the shared file system is read at the bandwidth in the machine file, usually its peak; in "
        f"published sets each node copied {middle} from theirs ({slow} to {fast})"
    )


def _notes(staging: Staging, nodes: int) -> tuple[str, ...]:
    notes = []
    if staging.read_once and staging.mode == "replicate" and nodes > 1:
        notes.append("staging.read_once: forwarding is counted at the full bandwidth of one network card")
    if staging.overlap:
        notes.append("staging.overlap hides part of T_staging in the first epoch, but all of it is counted")
    return tuple(notes)


def staging_seconds(machine: Machine, held: float, nodes: int, tier: Tier, received: float = 0.0) -> Triple:
    """Seconds until each of ``nodes`` has ``held`` bytes in ``tier``: ``received`` of them come from other nodes,
    the rest from the shared file system, at the rate that published sets reached per node, within the machine's
    limits. Nodes forward data at the bandwidth of one network card, as in :func:`exchange_seconds`, while they
    read and write; the slowest of the three determines the time. At best, all of the host's memory still holds
    unwritten data at the end, and only the rest has been written to node-local storage. This is a lower bound:
    Linux keeps at most 20% of memory dirty (vm.dirty_ratio). Raises UserError if nodes forward data and the
    machine file has no figure for the network."""
    if machine.holds_data:
        return 0.0, 0.0, 0.0
    read = shared_rate(machine, nodes) or math.inf
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
    """Seconds that a node takes to send ``size`` bytes of its shard to other nodes, and to write the same number
    of received bytes to ``tier``: a lower bound from the machine's figures. All connections of a node use one
    address, and so only one of its network cards (``links.linked``). Raises UserError if the machine file has
    no figure for the network."""
    rates: list[float | None] = [machine.need("network.bandwidth", "an exchange of shards between nodes")]
    if tier.name == "node-local storage":
        rates += [machine.get("storage.local_write"), machine.get("storage.local_read")]
    return size / min(rate for rate in rates if rate)
