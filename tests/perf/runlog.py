"""What the record costs: RunLog's share of a training step of the smoke preset. Prints a table.

    python tests/perf/runlog.py [STEPS]

Interleaves bare and recorded loops over the same number of empty steps, and compares the difference with the
time of a real step of the smoke preset on this machine.
"""

import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from mlhpc.benchmarks import load
from mlhpc.common.ranks.world import Solo
from mlhpc.common.timing.runlog import RunLog
from mlhpc.cosmoflow.cpu.convolution import MinimalConv3D
from mlhpc.cosmoflow.tf.model import build_model
from mlhpc.cosmoflow.tf.step import make_optimizer, make_train_step


def seconds_a_step(steps: int, log: RunLog | None) -> float:
    """An epoch of empty steps: its spans, its timed loop, its metrics."""
    started = time.perf_counter()
    if log is None:
        for _ in range(steps):
            pass
    else:
        with log.span("epoch", epoch=1):
            with log.span("train", epoch=1):
                for _ in log.timed(range(steps), "data_wait", epoch=1):
                    pass
            with log.span("eval", epoch=1):
                pass
        for name in ("samples", "bytes", "learning_rate", "train_loss", "eval_error"):
            log.metric(name, 1.0, epoch=1)
    return (time.perf_counter() - started) / steps


def main() -> None:
    run: Any = load.load("cosmoflow", "smoke")
    steps = (
        int(sys.argv[1])
        if len(sys.argv) > 1
        else run.data.train_samples // run.hyperparameters.global_batch_size
    )
    with tempfile.TemporaryDirectory() as folder, RunLog(Path(folder), Solo()) as log:
        pairs = [(seconds_a_step(steps, None), seconds_a_step(steps, log)) for _ in range(50)]
    cost = median(recorded - bare for bare, recorded in pairs)

    model = build_model(run.network, run.data.sample_shape, dropout=0.0, conv3d=MinimalConv3D)
    step = make_train_step(model, make_optimizer(run.hyperparameters, "float32"))
    batch = run.hyperparameters.global_batch_size
    x, y = np.ones((batch, *run.data.sample_shape), np.int16), np.zeros((batch, 4), np.float32)
    times = []
    for _ in range(30):
        started = time.perf_counter()
        float(step(x, y))
        times.append(time.perf_counter() - started)
    real = median(times[5:])
    print(f"record of an epoch of {steps} steps: {cost * 1e6:.2f} µs a step")
    print(f"a step of the smoke preset (batch {batch}):  {real * 1e3:.2f} ms")
    print(f"share: {100 * cost / real:.4f} %")


if __name__ == "__main__":
    main()
