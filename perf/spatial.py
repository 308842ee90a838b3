"""Spatial parallelism: several accelerators compute one sample, and exchange the borders of their parts (halos).

Only convolutions are divided (Farrell et al. 2021, section 4.2.1: "Dense layers not split" in its Mesh
TensorFlow implementation; each rank of a group reads the whole sample). :func:`halo` describes an inner rank of a
large group; :class:`Exchange` and :func:`saved_bytes` are exact for this suite's CosmoFlow (``training.spatial``).
"""

import math
from dataclasses import dataclass

from mlhpc.benchmarks.schema import Run
from mlhpc.common.data.slabs import SlabPlan, plan_slabs
from mlhpc.errors import UserError
from mlhpc.perf.machines import Machine
from mlhpc.perf.networks.layer import Layer, Network, Precision, activation_bytes
from mlhpc.perf.networks.registry import network_of

CONVOLUTIONS = ("convolution", "depthwise convolution", "pointwise convolution", "transposed convolution")
_MOST_PARTS = 16
"""Largest published number of accelerators per sample (Farrell et al. 2021: 4 and 16)."""


@dataclass(frozen=True)
class Halo:
    """The elements and messages that one rank sends in the forward pass of one sample. The backward pass sends the
    same for the gradients of all layers' inputs except the first layer's."""

    elements: int
    messages: int
    backward_elements: int
    backward_messages: int


def halo(network: Network, splits: tuple[int, ...], kernel: int) -> Halo:
    """The halo of an inner rank whose sample's first axes are divided into ``splits`` parts. Along
    each axis in turn, a rank sends ``kernel // 2`` planes in both directions, with the corners that it received
    along earlier axes."""
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


def divide(batch: int, accelerators: int, plan: SlabPlan | None = None) -> tuple[int, int]:
    """Return the number of accelerators that share a sample, and the number of samples of each such group;
    ``plan`` determines them if passed. Raises UserError if the batch cannot be divided evenly."""
    if plan is not None:
        groups = accelerators // plan.size
        if accelerators % plan.size or batch % groups:
            raise UserError(
                f"training.spatial={list(plan.parts)}: {accelerators} accelerators cannot form "
                f"groups of {plan.size} with equal shares of {batch} samples; use another number of nodes"
            )
        return plan.size, batch // groups
    if batch >= accelerators:
        if batch % accelerators:
            raise UserError(
                f"a global batch of {batch} must be a multiple of the {accelerators} accelerators"
            )
        return 1, batch // accelerators
    together = accelerators // batch
    if accelerators % batch or together > _MOST_PARTS or together & (together - 1):
        raise UserError(
            f"{accelerators} accelerators cannot share {batch} samples: only a power of two, at most "
            f"{_MOST_PARTS}, can share a sample; use fewer nodes or a larger batch"
        )
    return together, 1


def splits_of(parts: int, axes: int) -> tuple[int, ...]:
    """The number of parts of a sample along each axis, as in Fugaku's runs: 4 along the first axis, then 4 along
    the next (Farrell et al. 2021: 4x1, 4x4)."""
    ways_by_axis: list[int] = []
    while parts > 1 and len(ways_by_axis) < axes - 1:
        ways = min(parts, 4)
        ways_by_axis.append(ways)
        parts //= ways
    if parts > 1:
        ways_by_axis.append(parts)
    return tuple(ways_by_axis) or (1,)


def halo_seconds(machine: Machine, run: Run, nodes: int, parts: int, local_batch_size: int) -> float:
    """Seconds per step that halo exchange takes if ``parts`` accelerators compute ``local_batch_size`` samples
    together, over the links within a node if the group fits in a node. Raises UserError if the machine file has no
    bandwidth between nodes."""
    if parts == 1:
        return 0.0
    size = 4 if run.training.precision == "float32" else 2
    kernel = int(getattr(run.network, "conv_kernel", 3))
    plan = slab_plan(run)
    splits = plan.parts if plan else splits_of(parts, len(run.data.sample_shape) - 1)
    sent = halo(network_of(run), splits, kernel)
    inside = parts <= machine.per_node or nodes == 1
    rate = machine.get("links.peers") if inside else None
    rate = rate or machine.need("network.bandwidth", "an exchange of halos between nodes")
    delay = machine.get("network.latency") or 0.0
    elements = sent.elements + sent.backward_elements
    return local_batch_size * (elements * size / rate + (sent.messages + sent.backward_messages) * delay)


@dataclass(frozen=True)
class Exchange:
    """Elements of one sample that all ranks of a group together send in a forward pass: the halos of the ``first``
    convolution, whose input is always float32, the halos of the ``others``, and the slabs when they are
    ``gathered``."""

    first: int
    others: int
    gathered: int

    def bytes(self, precision: Precision, *, training: bool) -> int:
        """Bytes per sample. In ``training``, the backward pass also sends the gradients of all halos except the
        first, since the network's input needs no gradient. The gradients of gathered slabs are not sent, since
        every rank computes the whole gradient."""
        width = activation_bytes(precision)
        backward = self.others if training else 0
        return 4 * self.first + width * (self.others + self.gathered + backward)


def exchange(network: Network, plan: SlabPlan, kernel: int) -> Exchange:
    """The exchange of a group with the slabs of ``plan``. Axes are exchanged in turn, each including the halos of
    the previous axes."""
    sent = []
    levels = convolutions(network)[: plan.split_levels]
    for level, layer in enumerate(levels):
        channels = layer.inputs[0][-1]
        sent.append(channels * sum(_sent(plan, rank, level, kernel) for rank in range(plan.size)))
    whole = math.prod(ends[-1] >> plan.split_levels for ends in plan.bounds)
    return Exchange(sent[0], sum(sent[1:]), (plan.size - 1) * whole * levels[-1].output[-1])


def convolutions(network: Network) -> list[Layer]:
    """The layers that are divided among ranks."""
    return [layer for layer in network if layer.kind in CONVOLUTIONS]


def _sent(plan: SlabPlan, rank: int, level: int, kernel: int) -> int:
    """Voxels that ``rank`` sends before a convolution of width ``kernel``, after ``level`` halvings of the
    sides."""
    to_following, to_previous = (kernel - 1) // 2, kernel // 2
    sides, voxels = list(plan.shape(rank, level)), 0
    for axis, parts in enumerate(plan.parts):
        if parts > 1:
            plane = math.prod(side for other, side in enumerate(sides) if other != axis)
            voxels += to_following * plane * (plan.neighbour(rank, axis, 1) is not None)
            voxels += to_previous * plane * (plan.neighbour(rank, axis, -1) is not None)
            sides[axis] += kernel - 1
    return voxels


def saved_bytes(
    network: Network, plan: SlabPlan, kernel: int, rank: int, precision: Precision, batch: int = 1
) -> int:
    """Bytes that ``rank`` of a group keeps for the backward pass of ``batch`` samples, including its part of
    the input: the same bytes that ``torch.autograd.graph.saved_tensors_hooks`` counts, each piece of memory once,
    without weights and their 16-bit copies.

    The input of a convolution is kept with its halo and the zeros around the volume; once the slabs have been
    gathered, every rank keeps as much as without division.
    """
    part, whole = math.prod(plan.shape(rank)), math.prod(ends[-1] for ends in plan.bounds)
    width, block, total = activation_bytes(precision), -1, 0
    for layer in network:
        if layer.kind in CONVOLUTIONS:
            block += 1
            divided = block < plan.split_levels
            sides = (
                [side + kernel - 1 for side in plan.shape(rank, block)] if divided else layer.inputs[0][:-1]
            )
            total += math.prod(sides) * layer.inputs[0][-1] * width * batch
            continue
        if layer.kind == "dense":
            divided = False
        kept = layer.saved_bytes(precision, batch)
        total += kept * part // whole if divided else kept
    return total


@dataclass(frozen=True)
class Spatial:
    """A run whose samples are divided into ``parts``. ``halo_bytes``: bytes that all ranks send in an epoch
    including its evaluation, as in ``result.json``. ``saved_bytes``: the most that any rank keeps for the backward
    pass."""

    parts: tuple[int, ...]
    halo_bytes: int
    saved_bytes: int


def slab_plan(run: Run) -> SlabPlan | None:
    """The slabs of ``run``'s samples; None if they are not divided. Raises UserError for slabs that are too
    thin."""
    parts = getattr(run.training, "spatial", (1, 1, 1))
    if math.prod(parts) == 1:
        return None
    depth, height, width = run.data.sample_shape[:3]
    kernel, levels = int(getattr(run.network, "conv_kernel", 3)), int(getattr(run.network, "conv_layers", 5))
    return plan_slabs((depth, height, width), parts, levels, kernel)


def spatial_of(run: Run, local_batch_size: int, *, gpu: bool = True) -> Spatial | None:
    """The exchanges and memory of ``run``; None if its samples are not divided. ``local_batch_size``: samples of a
    group per step. ``gpu``: ranks compute on GPUs; otherwise on CPUs, whose kernels keep less once the slabs are
    gathered."""
    if (plan := slab_plan(run)) is None:
        return None
    network = network_of(run, cpu_kernels_from=None if gpu else plan.split_levels)
    precision = run.training.precision
    kernel = int(getattr(run.network, "conv_kernel", 3))
    sent, batch = exchange(network, plan, kernel), run.hyperparameters.global_batch_size
    trained = run.data.train_samples // batch * batch
    halos = trained * sent.bytes(precision, training=True)
    halos += run.data.eval_samples * sent.bytes(precision, training=False)
    kept = [
        saved_bytes(network, plan, kernel, rank, precision, local_batch_size) for rank in range(plan.size)
    ]
    return Spatial(plan.parts, halos, max(kept))
