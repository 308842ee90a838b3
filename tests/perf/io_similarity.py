"""How alike a run's reads and those of its stand-alone emulation are, both under ``strace -f``, for each
benchmark.

    .venv/bin/python tests/perf/io_similarity.py FOLDER [BENCHMARK...] [--train] [--repeats 3] [--workers 2]
                                                 [--steady MB_PER_S] [--samples TRAIN EVALUATE]

FOLDER is on the storage in question; with ``--steady`` it is in memory, and both read it through
``steady_storage.py``, whose reads take as long every time: 100 µs and their size at that rate, one after the
other. The run is ``mlhpc run --evict`` for one epoch and its evaluation; with ``--train`` its steps are computed,
otherwise they take the time of the case (``--compute``): its readers and decoders are the suite's in both cases.
The emulation is ``mlhpc io run`` on files of its own, with the page cache dropped, and with the time that a
sample takes to decode, measured before (``reader.preprocess``). Each is observed ``--repeats`` times, and the
median of every factor counts. The last columns compare the runs with each other: differences of that size are the
machine's, not the emulation's. Needs a quiet machine for the four factors that are times.
"""

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import NamedTuple

from mlhpc.iobench.report.similarity import FACTORS, compare

BATCH, PREFETCH = 4, 4
LATENCY_US = 100


class Case(NamedTuple):
    """``step_s``: seconds of an emulated step, so short that I/O is at least 10% of a run's time."""

    train: int
    evaluate: int
    step_s: float
    settings: list[str]

    def all_settings(self, workers: int) -> list[str]:
        return [
            f"data.train_samples={self.train}",
            f"data.eval_samples={self.evaluate}",
            "training.max_epochs=1",
            f"hyperparameters.global_batch_size={BATCH}",
            f"training.eval_batch_size={BATCH}",
            f"loading.workers={workers}",
            f"loading.prefetch={PREFETCH}",
            *self.settings,
        ]


ROWS, COLUMNS = 384, 576  # of DeepCAM's samples
CASES = {
    "cosmoflow": Case(512, 64, 0.02, [
        "data.sample_shape=[64,64,64,4]", "network.conv_filters=2", "network.conv_layers=3",
        "data.simulation.grid=64", "data.simulation.particles=64"]),
    "deepcam": Case(96, 16, 0.02, [
        f"data.sample_shape=[{ROWS},{COLUMNS},16]", "network.width=0.1", "network.middle_blocks=1",
        "data.simulation.test_samples=1"]),
    "resnet50": Case(1024, 128, 0.005, [
        "data.sample_shape=[224,224,3]", "data.simulation.side=512", "data.simulation.classes=4",
        "network.classes=4", "network.width=0.125", "training.epochs_between_evals=1"]),
}  # fmt: skip


def emulation(benchmark: str, case: Case, data: Path, workers: int) -> list[str]:
    """The workload's settings for a data set like ``data``: its sizes, and what the suite's documents say of how
    it reads, none of its code."""
    suffix = {"cosmoflow": "*.tfrecord*", "deepcam": "data-*.h5", "resnet50": "*.JPEG"}[benchmark]
    sizes = [path.stat().st_size for path in data.rglob(suffix) if "test" not in path.parts]
    mean = round(statistics.fmean(sizes))
    if benchmark == "deepcam":
        field, mask, head, gap = ROWS * COLUMNS * 64, ROWS * COLUMNS * 8, 1072, 1632
        assert mean == head + field + gap + mask, "the layout is not the one described"
        extents = [
            "{bytes=8}", f"{{bytes={head}}}", f"{{offset={head + field},bytes={gap}}}",
            # Blocks of whole rows of at most 1 MiB.
            f"{{offset={head},bytes={field},transfer_bytes={(1 << 20) // (COLUMNS * 64) * COLUMNS * 64}}}",
            f"{{offset={head + field + gap},bytes={mask},transfer_bytes={1 << 20}}}",
        ]  # fmt: skip
        special = [f"dataset.sample_bytes={mean}", f"reader.extents=[{','.join(extents)}]"]
    elif benchmark == "cosmoflow":
        raw = 64**3 * 4 * 2
        special = [f"dataset.sample_bytes={raw}", f"dataset.compressibility={raw / mean:.3f}"]
    else:
        special = [
            f"dataset.sample_bytes={mean}",
            f"dataset.sample_bytes_stdev={statistics.pstdev(sizes):.0f}",
        ]
    return [
        *special,
        f"dataset.files={case.train}",
        f"dataset.eval_files={case.evaluate}",
        f"reader.batch_size={BATCH}",
        f"reader.eval_batch_size={BATCH}",
        f"reader.threads={workers}",
        f"reader.prefetch={PREFETCH}",
        f"train.computation={case.step_s}",
        f"evaluation.computation={case.step_s / 3}",
        "evaluation.every_epochs=1",
    ]


def words(settings: list[str]) -> list[str]:
    return [word for setting in settings for word in ("--set", setting)]


def mlhpc(*command: object) -> str:
    done = subprocess.run([sys.executable, "-m", "mlhpc", *map(str, command)], capture_output=True, text=True)
    if done.returncode not in (0, 3):  # 3: a short training misses its target
        sys.exit(done.stderr)
    return done.stdout


def preprocessing_s(benchmark: str, samples: int, folder: Path, workload: list[str], workers: int) -> float:
    """Seconds for which a worker of the suite's loader decodes a sample longer than the emulation's: from
    the samples/s of both with all workers, from the page cache, without steps. An emulation of a job is given this
    as ``reader.preprocess``."""
    bench = (
        "data",
        "bench",
        benchmark,
        folder / "data",
        "--batch",
        BATCH,
        "--workers",
        workers,
        "--loader",
        "threads",
    )
    (way,) = json.loads(mlhpc(*bench, "--samples", samples, "--rounds", 5, "--json"))["ways"]
    alone = words(["train.computation=0", "evaluation.every_epochs=0", "train.epochs=3"])
    out = folder / "decoding"
    shutil.rmtree(out, ignore_errors=True)
    mlhpc("io", "run", benchmark, "--data", folder / "files", "--out", out, "--null-steps", 0,
          "--cache", "keep", *workload, *alone)  # fmt: skip
    epochs = json.loads((out / "result.json").read_text())["epochs"]
    rate = statistics.median(epoch["samples_per_s"] for epoch in epochs)
    return max(0.0, workers / float(way["samples_per_s_warm"]) - workers / float(rate))


def observe(folder: Path, name: str, below: Path, *command: object) -> tuple[dict[str, float], float]:
    python = [sys.executable, "-m", "mlhpc"]
    mlhpc("io", "observe", "--below", below, "--out", folder / name, "--", *python, *command)
    record = json.loads((folder / name / "observation.json").read_text())
    return record["factors"], record["io_percent"]


@contextmanager
def steady(folder: Path, mb_per_s: float) -> Iterator[Path]:
    """Where ``folder`` can be read at that rate."""
    server = Path(__file__).with_name("steady_storage.py")
    with tempfile.TemporaryDirectory() as place:
        words = [sys.executable, str(server), str(folder), place, str(mb_per_s), str(LATENCY_US)]
        with subprocess.Popen(words) as process:
            while not Path(place).is_mount() and process.poll() is None:
                time.sleep(0.01)
            try:
                yield Path(place)
            finally:
                subprocess.run(["umount", place], check=True)


def median(observed: list[dict[str, float]]) -> dict[str, float]:
    return {name: statistics.median(each[name] for each in observed) for name in FACTORS}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("benchmarks", nargs="*", default=list(CASES))
    parser.add_argument("--train", action="store_true")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--steady", type=float, metavar="MB_PER_S")
    parser.add_argument("--samples", type=int, nargs=2, metavar=("TRAIN", "EVALUATE"))
    options = parser.parse_args()
    for benchmark in options.benchmarks or CASES:
        folder = options.folder / benchmark
        case = CASES[benchmark]
        if options.samples:
            case = case._replace(train=options.samples[0], evaluate=options.samples[1])
        settings = ["--preset", "smoke", *words(case.all_settings(options.workers))]
        if not (folder / "data").exists():
            mlhpc("data", "make", benchmark, "--out", folder / "data", *settings)
        workload = words(emulation(benchmark, case, folder / "data", options.workers))
        mlhpc("io", "generate", benchmark, "--data", folder / "files", *workload)
        decoding = preprocessing_s(benchmark, min(64, case.train), folder, workload, options.workers)
        print(f"{benchmark}: reader.preprocess {1e3 * decoding:.2f} ms")
        workload += words([f"reader.preprocess={decoding:.6f}"])
        with steady(folder, options.steady) if options.steady else nullcontext(folder) as place:
            measure(options, benchmark, folder, settings, workload, place)


def measure(
    options: argparse.Namespace,
    benchmark: str,
    folder: Path,
    settings: list[str],
    workload: list[str],
    place: Path,
) -> None:
    """``place``: where data and files are read."""
    data, files = place / "data", place / "files"
    compute = [] if options.train else ["--compute", str(CASES[benchmark].step_s)]
    real, emulated, shares = [], [], []
    for number in range(options.repeats):
        run = (
            "run",
            benchmark,
            *settings,
            "--data",
            data,
            "--evict",
            "--out",
            folder / f"run-{number}",
            *compute,
        )
        factors, share = observe(folder, f"observed-run-{number}", data, *run)
        real.append(factors)
        shares.append(share)
        out = folder / f"emulation-{number}"
        copy = ("io", "run", benchmark, "--data", files, "--out", out, "--null-steps", 0, *workload)
        emulated.append(observe(folder, f"observed-emulation-{number}", files, *copy)[0])
    similarity = compare(median(real), median(emulated))
    noise = compare(real[0], real[-1])
    print(f"{benchmark}: I/O {statistics.median(shares):.0f}% of the run's time; cosine {similarity.cosine:.3f}, "
          f"largest {similarity.largest[0]} {similarity.largest[1]:+.1%}; "
          f"two runs with each other: {noise.cosine:.3f}, {noise.largest[0]} {noise.largest[1]:+.1%}")  # fmt: skip
    for name in FACTORS:
        print(f"  {name:18} {median(real)[name]:14.6g} {median(emulated)[name]:14.6g} "
              f"{similarity.differences.get(name, 0):+8.1%} {noise.differences.get(name, 0):+8.1%}")  # fmt: skip


if __name__ == "__main__":
    main()
