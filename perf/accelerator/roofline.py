"""The roofline of a network: the limit of each layer on an accelerator, and its maximum speed.

Williams et al. 2009: a layer of ``intensity`` FLOPs per byte runs at no more than min(peak, intensity ·
bandwidth). The peak for matrix products is the tensor cores' in the run's precision; for everything else it is the
peak of float32 (Ibrahim et al. 2021, section V). Traffic is a lower limit (``networks/layer.py``), so rates are
upper limits.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from mlhpc.perf.networks.layer import PRODUCTS, Kind, Layer, Network, Precision

Bound = Literal["tensor", "float32", "memory"]


@dataclass(frozen=True)
class Ceilings:
    """Peaks of one accelerator: FLOP/s of matrix products (``tensor``) and of float32, bytes/s of its memory."""

    name: str
    tensor: float
    float32: float
    bandwidth: float

    @property
    def balance(self) -> float:
        """FLOPs per byte above which matrix products are limited by the tensor cores."""
        return self.tensor / self.bandwidth

    def peak(self, kind: Kind) -> float:
        """FLOP/s of layers of ``kind``."""
        return self.tensor if kind in PRODUCTS else self.float32

    def attainable(self, intensity: float, kind: Kind) -> float:
        """Maximum FLOP/s of a layer of ``kind`` with ``intensity`` FLOPs per byte."""
        return min(self.peak(kind), intensity * self.bandwidth)


V100 = Ceilings("NVIDIA V100", 125e12, 15.7e12, 900e9)
"""Ibrahim et al. 2021, section III-B; the tensor cores' peak is for float16."""


class Point(NamedTuple):
    """A layer under the roofline, for one training sample: ``flops`` of products and elementwise operations
    together, the ``bytes`` moved, what limits it (``bound``), and its minimum ``seconds``."""

    layer: str
    kind: Kind
    flops: int
    bytes: float
    bound: Bound
    seconds: float

    @property
    def intensity(self) -> float:
        """FLOPs per byte."""
        return self.flops / self.bytes if self.bytes else 0.0

    @property
    def rate(self) -> float:
        """Attainable FLOP/s."""
        return self.flops / self.seconds if self.seconds else 0.0


def points(
    network: Network, ceilings: Ceilings, precision: Precision, batch: int | None = None
) -> list[Point]:
    """A point for every layer of ``network``. ``batch``: number of samples that share the traffic of the weights
    (None: weights are excluded)."""
    return [_point(layer, ceilings, precision, batch) for layer in network]


def _point(layer: Layer, ceilings: Ceilings, precision: Precision, batch: int | None) -> Point:
    flops = sum(part.flops + part.operations for part in layer.passes)
    moved = layer.traffic(precision, batch)
    compute, memory = flops / ceilings.peak(layer.kind), moved / ceilings.bandwidth
    bound: Bound = "memory" if memory >= compute else "tensor" if layer.kind in PRODUCTS else "float32"
    return Point(layer.name, layer.kind, flops, moved, bound, max(compute, memory))


def least_seconds(points: Iterable[Point]) -> float:
    """Minimum seconds per training sample, summed over layers: compute and memory overlap within a layer, not
    between layers."""
    return sum(point.seconds for point in points)
