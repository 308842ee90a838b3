"""Runs with injected delays (``slow_reads.c``), and what the delays must have cost by ``loader_model``."""

import atexit
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from helpers import loader_model as model

STEP_S, EPOCHS = 0.05, 2
TRAIN, EVAL, BATCH = 64, 16, 8
"""Samples, and the global batch size."""
SETTINGS = {
    "cosmoflow": ["data.sample_shape=[32,32,32,4]", "data.simulation.box_mpc_h=256",
                  "data.simulation.particles=32", "network.conv_layers=4", "network.conv_filters=2"],
    "deepcam": ["data.sample_shape=[32,48,16]", "data.simulation.test_samples=1", "network.width=0.1",
                "network.middle_blocks=1", "training.device=cpu"],
    "resnet50": ["data.sample_shape=[32,32,3]", "data.simulation.classes=4", "data.simulation.side=48",
                 "network.classes=4", "network.width=0.125", "training.device=cpu",
                 "training.epochs_between_evals=1"],
}  # fmt: skip
FOLDERS = "train", "validation"
WORKERS_START_S = 0.2
"""Seconds until the worker processes that each loop starts begin to read: as runs on two cores showed."""
DALI_AHEAD = 2
"""Batches that DALI takes from its source before it returns the first (its prefetch_queue_depth)."""


@dataclass(frozen=True)
class Cell:
    """A run and its delays. ``where``: in reads (of training), of one file, in staging, evaluation, or steps;
    ``slow``: one (rank 1, or 0 of 1), all, alternating (ranks take turns, batch by batch) or random."""

    benchmark: str
    ranks: int
    where: str = "reads"
    slow: str = "one"
    framework: str = "pytorch"
    loader: str = "threads"
    workers: int = 1
    prefetch: int = 2
    passes: int = 1
    packed: bool = False
    spatial: bool = False
    seconds: float = 12.0

    @property
    def name(self) -> str:
        of = "tensorflow" if self.framework == "tensorflow" else self.loader
        more = (
            [f"{self.passes} passes"] * (self.passes > 1)
            + ["packed"] * self.packed
            + ["spatial"] * self.spatial
        )
        return ", ".join([self.benchmark, of, f"{self.ranks} ranks", self.where, self.slow, *more])

    @property
    def samples_per_batch(self) -> int:
        return BATCH // self.passes // (1 if self.spatial else self.ranks)

    @property
    def delay_ms(self) -> float:
        """Each delay, for about ``seconds`` of them in the run, all ranks together."""
        per_rank = {
            "reads": EPOCHS * TRAIN // self.ranks,
            "evaluation": EPOCHS * EVAL // self.ranks,
            "staging": (TRAIN + EVAL) // self.ranks,
            "steps": EPOCHS * (TRAIN // BATCH) * self.passes,
            "file": EPOCHS,
        }[self.where]
        delays = {"one": 1.0, "all": self.ranks, "alternating": 1.0, "random": 0.25 * self.ranks}[self.slow]
        return 1000 * self.seconds / (per_rank * delays)


@cache
def library() -> Path:
    """The compiled library. Needs a C compiler."""
    source, folder = Path(__file__).with_name("slow_reads.c"), Path(mkdtemp())
    atexit.register(shutil.rmtree, folder)
    built = folder / "slow_reads.so"
    subprocess.run(["cc", "-O2", "-Wall", "-shared", "-fPIC", "-o", built, source, "-ldl"], check=True)
    return built


def settings(benchmark: str, *more: str) -> list[str]:
    sizes = [f"data.train_samples={TRAIN}", f"data.eval_samples={EVAL}"]
    return [word for each in (*SETTINGS[benchmark], *sizes, *more) for word in ("--set", each)]


def make_data(benchmark: str, out: Path) -> Path:
    """The data set in ``out``, and packed in ``out``-packed, if the benchmark's can be."""
    sizes = settings(benchmark)
    commands: list[list[object]] = [["make", benchmark, "--out", out, *sizes]]
    if benchmark != "resnet50":
        codec = ["--codec", "plain"] * (benchmark == "deepcam")
        commands += [["convert", benchmark, out, f"{out}-packed", "--archive", 16, *codec]]
    for command in commands:
        words = [sys.executable, "-m", "mlhpc", "data", *map(str, command)]
        subprocess.run(words, check=True, capture_output=True)
    return out


def run(cell: Cell, data: Path, folder: Path, timeout: float = 300) -> tuple[dict[str, Any], list["Call"]]:
    """Run ``cell`` on ``data`` in ``folder``: its result.json, and the calls that matched a rule of delays."""
    data = data.with_name(f"{data.name}-packed") if cell.packed else data
    accumulation = {"deepcam": "gradient_accumulation_frequency", "resnet50": "gradient_accumulation_steps"}
    more = [
        f"hyperparameters.global_batch_size={BATCH}", f"training.max_epochs={EPOCHS}",
        "training.eval_batch_size=2", "staging.workers=1",
        f"loading.workers={cell.workers}", f"loading.prefetch={cell.prefetch}",
    ]  # fmt: skip
    more += [f"training.framework={cell.framework}"] if cell.benchmark == "cosmoflow" else []
    more += [f"loading.loader={cell.loader}"] if cell.benchmark != "cosmoflow" else []
    more += [f"hyperparameters.{accumulation[cell.benchmark]}={cell.passes}"] if cell.passes > 1 else []
    more += [f"training.spatial=[{cell.ranks},1,1]"] if cell.spatial else []
    command = [sys.executable, "-m", "mlhpc", "run", cell.benchmark, "--data", data, "--out", folder / "run"]
    command += ["--ranks", cell.ranks, "--compute", STEP_S * cell.passes, "--seed", 1]
    command += settings(cell.benchmark, *more)
    command += ["--stage", folder / "stage"] if cell.where == "staging" else []
    done = subprocess.run(
        list(map(str, command)), env=os.environ | environment(cell, data, folder / "log"), text=True,
        capture_output=True, timeout=timeout,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result = json.loads((folder / "run" / "result.json").read_text())
    return result, read_log(folder / "log")


def slow_file(data: Path) -> Path:
    """The file of training samples in ``data`` whose reads a cell with ``where="file"`` delays."""
    return sorted(path for path in (data / FOLDERS[0]).rglob("*") if path.is_file())[TRAIN // 3]


def environment(cell: Cell, data: Path, log: Path) -> dict[str, str]:
    train, evaluation = (f"{data}/{name}/" for name in FOLDERS)
    call = "preadv" if cell.packed else "open"
    slow = slow_file(data) if cell.where == "file" else None
    rules = {
        "reads": f"{call}:{train}={cell.delay_ms},{call}:{evaluation}=0,sleep:main=0",
        "evaluation": f"{call}:{train}=0,{call}:{evaluation}={cell.delay_ms},sleep:main=0",
        "staging": f"open:{data}/={cell.delay_ms}",
        "steps": f"{call}:{train}=0,{call}:{evaluation}=0,sleep:main={cell.delay_ms}",
        "file": f"open:{slow}={cell.delay_ms}",
    }
    env = {"LD_PRELOAD": str(library()), "SLOW_READS": rules[cell.where], "SLOW_READS_LOG": str(log)}
    if cell.slow == "one":
        env["SLOW_READS_RANKS"] = str(min(1, cell.ranks - 1))
    elif cell.slow == "alternating":
        env["SLOW_READS_WHEN"] = f"turns {cell.ranks} {cell.samples_per_batch}"
    elif cell.slow == "random":
        env["SLOW_READS_WHEN"] = "random 0.25 7"
    return env


@dataclass(frozen=True, order=True)
class Call:
    begin: float
    seconds: float
    rank: int
    process: int
    call: str
    path: str


def read_log(path: Path) -> list[Call]:
    """The calls, in the order in which they began."""
    calls = []
    for line in path.read_text().splitlines():
        rank, process, begin, seconds, call, name = line.split(" ", 5)
        calls.append(Call(float(begin), float(seconds), int(rank), int(process), call, name))
    return sorted(calls)


def tolerance(expected: float) -> float:
    """By how many seconds a part of a run may differ from what the delays led to."""
    return max(0.05 * expected, 0.3)


@dataclass(frozen=True)
class Parts:
    """Seconds: the parts of a run, and the data wait within them. ``cost``: what the delays made the run longer.
    ``lost``: data wait that each rank cost the others."""

    staging: float
    data_wait: float
    step: float
    evaluation: float
    eval_data_wait: float
    cost: float
    lost: tuple[float, ...]


def truth(cell: Cell, calls: Sequence[Call], eval_step_s: float) -> Parts:
    """What the delays that were made must have led to."""
    undelayed = [replace(call, seconds=0.0) for call in calls]
    with_delays, without = (_simulate(cell, made, eval_step_s) for made in (calls, undelayed))
    return replace(with_delays, cost=with_delays.cost - without.cost)


def _simulate(cell: Cell, calls: Sequence[Call], eval_step_s: float) -> Parts:
    if cell.where == "staging":
        copied = [[call.seconds for call in calls if call.rank == rank] for rank in range(cell.ranks)]
        seconds, step = model.copy(copied, 1), EPOCHS * TRAIN // BATCH * cell.passes * STEP_S
        evaluating = EPOCHS * -(-EVAL // cell.ranks // 2) * eval_step_s
        return Parts(seconds, 0.0, step, evaluating, 0.0, seconds, (0.0,) * cell.ranks)
    train, evaluation = FOLDERS
    trained = [_reads(cell, calls, rank, train, TRAIN) for rank in range(cell.ranks)]
    evaluated = [_reads(cell, calls, rank, evaluation, EVAL) for rank in range(cell.ranks)]
    steps = [_steps(cell, calls, rank, train, eval_step_s) for rank in range(cell.ranks)]
    parts = Parts(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, (0.0,) * cell.ranks)
    for epoch in range(EPOCHS):
        loaders = _loaders(cell, [own[epoch] for own in trained], cell.samples_per_batch)
        took, waited, lost = model.train(loaders, [own[epoch][0] for own in steps], cell.passes)
        loaders = _loaders(cell, [own[epoch] for own in evaluated], 2)
        eval_took, eval_waited, _ = model.evaluate(loaders, [own[epoch][1] for own in steps])
        parts = Parts(
            0.0, parts.data_wait + waited, parts.step + took - waited, parts.evaluation + eval_took,
            parts.eval_data_wait + eval_waited, parts.cost + took + eval_took,
            tuple(map(sum, zip(parts.lost, lost, strict=True))),
        )  # fmt: skip
    return parts


def _loaders(
    cell: Cell, reads: Sequence[Sequence[Call]], per_batch: int
) -> list[model.Threads | model.Pipeline | model.Workers | model.Group]:
    """The loader of each rank, from its reads of an epoch."""
    if cell.loader == "workers":
        ahead = -(-cell.prefetch // cell.workers)
        start = WORKERS_START_S
        return [model.Workers(_by_worker(own, per_batch), cell.workers, ahead, start) for own in reads]
    seconds = [[call.seconds for call in own] for own in reads]
    batches = [[own[at : at + per_batch] for at in range(0, len(own), per_batch)] for own in seconds]
    threads = [model.Threads(own, cell.workers, cell.prefetch) for own in batches]
    if cell.spatial:
        return [model.Group(threads)] * cell.ranks
    return [model.Pipeline(each, DALI_AHEAD) for each in threads] if cell.loader == "dali" else list(threads)


def _by_worker(reads: Sequence[Call], per_batch: int) -> list[list[float]]:
    """The batches of worker processes, which take turns, in the order in which they began."""
    of_process: dict[int, list[float]] = {}
    for call in reads:
        of_process.setdefault(call.process, []).append(call.seconds)
    batches = []
    for at in range(0, max(map(len, of_process.values())), per_batch):
        batches += [own[at : at + per_batch] for own in of_process.values() if own[at:]]
    return batches


def _reads(cell: Cell, calls: Sequence[Call], rank: int, folder: str, samples: int) -> list[list[Call]]:
    """The reads of samples by ``rank``, by epoch. Opening a sample again (the first one, for its layout) is the
    same read."""
    own = [call for call in calls if call.rank == rank and f"/{folder}/" in call.path]
    epochs: list[dict[str, Call]] = []
    for number, call in enumerate(own):
        name = f"{call.path} {number}" if cell.packed else call.path
        if not epochs or len(epochs[-1]) == samples // cell.ranks:
            epochs.append({})
        before = epochs[-1].get(name)
        epochs[-1][name] = replace(before, seconds=before.seconds + call.seconds) if before else call
    assert [len(epoch) for epoch in epochs] == [samples // cell.ranks] * EPOCHS, (cell.name, folder, len(own))
    return [list(epoch.values()) for epoch in epochs]


def _steps(
    cell: Cell, calls: Sequence[Call], rank: int, folder: str, eval_step_s: float
) -> list[tuple[list[float], list[float]]]:
    """Seconds of the training and of the evaluation steps of ``rank``, by epoch."""
    first = min(call.begin for call in calls if call.rank == rank and f"/{folder}/" in call.path)
    pauses = [c.seconds for c in calls if c.rank == rank and c.call == "sleep" and c.begin > first]
    train = TRAIN // BATCH * cell.passes
    evaluation = -(-EVAL // (1 if cell.spatial else cell.ranks) // 2)
    assert len(pauses) == EPOCHS * (train + evaluation), (cell.name, rank, len(pauses), train, evaluation)
    epochs = []
    for begin in range(0, len(pauses), train + evaluation):
        own = pauses[begin : begin + train + evaluation]
        epochs.append(([STEP_S + s for s in own[:train]], [eval_step_s + s for s in own[train:]]))
    return epochs
