"""What a training step of a closed preset asks of a device: launches, waits of the host, copies and peak memory.

    python tests/fake_cuda/budgets.py [--benchmark NAME ...] [--precision NAME ...] [--batch N ...] [--record]

On the device that computes nothing (README.md), so no figure here is a GPU's: cuDNN needs no workspace there, and
its choice of kernels is not known. ``--record`` writes the numbers to budgets.json, which tests hold.
"""

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RECORDED = HERE / "budgets.json"
BATCHES = {"cosmoflow": (1, 4), "deepcam": (1, 2, 8), "resnet50": (64,)}
PRECISIONS = ("float32", "mixed_bfloat16", "mixed_float16")
COLUMNS = (
    "launches",
    "waits",
    "pageable",
    "pinned",
    "on_device",
    "allocated_bytes",
    "cublas_bytes",
    "reserved_bytes",
    "predicted_bytes",
    "evaluation_bytes",
    "predicted_evaluation_bytes",
)
WARM_UP = 4  # fill PyTorch's caches; DistributedDataParallel orders its buckets after one
STEPS = 2  # measured


def measured(benchmark: str, batch: int, precision: str, *settings: str) -> dict[str, Any]:
    """In a process that sees a device: the numbers of one step, and what the suite predicts of its memory."""
    sys.path.insert(0, str(HERE.parent / "perf"))
    import torch
    from host_step import simulated, subject

    from mlhpc.benchmarks.load import load
    from mlhpc.common.pytorch.devices import pick_device
    from mlhpc.perf.accelerator.memory import memory_of

    def step() -> None:
        of.rate()
        of.train(of.x, of.y)

    rank, store = int(os.environ.get("RANK", "0")), os.environ.get("STORE")
    device = pick_device("cuda", rank)
    if store:
        ranks = int(os.environ["WORLD_SIZE"])
        torch.distributed.init_process_group(
            "nccl", init_method=f"file://{store}", rank=rank, world_size=ranks, device_id=device
        )
    if any("opt_name=Adam" in setting for setting in settings):
        # Adam compares its rate with 0 on the device, which computes nothing: the answer is what its memory held.
        freed = [torch.ones(1 << 20, dtype=torch.uint8).to(device) for _ in range(8)]
        del freed
    of = subject(benchmark, batch, precision, device, *settings)
    for _ in range(WARM_UP):
        step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.set_sync_debug_mode("error")
    before = simulated()
    for _ in range(STEPS):
        step()
    after = simulated()

    def counted(section: str, part: str = "") -> float:
        names = after.get(section, {})
        earlier = before.get(section, {})
        return float(sum(names[name] - earlier.get(name, 0) for name in names if part in name) / STEPS)

    allocated, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    torch.cuda.reset_peak_memory_stats()
    of.evaluate(*of.evaluated)
    held = torch.cuda.memory_allocated()
    torch._C._cuda_clearCublasWorkspaces()
    workspaces = held - torch.cuda.memory_allocated()
    framework = ["training.framework=pytorch"] * (benchmark == "cosmoflow")
    run = load(benchmark, "closed", [f"training.precision={precision}", *framework, *settings])
    predicted = memory_of(run, batch, gpu=True)
    return {
        "launches": counted("kernels"),
        "waits": counted("synchronisations"),
        "pageable": counted("copies", "pageable"),
        "pinned": counted("copies", "pinned"),
        "on_device": counted("copies", "device to device"),
        "allocated_bytes": allocated,
        "reserved_bytes": reserved,
        "cublas_bytes": workspaces,
        "predicted_bytes": predicted.peak,
        "evaluation_bytes": torch.cuda.max_memory_allocated(),
        "predicted_evaluation_bytes": predicted.evaluation,
    }


@contextmanager
def other_ranks() -> Iterator[None]:
    """Rank 0 starts the others."""
    ranks = range(1, int(os.environ.get("WORLD_SIZE", "1"))) if "RANK" not in os.environ else ()
    started = [
        subprocess.Popen(
            [sys.executable, *sys.argv], env=os.environ | {"RANK": str(rank)}, stdout=subprocess.DEVNULL
        )
        for rank in ranks
    ]
    try:
        yield
        assert not any(process.wait(timeout=300) for process in started)
    finally:
        for process in started:
            process.kill()


def of_step(benchmark: str, batch: int, precision: str, *settings: str, ranks: int = 1) -> dict[str, Any]:
    """``measured`` on rank 0 of so many, each in a process of its own."""
    from helpers.warm import run_warm
    from smoke.conftest import PYTORCH

    from fake_cuda.library import devices, loader

    words = [__file__, "--inside", benchmark, batch, precision, *settings]
    with tempfile.TemporaryDirectory() as folder:
        chosen = {"devices": ranks, "moved_bytes": 1 << 20}  # gradients and batches stay where they are
        env = os.environ | loader() | devices(changes=chosen) | {"TMPDIR": folder}
        if ranks > 1:
            env |= {"STORE": f"{folder}/store", "WORLD_SIZE": str(ranks)}
        done = run_warm(PYTORCH, words, 300, env, loader())
    assert not done.returncode, done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1]))


def main() -> int:
    if sys.argv[1:2] == ["--inside"]:
        with other_ranks():
            print(json.dumps(measured(sys.argv[2], int(sys.argv[3]), *sys.argv[4:])))
        return 0
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--benchmark", nargs="+", choices=BATCHES, default=list(BATCHES))
    parser.add_argument("--precision", nargs="+", choices=PRECISIONS, default=list(PRECISIONS))
    parser.add_argument("--batch", nargs="+", type=int, help="local batch sizes (default: by benchmark)")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--record", action="store_true")
    options = parser.parse_args()
    sys.path.insert(0, str(HERE.parent))
    rows = {}
    for benchmark, precision in itertools.product(options.benchmark, options.precision):
        for batch in options.batch or BATCHES[benchmark]:
            rows[name_of(benchmark, batch, precision)] = of_step(benchmark, batch, precision)
    if options.record:
        kept = {name: {column: row[column] for column in COLUMNS[:5]} for name, row in rows.items()}
        RECORDED.write_text(json.dumps(json.loads(RECORDED.read_text()) | kept, indent=1) + "\n")
    if options.json:
        print(json.dumps(rows, indent=1))
        return 0
    print("| step of the closed preset |", " | ".join(COLUMNS), "|")
    print("|---" * (len(COLUMNS) + 1) + "|")
    for name, row in rows.items():
        cells = (f"{row[column]:,.0f}" for column in COLUMNS)
        print(f"| {name} |", " | ".join(cells), "|")
    return 0


def name_of(benchmark: str, batch: int, precision: str) -> str:
    return f"{benchmark} {batch} {precision}"


if __name__ == "__main__":
    sys.exit(main())
