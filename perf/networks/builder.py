"""Builds a list of layers in the way that frameworks define networks: each method takes tensors and returns the
layer's output.

A tensor is a piece of memory: a layer that works in place returns the tensor it was given, so that memory
kept by two layers for their backward passes counts once.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from mlhpc.perf.networks.layer import Kind, Layer, Network, Pass, Saved, Shape, Type


@dataclass(eq=False)
class Tensor:
    """A tensor of one sample. ``shape``: with channels last; ``source``: the layer that computes the tensor;
    ``wants_gradient``: whether any earlier layer has weights; ``type``: type of the elements."""

    shape: Shape
    source: str
    wants_gradient: bool = True
    type: Type = "activation"

    @property
    def elements(self) -> int:
        """Number of elements of one sample."""
        return math.prod(self.shape)

    @property
    def channels(self) -> int:
        """Length of the last axis."""
        return self.shape[-1]


# Elementwise operations per output element, forward and backward. Multiplications, additions and comparisons count
# one each. Batch norm forward: sum, sum of squares (2), factor and summand; backward: normalised input (2), sum of
# gradients, of their products with it (2), and the linear combination of both (4).
_OPERATIONS: dict[Kind, tuple[int, int]] = {
    "batch norm": (5, 9),
    "activation": (1, 1),
    "bias": (1, 1),
    "sum": (1, 0),
    "dropout": (2, 1),
}


class Window(NamedTuple):
    """The window that a convolution slides along all sides of a tensor, in elements. ``padding`` None means
    "same": the sides keep their length at stride 1."""

    kernel: int
    stride: int = 1
    dilation: int = 1
    padding: int | None = None

    def sides(self, x: Tensor) -> Iterator[int]:
        """The sides of a convolution's output for ``x``."""
        reach = self.dilation * (self.kernel - 1)
        around = reach if self.padding is None else 2 * self.padding
        return ((side + around - reach - 1) // self.stride + 1 for side in x.shape[:-1])


class Kept(NamedTuple):
    """The needs of a layer's backward pass: the memory kept for it by the forward pass, and the number of elements
    that it reads besides the output's gradient."""

    saved: tuple[Saved, ...] = ()
    read: int = 0


_NOTHING = Kept()


class Builder:
    """Collects layers; :meth:`network` returns the network. ``fused``: a ReLU is part of the batch norm before
    it."""

    def __init__(self, name: str, sample_shape: Sequence[int], *, fused: bool = False) -> None:
        self.name, self.shape, self.fused = name, tuple(sample_shape), fused
        self.layers: list[Layer] = []
        self.input = Tensor(self.shape, "input", wants_gradient=False)
        self._kept: set[int] = set()
        self._tensors: list[Tensor] = [self.input]  # kept alive, because _kept holds their ids

    def network(self) -> Network:
        """The network that consists of the layers added so far."""
        return Network(self.name, self.shape, tuple(self.layers))

    # Matrix products

    def convolution(
        self, name: str, x: Tensor, filters: int, window: Window | int, *, bias: bool = False
    ) -> Tensor:
        """A convolution along all sides; an integer ``window`` is the kernel's width, and the sides keep their
        length."""
        window = Window(window) if isinstance(window, int) else window
        out = (*window.sides(x), filters)
        weights = window.kernel ** len(x.shape[:-1]) * x.channels * filters
        kind: Kind = "pointwise convolution" if window.kernel == 1 else "convolution"
        flops = 2 * math.prod(out[:-1]) * weights
        return self._product(name, kind, x, out, flops, weights, filters if bias else 0)

    def depthwise(self, name: str, x: Tensor, window: Window) -> Tensor:
        """A convolution of each channel separately, without bias."""
        out = (*window.sides(x), x.channels)
        weights = window.kernel ** len(x.shape[:-1]) * x.channels
        return self._product(
            name, "depthwise convolution", x, out, 2 * math.prod(out[:-1]) * weights, weights, 0
        )

    def transposed(self, name: str, x: Tensor, filters: int, kernel: int, *, stride: int) -> Tensor:
        """A transposed convolution, which multiplies the sides by ``stride``, without bias."""
        out = *(side * stride for side in x.shape[:-1]), filters
        weights = kernel ** len(x.shape[:-1]) * x.channels * filters
        flops = 2 * math.prod(x.shape[:-1]) * weights
        return self._product(name, "transposed convolution", x, out, flops, weights, 0)

    def dense(self, name: str, x: Tensor, units: int) -> Tensor:
        """A dense layer over the flattened ``x``, with bias."""
        weights = x.elements * units
        return self._product(name, "dense", x, (units,), 2 * weights, weights, units)

    # Everything else

    def batch_norm(self, name: str, x: Tensor, *, relu: bool = False) -> Tensor:
        """Batch norm over the training batch, optionally with an in-place ``relu`` after it; keeps its input."""
        statistics = Saved(f"{name} statistics", 2 * x.channels, "float32", once=True)
        out = Tensor(x.shape, name)
        kept = Kept((*self._keep(x), statistics), x.elements)
        self._add(name, "batch norm", [x], out, kept, parameters=2 * x.channels)
        if not relu:
            return out
        if self.fused:  # the sign is recomputed
            return self._add(f"{name} ReLU", "activation", [out], out, Kept((), x.elements))
        return self.relu(f"{name} ReLU", out)

    def relu(self, name: str, x: Tensor) -> Tensor:
        """An in-place ReLU, which keeps its output."""
        return self._add(name, "activation", [x], x, Kept(self._keep(x), x.elements))

    def activation(self, name: str, x: Tensor, *, keeps: str = "input") -> Tensor:
        """An activation that is not computed in place and keeps its "input" (leaky ReLU in TensorFlow) or its
        "output" (tanh)."""
        out = Tensor(x.shape, name, type=x.type)
        saved = self._keep(x if keeps == "input" else out)
        return self._add(name, "activation", [x], out, Kept(saved, x.elements))

    def max_pool(
        self, name: str, x: Tensor, size: int, *, stride: int, padding: int = 0, keeps: str = "indices"
    ) -> Tensor:
        """Max pooling. It keeps its input, and either the "indices" of the maxima in 8 bytes each (PyTorch) or its
        "output" (TensorFlow), or only the "places" of the maxima in one byte each
        (``cosmoflow/cpu/pooled.py``)."""
        sides = ((side + 2 * padding - size) // stride + 1 for side in x.shape[:-1])
        out = Tensor((*sides, x.channels), name)
        if keeps == "places":
            saved: tuple[Saved, ...] = (Saved(f"{name} places", out.elements, "uint8"),)
        elif keeps == "indices":
            saved = (*self._keep(x), Saved(f"{name} indices", out.elements, "int64"))
        else:
            saved = (*self._keep(x), *self._keep(out))
        operations = (size ** len(x.shape[:-1]) - 1) * out.elements, out.elements
        read = x.elements + out.elements if keeps == "output" else out.elements
        return self._add(name, "pooling", [x], out, Kept(saved, read), operations=operations)

    def mean_pool(self, name: str, x: Tensor, sides: Shape = ()) -> Tensor:
        """Mean pooling over areas, to an output with these ``sides``; by default, one mean per channel. PyTorch
        keeps the input of several areas, although it needs only the shape; for a single area it keeps nothing."""
        out = Tensor((*sides, x.channels), name)
        saved = self._keep(x) if math.prod(sides) > 1 else ()
        return self._add(name, "pooling", [x], out, Kept(saved), operations=(x.elements, x.elements))

    def bias(self, name: str, x: Tensor) -> Tensor:
        """Adds a bias to every channel."""
        return self._add(name, "bias", [x], Tensor(x.shape, name), parameters=x.channels)

    def affine(self, name: str, x: Tensor) -> Tensor:
        """Multiplies every channel by a factor and adds a bias."""
        kept = Kept(self._keep(x))
        return self._add(name, "bias", [x], Tensor(x.shape, name), kept, parameters=2 * x.channels)

    def add(self, name: str, x: Tensor, y: Tensor) -> Tensor:
        """``x += y``, in place. The backward pass propagates the gradient unchanged."""
        return self._add(name, "sum", [x, y], x)

    def concatenate(self, name: str, *tensors: Tensor) -> Tensor:
        """Concatenation along the channels."""
        channels = sum(tensor.channels for tensor in tensors)
        return self._add(name, "concatenation", tensors, Tensor((*tensors[0].shape[:-1], channels), name))

    def expand(self, x: Tensor, shape: Shape) -> Tensor:
        """``x`` repeated to the sides of ``shape``, as a view; adds no layer."""
        return self._alias(x, (*shape[:-1], x.channels), x.type)

    def to_float32(self, x: Tensor) -> Tensor:
        """``x`` converted to float32; everything computed from it stays in float32, even in mixed precision. Adds
        no layer."""
        return self._alias(x, x.shape, "float32")

    def dropout(self, name: str, x: Tensor) -> Tensor:
        """Dropout, which keeps its mask (in PyTorch one byte per element on GPUs, the input's type on CPUs)."""
        mask = Kept((Saved(f"{name} mask", x.elements),))
        return self._add(name, "dropout", [x], Tensor(x.shape, name), mask)

    def cross_entropy(self, x: Tensor, *, labels: int) -> None:
        """Cross entropy of logits ``x`` in float32; ``labels``: number of integer labels. Keeps the logarithms of
        probabilities."""
        kept = Kept((Saved("log softmax", x.elements, "float32"), Saved("labels", labels, "int64")))
        self._loss(x, kept, forward=5, backward=3)

    def squared_error(self, x: Tensor) -> None:
        """Squared error of predictions ``x`` in float32; keeps the differences."""
        kept = Kept((Saved("differences", x.elements, "float32"),))
        self._loss(x, kept, forward=3, backward=2)

    # Bookkeeping

    def _product(
        self, name: str, kind: Kind, x: Tensor, out: Shape, flops: int, weights: int, biases: int
    ) -> Tensor:
        y = Tensor(out, name, type=x.type)
        moved = x.elements + y.elements
        biased = y.elements if biases else 0
        passes = [Pass("forward", flops, biased, moved, weights + biases)]
        if x.wants_gradient:
            passes.append(Pass("input gradient", flops, 0, moved, weights))
        passes.append(Pass("weight gradient", flops, biased, moved, weights + biases))
        saved = self._keep(x)
        self._tensors.append(y)
        layer = Layer(name, kind, (x.shape,), out, tuple(passes), weights + biases, saved)
        self.layers.append(layer)
        return y

    def _add(
        self,
        name: str,
        kind: Kind,
        inputs: Sequence[Tensor],
        out: Tensor,
        kept: Kept = _NOTHING,
        *,
        parameters: int = 0,
        operations: tuple[int, int] | None = None,
    ) -> Tensor:
        """Adds a layer without matrix products, in place if ``out`` is one of ``inputs``, and returns ``out``. Its
        only backward pass reads the output's gradient and what is ``kept``, and writes the inputs' gradients; sums
        and concatenations pass the gradient on. ``operations``: forward and backward operations; None: as in
        ``_OPERATIONS``."""
        if operations is None:
            of_forward, of_backward = _OPERATIONS.get(kind, (0, 0))
            operations = of_forward * out.elements, of_backward * out.elements
        forward, backward = operations
        read = sum(x.elements for x in inputs)
        moved = 0 if kind in ("sum", "concatenation") else out.elements + read + kept.read
        passes = (
            Pass("forward", 0, forward, read + out.elements, parameters),
            Pass("input gradient", 0, backward, moved, parameters),
        )
        self._tensors.append(out)
        shapes, in_place = tuple(x.shape for x in inputs), any(x is out for x in inputs)
        self.layers.append(Layer(name, kind, shapes, out.shape, passes, parameters, kept.saved, in_place))
        return out

    def _loss(self, x: Tensor, kept: Kept, *, forward: int, backward: int) -> None:
        """Adds the loss, with ``forward`` and ``backward`` operations per element of ``x``."""
        operations = forward * x.elements, backward * x.elements
        self._add("loss", "loss", [x], Tensor((), "loss"), kept, operations=operations)

    def _alias(self, x: Tensor, shape: Shape, elements: Type) -> Tensor:
        out = Tensor(shape, x.source, type=elements)
        self._tensors.append(out)
        return out

    def _keep(self, x: Tensor) -> tuple[Saved, ...]:
        if id(x) in self._kept:
            return ()
        self._kept.add(id(x))
        return (Saved(x.source, x.elements, x.type, is_input=x is self.input),)
