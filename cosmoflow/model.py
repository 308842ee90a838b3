"""The CosmoFlow network (Mathuriya et al. 2018, as fixed by the MLPerf HPC reference, rounds 0.7 to 3.0)."""

import keras
from keras import layers
from mlhpc.benchmarks.schema import Network
from mlhpc.common.errors import UserError

LEAK = 0.3  # slope of the leaky ReLU below zero: the Keras default that the reference has
SCALE = 1.2  # targets lie in [-1, 1]; tanh reaches ±1 only at infinity, 1.2·tanh does so at ±1.2


def build_model(
    network: Network,
    sample_shape: tuple[int, ...],
    *,
    dropout: float = 0.5,
    weight_decay: float = 0.0,
    precision: str = "float32",
    seed: int = 0,
    dropout_seed: int | None = None,
) -> keras.Model:
    """Voxels ``[batch, n, n, n, channels]`` of log(1 + counts) to ``[batch, targets]`` in (-1.2, 1.2), float32.

    ``precision`` is a Keras dtype policy. ``weight_decay`` is the factor of the L2 loss on the kernels of all
    dense layers but the last, ``seed`` draws the initial weights (Glorot uniform), ``dropout_seed`` the
    dropout masks: give every rank its own, or all drop the same units. Raises ``UserError`` when the side of
    a sample cannot be halved once a block.
    """
    *sides, _channels = sample_shape
    if len(sides) != 3 or any(side % 2**network.conv_layers for side in sides):
        raise UserError(
            f"sample shape {list(sample_shape)} does not suit a network of {network.conv_layers} blocks: "
            f"it needs three sides that are multiples of {2**network.conv_layers}, then channels"
        )
    seeds = iter(range(seed, seed + 100))
    drop_seeds = iter(range(seed if dropout_seed is None else dropout_seed, 2**31))

    def glorot() -> keras.initializers.Initializer:
        return keras.initializers.GlorotUniform(seed=next(seeds))

    voxels = x = keras.Input(sample_shape, name="log_counts")
    for block in range(network.conv_layers):
        x = layers.Conv3D(
            network.conv_filters * 2**block,
            network.conv_kernel,
            padding="same",
            kernel_initializer=glorot(),
            dtype=precision,
        )(x)
        # The reference activates, then pools. Leaky ReLU grows strictly, so the largest of eight voxels is
        # the same one before and after: values and gradients are equal, and the activation has 1/8 the work.
        x = layers.MaxPool3D(2, dtype=precision)(x)
        x = layers.LeakyReLU(LEAK, dtype=precision)(x)
    x = layers.Flatten(dtype=precision)(x)
    for units in network.dense_units:
        x = layers.Dense(
            units,
            kernel_initializer=glorot(),
            kernel_regularizer=keras.regularizers.L2(weight_decay) if weight_decay else None,
            dtype=precision,
        )(x)
        x = layers.LeakyReLU(LEAK, dtype=precision)(x)
        x = layers.Dropout(dropout, seed=next(drop_seeds), dtype=precision)(x)
    x = layers.Dense(network.targets, activation="tanh", kernel_initializer=glorot(), dtype="float32")(x)
    return keras.Model(voxels, layers.Rescaling(SCALE, dtype="float32")(x), name="cosmoflow")
