"""CosmoFlow's training step: ours in TensorFlow and in PyTorch, and the public reference's network under Keras'
own training, in turns.

    python tests/perf/cosmoflow_step.py [--reference DIR] [--precision P ...] [--batch 4] [--side 128] [--rounds 9]

DIR is the cosmoflow folder of a checkout of mlcommons/hpc: its model is built by its own code, here, with
this TensorFlow. Without it the same layers in the same order are built from Keras alone. Keras compiles its
step as ``fit`` does; data is in memory everywhere: logarithms in float32 for Keras, int16 counts for ours,
whose step takes the logarithm. Every way is a process of its own, which waits while others step: frameworks in one
process would share threads. In every round each way takes one step, in an order drawn for the round, so that
noise of the machine affects all; ratios are taken round by round. Their median is the result, with a 95%
interval of the median (bootstrap over rounds). CPU time is given too: it is what is left to compare by
where other programs take turns on the same cores. --ways takes some; --variant adds PyTorch ways with other
settings of ``Variant``, to compare changes of the PyTorch step: --ways pytorch --variant channels_first.
"""

import argparse
import importlib
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.table import Table

from mlhpc.benchmarks.cosmoflow import Hyperparameters, Network
from mlhpc.common.host.provenance import compiled_parts

# Multiply-adds, two operations each: forward, and twice that backward but for the first block's input.
FLOP_PER_SAMPLE_128 = 0.193e12
Step = Callable[[], object]
VARIANTS: dict[str, dict[str, bool]] = {
    "pytorch": {},
    "channels_first": {"channels_last": False},
    "compiled": {"compiled": True},
    "plain": {"kernels": False},
    "no_keep_memory": {"keep": False},
    "onednn_off": {"onednn": False},
}


def plain_keras(shape: tuple[int, ...]) -> Any:
    import keras
    from keras import layers

    stack = [keras.Input(shape)]
    for block in range(5):
        stack += [layers.Conv3D(32 * 2**block, 3, padding="same"), layers.LeakyReLU(0.3), layers.MaxPool3D(2)]
    stack += [layers.Flatten()]
    for units in (128, 64):
        stack += [layers.Dense(units), layers.LeakyReLU(0.3), layers.Dropout(0.5)]
    return keras.Sequential([*stack, layers.Dense(4, activation="tanh"), layers.Rescaling(1.2)])


def reference_step(x: npt.NDArray[Any], y: npt.NDArray[Any], precision: str, reference: Path | None) -> Step:
    import keras
    import tensorflow as tf

    keras.config.set_dtype_policy(precision)
    if reference:
        sys.path.insert(0, str(reference))
        cosmoflow: Any = importlib.import_module("models.cosmoflow")
        cosmoflow.have_mlperf_logging = False  # or it prints records
        model = cosmoflow.build_model(x.shape[1:], 4)
    else:
        model = plain_keras(x.shape[1:])
    keras.config.set_dtype_policy("float32")
    model.compile(keras.optimizers.SGD(0.001, momentum=0.9), loss="mse")
    model.make_train_function()
    batches = iter(tf.data.Dataset.from_tensors((np.log(x.astype(np.float32) + 1), y)).repeat())
    return lambda: [float(value) for value in tf.nest.flatten(model.train_function(batches))]


def tensorflow_step(x: npt.NDArray[Any], y: npt.NDArray[Any], precision: str) -> Step:
    from mlhpc.cosmoflow.cpu.convolution import MinimalConv3D, start_xla
    from mlhpc.cosmoflow.tf.model import build_model
    from mlhpc.cosmoflow.tf.step import make_optimizer, make_train_step

    start_xla()
    model = build_model(Network(), x.shape[1:], precision=precision, conv3d=MinimalConv3D)
    step = make_train_step(model, make_optimizer(_hyperparameters(x), precision))
    return lambda: float(step(x, y))


def pytorch_step(
    x: npt.NDArray[Any],
    y: npt.NDArray[Any],
    precision: str,
    *,
    channels_last: bool = True,
    compiled: bool = False,
    keep: bool = True,
    onednn: bool = True,
    kernels: bool = True,
) -> Step:
    from functools import partial

    import torch

    from mlhpc.common.host.malloc import keep_memory
    from mlhpc.common.pytorch.devices import place
    from mlhpc.common.pytorch.step import make_scaler, make_train_step
    from mlhpc.cosmoflow.cpu import pooled
    from mlhpc.cosmoflow.pytorch.metric import training_loss
    from mlhpc.cosmoflow.pytorch.model import CosmoFlowNet, convolve_and_pool
    from mlhpc.cosmoflow.pytorch.optimizer import make_optimizer

    if keep:
        keep_memory()
    torch.backends.mkldnn.set_flags(onednn)
    device = torch.device("cpu")
    model = CosmoFlowNet(
        Network(),
        x.shape[1:],
        channels_last=channels_last,
        convolve_and_pool=partial(pooled.convolve_and_pool, otherwise=convolve_and_pool)
        if kernels and not compiled
        else convolve_and_pool,
    )
    place(model, device, channels_last=channels_last, dimensions=3)
    optimizer = make_optimizer(_hyperparameters(x), model.parameters())
    loss_of = partial(training_loss, model=model, weight_decay=0.0)
    scaler = make_scaler(precision, device)
    step = make_train_step(model, loss_of, optimizer, scaler, precision, compiled=compiled)
    counts, targets = torch.from_numpy(x), torch.from_numpy(y)
    return lambda: float(step(counts, targets))


def _hyperparameters(x: npt.NDArray[Any]) -> Hyperparameters:
    return Hyperparameters(global_batch_size=len(x), opt_base_learning_rate=0.001)


def work(way: str, args: argparse.Namespace) -> None:
    """A process of one way: a step per line of input, answered by its seconds of wall clock and of CPU."""
    answers = sys.stdout
    sys.stdout = sys.stderr
    rng = np.random.default_rng(0)
    shape = (args.batch, *(args.side,) * 3, 4)
    x = rng.poisson(rng.lognormal(-0.3, 1.2, shape)).astype(np.int16)
    y = rng.uniform(-1, 1, (args.batch, 4)).astype(np.float32)
    precision = args.precision[0]
    if way in VARIANTS:
        step = pytorch_step(x, y, precision, **VARIANTS[way])
    elif way == "tensorflow":
        step = tensorflow_step(x, y, precision)
    else:
        step = reference_step(x, y, precision, args.reference)
    for _ in range(2):
        step()
    while True:
        answers.write("ready\n")
        answers.flush()
        if not sys.stdin.readline():
            return
        wall, cpu = time.perf_counter(), time.process_time()
        step()
        answers.write(f"{time.perf_counter() - wall} {time.process_time() - cpu}\n")


def measure(
    ways: list[str], precision: str, args: argparse.Namespace
) -> dict[str, list[tuple[float, float]]]:
    """Seconds of wall clock and of CPU for each round of each way."""
    same = ["--batch", args.batch, "--side", args.side, "--precision", precision]
    same += ["--reference", args.reference] if args.reference else []
    times: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
    processes = {}
    try:
        for way in ways:  # one after the other, so that their start does not disturb
            command = [sys.executable, __file__, "--worker", way, *map(str, same)]
            processes[way] = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
            )
            _answer(processes[way], way)
        for turn in range(args.rounds):
            for way in random.Random(turn).sample(ways, len(ways)):
                print("step", file=processes[way].stdin)
                wall, cpu = map(float, _answer(processes[way], way).split())
                times[way].append((wall, cpu))
                _answer(processes[way], way)
    finally:
        for process in processes.values():
            process.kill()
            process.wait()
    return times


def _answer(process: Any, way: str) -> str:
    line: str = process.stdout.readline()
    if not line:
        raise SystemExit(f"{way} ended with status {process.wait()}")
    return line


def ratio(base: list[float], own: list[float]) -> str:
    """The median of ``base / own`` by round, with its 95% interval."""
    ratios = np.array(base) / np.array(own)
    draws = np.random.default_rng(1).choice(ratios, (4000, len(ratios)))
    low, high = np.percentile(np.median(draws, axis=1), [2.5, 97.5])
    return f"{np.median(ratios):.2f} [{low:.2f}-{high:.2f}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--reference", type=Path, help="cosmoflow folder of a checkout of mlcommons/hpc")
    parser.add_argument("--precision", nargs="+", default=["float32", "mixed_bfloat16"])
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--side", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=9)
    names = ("reference", "tensorflow", "pytorch")
    parser.add_argument("--ways", nargs="+", choices=names, default=list(names))
    parser.add_argument("--variant", nargs="+", choices=list(VARIANTS), default=[])
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        work(args.worker, args)
        return
    ways = list(dict.fromkeys([*args.ways, *args.variant]))
    if not all(compiled_parts().values()):
        sys.exit("the suite was installed without a C compiler: PyTorch would compute the gradients")
    table = Table("precision", "", "samples/s", "TFLOP/s as if plain",
                  *(f"to {way}{of}" for way in ways[:2] for of in ("", ", CPU time")))  # fmt: skip
    flop = FLOP_PER_SAMPLE_128 * args.batch * (args.side / 128) ** 3
    for precision in args.precision:
        times = measure(ways, precision, args)
        for way, taken in times.items():
            seconds = statistics.median(wall for wall, _ in taken)
            ratios = [
                ratio([each[i] for each in times[base]], [each[i] for each in taken])
                for base in ways[:2]
                for i in range(2)
            ]
            name = {"reference": "reference" if args.reference else "Keras"}.get(way, way)
            table.add_row(
                precision, name, f"{args.batch / seconds:.2f}", f"{flop / seconds / 1e12:.2f}", *ratios
            )
    Console(width=160).print(table)


if __name__ == "__main__":
    main()
