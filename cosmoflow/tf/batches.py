"""The loader's batches as TensorFlow tensors."""

from typing import Any

import tensorflow as tf

from mlhpc.cosmoflow.data.augment import SYMMETRIES
from mlhpc.cosmoflow.data.encoded import Encoded

Tensor = Any  # tf.Tensor, which has no type annotations


def as_tensors(batch: tuple[Any, Any], sample_dtype: str) -> tuple[Any, Any]:
    """A batch of the loader as ``x``, of type ``sample_dtype``, and ``y``: arrays, or tensors on the current
    device if they are decoded there."""
    x, y = batch
    return (decode(x, sample_dtype) if isinstance(x, Encoded) else _typed(x, sample_dtype)), y


def decode(batch: Encoded, sample_dtype: str) -> Tensor:
    """Decode ``batch`` to ``[b, n, n, n, channels]`` in the type ``sample_dtype`` on the current device: keys and
    tables are transferred, and one look-up decodes the batch. The result is bit-identical to decoding on the
    host."""
    rows = tf.cast(batch.keys, tf.int32) + tf.repeat(batch.starts, batch.voxels)
    x = tf.reshape(tf.gather(_typed(batch.tables, sample_dtype), rows), batch.shape)
    if not any(batch.symmetries):
        return x
    return tf.stack([_turned(x[i], symmetry) for i, symmetry in enumerate(batch.symmetries)])


def _turned(sample: Tensor, symmetry: int) -> Tensor:
    """``augment.apply_symmetry`` for a tensor [n, n, n, ...]."""
    axes, flips = SYMMETRIES[symmetry]
    return tf.reverse(tf.transpose(sample, (*axes, 3)), [axis for axis, flip in enumerate(flips) if flip])


def _typed(array: Any, sample_dtype: str) -> Any:
    """``array`` in TensorFlow's type for ``sample_dtype``. NumPy has no bfloat16, so the loader's arrays contain
    such values as raw bits."""
    return array.view(tf.bfloat16.as_numpy_dtype) if sample_dtype == "bfloat16" else array
