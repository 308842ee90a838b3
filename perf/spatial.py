"""Spatial parallelism: several accelerators compute one sample, and exchange the borders of their parts (halos).

Convolutions are divided, everything else is not (paper 001, section 4.2.1: "Dense layers not split" in its Mesh
TensorFlow implementation; each rank of a group reads the whole sample).
"""

import math
from dataclasses import dataclass

from mlhpc.perf.networks.layer import Layer, Network

CONVOLUTIONS = ("convolution", "depthwise convolution", "pointwise convolution", "transposed convolution")


@dataclass(frozen=True)
class Halo:
    """What one rank sends in the forward pass of one sample, and in how many messages; the backward pass repeats
    it for the gradients of all inputs but the network's."""

    elements: int
    messages: int
    backward_elements: int
    backward_messages: int


def halo(network: Network, splits: tuple[int, ...], kernel: int) -> Halo:
    """Of an inner rank where the first axes of the space are divided into ``splits`` parts. Each axis in turn
    sends ``kernel // 2`` planes both ways, with the corners that earlier axes have brought."""
    width = kernel // 2
    elements = messages = first_elements = first_messages = 0
    convolutions = [layer for layer in network if layer.kind == "convolution"]
    for number, layer in enumerate(convolutions):
        sent, count = _of_layer(layer, splits, width)
        elements, messages = elements + sent, messages + count
        if number == 0:
            first_elements, first_messages = sent, count
    return Halo(elements, messages, elements - first_elements, messages - first_messages)


def _of_layer(layer: Layer, splits: tuple[int, ...], width: int) -> tuple[int, int]:
    *space, channels = layer.inputs[0]
    part = [size / splits[n] if n < len(splits) else float(size) for n, size in enumerate(space)]
    elements, messages = 0.0, 0
    for axis, ways in enumerate(splits):
        if ways == 1 or width == 0:
            continue
        plane = math.prod(p for n, p in enumerate(part) if n != axis)
        elements += 2 * width * plane * channels
        messages += 2
        part[axis] += 2 * width
    return round(elements), messages


def splits_of(parts: int, axes: int) -> tuple[int, ...]:
    """How Fugaku's runs divided a sample: 4 along the first axis, then 4 along the next (paper 001: 4x1, 4x4)."""
    found: list[int] = []
    while parts > 1 and len(found) < axes - 1:
        ways = min(parts, 4)
        found.append(ways)
        parts //= ways
    if parts > 1:
        found.append(parts)
    return tuple(found) or (1,)
