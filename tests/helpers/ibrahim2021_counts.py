"""Memory, traffic and operations as Ibrahim et al. 2021 counts them, to compare the networks' layers with its
figures."""

from typing import NamedTuple

from mlhpc.perf.networks.layer import PRODUCTS, Kind, Layer, Network


class CountingRule(NamedTuple):
    """How a figure of activation memory in Ibrahim et al. 2021 can be counted: ``kinds`` of layers whose
    outputs are counted, how many ``times``, and whether the ``input`` is."""

    words: str
    kinds: tuple[Kind, ...]
    times: int
    input: bool


_CONVOLUTIONS: tuple[Kind, ...] = (
    "convolution",
    "pointwise convolution",
    "depthwise convolution",
    "transposed convolution",
)
PAPER_RULES: dict[str, CountingRule] = {
    "cosmoflow": CountingRule(
        "outputs of convolutions, leaky ReLUs and poolings and their gradients (twice each), and the input",
        ("convolution", "activation", "pooling"),
        2,
        True,
    ),
    "deepcam": CountingRule(
        "outputs of all layers once: convolutions, batch norms, ReLUs, sums and concatenations",
        (*_CONVOLUTIONS, "batch norm", "activation", "sum", "concatenation"),
        1,
        False,
    ),
    "resnet50": CountingRule(
        "outputs of convolutions and batch norms once (ReLUs in place)",
        (*_CONVOLUTIONS, "batch norm"),
        1,
        False,
    ),
}
"""By benchmark. CosmoFlow is counted in the reference's order of layers (``pool_first=False``)."""
PAPER_ACTIVATIONS_GIB = {"cosmoflow": 0.72, "deepcam": 2.9, "resnet50": 0.042}
"""GiB a sample in 16 bits: Ibrahim et al. 2021, section V-A."""


def paper_activations(network: Network, rule: CountingRule) -> int:
    """Bytes of activations a sample in 16 bits by ``rule``."""
    counted = sum(layer.output_elements for layer in network if layer.kind in rule.kinds)
    return 2 * (rule.times * counted + (network.input_elements if rule.input else 0))


def paper_memory(
    network: Network, batch: int, activations: float, *, sample_bytes: float | None = None
) -> float:
    """Bytes of model + batch · (input + activations), all in 16 bits (Ibrahim et al. 2021, section IV).
    ``activations`` and ``sample_bytes`` (default: 2 an element) are of one sample."""
    of_input = 2 * network.input_elements if sample_bytes is None else sample_bytes
    return 2 * network.parameters + batch * (of_input + activations)


def hbm_limit(activations: float) -> float:
    """Bytes of memory traffic a sample at the least: activations written once and read once, the model's
    traffic ignored (Ibrahim et al. 2021, sections V-A and VII)."""
    return 2 * activations


def padded_training_flops(network: Network, multiple: int = 8) -> int:
    """Training FLOPs with the channels of every matrix product filled up to a ``multiple``, as tensor cores
    want them in 16 bits (NVIDIA, Mixed Precision Training guide)."""
    return sum(_padded(layer, multiple) for layer in network if layer.kind in PRODUCTS)


def _padded(layer: Layer, multiple: int) -> int:
    if layer.kind == "depthwise convolution":  # no matrix product over channels
        return layer.training_flops
    inputs = layer.input_elements if layer.kind == "dense" else layer.inputs[0][-1]
    outputs = layer.output[-1]
    filled = (-(-inputs // multiple) * multiple) * (-(-outputs // multiple) * multiple)
    return layer.training_flops * filled // (inputs * outputs)
