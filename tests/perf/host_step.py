"""A training step on a GPU: the time it takes, the host's share, and what the device does, at local batch sizes of
real runs.

    python tests/perf/host_step.py [--benchmark NAME ...] [--precision NAME ...] [--mode eager graph]
        [--ranks 1 2] [--steps N] [--json]

Sizes and settings are the closed presets', batches are a random sample repeated, page-locked, and a step is
what the loop of ``mlhpc run`` has without its loader and log: the timer's events, the rate, the copies and
the step; ``graph`` is ``training.cuda_graphs``. Each row is measured in processes of its own: ``step_ms``, of
steps that follow one another; ``host_ms``, until a step returns on an idle device; ``device_ms``, the sum of
its kernels and copies by the profiler; ``launches``, what the host gives the driver: kernels, copies, graphs;
``syncs``, waits of the host for the device; memory in GB where training and evaluation alternate: the peak of
tensors, and what PyTorch has reserved. ``driver_ms``: what of ``host_ms`` a simulated device charges for its
driver (tests/fake_cuda; with FAKE_CUDA_SET="kernel_us=0;moved_bytes=65536" the rest is the host's own work).
"""

import argparse
import ctypes
import itertools
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.profiler import ProfilerActivity, profile

from mlhpc.benchmarks.load import load
from mlhpc.common.pytorch.devices import (
    ASYNC_ERRORS,
    capture_on,
    device_events,
    name_of,
    pick_device,
    place,
)
from mlhpc.common.pytorch.graphs import WARM_UP, Graphs
from mlhpc.common.pytorch.step import make_scaler, make_steps, set_rate
from mlhpc.common.timing.steps import StepTimer

BATCHES = {"cosmoflow": (1, 4), "deepcam": (1, 2, 8), "resnet50": (64, 256)}
MODES = ("eager", "graph")
LAUNCHES = ("cudaLaunchKernel", "cuLaunchKernel", "cudaMemcpyAsync", "cudaMemsetAsync", "cudaGraphLaunch")
PRECISIONS = ("float32", "mixed_bfloat16", "mixed_float16")


class Subject(NamedTuple):
    """What is timed: ``train(x, y)`` updates the weights and returns the loss; ``rate`` sets the learning rate;
    ``evaluate`` takes ``evaluated``, a batch of the preset's size."""

    train: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    rate: Callable[[], None]
    x: torch.Tensor
    y: torch.Tensor
    evaluate: Callable[[torch.Tensor, torch.Tensor], Any]
    evaluated: tuple[torch.Tensor, torch.Tensor]


def subject(
    benchmark: str, batch: int, precision: str, device: torch.device, *settings: str, graphed: bool = False
) -> Subject:
    """The benchmark's network, optimizer and training step as its training file builds them."""
    run: Any = load(benchmark, "closed", [f"training.precision={precision}", *settings])
    training, hparams, shape = run.training, run.hyperparameters, run.data.sample_shape
    torch.manual_seed(1)
    if benchmark == "deepcam":
        from mlhpc.deepcam.metric import summed_iou, weighted_cross_entropy
        from mlhpc.deepcam.model import build_model
        from mlhpc.deepcam.optim.optimizer import make_optimizer

        model: nn.Module = build_model(run.network, channels=shape[-1])
        place(model, device, channels_last=training.channels_last)
        optimizer = make_optimizer(hparams, model.parameters(), compiled=training.compile)
        loss_of: Callable[..., torch.Tensor] = weighted_cross_entropy
        measure: Callable[..., Any] = summed_iou

        def made(samples: int) -> list[torch.Tensor]:
            x = repeated(torch.randn(shape), samples).permute(0, 3, 1, 2)
            return [x, repeated(torch.randint(3, shape[:2], dtype=torch.uint8), samples)]

    elif benchmark == "resnet50":
        from mlhpc.resnet50.metric import count_correct, cross_entropy
        from mlhpc.resnet50.model import build_model as build_resnet
        from mlhpc.resnet50.optim.optimizer import make_optimizer as make_lars

        model = build_resnet(run.network)
        place(model, device, channels_last=training.channels_last)
        optimizer = make_lars(hparams, model, training.sgd)
        loss_of, measure = partial(cross_entropy, label_smoothing=training.label_smoothing), count_correct

        def made(samples: int) -> list[torch.Tensor]:
            x = repeated(torch.randn(shape), samples).permute(0, 3, 1, 2)
            return [x, torch.randint(run.network.classes, (samples,))]

    else:
        from mlhpc.cosmoflow.pytorch.metric import absolute_error, training_loss
        from mlhpc.cosmoflow.pytorch.model import CosmoFlowNet
        from mlhpc.cosmoflow.pytorch.optimizer import make_optimizer as make_sgd

        last = training.channels_last
        model = network = CosmoFlowNet(run.network, shape, dropout=hparams.dropout, channels_last=last)
        place(model, device, channels_last=last, dimensions=3)
        optimizer = make_sgd(hparams, model.parameters())
        loss_of = partial(training_loss, model=network, weight_decay=hparams.opt_weight_decay)
        measure = absolute_error

        def made(samples: int) -> list[torch.Tensor]:
            x = repeated(torch.randint(0, 300, shape, dtype=torch.int16), samples)
            return [x, torch.rand((samples, run.network.targets)) * 2 - 1]

    scaler = make_scaler(precision, device)
    world: Any = Alone()
    graphs = Graphs(capture_on(device), device) if graphed else None
    captured = graphs.for_new_steps() if graphs else None
    state = (model, optimizer, scaler, world)
    steps = make_steps(state, training, loss_of=loss_of, measure=measure, captured=captured)
    x, y, *evaluated = (part.pin_memory() for n in (batch, training.eval_batch_size) for part in made(n))
    rate = partial(set_rate, optimizer, 1e-4)
    of = Subject(steps.train, rate, x, y, steps.evaluate, (evaluated[0], evaluated[1]))
    if graphs:
        capture(of, graphs)
    return of


def repeated(sample: torch.Tensor, samples: int) -> torch.Tensor:
    return sample.expand(samples, *sample.shape).contiguous()


class Alone:
    """A world of one rank, or of those that torch.distributed connects, for parts that only ask its size."""

    def __init__(self) -> None:
        connected = dist.is_initialized()
        self.rank = self.local_rank = dist.get_rank() if connected else 0
        self.size = self.local_size = dist.get_world_size() if connected else 1


def capture(of: Subject, graphs: Graphs) -> None:
    """Warm up and capture, as ``mlhpc run`` does it."""
    for _ in range(WARM_UP):
        of.rate()
        of.train(of.x, of.y)
    of.evaluate(*of.evaluated)
    if why := graphs.captured():
        raise SystemExit(why)
    graphs.set_active(True)


def simulated() -> dict[str, Any]:
    """What a simulated device has counted; empty for a real one."""
    library = ctypes.CDLL(os.environ.get("LD_PRELOAD", "").partition(":")[0] or None)
    if not hasattr(library, "fake_cuda_report"):
        return {}
    library.fake_cuda_report.restype = ctypes.c_char_p
    return dict(json.loads(library.fake_cuda_report())["total"])


def iteration(of: Subject) -> tuple[Callable[[], torch.Tensor], StepTimer]:
    """A step as the loop has it, and its timer."""
    timer = StepTimer(device_events(torch.device("cuda", torch.cuda.current_device())))

    def step() -> torch.Tensor:
        timer.start()
        of.rate()
        loss = of.train(of.x, of.y)
        timer.ask()
        return loss

    return step, timer


def measure(of: Subject, steps: int) -> dict[str, Any]:
    """Time ``steps`` steps (ms per step), and read the allocator's counters."""
    step, timer = iteration(of)

    def steps_done(steps: int) -> None:
        for _ in range(steps):
            step()
        torch.cuda.synchronize()

    for _ in range(3):  # so often until no more memory is reserved
        for _ in range(4):
            loss = step()
        timer.stop()
        for _ in range(3):
            timer.start()
            of.evaluate(*of.evaluated)
            timer.ask()
        timer.stop()
    memory = torch.cuda.max_memory_allocated(), torch.cuda.memory_reserved()
    whole = _ms(partial(steps_done, steps)) / steps
    hosts = []
    for _ in range(min(steps, 20)):
        hosts.append(_ms(step))
        torch.cuda.synchronize()
    return {
        "step_ms": round(whole, 3),
        "host_ms": round(statistics.median(hosts), 3),
        "host_min_ms": round(min(hosts), 3),
        "peak_gb": round(memory[0] / 1e9, 3),
        "reserved_gb": round(memory[1] / 1e9, 3),
        "loss": round(loss.item(), 4),
    }


def count(of: Subject) -> dict[str, Any]:
    """What the profiler, or a simulated device, counts in a step. Once a process has been profiled, the driver is
    traced to its end: launching a graph of 800 kernels then takes the host 1.2 ms instead of 0.3 (on an H200)."""
    step, timer = iteration(of)
    for _ in range(2):
        step()
    timer.stop()
    torch.cuda.synchronize()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        step()
        torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    before = simulated()
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        for _ in range(2):
            step()
        after = simulated()
        torch.cuda.synchronize()
    events = [event for event in profiled.events() or () if event.device_type.name == "CUDA"]
    launches = sum(event.name.startswith(LAUNCHES) for event in profiled.events() or ())

    def counted(*sections: str) -> float:
        """By the simulated device, for one step."""
        first, last = (sum(sum(d.get(name, {}).values()) for name in sections) for d in (before, after))
        return (last - first) / 2

    return {
        "driver_ms": round(counted("host_us") / 1e3, 3) if after else None,
        "device_ms": round(sum(event.device_time_total for event in events) / 2e3, 3),
        "launches": counted("kernels", "copies", "memsets", "graphs") if after else launches / 2,
        "syncs": sum("called a synchronizing" in str(warning.message) for warning in caught),
    }


def _ms(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return (time.perf_counter() - start) * 1e3


def measured(row: dict[str, Any], options: argparse.Namespace, store: str, rank: int) -> dict[str, Any]:
    """``row`` with what this ``rank`` measures, in a process of its own: PyTorch keeps memory that earlier rows
    had, and a process that has been profiled is traced to its end."""
    if not torch.cuda.is_available():
        raise SystemExit("no GPU: PyTorch sees none on this node; nothing was measured")
    device = pick_device("cuda", rank)
    if row["ranks"] > 1:
        os.environ[ASYNC_ERRORS] = "0"
        dist.init_process_group(
            "nccl", init_method=f"file://{store}", rank=rank, world_size=row["ranks"], device_id=device
        )
    named = row["benchmark"], row["batch"], row["precision"]
    of = subject(*named, device, *options.set, graphed=row["mode"] == "graph")
    found = row | measure(of, options.steps) | count(of)
    if rank == 0:
        print(found, file=sys.stderr, flush=True)
    return found | {"device": name_of(device)}


def of_ranks(row: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """What rank 0 of a row's processes reports: forks of this one, which may not ask PyTorch for devices."""
    ranks, forked = row["ranks"], multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder, ProcessPoolExecutor(ranks, forked) as pool:
        return next(pool.map(partial(measured, row, options, f"{folder}/store"), range(ranks)))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--benchmark", nargs="+", choices=BATCHES, default=list(BATCHES))
    parser.add_argument("--batch", nargs="+", type=int, help="local batch sizes (default: by benchmark)")
    parser.add_argument("--precision", nargs="+", choices=PRECISIONS, default=list(PRECISIONS))
    parser.add_argument("--mode", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--ranks", nargs="+", type=int, default=[1], help="numbers of ranks, on this node")
    parser.add_argument("--steps", type=int, default=50, help="timed, of each row; the same for all ranks")
    parser.add_argument(
        "--set", nargs="+", default=[], help="settings of the runs, such as training.compile=true"
    )
    parser.add_argument("--json", action="store_true", help="print {'device', 'rows'} instead of a table")
    options = parser.parse_args()
    rows = [
        of_ranks(
            {"benchmark": name, "batch": batch, "precision": precision, "mode": mode, "ranks": ranks}, options
        )
        for ranks, name, precision in itertools.product(options.ranks, options.benchmark, options.precision)
        for batch in options.batch or BATCHES[name]
        for mode in options.mode
    ]
    (device,) = {row.pop("device") for row in rows}
    report = {"device": device, "torch": torch.__version__, "rows": rows}
    if options.json:
        print(json.dumps(report))
        return 0
    columns = [key for key in report["rows"][0] if key not in ("host_min_ms", "driver_ms", "loss")]
    table = Table(*columns, title=f"{report['device']}, PyTorch {report['torch']}")
    for row in report["rows"]:
        table.add_row(*(str(row[column]) for column in columns))
    Console().print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
