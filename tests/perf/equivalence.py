"""Runs of many seeds and the test of equivalence (TOST), for the studies of this folder.

A study trains the same preset in several ways with the same seeds, in turns, every run in a folder of its own and
with one line in ``runs.jsonl``; started again, it continues with the runs that are missing. Two one-sided tests at
5% each (Schuirmann 1987) are the same as the 90% confidence interval of the difference of the means within ± the
margin.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import stats

Values = npt.NDArray[np.float64]
FIRST_SEED = 1001
CONFIDENCE = 0.90


@dataclass(frozen=True)
class Study:
    """Where the runs go, and what they have in common. ``metric`` is the key of an epoch in result.json."""

    out: Path
    benchmark: str
    preset: str
    epochs: int
    metric: str
    unreachable: float
    """A target value that no run reaches, so that every run trains all epochs."""

    @property
    def record(self) -> Path:
        return self.out / "runs.jsonl"

    def runs(self) -> list[dict[str, Any]]:
        """The recorded runs."""
        if not self.record.exists():
            return []
        return [json.loads(line) for line in self.record.read_text().splitlines()]

    def values(self, way: str) -> dict[int, float]:
        """The metric after the last epoch, by seed."""
        return {run["seed"]: run["value"] for run in self.runs() if run["way"] == way}

    def train(self, way: str, seed: int, data: Path, settings: Sequence[str] = ()) -> None:
        """One run and its record, unless it is recorded.

        An interrupted one is started again in a folder of another number.
        """
        if seed in self.values(way):
            return
        self.out.mkdir(parents=True, exist_ok=True)
        folder = self.out / f"{way}-{seed}-{len(list(self.out.glob(f'{way}-{seed}-*')))}"
        words = [
            "run",
            self.benchmark,
            "--preset",
            self.preset,
            "--data",
            data,
            "--out",
            folder,
            "--seed",
            seed,
        ]
        for setting in (
            f"training.max_epochs={self.epochs}",
            f"target.value={self.unreachable}",
            *settings,
        ):
            words += ["--set", setting]
        done = subprocess.run(
            [sys.executable, "-m", "mlhpc", *map(str, words)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        result = folder / "result.json"
        epochs = json.loads(result.read_text())["epochs"] if result.exists() else []
        if len(epochs) != self.epochs:
            raise SystemExit(f"{folder}: {len(epochs)} of {self.epochs} epochs\n{done.stderr}")
        line = {
            "way": way,
            "seed": seed,
            "value": epochs[-1][self.metric],
            "train_loss": epochs[-1]["train_loss"],
            "folder": folder.name,
        }
        with self.record.open("a") as file:
            file.write(json.dumps(line) + "\n")
        print(f"{way} seed {seed}: {line['value']:.4f}", flush=True)


def independent(first: Values, second: Values) -> dict[str, Any]:
    """TOST of the means of two samples, with Welch's degrees of freedom.

    The margin is one standard deviation, pooled over the two.
    """
    if min(len(first), len(second)) < 2:
        raise SystemExit("two runs of each are needed")
    margin = float(np.sqrt((first.var(ddof=1) + second.var(ddof=1)) / 2))
    interval = stats.ttest_ind(first, second, equal_var=False).confidence_interval(CONFIDENCE)
    return _verdict(first, second, interval, margin)


def paired(first: Values, second: Values) -> dict[str, Any]:
    """TOST of the mean difference of runs of the same seeds.

    The margin is one standard deviation of ``second``, the way that the other is compared with.
    """
    if len(first) < 2 or len(first) != len(second):
        raise SystemExit("two pairs of runs are needed")
    interval = stats.ttest_rel(first, second).confidence_interval(CONFIDENCE)
    return _verdict(first, second, interval, float(second.std(ddof=1)))


def _verdict(first: Values, second: Values, interval: Any, margin: float) -> dict[str, Any]:
    low, high = float(interval.low), float(interval.high)
    return {
        "runs": [len(first), len(second)],
        "mean": [float(first.mean()), float(second.mean())],
        "standard_deviation": [float(first.std(ddof=1)), float(second.std(ddof=1))],
        "difference": float(first.mean() - second.mean()),
        "interval_90": [low, high],
        "margin": margin,
        "equivalent": -margin < low and high < margin,
    }
