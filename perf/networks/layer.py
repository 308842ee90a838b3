"""The cost of a layer per sample: floating-point operations, data movement, and memory kept for the backward pass.

Shapes have no batch dimension and channels last, like ``sample_shape`` in a run's configuration. All numbers are
per sample, except those of weights, which are read and written once per batch.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple, get_args

from mlhpc.errors import UserError

Shape = tuple[int, ...]
Precision = Literal["float32", "mixed_bfloat16", "mixed_float16"]
PRECISIONS: tuple[Precision, ...] = ("float32", "mixed_bfloat16", "mixed_float16")
Kind = Literal[
    "convolution",
    "pointwise convolution",
    "depthwise convolution",
    "transposed convolution",
    "dense",
    "batch norm",
    "activation",
    "pooling",
    "bias",
    "sum",
    "concatenation",
    "dropout",
    "loss",
]
KINDS: tuple[Kind, ...] = get_args(Kind)
PRODUCTS = KINDS[: KINDS.index("dense") + 1]
"""Kinds of matrix products, which run on tensor cores and are counted by FLOP counters."""
PassName = Literal["forward", "input gradient", "weight gradient"]
Type = Literal["activation", "float32", "int64", "uint8"]
"""Type of a tensor's elements. An "activation" has 4 bytes in float32, 2 in mixed precision."""


def activation_bytes(precision: Precision) -> int:
    """Bytes per element of an activation: matrix products and the operations between them use ``precision``."""
    return 4 if precision == "float32" else 2


def type_bytes(kind: Type, precision: Precision) -> int:
    """Bytes of an element."""
    sizes = {"float32": 4, "int64": 8, "uint8": 1}
    return sizes.get(kind) or activation_bytes(precision)


class Saved(NamedTuple):
    """Elements that a layer keeps for its backward pass and that no earlier layer keeps. ``name``: the layer that
    computed them, or a description. ``is_input``: whether they are the network's input. ``once``: kept once per
    batch, not per sample."""

    name: str
    elements: int
    type: Type = "activation"
    is_input: bool = False
    once: bool = False

    def size(self, precision: Precision, batch: int = 1) -> int:
        """Bytes of ``batch`` samples."""
        return self.elements * type_bytes(self.type, precision) * (1 if self.once else batch)


class Pass(NamedTuple):
    """A layer's forward pass or one of its gradients, of one sample.

    ``flops`` of products (2 per multiply-add; padding counts as if it were data) and elementwise ``operations``;
    ``elements`` of activations read and written, each once (the lower limit of memory traffic without caching
    between layers); ``weights`` read or written, once per batch.
    """

    name: PassName
    flops: int
    operations: int
    elements: int
    weights: int

    def traffic(self, precision: Precision, batch: int | None = None) -> float:
        """Bytes read and written per sample, including the sample's share of the weights in a batch of ``batch``
        samples (None: without weights, as Ibrahim et al. 2021, section V-A, assume). Gradients of weights are
        float32, as are the updated weights."""
        weight = 4 if self.name == "weight gradient" else activation_bytes(precision)
        shared = self.weights * weight / batch if batch else 0.0
        return self.elements * activation_bytes(precision) + shared


@dataclass(frozen=True)
class Layer:
    """One layer. ``saved``: the elements it adds to those kept for the backward pass. ``in_place``: its
    output uses the memory of its (first) input."""

    name: str
    kind: Kind
    inputs: tuple[Shape, ...]
    output: Shape
    passes: tuple[Pass, ...]
    parameters: int = 0
    saved: tuple[Saved, ...] = ()
    in_place: bool = False

    @property
    def output_elements(self) -> int:
        """Number of output elements per sample."""
        return math.prod(self.output)

    @property
    def input_elements(self) -> int:
        """Number of input elements per sample, over all inputs."""
        return sum(math.prod(shape) for shape in self.inputs)

    @property
    def forward_flops(self) -> int:
        """FLOPs of products per sample."""
        return sum(part.flops for part in self.passes if part.name == "forward")

    @property
    def training_flops(self) -> int:
        """FLOPs of products per sample, of all passes."""
        return sum(part.flops for part in self.passes)

    def traffic(self, precision: Precision, batch: int | None = None) -> float:
        """Bytes read and written per training sample: see :meth:`Pass.traffic`."""
        return sum(part.traffic(precision, batch) for part in self.passes)

    def saved_bytes(self, precision: Precision, batch: int = 1) -> int:
        """Bytes that this layer adds to the memory kept for the backward pass of ``batch`` samples, excluding the
        network's input."""
        return sum(saved.size(precision, batch) for saved in self.saved if not saved.is_input)


@dataclass(frozen=True)
class Network:
    """A network: its layers in the order of the forward pass. ``input``: shape of a sample. Raises UserError for
    layers of an unknown kind."""

    name: str
    input: Shape
    layers: tuple[Layer, ...]

    def __post_init__(self) -> None:
        for layer in self.layers:
            if layer.kind not in KINDS:
                raise UserError(
                    f"network {self.name}, layer {layer.name!r}: unknown kind {layer.kind!r}; "
                    f"choose {', '.join(KINDS)}"
                )

    def __iter__(self) -> Iterator[Layer]:
        return iter(self.layers)

    @cached_property
    def parameters(self) -> int:
        """Number of weights."""
        return sum(layer.parameters for layer in self.layers)

    @cached_property
    def forward_flops(self) -> int:
        """FLOPs of products per sample, forward."""
        return sum(layer.forward_flops for layer in self.layers)

    @cached_property
    def training_flops(self) -> int:
        """FLOPs of products per training sample: three times the forward pass, less the first layer's input
        gradient."""
        return sum(layer.training_flops for layer in self.layers)

    @property
    def input_elements(self) -> int:
        """Number of input elements per sample."""
        return math.prod(self.input)

    def saved_bytes(self, precision: Precision, batch: int = 1) -> int:
        """Bytes kept for the backward pass of ``batch`` samples, excluding the network's input: what
        ``torch.autograd.graph.saved_tensors_hooks`` counts, each piece of memory once, without weights."""
        return sum(layer.saved_bytes(precision, batch) for layer in self.layers)

    def traffic(self, precision: Precision, batch: int | None = None) -> float:
        """Lower limit of the memory traffic of a training sample, in bytes: every layer reads its inputs and
        writes its output once in every pass (Ibrahim et al. 2021, section V-A, assumptions 1 and 2)."""
        return sum(layer.traffic(precision, batch) for layer in self.layers)
