"""Everything that only a GPU can show, in one command on one node: what works, what failed, and where the output
is.

    python tests/perf/first_hour_gpu.py [--gpus N] [--jobs N] [--only NAME ...] [--work FOLDER]

Each check runs in its own process with a time limit, so that one that hangs or crashes does not affect the others;
runs on one GPU go side by side, since none of them is timed. What has not begun after ``--minutes`` is skipped.
Without a GPU it reports that and exits. docs/start/first_hour_on_gpus.md says what to do about each failure.
"""

import argparse
import json
import math
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

MLHPC = [sys.executable, "-m", "mlhpc"]
NEEDED_DRIVER = 580  # of the CUDA 13 builds of PyTorch (CUDA toolkit release notes, table 3)


@dataclass(frozen=True)
class Check:
    """``command`` gives the words of a process, from the number of GPUs and the working folder; ``verify`` raises
    AssertionError when its output there is wrong. PyTorch and TensorFlow with GPUs cannot share an environment
    (docs/guide/sites.md): a check that ``needs`` one that is not installed is skipped."""

    name: str
    what: str
    command: Callable[[int, Path], Sequence[str]]
    verify: Callable[[Path], None] = lambda work: None
    minutes: float = 10
    gpus: int = 1  # at least

    @property
    def needs(self) -> str:
        """The package that it needs, by its name; empty for one that needs none."""
        if self.name.startswith(("data-", "driver")):
            return ""
        if self.name.endswith("-dali"):
            return "nvidia.dali"
        if self.name == "energy":
            return "pynvml"
        return "tensorflow" if self.name.startswith("cosmoflow") else "torch"


def run_words(
    benchmark: str, name: str, *settings: str, ranks: bool = False, codec: str = ""
) -> Callable[[int, Path], list[str]]:
    """Two epochs of the smoke preset, with ``ranks`` on one rank per GPU, with ``codec`` on data encoded by it."""
    folder = f"{benchmark}-{codec}" if codec else benchmark

    def words(gpus: int, work: Path) -> list[str]:
        # A batch that up to 16 ranks can share, the same for one rank, so that losses can be compared.
        chosen = ["training.max_epochs=2", "hyperparameters.global_batch_size=16", *settings]
        data = ["--preset", "smoke", "--data", str(work / "data" / folder), "--seed", "7"]
        many = ["--ranks", str(gpus)] if ranks else []
        sets = [word for setting in chosen for word in ("--set", setting)]
        return [*MLHPC, "run", benchmark, *data, "--out", str(work / "runs" / name), *many, *sets]

    return words


def trained(name: str) -> Callable[[Path], None]:
    """The run used a GPU, its losses are finite and fall, and its times add up."""

    def verify(work: Path) -> None:
        result = json.loads((work / "runs" / name / "result.json").read_text())
        losses = [epoch["train_loss"] for epoch in result["epochs"]]
        assert len(losses) == 2 and losses[1] < losses[0], f"losses {losses}"
        lines = (work / "runs" / name / "events.rank0.jsonl").read_text().splitlines()
        (memory,) = (e for e in map(json.loads, lines) if e["event"] == "note" and e["name"] == "memory")
        assert memory["device_peak_bytes"], "it trained on the CPU"
        for epoch in result["epochs"]:
            assert 0 <= epoch["data_wait_s"] <= epoch["train_s"], epoch

    return verify


def agree(name: str, other: str, within: float) -> Callable[[Path], None]:
    """Both runs trained, and their first losses are the same but for rounding."""

    def verify(work: Path) -> None:
        trained(name)(work)
        first, second = (
            json.loads((work / "runs" / each / "result.json").read_text())["epochs"][0]["train_loss"]
            for each in (name, other)
        )
        assert abs(first - second) <= within * abs(second), f"loss {first}, and {second} in {other}"

    return verify


def inside(name: str) -> Callable[[int, Path], list[str]]:
    return lambda gpus, work: [sys.executable, __file__, "--inside", name]


def program(path: str, *arguments: str) -> Callable[[int, Path], list[str]]:
    """A program of tests/numeric, which compares kernels with slow truths on the device that it is given."""
    file = Path(__file__).parents[1] / "numeric" / path
    return lambda gpus, work: [sys.executable, str(file), "cuda", *arguments]


def make(benchmark: str) -> Callable[[int, Path], list[str]]:
    return lambda gpus, work: [
        *(*MLHPC, "data", "make", benchmark, "--preset", "smoke", "--out", str(work / "data" / benchmark))
    ]


def convert(benchmark: str, codec: str, *options: str) -> Callable[[int, Path], list[str]]:
    def words(gpus: int, work: Path) -> list[str]:
        folders = [str(work / "data" / name) for name in (benchmark, f"{benchmark}-{codec}")]
        return [*MLHPC, "data", "convert", benchmark, *folders, "--codec", codec, *options]

    return words


ON, AUTO = "training.cuda_graphs=on", "training.cuda_graphs=auto"
PYTORCH = "training.framework=pytorch"
CHECKS = (
    Check("driver", "the driver is new enough, and PyTorch and TensorFlow see all GPUs", inside("driver")),
    *(
        Check(f"data-{name}", "data for the runs below", make(name))
        for name in ("cosmoflow", "deepcam", "resnet50")
    ),
    Check("data-deepcam-delta", "the same, encoded", convert("deepcam", "delta", "--max-error", "1e-3")),
    Check("data-cosmoflow-lut", "the same, encoded", convert("cosmoflow", "lut")),
    Check("events", "CUDA events time steps as the host's clock does", inside("events")),
    Check("pinned", "batches in page-locked memory are copied while a step computes", inside("pinned")),
    Check(
        "foreach", "LAMB and LARS: the fused path gives what one kernel per tensor gives", inside("foreach")
    ),
    Check(
        "kernel-batchnorm",
        "batch norm in Triton agrees with PyTorch in float64",
        program("common/kernels/batchnorm_program.py"),
    ),
    Check(
        "kernel-pool",
        "so do pooling and the conversion of counts",
        program("cosmoflow/pytorch/kernels_program.py"),
    ),
    Check(
        "kernel-delta",
        "the decoder gives the bits of the truth",
        program("deepcam/data/delta_program.py", "1", "17", "150", "1152"),
    ),
    Check("memory", "too little GPU memory is one line", inside("memory")),
    Check("energy", "the driver counts the energy of every GPU", inside("energy")),
    Check("deepcam", "float32", run_words("deepcam", "deepcam"), trained("deepcam")),
    Check(
        "deepcam-float16",
        "float16 with loss scaling",
        run_words("deepcam", "deepcam-float16", "training.precision=mixed_float16"),
        agree("deepcam-float16", "deepcam", 0.1),
    ),
    Check(
        "deepcam-bfloat16",
        "bfloat16, after a comparison of graphs with eager steps",
        run_words("deepcam", "deepcam-bfloat16", "training.precision=mixed_bfloat16", AUTO),
        agree("deepcam-bfloat16", "deepcam", 0.1),
    ),
    Check(
        "deepcam-compile",
        "torch.compile, LAMB's update too",
        run_words("deepcam", "deepcam-compile", "training.compile=true"),
        agree("deepcam-compile", "deepcam", 0.05),
    ),
    Check(
        "deepcam-graphs",
        "CUDA graphs",
        run_words("deepcam", "deepcam-graphs", ON),
        agree("deepcam-graphs", "deepcam", 0.05),
    ),
    Check(
        "deepcam-dali",
        "DALI normalises on the GPU",
        run_words("deepcam", "deepcam-dali", "loading.loader=dali"),
        agree("deepcam-dali", "deepcam", 0.05),
    ),
    Check(
        "deepcam-decode",
        "encoded samples are decoded by the Triton kernel",
        run_words("deepcam", "deepcam-decode", "loading.decode=device", codec="delta"),
        agree("deepcam-decode", "deepcam", 0.1),
    ),
    Check("resnet50", "float32", run_words("resnet50", "resnet50"), trained("resnet50")),
    Check(
        "resnet50-dali",
        "DALI decodes on the GPU",
        run_words("resnet50", "resnet50-dali", "loading.loader=dali"),
        agree("resnet50-dali", "resnet50", 0.2),
    ),
    Check(
        "resnet50-graphs",
        "CUDA graphs, after a comparison with eager steps",
        run_words("resnet50", "resnet50-graphs", AUTO),
        agree("resnet50-graphs", "resnet50", 0.05),
    ),
    Check("cosmoflow", "TensorFlow's GPU path", run_words("cosmoflow", "cosmoflow"), trained("cosmoflow")),
    Check(
        "cosmoflow-float16",
        "float16 with loss scaling",
        run_words("cosmoflow", "cosmoflow-float16", "training.precision=mixed_float16"),
        agree("cosmoflow-float16", "cosmoflow", 0.2),
    ),
    Check(
        "cosmoflow-decode",
        "encoded samples are looked up on the GPU",
        run_words("cosmoflow", "cosmoflow-decode", "loading.decode=device", codec="lut"),
        agree("cosmoflow-decode", "cosmoflow", 0.05),
    ),
    Check(
        "pytorch-cosmoflow",
        "CosmoFlow in PyTorch",
        run_words("cosmoflow", "pytorch-cosmoflow", PYTORCH),
        trained("pytorch-cosmoflow"),
    ),
    Check(
        "pytorch-cosmoflow-bfloat16",
        "bfloat16",
        run_words("cosmoflow", "pytorch-cosmoflow-bfloat16", PYTORCH, "training.precision=mixed_bfloat16"),
        agree("pytorch-cosmoflow-bfloat16", "pytorch-cosmoflow", 0.2),
    ),
    Check(
        "pytorch-cosmoflow-graphs",
        "CUDA graphs",
        run_words("cosmoflow", "pytorch-cosmoflow-graphs", PYTORCH, ON),
        agree("pytorch-cosmoflow-graphs", "pytorch-cosmoflow", 0.05),
    ),
    Check(
        "pytorch-cosmoflow-decode",
        "encoded samples are looked up on the GPU",
        run_words("cosmoflow", "pytorch-cosmoflow-decode", PYTORCH, "loading.decode=device", codec="lut"),
        agree("pytorch-cosmoflow-decode", "pytorch-cosmoflow", 0.05),
    ),
    Check(
        "deepcam-ranks",
        "NCCL: gradients over ranks, and batch-norm statistics",
        lambda gpus, work: run_words(
            "deepcam", "deepcam-ranks", f"hyperparameters.batchnorm_group_size={gpus}", ranks=True
        )(gpus, work),
        agree("deepcam-ranks", "deepcam", 0.1),
        gpus=2,
    ),
    Check(
        "deepcam-ranks-compile",
        "torch.compile with DistributedDataParallel",
        run_words("deepcam", "deepcam-ranks-compile", "training.compile=true", ranks=True),
        trained("deepcam-ranks-compile"),
        gpus=2,
    ),
    Check(
        "deepcam-ranks-graphs",
        "CUDA graphs with NCCL, and a run that ends",
        run_words("deepcam", "deepcam-ranks-graphs", ON, ranks=True),
        trained("deepcam-ranks-graphs"),
        gpus=2,
    ),
    Check(
        "cosmoflow-ranks",
        "Horovod over several GPUs, each rank with its own",
        run_words("cosmoflow", "cosmoflow-ranks", ranks=True),
        agree("cosmoflow-ranks", "cosmoflow", 0.2),
        gpus=2,
    ),
    Check(
        "pytorch-cosmoflow-spatial",
        "samples cut in two, halos exchanged between GPUs by NCCL",
        run_words("cosmoflow", "pytorch-cosmoflow-spatial", PYTORCH, "training.spatial=[2,1,1]", ranks=True),
        agree("pytorch-cosmoflow-spatial", "pytorch-cosmoflow", 0.1),
        gpus=2,
    ),
)


# What runs inside a separate process.


def inside_driver() -> None:
    query = ["nvidia-smi", "--query-gpu=driver_version,name,memory.total", "--format=csv,noheader"]
    listed = subprocess.run(query, capture_output=True, text=True, check=True, timeout=60).stdout
    print(listed)
    driver = int(listed.split(".")[0])
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")  # which nvidia-smi does not heed
    gpus = len(listed.splitlines() if visible is None else visible.split(","))
    assert installed("torch") or installed("tensorflow"), "neither PyTorch nor TensorFlow is installed here"
    if installed("torch"):
        import torch

        print("PyTorch", torch.__version__, "CUDA", torch.version.cuda, "GPUs", torch.cuda.device_count())
        needs = NEEDED_DRIVER if int((torch.version.cuda or "0").split(".")[0]) >= 13 else 0
        assert driver >= needs, f"driver {driver}, and this PyTorch needs {needs}"
        assert torch.cuda.device_count() == gpus, f"PyTorch sees {torch.cuda.device_count()} of {gpus} GPUs"
        for gpu in range(gpus):
            x = torch.arange(16.0, device=f"cuda:{gpu}").view(4, 4)
            assert torch.equal((x @ x).cpu(), x.cpu() @ x.cpu()), f"GPU {gpu} computes something else"
    if installed("tensorflow"):
        import tensorflow as tf

        seen = len(tf.config.list_physical_devices("GPU"))
        print("TensorFlow", tf.__version__, "GPUs", seen)
        assert seen == gpus, f"TensorFlow sees {seen} of {gpus} GPUs"


def inside_events() -> None:
    """Matrix products long enough to time, launched without waiting."""
    import torch

    from mlhpc.common.pytorch.devices import device_events
    from mlhpc.common.timing.steps import MAX_IN_FLIGHT, StepTimer

    device = torch.device("cuda", 0)
    a = torch.randn(4096, 4096, device=device)

    def step() -> None:
        for _ in range(20):
            a @ a

    step()
    torch.cuda.synchronize()
    timer = StepTimer(device_events(device))
    start = time.perf_counter()
    for _ in range(30):
        timer.ask()
        timer.start()
        step()
    timer.ask()
    timer.stop()
    wall = time.perf_counter() - start
    print(f"{wall:.4f} s by the host, {sum(timer.steps):.4f} s by events, waits {sum(timer.waits):.4f} s")
    assert MAX_IN_FLIGHT == 2 and len(timer.steps) == 30
    assert abs(sum(timer.steps) + sum(timer.waits) - wall) < 0.05 * wall
    assert sum(timer.waits) < 0.05 * wall, "there was nothing to wait for"


def inside_pinned() -> None:
    import torch

    device, size = torch.device("cuda", 0), 1 << 28  # bytes
    seconds = {}
    for pinned in (False, True):
        host = torch.empty(size, dtype=torch.uint8, pin_memory=pinned)
        host.to(device)
        torch.cuda.synchronize()
        start = time.perf_counter()
        copied = host.to(device, non_blocking=True)
        returned = time.perf_counter() - start
        torch.cuda.synchronize()
        seconds[pinned] = time.perf_counter() - start
        print(f"pinned={pinned}: {size / seconds[pinned] / 1e9:.1f} GB/s, returned after {returned:.6f} s")
        assert copied.device == device
    assert returned < 0.5 * seconds[True], "the copy from page-locked memory blocks the host"
    assert seconds[True] < seconds[False]


def inside_foreach() -> None:
    import torch

    from mlhpc.common.pytorch.foreach import multiply_each

    torch.manual_seed(1)
    shapes = [(64, 3, 7, 7), (64,), (256, 64, 1, 1), (1000, 2048), (1,)] * 30
    tensors = [torch.randn(shape, device="cuda") for shape in shapes]
    one_by_one = [tensor.clone() for tensor in tensors]
    factors = torch.rand(len(tensors), device="cuda")
    seconds = []
    for multiply in (
        lambda: multiply_each(tensors, factors),
        lambda: torch._foreach_mul_(one_by_one, list(factors.unbind())),
    ):
        for _ in range(3):  # the first calls load kernels
            torch.cuda.synchronize()
            start = time.perf_counter()
            multiply()
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    print(f"together {seconds[0] * 1e3:.2f} ms, one by one {seconds[1] * 1e3:.2f} ms")
    assert all(torch.equal(a, b) for a, b in zip(tensors, one_by_one, strict=True))


def inside_memory() -> None:
    import torch

    from mlhpc.benchmarks.deepcam import Hyperparameters, Network
    from mlhpc.common.pytorch.step import make_scaler, make_train_step
    from mlhpc.deepcam.data.source import zeros_batch
    from mlhpc.deepcam.metric import weighted_cross_entropy
    from mlhpc.deepcam.model import build_model
    from mlhpc.deepcam.optim.optimizer import make_optimizer
    from mlhpc.errors import UserError

    device = torch.device("cuda", 0)
    model = build_model(Network(width=0.25, middle_blocks=1), 16).to(device)
    optimizer = make_optimizer(Hyperparameters(global_batch_size=1, opt_lr=0.1), model.parameters())
    step = make_train_step(model, weighted_cross_entropy, optimizer, make_scaler("float32", device))
    torch.cuda.set_per_process_memory_fraction(0.01)
    try:
        step(*zeros_batch(64, (768, 1152, 16)))
    except UserError as error:
        print(error)
        assert "too little memory" in str(error) and "\n" not in str(error)
    else:
        raise AssertionError("the step found memory for 64 samples in a hundredth of the GPU")


def inside_energy() -> None:
    import torch

    from mlhpc.common.energy.accelerators import accelerator_counters
    from mlhpc.common.energy.counters import Sum

    counters = accelerator_counters("nvidia")
    assert not counters.problems, counters.problems
    spent, matrix = Sum(counters), torch.rand(4096, 4096, device="cuda")
    spent.start()
    start = time.monotonic()
    while time.monotonic() - start < 5:
        (matrix @ matrix).sum().item()
    used = spent.spent("")
    print(used)
    assert used.counters == count_gpus() and not used.problems, used
    assert used.joules > 100, "a GPU that computes for five seconds takes more than 20 W"


# The table.


def installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:  # of the package around it
        return False


def count_gpus() -> int:
    """By the driver, without loading a framework."""
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    return (
        sum(line.startswith("GPU ") for line in listed.stdout.splitlines()) if listed.returncode == 0 else 0
    )


class Outcome(NamedTuple):
    """The verdict ("passed": of the process, its output is verified later), the seconds, and what was checked or
    went wrong."""

    verdict: str
    seconds: float
    what: str


def perform(check: Check, gpus: int, work: Path, end: float = math.inf) -> Outcome:
    """Until ``end`` by the monotonic clock at most."""
    if gpus < check.gpus:
        return Outcome("skipped", 0, f"needs {check.gpus} GPUs")
    if check.needs and not installed(check.needs):
        return Outcome("skipped", 0, f"{check.needs} is not installed: start this in its environment too")
    left, again = end - time.monotonic(), f"start this again with --only {check.name}"
    if left <= 0:
        return Outcome("skipped", 0, f"no time was left: {again}")
    run = work / "runs" / check.name
    if (run / "run.log").exists():  # of an earlier try
        shutil.rmtree(run)
    log, start = work / f"{check.name}.txt", time.monotonic()
    with log.open("w") as output:
        words = check.command(gpus, work)
        try:
            limit = min(60 * check.minutes, left)
            done = subprocess.run(words, stdout=output, stderr=subprocess.STDOUT, timeout=limit)
        except subprocess.TimeoutExpired:
            if left < 60 * check.minutes:
                return Outcome("skipped", time.monotonic() - start, f"cut off by --minutes: {again}")
            return Outcome("FAILED", time.monotonic() - start, f"no end after {limit / 60:.3g} minutes")
    # 3: a run that ended without its target, as two epochs may.
    allowed = (0, 3) if "run" in words else (0,)
    if done.returncode not in allowed:
        why = f"status {done.returncode}: {last_line(log)}"
        return Outcome("FAILED", time.monotonic() - start, why)
    return Outcome("passed", time.monotonic() - start, check.what)


def verified(check: Check, outcome: Outcome, work: Path) -> Outcome:
    """``outcome``, or a failure if what the process wrote is wrong. Comparisons need the other runs' results."""
    if outcome.verdict != "passed":
        return outcome
    try:
        check.verify(work)
    except (AssertionError, OSError, ValueError, KeyError) as error:
        why = " ".join(str(error).split()) or type(error).__name__
        return outcome._replace(verdict="FAILED", what=why)
    return outcome


def last_line(log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1][:200] if lines else "no output"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--gpus", type=int, default=0, help="ranks of the checks with several (default: all GPUs)"
    )
    parser.add_argument("--jobs", type=int, default=4, help="runs on one GPU side by side (default: 4)")
    parser.add_argument("--minutes", type=float, default=20, help="for everything (default: 20)")
    parser.add_argument(
        "--only", nargs="+", choices=[check.name for check in CHECKS], help="these checks only"
    )
    parser.add_argument(
        "--work", type=Path, default=Path("first_hour"), help="folder for data, runs and output"
    )
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        globals()[f"inside_{options.inside}"]()
        return 0
    gpus = 1 << min(options.gpus or 8, count_gpus(), 8).bit_length() >> 1  # a power of two, to share a batch
    if not gpus:
        print("no GPU: nvidia-smi lists none on this node; nothing was checked", file=sys.stderr)
        return 2
    options.work.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    work = options.work.resolve()
    chosen = [c for c in CHECKS if not options.only or c.name in options.only or c.name.startswith("data-")]
    trains = {check.name: "run" in check.command(gpus, work) and check.gpus == 1 for check in chosen}
    end = time.monotonic() + 60 * options.minutes
    outcomes = {check.name: perform(check, gpus, work, end) for check in chosen if not trains[check.name]}
    with ThreadPoolExecutor(options.jobs) as pool:
        runs = [check for check in chosen if trains[check.name]]
        outcomes |= zip(
            (c.name for c in runs), pool.map(lambda c: perform(c, gpus, work, end), runs), strict=True
        )
    table, failed = Table("check", "verdict", "seconds", "what"), 0
    for check in chosen:
        verdict, seconds, what = verified(check, outcomes[check.name], work)
        failed += verdict == "FAILED"
        table.add_row(check.name, verdict, f"{seconds:.0f}", what)
    Console().print(table)
    print(f"{failed} failed; the output of each check: {options.work}/NAME.txt")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
