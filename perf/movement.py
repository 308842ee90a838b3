"""The cost of moving data (Ibrahim et al. 2021, section V-C and figure 4), and the input path of a step.

The gap of a byte is the bandwidth of the accelerator's own memory divided by the bandwidth at which the byte
moves. The cost of a sample is bytes times gap, summed over model and activations, the sample itself, and the
all-reduce of the gradients, whose share per sample falls with the local batch. This cost is a lower bound: it
assumes that everything overlaps and that memory runs at its peak.
"""

from dataclasses import dataclass

from mlhpc.perf.machines import Machine
from mlhpc.perf.samples import SampleBytes
from mlhpc.perf.tiers import FILE_SYSTEM, Tier

GIB, MIB = 2.0**30, 2.0**20


def gap(machine: Machine, bandwidth: float) -> float:
    """Cost of moving a byte at ``bandwidth``, relative to moving one in the accelerator's memory."""
    return machine.figures["accelerator.bandwidth"] / bandwidth


@dataclass(frozen=True)
class Costs:
    """Cost of moving one sample's data, as the equivalent number of bytes of accelerator memory traffic (figure
    4). ``sample``: the cost over the host's link, and the cost of reading from the data set's storage, which is
    None if the machine file has no figure for it."""

    activations: float
    sample: tuple[float | None, float | None]
    all_reduce: float

    @property
    def binding(self) -> str:
        """The most expensive term."""
        seconds = {"activations and model": self.activations, "all-reduce": self.all_reduce,
                   "samples": max((s for s in self.sample if s is not None), default=0.0)}  # fmt: skip
        return max(seconds, key=lambda name: seconds[name])


def costs(
    machine: Machine,
    tier: Tier,
    *,
    moved: float,
    sample: SampleBytes,
    gradients: float,
    local_batch_size: int,
) -> Costs:
    """The costs of figure 4 for a data set in ``tier``. ``moved``: bytes of activations and model that a sample
    moves in the accelerator's memory; ``gradients``: bytes of all gradients in float32. A ring of many ranks moves
    the gradients twice, but in both directions at once, so their gap equals that of a single network card.
    """
    link, nic = machine.get("links.host"), machine.get("network.bandwidth")
    read = read_seconds(sample, tier)
    return Costs(
        moved,
        (
            sample.received * gap(machine, link) if link else None,
            # A node's accelerators share its read bandwidth (Ibrahim et al. 2021: 3.2 GB/s for eight, hence 2250).
            None if read is None else read * machine.per_node * machine.figures["accelerator.bandwidth"],
        ),
        gradients * gap(machine, nic) / local_batch_size if nic else 0.0,
    )


def gaps(machine: Machine) -> dict[str, float]:
    """The gaps of figure 4 for the links that the machine file has. A node's accelerators share the read bandwidth
    of its own storage."""
    figures = {"host": machine.get("links.host"), "network": machine.get("network.bandwidth"),
               "local": (machine.get("storage.local_read") or 0.0) / machine.per_node}  # fmt: skip
    return {name: gap(machine, bandwidth) for name, bandwidth in figures.items() if bandwidth}


def read_seconds(size: SampleBytes, tier: Tier) -> float | None:
    """Seconds that a node takes to read a sample: to open its files, then to read what is not in memory. None if
    the machine file has no rate for ``tier``."""
    if not tier.read:
        return size.files * tier.opening or None
    return size.files * tier.opening + size.stored * (1 - tier.cached) / tier.read


def required_bandwidth(flops: float, bytes_moved: float, peak: float) -> float:
    """Bytes/s needed for ``peak`` FLOP/s at ``flops`` per ``bytes_moved`` (Ibrahim et al. 2021, section
    VII)."""
    return peak * bytes_moved / flops


def input_seconds(
    machine: Machine, benchmark: str, size: SampleBytes, local: int, tier: Tier
) -> dict[str, float]:
    """Seconds of each stage of the input path for which the machine file has a rate, in a step of ``local``
    samples per accelerator; stages overlap. Every accelerator of a group reads the whole sample (Farrell et al.
    2021, section 4.2.1). Preparation on the host (decompression, decoding, normalisation: Ibrahim et al. 2021,
    section V-D and figure 8) uses all cores of the node."""
    samples = local * machine.per_node
    times = {}
    if (read := read_seconds(size, tier)) is not None:
        # The file system's servers are contacted even for files whose content is in memory.
        where = FILE_SYSTEM if tier.opening else tier.name
        times[f"read from {where}"] = samples * read
    if link := machine.get("links.host"):
        times["moved to the accelerator"] = local * size.received / link
    if rate := machine.get(f"preparation.{benchmark}"):
        cores = int(machine.facts["host.cores"])
        times["prepared on the host"] = samples * size.received / (cores * rate)
    return times
