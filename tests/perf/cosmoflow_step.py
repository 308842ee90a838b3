"""CosmoFlow's training step against the public reference's network under Keras' own training, side by side.

    python tests/perf/cosmoflow_step.py [--reference DIR] [--precision P ...] [--batch 4] [--side 128]

DIR is the cosmoflow folder of a checkout of mlcommons/hpc: its model is built by its own code, here, with
this TensorFlow. Without it the same layers in the same order are built from Keras alone. Keras compiles its
step as ``fit`` does; data is in memory on both sides: logarithms in float32 for Keras, int16 counts for ours,
whose step takes the logarithm. Steps alternate, so that noise of the machine affects both; the ratio is taken
pair by pair, and its median is the result. CPU time is given too: it is what is left to compare by where
other programs take turns on the same cores.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from keras import layers
from rich.console import Console
from rich.table import Table

from mlhpc.benchmarks.cosmoflow import Hyperparameters, Network
from mlhpc.cosmoflow.cpu.convolution import MinimalConv3D
from mlhpc.cosmoflow.tf.model import build_model
from mlhpc.cosmoflow.tf.step import make_optimizer, make_train_step

# Multiply-adds, two operations each: forward, and twice that backward but for the first block's input.
FLOP_PER_SAMPLE_128 = 0.193e12


def plain_keras(shape: tuple[int, ...]) -> keras.Model:
    stack = [keras.Input(shape)]
    for block in range(5):
        stack += [layers.Conv3D(32 * 2**block, 3, padding="same"), layers.LeakyReLU(0.3), layers.MaxPool3D(2)]
    stack += [layers.Flatten()]
    for units in (128, 64):
        stack += [layers.Dense(units), layers.LeakyReLU(0.3), layers.Dropout(0.5)]
    return keras.Sequential([*stack, layers.Dense(4, activation="tanh"), layers.Rescaling(1.2)])


def keras_step(
    shape: tuple[int, ...], x: np.ndarray, y: np.ndarray, precision: str, reference: Path | None
) -> Callable[[], object]:
    keras.config.set_dtype_policy(precision)
    if reference:
        sys.path.insert(0, str(reference))
        from models import cosmoflow  # type: ignore[import-not-found]

        cosmoflow.have_mlperf_logging = False  # or it prints records
        model = cosmoflow.build_model(shape, 4)
    else:
        model = plain_keras(shape)
    keras.config.set_dtype_policy("float32")
    model.compile(keras.optimizers.SGD(0.001, momentum=0.9), loss="mse")
    model.make_train_function()
    batches = iter(tf.data.Dataset.from_tensors((np.log(x.astype(np.float32) + 1), y)).repeat())
    return lambda: [float(value) for value in tf.nest.flatten(model.train_function(batches))]


def our_step(shape: tuple[int, ...], x: np.ndarray, y: np.ndarray, precision: str) -> Callable[[], object]:
    model = build_model(Network(), shape, precision=precision, conv3d=MinimalConv3D)
    hyperparameters = Hyperparameters(global_batch_size=len(x), opt_base_learning_rate=0.001)
    step = make_train_step(model, make_optimizer(hyperparameters, precision))
    return lambda: float(step(x, y))


def measure(ways: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[tuple[float, float]]]:
    """Seconds of wall clock and of CPU for each round of each way."""
    for step in ways.values():
        step()
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for turn in range(rounds):
        for name in sorted(ways, reverse=bool(turn % 2)):
            wall, cpu = time.perf_counter(), time.process_time()
            ways[name]()
            times[name].append((time.perf_counter() - wall, time.process_time() - cpu))
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--reference", type=Path, help="cosmoflow folder of a checkout of mlcommons/hpc")
    parser.add_argument("--precision", nargs="+", default=["float32", "mixed_bfloat16"])
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--side", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()

    shape = (args.side,) * 3 + (4,)
    rng = np.random.default_rng(0)
    x = rng.poisson(rng.lognormal(-0.3, 1.2, (args.batch, *shape))).astype(np.int16)
    y = rng.uniform(-1, 1, (args.batch, 4)).astype(np.float32)
    theirs = "reference" if args.reference else "Keras"
    table = Table("precision", "", "samples/s", "TFLOP/s as if plain", "ratio", "of CPU time")
    for precision in args.precision:
        ways = {
            theirs: keras_step(shape, x, y, precision, args.reference),
            "mlhpc": our_step(shape, x, y, precision),
        }
        times = measure(ways, args.rounds)
        flop = FLOP_PER_SAMPLE_128 * args.batch * (args.side / 128) ** 3
        for name, taken in times.items():
            seconds = statistics.median(wall for wall, _ in taken)
            ratios = [
                statistics.median(base[i] / own[i] for base, own in zip(times[theirs], taken, strict=True))
                for i in range(2)
            ]
            table.add_row(
                precision,
                name,
                f"{args.batch / seconds:.2f}",
                f"{flop / seconds / 1e12:.2f}",
                *(f"{ratio:.2f}" for ratio in ratios),
            )
    Console().print(table)


if __name__ == "__main__":
    main()
