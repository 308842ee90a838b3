"""The similarity of the I/O of two runs: the cosine of Devarajan et al. 2021, and the largest single
difference.

Devarajan et al. 2021, section V.B: each factor is divided by the larger of its two values, and S
is the cosine of the two vectors. The cosine is insensitive to an error common to all factors (doubling everything
gives S = 1), hence the largest single difference.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

COSINE = 0.97
DIFFERENCE = 0.10
"""Thresholds at which two runs count as similar: minimum cosine, maximum difference."""


@dataclass(frozen=True)
class Similarity:
    """The similarity of two runs. ``differences``: for each factor, (first - second) / larger of the two, as in
    the paper's Fig. 8."""

    cosine: float
    differences: dict[str, float]

    @property
    def largest(self) -> tuple[str, float]:
        """The factor with the largest difference, and its value."""
        return max(self.differences.items(), key=lambda item: abs(item[1]))

    @property
    def alike(self) -> bool:
        """Whether both thresholds are met."""
        return self.cosine >= COSINE and abs(self.largest[1]) <= DIFFERENCE


def compare(first: Mapping[str, float], second: Mapping[str, float]) -> Similarity:
    """Compare ``first`` and ``second``, the same non-negative factors of two runs. Factors that are 0 in both are
    omitted. Raises ValueError if their names differ, or no factor is left."""
    if first.keys() != second.keys():
        raise ValueError(f"different factors: {sorted(first.keys() ^ second.keys())}")
    differences = {
        name: (first[name] - second[name]) / max(first[name], second[name])
        for name in first
        if max(first[name], second[name]) > 0
    }
    return Similarity(cosine(differences), differences)


def cosine(differences: Mapping[str, float]) -> float:
    """S, computed from the differences alone: of the two normalised values of a factor, one is 1 and the other 1 -
    |difference|."""
    if not differences:
        raise ValueError("no factor to compare")
    pairs = [(1.0, 1.0 - d) if d >= 0 else (1.0 + d, 1.0) for d in differences.values()]
    product = sum(a * b for a, b in pairs)
    return product / math.sqrt(sum(a * a for a, _ in pairs) * sum(b * b for _, b in pairs))


FACTORS = ("io_time", "files", "sequential", "consecutive", "transfer_median", "transfer_mean",
           "bandwidth_median", "bandwidth_mean")  # fmt: skip
