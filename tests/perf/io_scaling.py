"""``mlhpc io simulate`` fitted to 1 and 2 ranks of this machine, beside real runs on 1, 2, 4 and 8.

    .venv/bin/python tests/perf/io_scaling.py FOLDER [WORKLOAD] [--set KEY=VALUE ...] [--repeats 3] [--ranks 4 8]

FOLDER is on the storage in question. The fit is on runs that only read: on one rank with one thread, and on two
with four each, so that they compete for the storage. Of each number of ranks the median of ``--repeats`` runs
counts, in turns, with the page cache dropped. All ranks are on one node: with more ranks than cores, cores are
part of what is simulated. Needs a quiet machine."""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from mlhpc.iobench.definition import load
from mlhpc.iobench.simulate.measured import fit
from mlhpc.iobench.simulate.simulation import System, simulate

RANKS = (1, 2, 4, 8)
# 64 files of 2.8 MB for each of 8 ranks; a step that one reader thread can hide on most disks.
SETTINGS = ("dataset.files=512", "train.epochs=1", "reader.threads=1", "train.computation=0.02")

PRESS = ("train.computation=0", "reader.threads=1")


def mlhpc(*words: object) -> None:
    subprocess.run(
        [sys.executable, "-m", "mlhpc", "io", *map(str, words)], check=True, stdout=subprocess.DEVNULL
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("workload", nargs="?", default="mlperf_cosmoflow")
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--ranks", type=int, nargs="+", default=RANKS)
    options = parser.parse_args()
    settings = options.set or list(SETTINGS)
    words = [word for setting in settings for word in ("--set", setting)]
    data = options.folder / "data"
    mlhpc("generate", options.workload, "--data", data, *words)
    fitting = {1: (*settings, *PRESS), 2: (*settings, *PRESS, "reader.threads=4", "reader.prefetch=8")}
    kinds = [(f"fit on {ranks}", ranks, fitting[ranks]) for ranks in fitting]
    kinds += [(f"{ranks}", ranks, tuple(settings)) for ranks in options.ranks]
    results: dict[str, list[dict[str, Any]]] = {name: [] for name, _, _ in kinds}
    for number in range(options.repeats):
        for name, ranks, chosen in kinds:
            out = options.folder / f"run-{name.replace(' ', '-')}-{number}"
            own = [word for setting in chosen for word in ("--set", setting)]
            mlhpc(
                "run",
                options.workload,
                "--data",
                data,
                "--out",
                out,
                "--ranks",
                ranks,
                "--null-steps",
                0,
                *own,
            )
            results[name].append(json.loads((out / "result.json").read_text()))
    middle = {
        name: sorted(each, key=lambda result: result["samples_per_s"])[len(each) // 2]
        for name, each in results.items()
    }
    workload = load.load(options.workload, settings)
    fitted = fit(workload, [middle["fit on 1"], middle["fit on 2"]])
    print(fitted, "told apart:", fitted.told_apart)
    for ranks in options.ranks:
        steps = middle[f"{ranks}"]["epochs"][0]["steps"]
        system = System(cores=fitted.system.cores, ranks_per_node=ranks)
        simulated = simulate(workload, fitted.service, system, ranks, steps)
        real = middle[f"{ranks}"]["samples_per_s"]
        spread = [result["samples_per_s"] for result in results[f"{ranks}"]]
        error = f"{simulated.samples_per_s / real - 1:+.1%}"
        print(f"{ranks} ranks: {real:.1f} samples/s ({min(spread):.1f} to {max(spread):.1f}), simulated "
              f"{simulated.samples_per_s:.1f} ({error}), binds: {simulated.binding}")  # fmt: skip


if __name__ == "__main__":
    main()
