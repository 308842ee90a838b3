"""DeepCAM's training step against the public reference's network, loss and training loop, turn by turn.

    python tests/perf/deepcam_step.py --reference DIR [--precision float32 mixed_bfloat16] [--batch 2]
                                      [--rows 768 --columns 1152] [--steps 3] [--rounds 3] [--only ours|reference]

DIR is deepcam/src/deepCam of a checkout of mlcommons/hpc: its own code builds network and loss, here, with this
PyTorch, and a step is what its train_epoch does. In float32 it runs as shipped (NCHW); in bfloat16, which it
does not have, it gets autocast and channels_last. Its optimizer is AdamW, for its LAMB needs Apex and a GPU; ours
is AdamW too, or ``--optimizer LAMB``. Samples are the same ones, in memory.

A turn is a process of its own: a first step that does not count, then ``--steps``, whose median it gives, and its
peak memory. Ours keeps the memory that it frees, as ``mlhpc run`` does; the reference has it from the C library as
it is. The sides take turns, so that noise of the machine affects both; the ratio is taken round by round, and its
median is the result. CPU time, the system's included, is given too: it is what is left to compare by where other
programs take turns on the same cores. ``--frozen N`` freezes our first N blocks: what gradient skipping saves.
"""

import argparse
import multiprocessing
import resource
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from rich.console import Console
from rich.table import Table

from mlhpc.benchmarks.deepcam import Hyperparameters, Network
from mlhpc.common.host.malloc import keep_memory
from mlhpc.common.pytorch.devices import place
from mlhpc.common.pytorch.step import make_scaler, make_train_step
from mlhpc.deepcam.cpu.kernels import use_cpu_kernels
from mlhpc.deepcam.freeze import freeze
from mlhpc.deepcam.metric import CLASS_WEIGHTS, weighted_cross_entropy
from mlhpc.deepcam.model import build_model
from mlhpc.deepcam.optim.optimizer import make_optimizer


class Turn(NamedTuple):
    """Medians of a process's steps, seconds; its last loss; the most memory that it held, gigabytes."""

    wall: float
    cpu: float
    loss: float
    peak: float


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
            loss: torch.Tensor = criterion(outputs, label)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def our_step(
    x: torch.Tensor, y: torch.Tensor, precision: str, optimizer: str, frozen: int
) -> Callable[[], torch.Tensor]:
    keep_memory()
    torch.manual_seed(0)
    model = build_model(Network(), 16)
    place(model, torch.device("cpu"), channels_last=True)
    use_cpu_kernels(model)
    freeze(model, frozen)
    facts = Hyperparameters(global_batch_size=len(x), opt_lr=1e-3, opt_name=optimizer)
    scaler = make_scaler(precision, torch.device("cpu"))
    updates = make_optimizer(facts, model.parameters())
    step = make_train_step(model, weighted_cross_entropy, updates, scaler, precision)
    return lambda: step(x, y)


def turn(side: str, precision: str, options: argparse.Namespace) -> Turn:
    torch.set_num_threads(options.threads)
    torch.manual_seed(1)
    x = torch.rand(options.batch, options.rows, options.columns, 16).permute(0, 3, 1, 2)
    y = (x[:, 0] > 0.98).to(torch.uint8) + (x[:, 1] > 0.995).to(torch.uint8)
    if side == "reference":
        step = reference_step(options.reference, x, y, precision)
    else:
        step = our_step(x, y, precision, options.optimizer, options.frozen)
    walls, cpus = [], []
    for number in range(options.steps + 1):
        wall, cpu = time.perf_counter(), time.process_time()
        loss = float(step())
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
        print(
            f"{precision} {side} {number}: {walls[-1]:.2f} s, CPU {cpus[-1]:.2f} s, loss {loss:.4f}",
            flush=True,
        )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    return Turn(statistics.median(walls[1:]), statistics.median(cpus[1:]), loss, peak)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--reference", type=Path)
    parser.add_argument("--precision", nargs="+", default=["float32", "mixed_bfloat16"])
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--rows", type=int, default=768)
    parser.add_argument("--columns", type=int, default=1152)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--optimizer", default="AdamW")
    parser.add_argument("--frozen", type=int, default=0)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--only", choices=("ours", "reference"))
    options = parser.parse_args()
    sides = [options.only] if options.only else ["reference", "ours"]
    if "reference" in sides and options.reference is None:
        parser.error("--reference DIR is needed, or --only ours")
    table = Table(
        title=f"batch {options.batch} of {options.rows} x {options.columns}, {options.threads} threads"
    )
    for head in ("precision", "side", "seconds a step", "samples/s", "CPU seconds", "loss", "peak GB"):
        table.add_column(head, justify="left" if head in ("precision", "side") else "right")
    # A process for every turn: the allocator of one side and the memory of the other stay apart.
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        for precision in options.precision:
            turns: dict[str, list[Turn]] = {side: [] for side in sides}
            for _ in range(options.rounds):
                for side in sides:
                    turns[side].append(pool.apply(turn, (side, precision, options)))
            for side in sides:
                wall, cpu, loss, _ = map(statistics.median, zip(*turns[side], strict=True))
                peak = max(one.peak for one in turns[side])
                table.add_row(
                    precision, side, f"{wall:.2f}", f"{options.batch / wall:.3f}", f"{cpu:.2f}",
                    f"{loss:.4f}", f"{peak:.1f}",
                )  # fmt: skip
            if len(sides) == 2:
                for name, number in (("time", 0), ("CPU time", 1)):
                    pairs = zip(turns["reference"], turns["ours"], strict=True)
                    ratios = sorted(theirs[number] / our[number] for theirs, our in pairs)
                    print(
                        f"{precision}: reference / ours in {name}: {statistics.median(ratios):.2f} "
                        f"[{ratios[0]:.2f} .. {ratios[-1]:.2f}]"
                    )
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
