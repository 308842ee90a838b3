"""The training step and the evaluation step, compiled."""

from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from mlhpc.benchmarks.cosmoflow import Hyperparameters
from mlhpc.common.ranks.world import World
from mlhpc.cosmoflow.tf.device import LaunchEvents

Tensor = Any  # tf.Tensor, which has no type annotations
TrainStep = Callable[[Any, Any], Tensor]
EvalStep = Callable[[Any, Any], tuple[Tensor, Tensor]]


class Steps(NamedTuple):
    """One training and one evaluation step (``make_train_step``, ``make_eval_step``)."""

    train: TrainStep
    evaluate: EvalStep

    def watched(self, events: LaunchEvents | None) -> "Steps":
        """The same steps, with their launches recorded by ``events``; unchanged if ``events`` is None."""
        return self if events is None else Steps(events.watch(self.train), events.watch(self.evaluate))


def log_counts(x: Tensor) -> Tensor:
    """log(x + 1) of int16 particle counts in float32, of the same shape (the reference's preprocessing since round
    1.0). ``x`` of any other type (``loading.sample_dtype``) already contains the logarithm."""
    return tf.math.log(tf.cast(x, tf.float32) + 1.0) if x.dtype == tf.int16 else tf.cast(x, tf.float32)


def make_optimizer(hyperparameters: Hyperparameters, precision: str) -> keras.optimizers.Optimizer:
    """SGD with momentum, or Adam; with dynamic loss scaling if gradients are float16.

    The caller must set ``optimizer.learning_rate`` when an epoch starts.
    """
    rate = hyperparameters.opt_base_learning_rate
    optimizer: keras.optimizers.Optimizer
    if hyperparameters.opt_name == "sgd":
        optimizer = keras.optimizers.SGD(rate, momentum=hyperparameters.opt_momentum)
    else:
        optimizer = keras.optimizers.Adam(rate)
    return keras.optimizers.LossScaleOptimizer(optimizer) if precision == "mixed_float16" else optimizer


def make_steps(
    model: keras.Model, optimizer: keras.optimizers.Optimizer, world: World, sample_dtype: str = "int16"
) -> Steps:
    """The compiled steps of ``model``, with gradients averaged over ranks."""
    average: Callable[[list[Tensor]], list[Tensor]] | None = None
    if world.size > 1:
        from mlhpc.common.ranks.horovod_world import average_gradients

        average = average_gradients
    return Steps(
        make_train_step(model, optimizer, average, sample_dtype), make_eval_step(model, sample_dtype)
    )


def make_train_step(
    model: keras.Model,
    optimizer: keras.optimizers.Optimizer,
    average_gradients: Callable[[list[Tensor]], list[Tensor]] | None = None,
    sample_dtype: str = "int16",
) -> TrainStep:
    """A compiled step ``(x [b, n, n, n, c] of sample_dtype, y float32 [b, targets]) -> loss`` that updates the
    weights.

    The loss (a float32 scalar, left on the device) is the mean square error over batch and targets, plus the
    model's L2 losses, for this rank's batch. ``average_gradients``: maps this rank's gradients to their mean over
    ranks. Counts (int16) are transferred as stored, 2 bytes each, and converted to log(1 + x) on the device.
    """
    optimizer.build(model.trainable_variables)
    scaled = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)

    @tf.function(input_signature=_signature(model, sample_dtype))  # type: ignore[untyped-decorator]
    def step(x: Tensor, y: Tensor) -> Tensor:
        with tf.GradientTape() as tape:
            predicted = model(log_counts(x), training=True)
            loss = tf.add_n([tf.reduce_mean(tf.math.squared_difference(predicted, y)), *model.losses])
            objective = optimizer.scale_loss(loss) if scaled else loss
        gradients = tape.gradient(objective, [v.value for v in model.trainable_variables])
        if average_gradients is not None:
            gradients = average_gradients(gradients)
        optimizer.apply(gradients, model.trainable_variables)
        return loss

    return step  # type: ignore[no-any-return]


def make_eval_step(model: keras.Model, sample_dtype: str = "int16") -> EvalStep:
    """A compiled step ``(x, y) -> (sum of absolute errors, their number)``; shapes as in ``make_train_step``.

    Sum and number are taken over batch and targets, in float64, so that the ratio of their sums over batches and
    ranks is the exact mean absolute error for any batch sizes.
    """

    @tf.function(input_signature=_signature(model, sample_dtype))  # type: ignore[untyped-decorator]
    def step(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        error = tf.abs(model(log_counts(x), training=False) - y)
        return tf.reduce_sum(tf.cast(error, tf.float64)), tf.size(error, tf.int64)

    return step  # type: ignore[no-any-return]


def warm_up(
    model: keras.Model,
    optimizer: keras.optimizers.Optimizer,
    steps: Steps,
    train_batch_size: int,
    eval_batch_size: int,
    sample_dtype: str = "int16",
) -> None:
    """Run both steps once on zeros, which compiles them, and restore everything that they have changed.

    Weights, optimizer state and random state are restored bit for bit. No data set is accessed, so this is allowed
    before the clock starts (MLPerf HPC training rules, initialisation). Called by all ranks, because gradients are
    averaged.
    """
    variables = [*model.variables, *optimizer.variables]
    before = [np.array(variable) for variable in variables]
    shape, targets = model.input_shape[1:], model.output_shape[1]
    for step, batch in ((steps.train, train_batch_size), (steps.evaluate, eval_batch_size)):
        step(tf.zeros((batch, *shape), sample_dtype), np.zeros((batch, targets), np.float32))
    for variable, value in zip(variables, before, strict=True):
        variable.assign(value)


def _signature(model: keras.Model, sample_dtype: str) -> list[tf.TensorSpec]:
    """The input signature for any batch size, so that the last, smaller batch of an evaluation needs no
    recompilation."""
    return [tf.TensorSpec(model.input_shape, sample_dtype), tf.TensorSpec(model.output_shape, tf.float32)]
