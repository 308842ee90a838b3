"""DeepCAM's training step against the public reference's network, loss and training loop, side by side.

    python tests/perf/deepcam_step.py --reference DIR [--precision float32 mixed_bfloat16] [--batch 2]
                                      [--rows 768 --columns 1152] [--steps 5] [--only ours|reference]

DIR is deepcam/src/deepCam of a checkout of mlcommons/hpc: its own code builds network and loss, here, with this
PyTorch, and a step is what its train_epoch does. In float32 it runs as shipped (NCHW); in bfloat16, which it
does not have, it gets autocast and channels_last. Its optimizer is AdamW, for its LAMB needs Apex and a GPU; ours
is AdamW too, or ``--optimizer LAMB``. Samples are the same ones, in memory. Steps alternate, so that a noisy
machine is noisy for both; the ratio is taken pair by pair, and its median is the result. CPU time is given too:
it is what is left to compare by where other programs take turns on the same cores.

With ``--only`` one side runs alone and its peak memory is given. ``--frozen N`` freezes our first N blocks, and
``--only ours`` tells then what gradient skipping saves.
"""

import argparse
import resource
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from mlhpc.benchmarks.deepcam import Hyperparameters, Network
from mlhpc.deepcam.freeze import freeze
from mlhpc.deepcam.metric import CLASS_WEIGHTS
from mlhpc.deepcam.model import build_model
from mlhpc.deepcam.optimizer import make_optimizer
from mlhpc.deepcam.step import make_scaler, make_train_step

FLOP_PER_SAMPLE_768_1152 = 1.93e12
"""Multiply-adds of convolutions, two operations each: forward, and twice that backward."""


def reference_step(
    directory: Path, x: torch.Tensor, y: torch.Tensor, precision: str
) -> Callable[[], torch.Tensor]:
    sys.path.insert(0, str(directory))
    from architecture.deeplab_xception import DeepLabv3_plus  # type: ignore[import-not-found]
    from utils.losses import CELoss  # type: ignore[import-not-found]

    torch.manual_seed(0)
    network = DeepLabv3_plus(16, 3, _print=False)
    network.bottleneck.tiles = (1, 1, x.shape[2] // 16, x.shape[3] // 16)
    criterion = CELoss(CLASS_WEIGHTS)
    optimizer = torch.optim.AdamW(network.parameters(), 1e-3, eps=1e-6)
    half = precision != "float32"
    x = x if half else x.contiguous()
    label = y.long()
    if half:
        network = network.to(memory_format=torch.channels_last)

    def step() -> torch.Tensor:
        network.train()
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            outputs = network(x)
            loss = criterion(outputs, label)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def our_step(
    x: torch.Tensor, y: torch.Tensor, precision: str, optimizer: str, frozen: int
) -> Callable[[], torch.Tensor]:
    torch.manual_seed(0)
    model = build_model(Network(), 16).to(memory_format=torch.channels_last)
    freeze(model, frozen)
    facts = Hyperparameters(global_batch_size=len(x), opt_lr=1e-3, opt_name=optimizer)
    scaler = make_scaler(precision, torch.device("cpu"))
    step = make_train_step(model, make_optimizer(facts, model.parameters()), scaler, precision)
    return lambda: step(x, y)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--reference", type=Path)
    parser.add_argument("--precision", nargs="+", default=["float32", "mixed_bfloat16"])
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--rows", type=int, default=768)
    parser.add_argument("--columns", type=int, default=1152)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--optimizer", default="AdamW")
    parser.add_argument("--frozen", type=int, default=0)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--only", choices=("ours", "reference"))
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(1)
    x = torch.rand(options.batch, options.rows, options.columns, 16).permute(0, 3, 1, 2)
    y = (x[:, 0] > 0.98).to(torch.uint8) + (x[:, 1] > 0.995).to(torch.uint8)
    table = Table(
        title=f"batch {options.batch} of {options.rows} x {options.columns}, {options.threads} threads"
    )
    for head in ("precision", "side", "seconds a step", "samples/s", "CPU seconds", "loss", "peak GB"):
        table.add_column(head, justify="left" if head in ("precision", "side") else "right")
    for precision in options.precision:
        steps = {}
        if options.reference and options.only != "ours":
            steps["reference"] = reference_step(options.reference, x, y, precision)
        if options.only != "reference":
            steps["ours"] = our_step(x, y, precision, options.optimizer, options.frozen)
        walls: dict[str, list[float]] = {side: [] for side in steps}
        cpus: dict[str, list[float]] = {side: [] for side in steps}
        losses: dict[str, float] = {}
        for number in range(options.steps + 1):
            for side, step in steps.items():
                wall, cpu = time.perf_counter(), time.process_time()
                losses[side] = float(step())
                wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
                if number:  # the first one allocates and fills caches
                    walls[side].append(wall)
                    cpus[side].append(cpu)
                print(
                    f"{precision} {side} {number}: {wall:.2f} s, CPU {cpu:.2f} s, loss {losses[side]:.4f}",
                    flush=True,
                )
        for side in steps:
            wall = statistics.median(walls[side])
            row = [precision, side, f"{wall:.2f}", f"{options.batch / wall:.3f}"]
            row += [f"{statistics.median(cpus[side]):.2f}", f"{losses[side]:.4f}"]
            row += [f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6:.1f}" if options.only else ""]
            table.add_row(*row)
        if len(steps) == 2:
            for name, spent in (("time", walls), ("CPU time", cpus)):
                ratios = sorted(a / b for a, b in zip(spent["reference"], spent["ours"], strict=True))
                print(
                    f"{precision}: reference / ours in {name}: {statistics.median(ratios):.2f} "
                    f"[{ratios[0]:.2f} .. {ratios[-1]:.2f}]"
                )
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
