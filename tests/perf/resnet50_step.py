"""ResNet-50's training step against plain torchvision's: float32 in PyTorch's default memory layout, SGD.

    python tests/perf/resnet50_step.py [--batch 32] [--side 224] [--rounds 3] [--compile] [--lars]

Data is in memory on both sides. Steps alternate, so that noise of the machine affects all; the ratio is taken
round by round, and its median is the result. CPU time is given too: it is what is left to compare by where
other programs take turns on the same cores. The target is 1 in float32 and 2.8 in bfloat16.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torchvision
from rich.console import Console
from rich.table import Table

from mlhpc.benchmarks import load
from mlhpc.benchmarks.resnet50 import Network
from mlhpc.common.pytorch.devices import place
from mlhpc.common.pytorch.step import make_scaler, make_train_step
from mlhpc.resnet50.metric import cross_entropy
from mlhpc.resnet50.model import build_model
from mlhpc.resnet50.optim.optimizer import make_optimizer


def plain_step(x: torch.Tensor, y: torch.Tensor, precision: str) -> Callable[[], object]:
    model = torchvision.models.resnet50().to(x.device)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
    loss_of = torch.nn.CrossEntropyLoss(label_smoothing=0.1)
    inputs = x.contiguous()

    def step() -> None:
        with torch.autocast(x.device.type, torch.bfloat16, enabled=precision != "float32"):
            loss = loss_of(model(inputs), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def our_step(
    x: torch.Tensor, y: torch.Tensor, precision: str, options: argparse.Namespace
) -> Callable[[], object]:
    model = build_model(Network())
    place(model, x.device, channels_last=True)
    chosen = ["hyperparameters.opt_name=" + ("lars" if options.lars else "sgd")]
    run: Any = load.load("resnet50", "closed", chosen)
    optimizer = make_optimizer(run.hyperparameters, model)
    scaler = make_scaler(precision, x.device)
    step = make_train_step(model, cross_entropy, optimizer, scaler, precision, compiled=options.compile)
    inputs = x.contiguous(memory_format=torch.channels_last)
    return lambda: step(inputs, y)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--side", type=int, default=224)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--compile", action="store_true", help="compile ours")
    parser.add_argument("--lars", action="store_true", help="LARS for ours")
    options = parser.parse_args()
    torch.manual_seed(0)
    x = torch.randn(options.batch, 3, options.side, options.side, device=options.device)
    y = torch.randint(1000, (options.batch,), device=options.device)
    ways = {
        "torchvision, float32": plain_step(x, y, "float32"),
        "mlhpc, float32": our_step(x, y, "float32", options),
        "torchvision, bfloat16": plain_step(x, y, "bfloat16"),
        "mlhpc, bfloat16": our_step(x, y, "mixed_bfloat16", options),
    }

    def finished(step: Callable[[], object]) -> None:
        step()
        if options.device == "cuda":
            torch.cuda.synchronize()

    for step in ways.values():
        finished(step)
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for turn in range(options.rounds):
        for name in list(ways)[:: -1 if turn % 2 else 1]:
            wall, cpu = time.perf_counter(), time.process_time()
            finished(ways[name])
            times[name].append((time.perf_counter() - wall, time.process_time() - cpu))
    table = Table("", "images/s", "ratio", "of CPU time")
    base = times["torchvision, float32"]
    for name, taken in times.items():
        ratios = [
            statistics.median(theirs[i] / ours[i] for theirs, ours in zip(base, taken, strict=True))
            for i in range(2)
        ]
        rate = options.batch / statistics.median(wall for wall, _ in taken)
        table.add_row(name, f"{rate:.2f}", *(f"{ratio:.2f}" for ratio in ratios))
    Console().print(table)


if __name__ == "__main__":
    main()
