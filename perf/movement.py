"""Where bytes move and what that costs: paper 000, section V-C and figure 4.

The gap of a byte is the reciprocal of the bandwidth that limits it, relative to that of the accelerator's own
memory. The cost of a sample is the sum of bytes times gap over model and activations, the sample itself, and the
all-reduce of the gradients, whose share of one sample falls with the local batch. It is a lower bound: everything
overlaps, and memory runs at its peak.
"""

import math
from dataclasses import dataclass

from mlhpc.errors import UserError
from mlhpc.perf.machines import Machine
from mlhpc.perf.parts import parts
from mlhpc.perf.samples import SampleBytes
from mlhpc.perf.scaling import Triple
from mlhpc.perf.units import written

GIB, MIB = 2.0**30, 2.0**20


@dataclass(frozen=True)
class Tier:
    """Where a node's part of the data set lies. ``read``: bytes/s of one node, None where unknown."""

    name: str
    read: float | None
    key: str


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
        found.append((Tier("shared file system", rate, "storage.shared_read"), capacity * nodes))
    return found


def tier_of(machine: Machine, size: float, nodes: int, *, staged: bool = True) -> Tier:
    """The fastest tier that holds ``size`` bytes of training data, divided over ``nodes``: file system, then
    node-local storage, then memory, as nodes are added (paper 000, section VI). ``staged`` False: data that does
    not fit memory is read from the shared file system.

    Raises UserError where no tier is large enough.
    """
    part = size / nodes
    options = tiers(machine, nodes)
    for tier, capacity in options:
        if part <= capacity and (staged or tier.name != "node-local storage"):
            return tier
    if not options:
        raise UserError(
            f"{machine.at('storage')}: nowhere to keep the data set; give host.memory, storage.local or "
            "storage.shared_read"
        )
    largest = max(options, key=lambda option: option[1])
    raise UserError(
        f"{machine.at(largest[0].key)}: the data set, {written(part, 'bytes')} a node on {nodes} nodes, is larger "
        f"than every tier of {machine.name} (largest: {largest[0].name}, {written(largest[1], 'bytes')}); "
        "take more nodes"
    )


def staging_seconds(machine: Machine, size: float, nodes: int, tier: Tier) -> Triple:
    """In which each of ``nodes`` copies ``size`` bytes from the shared file system to ``tier``: at what published
    sets reached per node, within what the machine's figures allow."""
    shared = machine.get("storage.shared_read")
    if shared is None and machine.nodes == 1:
        return 0.0, 0.0, 0.0  # the data set lies there already
    limits = [machine.get("storage.shared_read_node"), shared and shared / nodes]
    if tier.name == "node-local storage":
        limits.append(machine.get("storage.local_write"))
    limit = min((rate for rate in limits if rate), default=math.inf)
    middle, slow, fast = parts().staging_rate
    return size / min(middle, limit), size / min(fast, limit), size / min(slow, limit)


@dataclass(frozen=True)
class Costs:
    """Cost of moving one sample's data, in bytes of the accelerator's memory (figure 4). ``sample``: the lower
    bound, over the host's link, and the upper, from node-local storage; None where the machine has no figure."""

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
    """Seconds that each stage of the input path takes for a step of ``local`` samples an accelerator, as far as
    the machine file has rates; stages overlap. Every accelerator of a group reads the whole sample (paper 001,
    section 4.2.1). What the host does to a sample (inflate, decode, normalise: paper 000, section V-D and figure
    8) takes all cores of the node."""
    samples = local * machine.per_node
    times = {}
    if tier.read:
        times[f"read from {tier.name}"] = samples * size.stored / tier.read
    if link := machine.get("links.host"):
        times["moved to the accelerator"] = local * size.received / link
    if rate := machine.get(f"preparation.{benchmark}"):
        cores = int(machine.facts["host.cores"])
        times["prepared on the host"] = samples * size.received / (cores * rate)
    return times
