"""Table II of Ibrahim et al. 2021, as printed, and derived quantities.

Cori GPU, one V100, mixed precision. The table divides binary GiF (2³⁰ FLOPs) and GiB by each other, and GiF
by MiB as if the prefixes were a factor of 1000 apart, not 1024; the properties here do the same, to reproduce
the printed figures.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """Values per training sample: ``sample_mib``, ``gif`` (measured), activation memory in 16 bits (section
    V-A) and measured HBM traffic in GiB; ``sustained``: the sustained HBM bandwidth in bytes/s; ``largest_batch``:
    the largest batch size in figures 5 to 8.

    ResNet-50's measured traffic is printed twice, as 0.68 GiB in the table and as 0.56 GiB in section V-A;
    only 0.56 gives the table's own 55.35 FLOPs per byte and the text's "13 times".
    """

    benchmark: str
    sample_mib: float
    gif: float
    activations_gib: float
    hbm_gib: float
    sustained: float
    largest_batch: int

    @property
    def hbm_limit_gib(self) -> float:
        """The lower limit of HBM traffic in GiB: every activation is written once and read once."""
        return 2 * self.activations_gib

    @property
    def flops_per_sample_byte(self) -> float:
        """FLOPs per byte of a sample, with the table's mixed prefixes."""
        return 1000 * self.gif / self.sample_mib

    @property
    def intensity_limit(self) -> float:
        """FLOPs per byte if memory traffic is at its lower limit."""
        return self.gif / self.hbm_limit_gib

    @property
    def intensity(self) -> float:
        """FLOPs per byte of measured memory traffic."""
        return self.gif / self.hbm_gib

    @property
    def seconds_per_sample(self) -> float:
        """Seconds that a sample's measured traffic takes at the sustained bandwidth."""
        return self.hbm_gib * 2**30 / self.sustained


TABLE_II = {
    "cosmoflow": Row("cosmoflow", 16, 247, 0.72, 6.4, 127e9, 16),
    "deepcam": Row("deepcam", 27, 2887, 2.9, 52, 270e9, 4),
    "resnet50": Row("resnet50", 0.14, 31, 0.042, 0.56, 145e9, 256),
}


@dataclass(frozen=True)
class StrongScaling:
    """Strong scaling: ``samples`` are divided among the nodes. ``unstaged``: by number of nodes, the time per
    sample read from Lustre relative to that per sample staged to NVMe (section VI)."""

    samples: int
    unstaged: dict[int, float]


STRONG_SCALING = {
    "cosmoflow": StrongScaling(49_152, {1: 2.0, 4: 1.15}),
    "deepcam": StrongScaling(49_152 // 5, {1: 1.15, 4: 1.0}),
}
"""From figures 8 and 9: "roughly 2×" and "roughly 15%" for CosmoFlow, "roughly a 15%" and "negligible" for
DeepCAM. DeepCAM's sample count is not printed: CosmoFlow has "nearly five times the number of samples"."""
