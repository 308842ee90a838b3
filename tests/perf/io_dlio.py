"""The I/O emulation beside DLIO on one machine: samples/s on the same workload, size installed, time to a
first result; and what DLIO asks of the storage, against which ``make test`` holds the emulation.

    python tests/perf/io_dlio.py FOLDER DLIO_PYTHON [samples] [first] [counts] [others [CELL ...]] [au [NAME ...]]

DLIO_PYTHON is an interpreter that imports dlio_benchmark 2.0.0 and torch (see docs/evidence/io.md for one);
FOLDER is on the disk to measure. Samples/s: both generate their own data of the same sizes, read it twice to fill
the page cache, and then take turns with the same batch, reader threads (DLIO: PyTorch workers) and computation
time; an epoch's duration is its own log's, from beginning to end. First result: a new environment, install,
16 files, one epoch; then the size of these environments. Both are installed from wheels, ours built before.

Counts: DLIO trains on each of ``CELLS``, small sets that it generates, under strace; opens, reads and bytes asked
of its data files, steps, evaluations and checkpoints with their epochs are written to ``GOLDEN``. DLIO needs
mpiexec beside its interpreter (pip has mpich), and a command tfrecord2idx that makes its second argument. Others:
the same of another release, or of a checkout of DLIO's repository (of all cells, or of those named), to
FOLDER/counts.json; prints each count that is not the one of 2.0.0, and the cells that end in an error.

AU: utilisation and samples/s of the four ``APPLICATIONS`` (or those named), DLIO's own workload files with fewer
and smaller samples, in turns, both on the files that ``mlhpc io generate`` wrote, in the page cache.
"""

import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable
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


GOLDEN = ROOT / "tests/unit/iobench/emulate/dlio_counts.json"
CELLS: dict[str, dict[str, Any]] = {
    "npz": {},
    "npz-8-shuffled": {"samples": 8, "reader.sample_shuffle": "seed"},
    "npz-threads": {"files": 8, "reader.read_threads": 4},
    "npz-tf": {"framework": "tensorflow", "reader.file_shuffle": "seed"},
    "npz-8-tf": {"framework": "tensorflow", "samples": 8, "reader.sample_shuffle": "seed"},
    "npz-2-ranks": {"ranks": 2},
    "npz-8-2-ranks": {"samples": 8, "ranks": 2, "reader.sample_shuffle": "seed"},
    "hdf5": {"format": "hdf5"},
    "hdf5-8-shuffled": {"format": "hdf5", "samples": 8, "reader.sample_shuffle": "seed"},
    "hdf5-8-tf": {"format": "hdf5", "framework": "tensorflow", "samples": 8},
    "tfrecord": {"format": "tfrecord"},
    "tfrecord-8-shuffled": {"format": "tfrecord", "samples": 8, "reader.sample_shuffle": "seed"},
    "tfrecord-8-64k": {"format": "tfrecord", "samples": 8, "reader.transfer_size": 65536},
    "tfrecord-8-threads": {"format": "tfrecord", "samples": 8, "reader.read_threads": 4},
    "tfrecord-8-2-ranks": {"format": "tfrecord", "samples": 8, "ranks": 2},
    "jpeg": {"format": "jpeg"},
    "jpeg-tf": {"format": "jpeg", "framework": "tensorflow"},
    "npy": {"format": "npy"},
    "npy-8-shuffled": {"format": "npy", "samples": 8, "reader.sample_shuffle": "seed"},
    "csv": {"format": "csv", "dataset.record_length": 10_000},
    "csv-8-shuffled": {
        "format": "csv", "samples": 8, "dataset.record_length": 10_000, "reader.sample_shuffle": "seed",
    },
    "csv-tf": {"format": "csv", "framework": "tensorflow", "samples": 8, "dataset.record_length": 10_000},
    "binary": {"format": "indexed_binary"},
    "binary-8-shuffled": {"format": "indexed_binary", "samples": 8, "reader.sample_shuffle": "seed"},
    "binary-8-threads": {"format": "indexed_binary", "files": 8, "samples": 8, "reader.read_threads": 4},
    "binary-8-tf": {"format": "indexed_binary", "framework": "tensorflow", "samples": 8},
    "binary-8-2-ranks": {"format": "indexed_binary", "samples": 8, "ranks": 2},
    "evaluations": {
        "workflow.evaluation": True, "dataset.num_files_eval": 2, "train.epochs": 4,
        "evaluation.epochs_between_evals": 2, "workflow.checkpoint": True,
        "checkpoint.epochs_between_checkpoints": 2,
    },
    "evaluations-late": {
        "workflow.evaluation": True, "dataset.num_files_eval": 2, "train.epochs": 4,
        "evaluation.eval_after_epoch": 3, "workflow.checkpoint": True, "checkpoint.checkpoint_after_epoch": 3,
    },
    "checkpoints-by-steps": {
        "files": 8, "train.epochs": 3, "workflow.checkpoint": True, "checkpoint.steps_between_checkpoints": 3,
    },
    "few-steps": {"files": 8, "train.epochs": 3, "train.total_training_steps": 3},
}  # fmt: skip
"""Two epochs of four files in batches of two, but for: ``files``, ``samples`` of a file, ``format``, ``framework``
(default: TensorFlow's for TFRecord, else PyTorch's), ``ranks``, and keys of DLIO."""


def cell_yaml(name: str) -> dict[str, Any]:
    """DLIO's tables of a cell, without folders."""
    cell = dict(CELLS[name])
    kind, samples = cell.pop("format", "npz"), cell.pop("samples", 1)
    framework = cell.pop("framework", "tensorflow" if kind == "tfrecord" else "pytorch")
    cell.pop("ranks", 1)
    tables: dict[str, Any] = {
        "model": name, "framework": framework,
        "workflow": {"generate_data": False, "train": True, "evaluation": False, "checkpoint": False},
        "dataset": {"format": kind, "num_files_train": cell.pop("files", 4), "num_samples_per_file": samples,
                    "record_length": 360_000 if samples == 1 else 90_000},
        "reader": {"data_loader": framework, "batch_size": 2, "read_threads": 1},
        "train": {"epochs": 2, "computation_time": 0.01},
    }  # fmt: skip
    for key, value in cell.items():
        table, _, own = key.partition(".")
        tables.setdefault(table, {})[own] = value
    tables["dataset"]["record_length_bytes"] = tables["dataset"]["record_length"]  # its name after 2.0.0
    return tables


def counts(
    folder: Path, python: str, golden: Path = GOLDEN, names: Iterable[str] = tuple(CELLS)
) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(golden.read_text())["cells"] if golden.exists() else {}
    for name in (name for name in names if name not in found):
        place, tables, ranks = folder / name, cell_yaml(name), CELLS[name].get("ranks", 1)
        shutil.rmtree(place, ignore_errors=True)
        (place / "config/workload").mkdir(parents=True)
        (place / "config/workload/cell.yaml").write_text(json.dumps(tables))  # which YAML contains
        words = [python, "-m", "dlio_benchmark.main", "--config-dir", place / "config", "workload=cell",
                 f"++workload.dataset.data_folder={place / 'data'}",
                 f"++workload.checkpoint.checkpoint_folder={place / 'checkpoints'}"]  # fmt: skip
        env = {**os.environ, "PATH": f"{Path(python).parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1",
               "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}  # fmt: skip
        only = [f"++workload.workflow.{each}=False" for each in ("train", "evaluation", "checkpoint")]
        run(*words, "++workload.workflow.generate_data=True", *only, f"hydra.run.dir={place / 'made'}", env=env,
            cwd=place)  # fmt: skip
        (place / "data/valid").mkdir(exist_ok=True)
        calls = ["-e", "trace=openat,read,pread64"]
        trace = ["strace", "-ff", "--seccomp-bpf", "-ttt", "-y", "-s", "0", *calls, "-o", place / "trace"]
        launcher = ["mpiexec", "-n", ranks] if ranks > 1 else []
        run(*trace, *launcher, *words, f"hydra.run.dir={place / 'out'}", env=env, cwd=place)
        (stats,) = {
            *(place / "out").glob("per_epoch_stats.json"),
            *(place / "out").glob("0_per_epoch_stats.json"),
        }
        epochs = json.loads(stats.read_text())
        steps = json.loads((place / "out/0_output.json").read_text())
        found[name] = {
            "tables": tables, "ranks": ranks, **traced(place, "data/train"),
            "valid": traced(place, "data/valid"),
            "steps": [sum(len(own) for block, own in steps[epoch]["proc"].items() if block != "eval")
                      for epoch in epochs],
            "evaluations": [int(epoch) for epoch, own in epochs.items() if "eval" in own],
            "checkpoints": [sum("ckpt" in key for key in own) for own in epochs.values()],
            "checkpoint_bytes": sum(
                each.stat().st_size for each in (place / "checkpoints").rglob("*") if each.is_file()
            ),
        }  # fmt: skip
        print(name, {key: value for key, value in found[name].items() if key != "tables"}, flush=True)
        golden.write_text(json.dumps({"dlio": "2.0.0", "cells": found}, indent=1) + "\n")
    return found


def others(folder: Path, python: str, names: list[str]) -> None:
    release = json.loads(GOLDEN.read_text())["cells"]
    for name in names or list(CELLS):
        cell, own = CELLS[name], dict(release[name])
        if "samples" in cell:  # later releases use a multiple of samples x batch x ranks of files
            more = cell["samples"] * 2 * cell.get("ranks", 1) // cell.get("files", 4)
            CELLS[name] = {**cell, "files": cell.get("files", 4) * more}
            own |= {key: more * own[key] for key in ("opens", "reads", "bytes_asked")}
            own["steps"] = [more * steps for steps in own["steps"]]
        try:
            found = counts(folder, python, folder / "counts.json", [name])[name]
        except SystemExit as error:
            print(f"{name}: ends in an error: {str(error).splitlines()[-1]}", flush=True)
            continue
        found["valid"] = {key: found["valid"][key] for key in release[name]["valid"]}
        kept = own.keys() - {"tables", "whole"}
        differing = {key: (own[key], found[key]) for key in kept if own[key] != found[key]}
        print(f"{name}: {differing or 'as 2.0.0'}", flush=True)


def traced(place: Path, data: str) -> dict[str, Any]:
    """Opens of the files below ``data``, reads, and the bytes that they asked for. ``whole``: the same of the
    opens whose reads reached the end of the file."""
    lines = [line for file in place.glob("trace.*") for line in file.read_text(errors="replace").splitlines()]
    each: list[list[tuple[int, int]]] = []  # asked and got by the reads of an open
    current: dict[str, list[tuple[int, int]]] = {}
    for line in sorted(line for line in lines if f"/{data}/" in line):
        call = re.match(r"[0-9.]+ (\w+)\((?:[^<]*<([^>]+)>)?", line)
        ended = re.search(r"\) += (\d+)(?:<([^>]+)>)?", line)
        if not call or not ended:
            continue
        if call[1] == "openat" and "O_RDONLY" in line and "O_DIRECTORY" not in line:
            current[ended[2]] = []
            each.append(current[ended[2]])
        elif asked := re.search(r", (\d+)\) +=" if call[1] == "read" else r", (\d+), -?\d+\) +=", line):
            current[call[2]].append((int(asked[1]), int(ended[1])))
    whole = [reads for reads in each if reads and not reads[-1][1]]
    return {**_totals(each), "whole": _totals(whole)}


def _totals(opens: list[list[tuple[int, int]]]) -> dict[str, int]:
    asked = sum(asked for reads in opens for asked, _ in reads)
    return {"opens": len(opens), "reads": sum(map(len, opens)), "bytes_asked": asked}


def run(*words: object, **options: Any) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, **options)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, words))}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
    return done


APPLICATIONS: dict[str, dict[str, Any]] = {
    "unet3d": {
        "dataset": {"format": "npz", "num_files_train": 64, "num_samples_per_file": 1, "record_length": 1_466_006,
                    "record_length_stdev": 683_418, "record_length_resize": 2_097_152},
        "reader": {"data_loader": "pytorch", "batch_size": 2, "read_threads": 4, "file_shuffle": "seed",
                   "sample_shuffle": "seed"},
        "train": {"epochs": 5, "computation_time": 0.05}, "metric": {"au": 0.9},
    },
    "resnet50": {
        "dataset": {"format": "tfrecord", "num_files_train": 8, "num_samples_per_file": 100,
                    "record_length": 114_660, "record_length_resize": 150_528},
        "reader": {"data_loader": "tensorflow", "read_threads": 8, "computation_threads": 8, "batch_size": 40},
        "train": {"epochs": 5, "computation_time": 0.2}, "metric": {"au": 0.9},
    },
    "cosmoflow": {
        "dataset": {"format": "tfrecord", "num_files_train": 128, "num_samples_per_file": 1,
                    "record_length": 282_848, "record_length_stdev": 7131},
        "reader": {"data_loader": "tensorflow", "read_threads": 4, "batch_size": 1, "file_shuffle": "seed",
                   "sample_shuffle": "seed", "shuffle_size": 2},
        "train": {"epochs": 5, "computation_time": 0.02}, "metric": {"au": 0.7},
    },
    "bert": {
        "dataset": {"format": "tfrecord", "num_files_train": 4, "num_samples_per_file": 5000,
                    "record_length": 2500, "file_prefix": "part"},
        "reader": {"data_loader": "tensorflow", "read_threads": 1, "computation_threads": 1,
                   "transfer_size": 262_144, "batch_size": 48, "file_shuffle": "seed", "sample_shuffle": "seed"},
        "train": {"epochs": 5, "computation_time": 0.02, "total_training_steps": 100},
    },
}  # fmt: skip
"""Of unet3d_a100, resnet50_a100, cosmoflow_a100 and bert_v100 (release 2.0.0)."""


def au(folder: Path, python: str, names: list[str]) -> None:
    own, config, costs = [sys.executable, "-m", "mlhpc", "io"], folder / "config", folder / "costs.json"
    (config / "workload").mkdir(parents=True, exist_ok=True)
    print(run(*own, "calibrate", "--out", costs, cwd=folder).stdout, flush=True)
    env = {**os.environ, "PATH": f"{Path(python).parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1",
           "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}  # fmt: skip
    for name in names or APPLICATIONS:
        tables = {"model": name, "workflow": {"train": True}, **APPLICATIONS[name]}
        tables["framework"] = tables["reader"]["data_loader"]
        workload, data, out = config / f"workload/{name}.yaml", folder / f"data-{name}", folder / "out"
        workload.write_text(json.dumps(tables))  # which YAML contains
        run(*own, "generate", workload, "--data", data, cwd=folder)
        theirs, mine = [], []
        for _ in range(TURNS + 1):  # the first fills the page cache
            shutil.rmtree(out, ignore_errors=True)
            run(python, "-m", "dlio_benchmark.main", "--config-dir", config, f"workload={name}",
                f"++workload.dataset.data_folder={data}", f"hydra.run.dir={out}", env=env, cwd=folder)  # fmt: skip
            metric = json.loads((out / "summary.json").read_text())["metric"]
            theirs.append(
                (metric["train_au_mean_percentage"], metric["train_throughput_mean_samples_per_second"])
            )
            shutil.rmtree(out)
            run(*own, "run", workload, "--data", data, "--out", out, "--cache", "keep", "--null-steps", 0,
                "--loader-cost", costs, cwd=folder)  # fmt: skip
            result = json.loads((out / "result.json").read_text())
            rate = statistics.mean(epoch["samples_per_s"] for epoch in result["epochs"])
            mine.append((result["au_dlio_percent"], rate, result["au_without_loader_percent"]))
        shutil.rmtree(out)

        def interval(runs: list[Any], column: int) -> str:
            values = [each[column] for each in runs[1:]]
            return f"{statistics.median(values):.1f} [{min(values):.1f} to {max(values):.1f}]"

        au_of = f"AU % {interval(theirs, 0)} of DLIO, {interval(mine, 0)} of mlhpc io"
        rates = f"samples/s {interval(theirs, 1)}, {interval(mine, 1)}"
        print(f"{name}: {au_of}, {interval(mine, 2)} without the cost of the loader; {rates}", flush=True)


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
    if "au" in sys.argv[3:]:
        au(place, dlio_python, [word for word in sys.argv[3:] if word in APPLICATIONS])
        sys.exit()
    if "others" in sys.argv[3:]:
        others(place, dlio_python, [word for word in sys.argv[3:] if word in CELLS])
        sys.exit()
    for measure in (samples, first, counts):
        if measure.__name__ in (sys.argv[3:] or [measure.__name__]):
            measure(place, dlio_python)
