"""What both implementations of the CosmoFlow network share: two constants, and the check of sample shapes."""

from mlhpc.benchmarks.cosmoflow import Network
from mlhpc.errors import UserError

LEAK = 0.3  # slope of the leaky ReLU below zero: the Keras default, as in the reference
SCALE = 1.2  # targets are in [-1, 1], but tanh reaches -1 and 1 only at infinity


def require_divisible(network: Network, sample_shape: tuple[int, ...]) -> None:
    """Raise UserError if the sides of a sample cannot be halved once per block."""
    *sides, _channels = sample_shape
    if len(sides) != 3 or any(side % 2**network.conv_layers for side in sides):
        raise UserError(
            f"sample shape {list(sample_shape)} must be three sides, each a multiple of "
            f"{2**network.conv_layers} (for {network.conv_layers} blocks), followed by the number of channels"
        )
