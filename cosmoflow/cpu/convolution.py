"""A 3³ convolution with a third fewer multiplications, for processors on which arithmetic is the bottleneck."""

import os
import tempfile
from typing import Any

import keras
import tensorflow as tf

Tensor = Any  # tf.Tensor, which has no type annotations

MIN_CHANNELS = 8


class MinimalConv3D(keras.layers.Conv3D):  # type: ignore[misc]
    """``keras.layers.Conv3D`` with a 3³ kernel, computed by minimal filtering along the first axis.

    Requires "same" padding; has the same weights and computes the same function as ``Conv3D``. Winograd's F(2, 3)
    (Lavin & Gray, "Fast Algorithms for Convolutional Neural Networks", CVPR 2016, section 4.1) computes two
    outputs of a 3-tap filter from four inputs with 4 products instead of 6:

        m0 = (i0 - i2) g0                    out0 = m0 + m1 + m2
        m1 = (i1 + i2) (g0 + g1 + g2) / 2    out1 = m1 - m2 - m3
        m2 = (i2 - i1) (g0 - g1 + g2) / 2
        m3 = (i1 - i3) g2

    Here i, m and out are planes, and the products are 2-D convolutions with the planes g of the kernel. The sums
    before and after the products are limited by memory bandwidth; XLA fuses each into one pass. The inputs' first
    spatial dimension must be even.
    """

    def convolution_op(self, inputs: Tensor, kernel: Tensor) -> Tensor:
        """The convolution of ``inputs`` [b, d, h, w, channels] with ``kernel`` [3, 3, 3, channels, filters]."""
        # With as few channels as in the network's input, the sums take longer than the saved products.
        if self.kernel_size != (3, 3, 3) or inputs.shape[-1] < MIN_CHANNELS:
            return super().convolution_op(inputs, kernel)
        products = [
            tf.nn.conv2d(planes, filter_, strides=1, padding="SAME")
            for planes, filter_ in zip(_input_sums(inputs), _filter_sums(kernel), strict=True)
        ]
        return _output_sums(products, inputs.shape[1])


@tf.function(jit_compile=True, autograph=False)  # type: ignore[untyped-decorator]
def _input_sums(x: Tensor) -> list[Tensor]:
    """The four sums of input planes that enter the products, each ``[b·d/2, h, w, c]``, for ``x``
    ``[b, d, h, w, c]``."""
    _, depth, *plane = x.shape
    pairs = tf.reshape(tf.pad(x, [[0, 0], [1, 1], [0, 0], [0, 0], [0, 0]]), [-1, depth // 2 + 1, 2, *plane])
    i0, i1, i2, i3 = pairs[:, :-1, 0], pairs[:, :-1, 1], pairs[:, 1:, 0], pairs[:, 1:, 1]
    return [tf.reshape(sums, [-1, *plane]) for sums in (i0 - i2, i1 + i2, i2 - i1, i1 - i3)]


def _filter_sums(kernel: Tensor) -> list[Tensor]:
    g0, g1, g2 = tf.unstack(kernel)
    return [g0, (g0 + g1 + g2) / 2, (g0 - g1 + g2) / 2, g2]


@tf.function(jit_compile=True, autograph=False)  # type: ignore[untyped-decorator]
def _output_sums(products: list[Tensor], depth: int) -> Tensor:
    """The outputs, ``[b, depth, h, w, f]``, from the four products, each ``[b·depth/2, h, w, f]``."""
    m0, m1, m2, m3 = products
    outputs = tf.stack([m0 + m1 + m2, m1 - m2 - m3], axis=1)
    return tf.reshape(outputs, [-1, depth, *m0.shape[1:]])


def start_xla() -> None:
    """Start XLA, hiding the four lines that its first compilation writes to standard error at any log level. An
    empty function is compiled to trigger them, so that standard error is redirected only briefly."""
    stderr = os.dup(2)
    try:
        with tempfile.TemporaryFile() as discarded:
            os.dup2(discarded.fileno(), 2)
            tf.function(lambda: tf.zeros(1), jit_compile=True)()
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
