"""The CosmoFlow network (Mathuriya et al. 2018, in the version of the MLPerf HPC reference, rounds 0.7 to 3.0)."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from mlhpc.benchmarks.cosmoflow import Network
from mlhpc.cosmoflow.network import LEAK, SCALE, require_divisible
from mlhpc.errors import UserError


def build_model(
    network: Network,
    sample_shape: tuple[int, ...],
    *,
    dropout: float = 0.5,
    weight_decay: float = 0.0,
    precision: str = "float32",
    seed: int = 0,
    dropout_seed: int = 0,
    conv3d: type[layers.Conv3D] = layers.Conv3D,
) -> keras.Model:
    """A model that maps voxels ``[b, n, n, n, channels]`` of log(1 + counts) to ``[b, targets]`` in (-1.2, 1.2),
    float32.

    ``precision``: a Keras dtype policy. ``weight_decay``: factor of the L2 loss on the kernels of all dense layers
    except the last. ``seed``: seed of the initial weights (Glorot uniform, the Keras default) and, together with
    ``dropout_seed``, of the dropout masks; every rank needs a different ``dropout_seed``, or all ranks drop the
    same units. ``conv3d``: class of the convolutions. Raises ``UserError`` if the side of a sample cannot be
    halved once per block, and for float16 without a GPU, since TensorFlow's CPU pooling does not support float16.
    """
    require_divisible(network, sample_shape)
    require_precision(precision)
    seeds = iter(np.random.SeedSequence(seed).generate_state(32).tolist())
    dropout_seeds = iter(np.random.SeedSequence([seed, dropout_seed]).generate_state(32).tolist())

    def convolution(block: int) -> layers.Layer:
        filters, glorot = network.conv_filters * 2**block, keras.initializers.GlorotUniform(next(seeds))
        options = {"use_bias": False, "kernel_initializer": glorot, "dtype": precision}
        return conv3d(filters, network.conv_kernel, padding="same", **options)

    voxels = x = keras.Input(sample_shape, name="log_counts")
    if network.input_mean:
        x = _standardized(x, network)
    for block in range(network.conv_layers):
        x = convolution(block)(x)
        # The reference adds the bias and activates before it pools. Both are monotonic, so the largest of eight
        # voxels is the same before and after them: function and gradients are the same, and bias and activation
        # take an eighth of the work.
        x = layers.MaxPool3D(2, dtype=precision)(x)
        x = Bias(dtype=precision)(x)
        x = layers.LeakyReLU(LEAK, dtype=precision)(x)
    x = layers.Flatten(dtype=precision)(x)
    for units in network.dense_units:
        x = layers.Dense(
            units,
            kernel_initializer=keras.initializers.GlorotUniform(next(seeds)),
            kernel_regularizer=keras.regularizers.L2(weight_decay) if weight_decay else None,
            dtype=precision,
        )(x)
        x = layers.LeakyReLU(LEAK, dtype=precision)(x)
        x = layers.Dropout(dropout, seed=next(dropout_seeds), dtype=precision)(x)
    last = keras.initializers.GlorotUniform(next(seeds))
    x = layers.Dense(network.targets, activation="tanh", kernel_initializer=last, dtype="float32")(x)
    return keras.Model(voxels, layers.Rescaling(SCALE, dtype="float32")(x), name="cosmoflow")


def _standardized(x: Any, network: Network) -> Any:
    """``x`` ``[b, n, n, n, channels]`` with each channel standardised by the mean and spread in ``network``."""
    scale = [1 / spread for spread in network.input_spread]
    offset = [-mean * factor for mean, factor in zip(network.input_mean, scale, strict=True)]
    return layers.Rescaling(scale, offset, dtype="float32")(x)


def require_precision(precision: str) -> None:
    """Raise UserError for float16 without a GPU, since TensorFlow's CPU pooling does not support float16."""
    if precision == "mixed_float16" and not tf.config.list_physical_devices("GPU"):
        raise UserError("training.precision=mixed_float16 needs a GPU; on a CPU use mixed_bfloat16")


class Bias(layers.Layer):  # type: ignore[misc]
    """Adds a learned bias to every channel."""

    def build(self, shape: tuple[int | None, ...]) -> None:
        self.bias = self.add_weight(name="bias", shape=(shape[-1],), initializer="zeros")

    def call(self, inputs: Any) -> Any:
        return inputs + self.bias
