"""The I/O emulation beside DLIO on one machine: samples/s on the same workload, size installed, time to a
first result.

    python tests/perf/io_dlio.py FOLDER DLIO_PYTHON [samples] [first]

DLIO_PYTHON is an interpreter that imports dlio_benchmark 2.0.0 and torch (see docs/evidence/io.md for one);
FOLDER is on the disk to measure. Samples/s: both generate their own data of the same sizes, read it twice to fill
the page cache, and then take turns with the same batch, reader threads (DLIO: PyTorch workers) and computation
time; an epoch's duration is its own log's, from beginning to end. First result: a new environment, install,
16 files, one epoch; then the size of these environments. Both are installed from wheels, ours built before.
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TURNS, EPOCHS = 5, 4
# (name, files, bytes of a sample, batch, threads): one sample a file, as in unet3d, in a tenth of its size and
# in one of a picture's.
WORKLOADS = (("large samples", 128, 14_660_063, 7, 2), ("small samples", 4096, 114_660, 32, 2))
COMPUTATION = 1e-4
DLIO_NEEDS = (
    "hydra-core>=1.2", "omegaconf>=2.2", "mpi4py>=3.1.4", "h5py>=3.7", "pandas>=1.5.1", "psutil>=5.9.8",
    "pydftracer==1.0.2", "numpy>=1.23.5", "pillow", "pyyaml", "tensorflow-cpu==2.18.1",
)  # fmt: skip
"""Of DLIO's dependencies those that its PyTorch loader imports, beside torch itself; TensorFlow, torchaudio
and DALI are missing, so that what is measured of its installation is a lower bound."""


def run(*words: object, **options: Any) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, **options)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, words))}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
    return done


def workload_file(folder: Path, name: str, files: int, size: int, batch: int, threads: int) -> Path:
    path = folder / f"{name.replace(' ', '-')}.toml"
    path.write_text(
        f'name = "{name.replace(" ", "-")}"\n[dataset]\nformat = "npz"\nfiles = {files}\nsample_bytes = {size}\n'
        f'[reader]\nbatch_size = {batch}\nthreads = {threads}\nfile_order = "shuffled"\n'
        f"[train]\nepochs = {EPOCHS}\ncomputation = {COMPUTATION}\n"
    )
    return path


def ours(python: object, workload: Path, data: Path, out: Path, epochs: int) -> list[float]:
    """Samples/s of each epoch."""
    shutil.rmtree(out, ignore_errors=True)
    run(python, "-m", "mlhpc", "io", "run", workload, "--data", data, "--out", out, "--cache", "keep",
        "--null-steps", 0, "--set", f"train.epochs={epochs}", cwd=out.parent)  # fmt: skip
    return [each["samples_per_s"] for each in json.loads((out / "result.json").read_text())["epochs"]]


def dlio(python: object, files: int, size: int, batch: int, threads: int, data: Path, out: Path,
         epochs: int, generate: bool = False) -> list[float]:  # fmt: skip
    """Samples/s of each epoch; none when it generates."""
    shutil.rmtree(out, ignore_errors=True)
    settings = {
        "workflow.generate_data": generate, "workflow.train": not generate, "workflow.checkpoint": False,
        "dataset.data_folder": data, "dataset.format": "npz", "dataset.num_files_train": files,
        "dataset.num_samples_per_file": 1, "dataset.record_length": size, "dataset.record_length_stdev": 0,
        "dataset.record_length_resize": 0, "reader.batch_size": batch, "reader.read_threads": threads,
        "reader.data_loader": "pytorch", "train.epochs": epochs, "train.computation_time": COMPUTATION,
        "output.folder": out,
    }  # fmt: skip
    words = [f"++workload.{key}={value}" for key, value in settings.items()]
    run(python, "-m", "dlio_benchmark.main", "workload=unet3d_a100", f"hydra.run.dir={out}", *words,
        env={**os.environ, "RDMAV_FORK_SAFE": "1", "OMPI_ALLOW_RUN_AS_ROOT": "1"})  # fmt: skip
    if generate:
        return []
    stats = json.loads(next(out.rglob("*per_epoch_stats.json")).read_text())
    rates = []
    for number in sorted(stats, key=int):
        begin, end = (datetime.fromisoformat(stats[number][key]) for key in ("start", "end"))
        rates.append(files // batch * batch / (end - begin).total_seconds())
    return rates


def samples(folder: Path, python: str) -> None:
    for name, files, size, batch, threads in WORKLOADS:
        workload = workload_file(folder, name, files, size, batch, threads)
        mine, theirs, out = folder / "ours", folder / "dlio", folder / "out"
        run(sys.executable, "-m", "mlhpc", "io", "generate", workload, "--data", mine)
        dlio(python, files, size, batch, threads, theirs, out, 1, generate=True)
        ours(sys.executable, workload, mine, out, 2)
        dlio(python, files, size, batch, threads, theirs, out, 2)
        ratios, rates = [], []
        for _ in range(TURNS):
            a = statistics.median(ours(sys.executable, workload, mine, out, EPOCHS)[1:])
            b = statistics.median(dlio(python, files, size, batch, threads, theirs, out, EPOCHS)[1:])
            ratios.append(a / b)
            rates.append((a, b))
        best = statistics.median(ratios)
        print(
            f"{name} ({files} files of {size / 1e6:.3g} MB, batch {batch}, {threads} readers): {best:.2f} times "
            f"DLIO's samples/s ({min(ratios):.2f} to {max(ratios):.2f}); median "
            f"{statistics.median(a for a, _ in rates):.0f} and {statistics.median(b for _, b in rates):.0f}"
        )
        for each in (mine, theirs, out):
            shutil.rmtree(each)


def size_of(environment: Path) -> float:
    """MB on disk, without the interpreter's own pip and setuptools."""
    total = 0
    for path in environment.rglob("*"):
        if path.is_file() and not path.is_symlink() and not {"pip", "setuptools"} & set(path.parts):
            total += path.stat().st_blocks * 512
    return total / 1e6


def fresh(folder: Path, *packages: str) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    run(sys.executable, "-m", "venv", folder)
    python = folder / "bin/python"
    if packages:
        run(python, "-m", "pip", "install", "-q", *packages)
    return python


def build_wheel(folder: Path) -> Path:
    """As DLIO is built when it is published; pip does it before it installs a checkout."""
    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", folder, ROOT)
    (wheel,) = folder.glob("mlhpc-*.whl")
    return wheel


def install_ours(folder: Path, wheel: Path) -> Path:
    return fresh(folder, "-c", str(ROOT / "constraints.txt"), f"{wheel}[io]")


def install_dlio(folder: Path) -> Path:
    python = fresh(folder, *DLIO_NEEDS, "torch==2.13.0")
    run(python, "-m", "pip", "install", "-q", "--no-deps", "dlio-benchmark==2.0.0")
    return python


def first(folder: Path, python: str) -> None:
    name, _, size, _, _ = WORKLOADS[0]
    shutil.rmtree(folder / "wheel", ignore_errors=True)
    start = time.perf_counter()
    wheel = build_wheel(folder / "wheel")
    print(f"mlhpc's wheel: {time.perf_counter() - start:.1f} s", flush=True)
    for turn in range(2):
        start = time.perf_counter()
        new = install_ours(folder / "venv-ours", wheel)
        workload = workload_file(folder, name, 16, size, 1, 2)
        run(new, "-m", "mlhpc", "io", "generate", workload, "--data", folder / "first-ours", cwd=folder)
        ours(new, workload, folder / "first-ours", folder / "out", 1)
        a = time.perf_counter() - start
        start = time.perf_counter()
        new = install_dlio(folder / "venv-dlio")
        dlio(new, 16, size, 1, 2, folder / "first-dlio", folder / "out", 1, generate=True)
        dlio(new, 16, size, 1, 2, folder / "first-dlio", folder / "out", 1)
        b = time.perf_counter() - start
        print(f"first result, turn {turn + 1}: {a:.1f} s, DLIO {b:.1f} s: {a / b:.0%}")
        sizes = [size_of(folder / each) for each in ("venv-ours", "venv-dlio")]
        print(
            f"installed: {sizes[0]:.0f} MB, DLIO at least {sizes[1]:.0f} MB: {sizes[0] / sizes[1]:.0%}",
            flush=True,
        )
        for each in ("venv-ours", "venv-dlio", "first-ours", "first-dlio", "out"):
            shutil.rmtree(folder / each)


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    place, dlio_python = Path(sys.argv[1]).absolute(), sys.argv[2]
    place.mkdir(parents=True, exist_ok=True)
    for measure in (samples, first):
        if measure.__name__ in (sys.argv[3:] or [measure.__name__]):
            measure(place, dlio_python)
