"""What CosmoFlow's open-division techniques save in time to the target: each with and without, paired by seed.

    python tests/perf/cosmoflow_techniques.py --preset mini --data data/cosmoflow-mini --seeds 5

The presets smoke and mini have linear decay, augmentation and no dropout: without one of these means a constant
rate, no augmentation, or dropout of 0.5. Multi-resolution training is added to the preset (--coarse: the share
of max_epochs that is coarse, a half of them at a quarter of the side, a half at half of it). PyTorch; a seed
trains all ways, in an order drawn for it. Every run has a line in --out/runs.jsonl; started again, the command
continues with the runs that are missing. --test prints what is there.

The ratio is of times without to times with the technique, of pairs that both reach the target: above 1 the
technique saves time. Geometric means with 95% intervals (Student's t of logarithms). Runs that miss the target are
counted beside them: they cannot be in a ratio, and a technique that others miss without is worth more than that.
The last column needs no target: the lowest error of a run, with the technique minus without, of all pairs; below
zero the technique trains better.
"""

import argparse
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.table import Table
from scipy import stats

from mlhpc.benchmarks import load

PRESET = "preset"
WITHOUT = {
    "linear decay": ["hyperparameters.opt_learning_rate_schedule=multistep"],
    "augmentation": ["training.augment=false"],
    "no dropout": ["hyperparameters.dropout=0.5"],
}
MULTIRES = "multi-resolution"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--preset", default="mini", choices=("smoke", "mini"))
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("results/techniques"))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first", type=int, default=2001, help="first seed (default: 2001)")
    parser.add_argument("--coarse", type=float, default=0.5, help="share of the epochs (default: 0.5)")
    parser.add_argument("--only", nargs="+", choices=[*WITHOUT, MULTIRES], help="some of the techniques")
    parser.add_argument("--set", action="append", default=[], help="settings of all runs")
    parser.add_argument("--test", action="store_true", help="print what is there")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    record = options.out / "runs.jsonl"
    ways = ways_of(options)
    for seed in () if options.test else range(options.first, options.first + options.seeds):
        for way in random.Random(seed).sample(sorted(ways), len(ways)):
            if (way, seed) not in {(run["way"], run["seed"]) for run in read(record)}:
                train(options, way, ways[way], seed, record)
    show(read(record), options)


def ways_of(options: argparse.Namespace) -> dict[str, list[str]]:
    """The settings of each way to train."""
    base = ["training.framework=pytorch", *options.set]
    epochs = load.load("cosmoflow", options.preset, base).training.max_epochs
    half = max(1, round(options.coarse * epochs / 2))
    ways = {f"without {name}": changed for name, changed in WITHOUT.items()}
    ways[MULTIRES] = [f"training.coarse_epochs=[{half},{half}]"]
    only = options.only or [*WITHOUT, MULTIRES]
    chosen = {way: s for way, s in ways.items() if way.removeprefix("without ") in only}
    return {way: [*base, *changed] for way, changed in {PRESET: [], **chosen}.items()}


def read(record: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in record.read_text().splitlines()] if record.exists() else []


def train(options: argparse.Namespace, way: str, changed: list[str], seed: int, record: Path) -> None:
    name = f"{way.replace(' ', '-')}-{seed}"
    out = options.out / f"{name}-{len(list(options.out.glob(f'{name}-*')))}"
    words = [
        "run",
        "cosmoflow",
        "--preset",
        options.preset,
        "--data",
        options.data,
        "--out",
        out,
        "--seed",
        seed,
    ]
    words += [word for setting in changed for word in ("--set", setting)]
    done = subprocess.run(
        [sys.executable, "-m", "mlhpc", *map(str, words)], stderr=subprocess.PIPE, text=True
    )
    result = json.loads((out / "result.json").read_text()) if (out / "result.json").exists() else {}
    if result.get("status") not in ("success", "failed"):
        raise SystemExit(f"{out}: did not end\n{done.stderr}")
    line = {"way": way, "seed": seed, "reached": result["target"]["reached"], "best": result["target"]["best"],
            "seconds": result["time_to_train_s"], "epochs": len(result["epochs"]), "folder": out.name}  # fmt: skip
    with record.open("a") as file:
        file.write(json.dumps(line) + "\n")
    print(line, flush=True)


def show(runs: list[dict[str, Any]], options: argparse.Namespace) -> None:
    by = {
        way: {run["seed"]: run for run in runs if run["way"] == way} for way in {run["way"] for run in runs}
    }
    table = Table(
        "technique",
        "pairs",
        "reached with, without",
        "epochs with, without",
        "seconds",
        "epochs",
        "lowest error",
    )
    for way, others in sorted(by.items()):
        if way == PRESET or PRESET not in by:
            continue
        with_, without = (others, by[PRESET]) if way == MULTIRES else (by[PRESET], others)
        pairs = [(with_[seed], without[seed]) for seed in sorted(with_.keys() & without.keys())]
        both = [pair for pair in pairs if pair[0]["reached"] and pair[1]["reached"]]
        reached = [sum(pair[i]["reached"] for pair in pairs) for i in range(2)]
        epochs = ["–".join(str(f(p[i]["epochs"] for p in pairs)) for f in (min, max)) for i in range(2)]
        ratios = [ratio([b[key] / a[key] for a, b in both]) for key in ("seconds", "epochs")]
        lowest = difference([a["best"] - b["best"] for a, b in pairs])
        name = way.removeprefix("without ")
        table.add_row(name, str(len(pairs)), "{}, {}".format(*reached), ", ".join(epochs), *ratios, lowest)
    Console().print(table)
    print(f"preset {options.preset}; ratios: without / with, geometric means; errors: with - without; [95%]")


def ratio(ratios: list[float]) -> str:
    """Geometric mean with its 95% interval; fewer than three ratios as they are."""
    if len(ratios) < 3:
        return ", ".join(f"{ratio:.2f}" for ratio in ratios) or "no pair"
    return "{:.2f} [{:.2f}, {:.2f}]".format(*np.exp(interval(np.log(ratios))))


def difference(differences: list[float]) -> str:
    """Mean with its 95% interval; fewer than three differences as they are."""
    if len(differences) < 3:
        return ", ".join(f"{difference:+.3f}" for difference in differences)
    return "{:+.3f} [{:+.3f}, {:+.3f}]".format(*interval(np.array(differences)))


def interval(values: npt.NDArray[np.float64]) -> tuple[float, float, float]:
    """Mean of *values*, and its 95% interval by Student's t."""
    reach = stats.t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values))
    return values.mean(), values.mean() - reach, values.mean() + reach


if __name__ == "__main__":
    main()
