"""DeepCAM's training step as it runs here: samples a second, memory, and what bounds it.

    python tests/perf/deepcam_profile.py [--batch 1 2 8] [--precision mixed_bfloat16] [--rows 768 --columns 1152]
                                         [--ways eager compiled graphs] [--steps 20] [--rounds 3] [--out DIR]

The whole step of ``mlhpc run deepcam`` (copy to the device, forward, loss, backward, LAMB) on samples in memory:
no input path counts. For each batch and way (eager, compiled, compiled with CUDA graphs) ``--rounds`` rounds of
``--steps`` steps, the device waited for at the end of each round alone, the ways in turns; the operations of the
network as ``mlhpc predict`` counts them over that time; the most memory.

Then one round under PyTorch's profiler: the device's time by kind of kernel, and the share of the step in which
the device computed. A device that computes less than nine tenths of the time waits for the host, which CUDA graphs
or a larger batch mend; one that does is bound by the kind that takes the most of it. With ``--out`` the traces are
kept, for chrome://tracing or Perfetto.
"""

import argparse
import re
import statistics
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch.profiler import ProfilerActivity, profile

from mlhpc.benchmarks.deepcam import Hyperparameters, Network
from mlhpc.common.host.malloc import keep_memory
from mlhpc.common.pytorch.devices import capture_on, filler, pick_device, place
from mlhpc.common.pytorch.graphs import Replayed
from mlhpc.common.pytorch.step import make_scaler, make_train_step
from mlhpc.deepcam.cpu.kernels import use_cpu_kernels
from mlhpc.deepcam.metric import weighted_cross_entropy
from mlhpc.deepcam.model import build_model
from mlhpc.deepcam.optim.optimizer import make_optimizer
from mlhpc.perf.networks.deepcam import layers

WAYS = ("eager", "compiled", "graphs")
KINDS = (
    ("copies", r"memcpy|memset|copy_|nchwToNhwc|nhwcToNchw|transpose|contiguous"),
    ("optimizer", r"multi_tensor|foreach|lamb|adam"),
    ("batch norm", r"batch_?norm|bn_(fw|bw)"),
    ("depthwise convolutions", r"depthwise|dgrouped|conv2d_c1_k1|conv_depthwise"),
    ("convolutions and products", r"conv|gemm|wgrad|dgrad|fprop|xmma|cutlass|nvjet|implicit|::mm|addmm|bmm"),
    ("collectives", r"nccl|all_?reduce"),
    ("elementwise and reductions", r"elementwise|reduce|triton|pool|relu|upsample|nll|softmax|::\w+"),
)
"""Kind of a kernel by its name, the first that fits: CUDA's, cuDNN's and Triton's, and operators on a CPU."""


def our_step(way: str, batch: int, device: torch.device, options: argparse.Namespace) -> Callable[[], object]:
    torch.manual_seed(0)
    model = build_model(Network(), 16)
    place(model, device, channels_last=True)
    if device.type == "cpu":
        use_cpu_kernels(model)
    facts = Hyperparameters(global_batch_size=batch, opt_lr=1e-3, opt_name="LAMB")
    step = make_train_step(
        model,
        weighted_cross_entropy,
        make_optimizer(facts, model.parameters(), compiled=way == "compiled"),
        make_scaler(options.precision, device),
        options.precision,
        layout=torch.channels_last,
        compiled=way == "compiled",
    )
    if way == "graphs":
        step = Replayed(step, capture_on(device), device, filler(device), active=True)
    x = torch.rand(batch, options.rows, options.columns, 16).permute(0, 3, 1, 2)
    y = (x[:, 0] > 0.98).to(torch.uint8) + (x[:, 1] > 0.995).to(torch.uint8)
    if device.type == "cuda":
        x, y = x.pin_memory(), y.pin_memory()
    return lambda: step(x, y)


def seconds(step: Callable[[], object], steps: int, device: torch.device) -> float:
    """Of one step, of ``steps`` that follow each other."""
    wait(device)
    begin = time.perf_counter()
    for _ in range(steps):
        step()
    wait(device)
    return (time.perf_counter() - begin) / steps


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def profiled(
    step: Callable[[], object], steps: int, device: torch.device, trace: Path | None
) -> tuple[Counter[str], Counter[str]]:
    """Milliseconds a step, by kind and by name, of the device's kernels (on a CPU: of operators, less what they
    call)."""
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (device.type == "cuda")
    with profile(activities=activities) as told:
        for _ in range(steps):
            step()
        wait(device)
    if trace:
        trace.parent.mkdir(parents=True, exist_ok=True)
        told.export_chrome_trace(str(trace))
    names: Counter[str] = Counter()
    for event in told.key_averages():
        if device.type == "cpu":
            names[event.key] += event.self_cpu_time_total / 1e3 / steps
        elif str(event.device_type).endswith("CUDA") and not event.is_user_annotation:  # spans around kernels
            names[event.key] += event.self_device_time_total / 1e3 / steps
    kinds: Counter[str] = Counter()
    for name, milliseconds in names.items():
        kinds[kind_of(name)] += milliseconds
    return kinds, names


def kind_of(name: str) -> str:
    return next((kind for kind, names in KINDS if re.search(names, name, re.IGNORECASE)), "other")


def measure(batch: int, device: torch.device, options: argparse.Namespace, console: Console) -> None:
    """The table of one batch, and a profile of each way."""
    work = batch * layers(Network(), (options.rows, options.columns, 16)).training_flops
    table = Table(title=f"batch {batch} of {options.rows} x {options.columns}, {options.precision}, {device}")
    for head in ("way", "ms per step", "samples/s", "of the rounds", "TFLOP/s", "peak GB"):
        table.add_column(head, justify="left" if head == "way" else "right")
    steps, peaks = {}, {}
    times: dict[str, list[float]] = {way: [] for way in options.ways}
    torch.compiler.reset()  # PyTorch compiles one piece of code for no more than eight cases
    for way in options.ways:
        before = 0
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
            before = torch.cuda.memory_allocated(device)
        steps[way] = our_step(way, batch, device, options)
        seconds(steps[way], 3, device)  # compiles, captures, finds the fastest convolutions
        if device.type == "cuda":
            peaks[way] = (torch.cuda.max_memory_allocated(device) - before) / 1e9
    for _ in range(options.rounds):
        for way in options.ways:
            times[way].append(seconds(steps[way], options.steps, device))
    for way in options.ways:
        median = statistics.median(times[way])
        rates = f"{batch / max(times[way]):.4g} .. {batch / min(times[way]):.4g}"
        peak = f"{peaks[way]:.1f}" if way in peaks else "-"
        table.add_row(
            way, f"{median * 1e3:.1f}", f"{batch / median:.4g}", rates, f"{work / median / 1e12:.4g}", peak
        )
    console.print(table)
    for way in options.ways:
        trace = options.out / f"batch{batch}_{way}.json.gz" if options.out else None
        kinds, names = profiled(steps[way], min(options.steps, 5), device, trace)
        busy, whole = sum(kinds.values()), statistics.median(times[way]) * 1e3
        parts = ", ".join(f"{kind} {100 * ms / busy:.0f}%" for kind, ms in kinds.most_common())
        console.print(f"[bold]{way}[/bold]: {busy:.1f} ms of kernels in a step of {whole:.1f} ms: {parts}")
        if device.type == "cuda":
            console.print(f"  bound by {'the host' if busy < 0.9 * whole else kinds.most_common(1)[0][0]}")
        for name, milliseconds in names.most_common(8):
            console.print(f"  {milliseconds:8.2f} ms  {name[:100]}", markup=False, highlight=False)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 2, 8])
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--precision", default="mixed_bfloat16")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--rows", type=int, default=768)
    parser.add_argument("--columns", type=int, default=1152)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    device = pick_device(options.device, 0)
    keep_memory()  # as ``mlhpc run`` does
    console = Console(width=110)
    console.print(
        f"{torch.cuda.get_device_name(device) if device.type == 'cuda' else 'CPU'}, PyTorch {torch.__version__}"
    )
    for batch in options.batch:
        measure(batch, device, options, console)


if __name__ == "__main__":
    main()
