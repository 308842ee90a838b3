"""Do CosmoFlow's two implementations reach the same error? Two one-sided tests (TOST) over many seeds.

    python tests/perf/cosmoflow_equivalence.py --data data/cosmoflow-smoke --out results/equivalence [--seeds 20]

trains the preset with each framework and seed, in turns, and then tests. Every run has a folder of its own and one
line in ``--out/runs.jsonl``; started again, the command continues with the runs that are missing. ``--test`` only
tests what is there.

Written down before the runs, so that nothing is chosen after seeing them:
- seeds 1001 to 1000 + N, the same for both frameworks; no run is left out, whatever its error;
- the quantity: the evaluation error after the last epoch (``target.value`` is out of reach, so that every run
  trains all epochs);
- the margin: one seed-to-seed standard deviation, pooled over the two frameworks;
- equivalent if the 90% confidence interval of the difference of the means (Welch) lies within ± the margin, which
  is both one-sided tests at 5% (Schuirmann 1987).
Simulated with normal errors and 20 seeds each: 85% of studies of equal means find equivalence, 5% of those whose
means are a whole standard deviation apart.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

FRAMEWORKS = ("tensorflow", "pytorch")
FIRST_SEED = 1001
CONFIDENCE = 0.90


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=Path("data/cosmoflow-smoke"))
    parser.add_argument("--out", type=Path, default=Path("results/equivalence"))
    parser.add_argument("--preset", default="smoke")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--test", action="store_true", help="only test the runs that are there")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    record = options.out / "runs.jsonl"
    if not options.test:
        for seed in range(FIRST_SEED, FIRST_SEED + options.seeds):
            for framework in FRAMEWORKS:
                if (framework, seed) not in {(r["framework"], r["seed"]) for r in read(record)}:
                    train(options, framework, seed, record)
    errors = {name: [r["error"] for r in read(record) if r["framework"] == name] for name in FRAMEWORKS}
    print(json.dumps(equivalence(*(np.array(errors[name]) for name in FRAMEWORKS)), indent=1))
    return 0


def read(record: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in record.read_text().splitlines()] if record.exists() else []


def train(options: argparse.Namespace, framework: str, seed: int, record: Path) -> None:
    """One run; an interrupted one is started again in a folder of another number."""
    number = len(list(options.out.glob(f"{framework}-{seed}-*")))
    out = options.out / f"{framework}-{seed}-{number}"
    changed = [
        f"training.framework={framework}",
        f"training.max_epochs={options.epochs}",
        "target.value=1e-9",
    ]
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
    epochs = json.loads((out / "result.json").read_text())["epochs"] if (out / "result.json").exists() else []
    if len(epochs) != options.epochs:
        raise SystemExit(f"{out}: {len(epochs)} of {options.epochs} epochs\n{done.stderr}")
    last = epochs[-1]
    line = {"framework": framework, "seed": seed, "error": last["eval_error"], "train_loss": last["train_loss"],
            "folder": out.name}  # fmt: skip
    with record.open("a") as file:
        file.write(json.dumps(line) + "\n")
    print(f"{framework} seed {seed}: {last['eval_error']:.4f}", flush=True)


def equivalence(first: np.ndarray, second: np.ndarray) -> dict[str, Any]:
    """TOST of the means of two samples, with Welch's degrees of freedom."""
    if min(len(first), len(second)) < 2:
        raise SystemExit("two runs of each framework are needed")
    spread = float(np.sqrt((first.var(ddof=1) + second.var(ddof=1)) / 2))
    interval = stats.ttest_ind(first, second, equal_var=False).confidence_interval(CONFIDENCE)
    low, high = float(interval.low), float(interval.high)
    return {
        "runs": [len(first), len(second)],
        "mean": [float(first.mean()), float(second.mean())],
        "standard_deviation": [float(first.std(ddof=1)), float(second.std(ddof=1))],
        "difference": float(first.mean() - second.mean()),
        "interval_90": [low, high],
        "margin": spread,
        "equivalent": -spread < low and high < spread,
    }


if __name__ == "__main__":
    sys.exit(main())
