"""Memory of a training step on an accelerator, the largest batch that fits, and the optimizer's update. The model
follows a step of the suite through its passes and counts what PyTorch's MemTracker counts.
"""

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from mlhpc.benchmarks.schema import Run
from mlhpc.perf.networks.layer import Layer, Network, Precision, activation_bytes
from mlhpc.perf.networks.registry import network_of

STATES = {"none": 0, "sgd": 1, "lars": 1, "adam": 2, "adamw": 2, "lamb": 2}
"""Float32 values that an optimizer keeps per weight: momentum, or means of gradients and of their squares."""

OPERATIONS = {"none": 0, "sgd": 6, "lars": 10, "adam": 14, "adamw": 15, "lamb": 20}
"""Elementwise operations per weight: the formulas of PyTorch's documentation for SGD with momentum and weight
decay, of You et al. 2017 (LARS), Kingma and Ba 2015 (Adam), Loshchilov and Hutter 2019 (AdamW), You et al.
2020 (LAMB). Operations done once per layer or for all weights are not counted."""

RESERVED = 2.0**30
"""Bytes of an accelerator's memory that are not available to a step's tensors: half is the CUDA context with its
kernels (on an A100 a process held 9.20 GiB, PyTorch's tensors 8.72:
huggingface.co/codellama/CodeLlama-7b-hf/discussions/ 24); the rest is an allowance for NCCL's buffers, workspaces
of convolutions and fragmentation, for which no figures are known."""

WORKSPACES = 2 * 2**25
"""Bytes of cuBLAS's workspaces, one for the forward pass and one for autograd's thread: 32 MiB each on Hopper and
later, a quarter of that before (PyTorch, aten/src/ATen/cuda/CublasHandlePool.cpp)."""


@dataclass(frozen=True)
class Memory:
    """Bytes in one accelerator's memory for a local batch, and their peak.

    ``parameters`` are the float32 weights and batch norm's running statistics; ``copies`` the 16-bit weights of
    mixed precision. ``activations`` are kept by the forward pass for the backward pass. ``gradients`` are complete
    only at the end of the backward pass, when the activations have been freed, so the peak is less than the sum.
    ``peak_at``: the layer with the peak in its backward pass, or "optimizer". ``evaluation``: the peak of an
    evaluation on a GPU.
    """

    batch: int
    parameters: int
    copies: int
    gradients: int
    optimizer: int
    input: int
    activations: int
    peak: int
    peak_at: str
    evaluation: int = 0

    @property
    def needed(self) -> int:
        """The larger peak of a step and an evaluation."""
        return max(self.peak, self.evaluation)


def memory_of(run: Run, batch: int, *, gpu: bool = True) -> Memory:
    """The memory of a step of ``run`` with ``batch`` samples per backward pass on one accelerator, a GPU or
    (``gpu`` False) a CPU. The peaks on a GPU include ``WORKSPACES`` if the network has dense layers, and the batch
    that captured steps and evaluations read, and as much memory for the next one."""
    optimizer = str(getattr(run.hyperparameters, "opt_name", "none")).lower()
    # The int16 counts are sent to the device and kept; their logarithm, the network's input, is computed on a GPU
    # directly in the network's precision.
    counts = getattr(run.loading, "sample_dtype", "") == "int16"
    extra = (-2 if gpu and run.training.precision != "float32" else 2) if counts else 0
    accumulates = run.backward_passes > 1
    # The suite's kernels do not compute slabs, where most of a divided sample's memory is.
    on_slabs = getattr(run.training, "spatial_size", 1) > 1
    network = network_of(run, gpu=gpu and not on_slabs, cpu_kernels_from=None if gpu or on_slabs else 0)
    memory = step_memory(network, batch, run.training.precision, optimizer, extra_input=extra, gpu=gpu,
                         accumulates=accumulates)  # fmt: skip
    if not gpu:
        return memory
    evaluated, largest = run.training.eval_batch_size, max(batch, run.training.eval_batch_size)
    forward = forward_memory(network, evaluated, run.training.precision) + evaluated * memory.input // batch
    evaluation = memory.parameters + memory.optimizer + forward
    workspaces = WORKSPACES if any(layer.kind == "dense" for layer in network) else 0
    if run.graphs == "off":
        return replace(memory, peak=memory.peak + workspaces, evaluation=evaluation + workspaces)
    # A graph's workspaces are made where its first dense layer is, in an evaluation after the peak.
    delivered = (2 if counts else 4) * network.input_elements
    peak = memory.peak + workspaces + (2 * largest - batch) * delivered
    return replace(memory, peak=peak, evaluation=evaluation + (2 * largest - evaluated) * delivered)


def forward_memory(network: Network, batch: int, precision: Precision) -> int:
    """Bytes at the peak of a forward pass of ``batch`` samples from which nothing is kept, without the network's
    input: the 16-bit weights used so far, a layer's inputs and results, with the places of maxima, and the input
    of its block, a convolution and what follows, to which the block's caller still refers."""
    width, peak, copies, block = activation_bytes(precision), 0, 0, 0
    for layer in network.layers:
        inputs = layer.input_elements if _reaches_weights(layer) else 0  # the first layer's is the network's
        if layer.forward_flops:
            copies += 2 * layer.parameters if precision != "float32" else 0
            block, inputs = inputs, 0  # the same
        places = sum(each.size(precision, batch) for each in layer.saved if each.type in ("uint8", "int64"))
        results = 0 if layer.in_place else layer.output_elements
        peak = max(peak, copies + places + batch * width * (block + inputs + results))
    return peak


def step_memory(
    network: Network,
    batch: int,
    precision: Precision = "float32",
    optimizer: str = "sgd",
    *,
    extra_input: int = 0,
    gpu: bool = True,
    accumulates: bool = False,
) -> Memory:
    """The memory of one training step with ``batch`` samples. ``optimizer``: one of ``STATES``.
    ``extra_input``: bytes per input element in addition to the network's float32. ``gpu``: on a GPU, LAMB updates
    all weights at once, with two copies of them; on a CPU, in small parts. ``accumulates``: the gradients of
    earlier backward passes exist from the start, and a layer's new ones are added to them.

    Walks backward through the layers: the backward pass of a layer needs the weights and the optimizer's
    state, the saved tensors and 16-bit weights of this layer and those before it, the weight gradients of this
    layer and those after it (a GPU casts those of convolutions together, at the end), and the gradients of its
    output and inputs. Not included: memory reserved by libraries (CUDA contexts, cuDNN's workspaces),
    fragmentation, and gradient buckets for all-reduce.
    """
    width, mixed = activation_bytes(precision), precision != "float32"
    # A batch norm has as many running means and variances as weights; its count of batches is negligible.
    statistics = sum(layer.parameters for layer in network if layer.kind == "batch norm")
    parameters = 4 * (network.parameters + statistics)
    copies = 2 * sum(layer.parameters for layer in network if layer.forward_flops) if mixed else 0
    state = 4 * STATES[optimizer] * network.parameters
    given = batch * network.input_elements * (4 + extra_input + (2 if mixed else 0))
    output = batch * network.layers[-1].input_elements * 4
    static = parameters + state + given + output

    kept = network.saved_bytes(precision, batch) + copies
    peak, peak_at, gradients, narrow = 0, "", 0, 0
    for layer in reversed(network.layers):
        gradients += 4 * layer.parameters
        copied = 2 * layer.parameters if mixed and layer.forward_flops else 0
        narrow += copied if gpu and "convolution" in layer.kind else 0
        moving = 0 if layer.kind in ("sum", "concatenation") else layer.input_elements
        flowing = batch * width * (layer.output_elements + (moving if _reaches_weights(layer) else 0))
        held = 4 * (network.parameters + layer.parameters) if accumulates else gradients - narrow
        if static + kept + held + flowing > peak:
            peak, peak_at = static + kept + held + flowing, layer.name
        kept -= layer.saved_bytes(precision, batch) + copied
    of_lamb = 8 * network.parameters if optimizer == "lamb" and gpu else 0
    at_update = parameters + state + gradients + of_lamb
    if at_update > peak:
        peak, peak_at = at_update, "optimizer"
    activations = network.saved_bytes(precision, batch) + output
    return Memory(batch, parameters, copies, gradients, state, given, activations, peak, peak_at)


def largest_batch(needed: Callable[[int], float], capacity: float) -> int:
    """The largest batch whose ``needed(batch)`` bytes are at most ``capacity``; ``needed`` grows with the batch.
    0 if not even one sample fits."""
    more = 1
    while needed(more) <= capacity:
        more *= 2
    return bisect_right(range(1, more), capacity, key=needed)


def power_of_two(batch: int) -> int:
    """The largest power of two that is at most ``batch``."""
    return 1 << (batch.bit_length() - 1)


def _reaches_weights(layer: Layer) -> bool:
    """Return whether the layer's input needs a gradient: true for all layers except the first."""
    return any(part.name == "input gradient" for part in layer.passes)


class Update(NamedTuple):
    """Elementwise ``operations`` of an update, and the lower limit of its memory traffic in ``bytes``."""

    operations: int
    bytes: int


def update_of(part: Layer | Network, optimizer: str) -> Update:
    """The optimizer's update of a network's or a layer's weights, for an optimizer in ``memory.STATES``. It reads
    weights, gradients and state once, and writes weights and state once."""
    if optimizer == "none":
        return Update(0, 0)
    return Update(OPERATIONS[optimizer] * part.parameters, 4 * (3 + 2 * STATES[optimizer]) * part.parameters)
