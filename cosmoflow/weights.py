"""The network's weights in a framework-neutral form and in the form of either framework.

The neutral form is the reference's: one array per weight, in the order of the layers (kernel, then bias). Kernels
of convolutions are [depth, height, width, in, out]; kernels of dense layers are [in, out].
"""

import zlib
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mlhpc.benchmarks.cosmoflow import CosmoFlow, Network
from mlhpc.errors import UserError

Array = npt.NDArray[np.float32]

LAYOUT = "channels last, kernels [..., in, out]"
"""Name of the framework-neutral layout in safetensors files."""

_TO_PYTORCH = {5: (4, 3, 0, 1, 2), 2: (1, 0), 1: (0,)}
_FROM_PYTORCH = {5: (2, 3, 4, 1, 0), 2: (1, 0), 1: (0,)}


def names(network: Network) -> list[str]:
    """The names of the weights in a safetensors file, in the order of the layers."""
    layers = [f"conv{block}" for block in range(network.conv_layers)]
    layers += [f"dense{layer}" for layer in range(len(network.dense_units))]
    return [f"{layer}/{kind}" for layer in [*layers, "output"] for kind in ("kernel", "bias")]


def pytorch_names(network: Network) -> list[str]:
    """The names of the weights in ``CosmoFlowNet.state_dict()``, in the order of ``names``."""
    weight_names = []
    for block in range(network.conv_layers):
        weight_names += [f"blocks.{block}.convolution.weight", f"blocks.{block}.bias"]
    for layer in range(len(network.dense_units)):
        weight_names += [f"hidden.{layer}.weight", f"hidden.{layer}.bias"]
    return [*weight_names, "last.weight", "last.bias"]


def to_pytorch(weights: Sequence[Array], network: Network) -> dict[str, Array]:
    """Convert the neutral ``weights`` to PyTorch's names and layouts. Kernels become [out, in, depth, height,
    width] and [out, in]."""
    named = zip(pytorch_names(network), weights, strict=True)
    return {name: np.ascontiguousarray(w.transpose(_TO_PYTORCH[w.ndim])) for name, w in named}


def from_pytorch(state: Mapping[str, Array], network: Network) -> list[Array]:
    """The inverse of ``to_pytorch``. Raises KeyError if a weight is missing. Kernels become [depth, height,
    width, in, out] and [in, out]."""
    weights = [np.asarray(state[name]) for name in pytorch_names(network)]
    return [np.ascontiguousarray(w.transpose(_FROM_PYTORCH[w.ndim])) for w in weights]


def require_weights(run: CosmoFlow) -> None:
    """Raise UserError if ``training.weights`` is not a file with weights of this network."""
    if not run.training.weights:
        return
    path = Path(run.training.weights)
    if not path.is_file():
        raise UserError(f"training.weights={path} does not exist; write it with mlhpc weights RUN --out FILE")
    wanted = shapes(run.network, run.data.sample_shape)
    actual = {name: w.shape for name, w in zip(wanted, load(path, run.network), strict=True)}
    if odd := [name for name, shape in wanted.items() if actual[name] != shape]:
        raise UserError(
            f"training.weights={path}: {odd[0]} has shape {list(actual[odd[0]])}, not "
            f"{list(wanted[odd[0]])}; use weights for the same network and sample_shape"
        )


def shapes(network: Network, sample_shape: Sequence[int]) -> dict[str, tuple[int, ...]]:
    """The shape of each weight in the neutral form, by name, in the order of the layers."""
    *sides, channels = sample_shape
    weight_shapes: list[tuple[int, ...]] = []
    for block in range(network.conv_layers):
        filters = network.conv_filters * 2**block
        weight_shapes += [(*(network.conv_kernel,) * len(sides), channels, filters), (filters,)]
        channels = filters
    features = channels * prod(side // 2**network.conv_layers for side in sides)
    for units in (*network.dense_units, network.targets):
        weight_shapes += [(features, units), (units,)]
        features = units
    return dict(zip(names(network), weight_shapes, strict=True))


def load(path: Path, network: Network) -> list[Array]:
    """The neutral weights in a safetensors file: kernels are [depth, height, width, in, out] and [in, out]. Raises
    UserError if the file is damaged or from a different network."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="np") as file:
            weights: dict[str, Array] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            facts = file.metadata() or {}
    except (OSError, SafetensorError, TypeError, AttributeError) as error:  # the last two: types NumPy lacks
        raise UserError(f"{path} cannot be read as safetensors ({error}); export the weights again") from None
    # Safetensors has no checksums of its own; files written by other tools have none, but may have other metadata.
    if facts.keys() & {"benchmark", "layout", "crc32"} and facts.get("crc32") != checksum(weights):
        raise UserError(f"{path} is damaged: its checksum does not match; export the weights again")
    wanted = names(network)
    if sorted(weights) != sorted(wanted):
        odd = sorted(set(weights) ^ set(wanted))
        raise UserError(
            f"{path} has weights for a different network ({', '.join(odd[:3])}); use weights for this preset"
        )
    if odd := [
        name for name in wanted if weights[name].dtype != np.float32 or not np.isfinite(weights[name]).all()
    ]:
        raise UserError(f"{path}: {odd[0]} has non-finite or non-float32 values; export the weights again")
    return [weights[name] for name in wanted]


def checksum(tensors: Mapping[str, Array]) -> str:
    """The CRC-32 of the names, types, shapes and values of tensors of any shape; the metadata of a weight file
    stores it as ``crc32``."""
    crc = 0
    for name, tensor in sorted(tensors.items()):
        crc = zlib.crc32(f"{name} {tensor.dtype.str} {tensor.shape}".encode(), crc)
        crc = zlib.crc32(tensor.tobytes(), crc)
    return f"{crc:08x}"
