"""Loaders of others beside this suite's: the same bytes in, the same batches out, in turns with a floor program.

    python tests/perf/loaders.py [--benchmarks cosmoflow ...] [--loaders floor mlhpc ...] [--rounds 3] [--json]

What is read is in ``peers/tasks.py``, the loaders in ``peers``, and their settings in ``peers/settings.toml``.
What is not installed is left out and named; docs/evidence/performance.md has the environment with all. Each
measurement has a process of its own, with the files in the page cache. In a first turn, numbers of workers and of
batches ahead are tried, the same for all loaders; the rounds have those with the most samples per CPU second, and
their medians are the result. CPU seconds and memory (Pss) are of the process and its workers, the delay is from
its start to its first batch; there is no GPU, so nothing is page-locked. A thousand values of each sample of every
loader are compared with this suite's: bit for bit, logarithms to 1e-6, images to two grey levels on average.

Shuffle: mean distance between a sample's places in two epochs of many tiny samples, relative to that of two
independent permutations (a third of the samples): 1 is a full shuffle, 0 the same order.
"""

import argparse
import importlib
import itertools
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from peers.tasks import NEEDED, TASKS, Array, Epoch, Task, write
from rich.console import Console
from rich.table import Table

from mlhpc.common.data.loader_bench import cpu_seconds, memory_bytes

SETTINGS = tomllib.loads((Path(__file__).parent / "peers/settings.toml").read_text())
SWEPT = [{"workers": workers, "prefetch": prefetch} for workers in (1, 2) for prefetch in (2, 4)]
TOLERANCE = {"cosmoflow_gzip": 1e-6, "resnet50": 0.03}  # mean difference; a grey level is 0.017
VALUES = 1000  # of a sample, compared
TINY = {"samples": 2048, "batch": 32, "side": 4}
FIGURES = ("samples_per_s", "samples_per_cpu_s", "memory_bytes", "first_batch_s")
Rows = list[dict[str, Any]]


def cpu() -> float:
    """CPU seconds of this process and its children, also of those that have ended."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return cpu_seconds() + ended.ru_utime + ended.ru_stime


def opened(loader: str, task: Task, root: Path, settings: Mapping[str, Any]) -> Epoch:
    chosen = SETTINGS[loader]
    name = chosen.get("modules", {}).get(task.name, chosen["module"])
    module = importlib.import_module(f"peers.{name}")
    epoch: Epoch = module.LOADERS[loader](task, root, {**chosen, **settings})
    return epoch


def arrays(batch: tuple[Any, Any]) -> tuple[Array, Array]:
    x, y = map(np.asarray, batch)
    return x, y


def measure(epoch: Epoch, task: Task, started: float, seconds: float) -> dict[str, Any]:
    """Of epochs that take at least ``seconds`` together, after a first one whose samples are recorded. The process
    was ``started`` so many seconds after 1970."""
    samples: dict[int, list[float]] = {}
    first = 0.0
    for batch in epoch(0):
        first = first or time.time() - started
        for row, y in zip(*arrays(batch), strict=True):
            assert row.shape == task.shape, row.shape
            samples[task.number(y)] = row.reshape(-1)[:: row.size // VALUES + 1].astype(float).tolist()
    used, begin, count, epochs = cpu(), time.perf_counter(), 0, 0
    while not epochs or time.perf_counter() - begin < seconds:
        epochs += 1
        for x, _ in epoch(epochs):
            count += len(x)
            del x
    wall, used = time.perf_counter() - begin, cpu() - used
    figures = (count / wall, count / used, memory_bytes(), first)
    return dict(zip(FIGURES, figures, strict=True)) | {"samples": samples}


def displacement(epoch: Epoch, task: Task) -> dict[str, float]:
    places = []
    for number in (1, 2):
        order = [task.number(y) for batch in epoch(number) for y in arrays(batch)[1]]
        places.append({sample: place for place, sample in enumerate(order)})
    moved = [abs(place - places[1][sample]) for sample, place in places[0].items() if sample in places[1]]
    return {"shuffle": statistics.mean(moved) / (task.samples / 3)}


def in_process(
    what: str, loader: str, task: Task, root: Path, settings: Mapping[str, Any], seconds: float
) -> Any:
    """What a process of its own measures; the last line of its error as text."""
    job: dict[str, Any] = {
        "what": what,
        "loader": loader,
        "task": asdict(task),
        "root": str(root),
        "settings": settings,
    }
    job |= {"seconds": seconds, "started": time.time()}
    command = [sys.executable, __file__, "--job", json.dumps(job)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    if done.returncode:
        return done.stderr.strip().rpartition("\n")[2] or f"ended with {done.returncode}"
    return json.loads(done.stdout.rstrip().rpartition("\n")[2])  # libraries print before it


def run_job(job: dict[str, Any]) -> None:
    task, root = Task(**job["task"]), Path(job["root"])
    epoch = opened(job["loader"], task, root, job["settings"])
    measured = job["what"] == "measure"
    result = measure(epoch, task, job["started"], job["seconds"]) if measured else displacement(epoch, task)
    print("\n" + json.dumps(result), flush=True)


def agrees(task: Task, measured: Mapping[str, Any], own: Mapping[str, Any]) -> bool:
    theirs, ours = ({int(n): values for n, values in each["samples"].items()} for each in (measured, own))
    shared = sorted(theirs.keys() & ours.keys())
    differences = [np.abs(np.subtract(theirs[n], ours[n])).mean() for n in shared]
    return len(shared) >= min(len(theirs), len(ours)) // 2 and float(np.mean(differences)) <= TOLERANCE.get(
        task.name, 0
    )


def compare(task: Task, loaders: Iterable[str], work: Path, options: argparse.Namespace) -> tuple[Rows, Rows]:
    """The rows of a benchmark, and the loaders that could not be measured."""
    root, tiny, tiny_root = work / task.name, Task(task.name, **TINY), work / "tiny"
    write(task, root)
    if options.shuffle:
        write(tiny, tiny_root)
    settings: dict[str, Any] = {}
    rounds: dict[str, Rows] = {loader: [] for loader in loaders}
    missing: Rows = []
    for turn in range(-1 if options.sweep else 0, options.rounds):
        for loader in list(rounds)[:: 1 if turn % 2 else -1]:
            if turn < 0:
                swept = SWEPT if SETTINGS[loader].get("swept", True) else SWEPT[:1]
            else:
                swept = [settings.setdefault(loader, SWEPT[-1])]
            seconds = options.seconds / (2 if turn < 0 else 1)
            tried = [in_process("measure", loader, task, root, each, seconds) for each in swept]
            if failed := next((result for result in tried if isinstance(result, str)), None):
                missing.append({"benchmark": task.name, "loader": loader, "reason": failed})
                del rounds[loader]
            elif turn < 0:
                settings[loader] = swept[int(np.argmax([each["samples_per_cpu_s"] for each in tried]))]
            else:
                rounds[loader] += tried
    files = sum(path.stat().st_size for n in range(task.samples) for path in task.paths(root, n))
    rows = []
    for loader, measured in rounds.items():
        median = {name: statistics.median(each[name] for each in measured) for name in FIGURES}
        row = {"benchmark": task.name, "loader": loader, **settings[loader], **median}
        row["bytes_per_sample"] = files // task.samples
        row["cores"] = NEEDED[task.name] / median["samples_per_cpu_s"]
        undecoded = (task.name, loader) == ("resnet50", "floor")
        row["same_samples"] = (
            None if undecoded else agrees(task, measured[0], rounds.get("mlhpc", measured)[0])
        )
        order = in_process("order", loader, tiny, tiny_root, settings[loader], 0) if options.shuffle else ""
        row["shuffle"] = order["shuffle"] if isinstance(order, dict) else None
        rows.append(row)
    return rows, missing


def show(rows: Rows, missing: Rows) -> None:
    console = Console(width=150)
    for name, group in itertools.groupby(rows, key=lambda row: row["benchmark"]):
        shown = list(group)
        heads = (
            "samples/s",
            "per CPU s",
            "CPU ms",
            "memory, MB",
            "first, s",
            "shuffle",
            "same",
            "workers, ahead",
        )
        title = f"{name}, {shown[0]['bytes_per_sample'] / 1e6:.2f} MB a sample"
        table = Table("loader", *heads, f"cores for {NEEDED[name]}/s", title=title)
        for row in shown:
            table.add_row(
                row["loader"],
                f"{row['samples_per_s']:.1f}",
                f"{row['samples_per_cpu_s']:.1f}",
                f"{1e3 / row['samples_per_cpu_s']:.2f}",
                f"{row['memory_bytes'] / 1e6:.0f}",
                f"{row['first_batch_s']:.2f}",
                "-" if row["shuffle"] is None else f"{row['shuffle']:.2f}",
                {None: "-", True: "yes", False: "NO"}[row["same_samples"]],
                f"{row['workers']}, {row['prefetch']}" if SETTINGS[row["loader"]].get("swept", True) else "-",
                f"{row['cores']:.2f}",
            )
        console.print(table)
    for each in missing:
        console.print(f"{each['benchmark']}: no {each['loader']}: {each['reason'][:200]}", highlight=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--benchmarks", nargs="+", choices=TASKS, default=TASKS)
    parser.add_argument("--loaders", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    parser.add_argument("--samples", type=int, default=64, help="made, and read in an epoch")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--side", type=int, default=128, help="128: samples of the published size")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0, help="at least so long is each measurement")
    parser.add_argument(
        "--no-sweep", dest="sweep", action="store_false", help="two workers, four batches ahead"
    )
    parser.add_argument(
        "--no-shuffle", dest="shuffle", action="store_false", help="shuffles are not measured"
    )
    parser.add_argument("--work", type=Path, help="where the samples are made: a disk, or memory")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--job", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job:
        return run_job(options.job)
    rows, missing = [], []
    for name in options.benchmarks:
        task = Task(name, options.side, options.samples, options.batch)
        own = SETTINGS.items()
        loaders = [each for each, s in own if each in options.loaders and name in s.get("benchmarks", TASKS)]
        with tempfile.TemporaryDirectory(prefix="loaders-", dir=options.work) as work:
            measured, failed = compare(task, loaders, Path(work), options)
        rows += measured
        missing += failed
    if options.json:
        print(json.dumps({"rows": rows, "missing": missing}, indent=1))
    else:
        show(rows, missing)
    if differ := [f"{row['loader']} of {row['benchmark']}" for row in rows if row["same_samples"] is False]:
        sys.exit(f"other samples than this suite's: {', '.join(differ)}")


if __name__ == "__main__":
    main()
