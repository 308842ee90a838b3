"""Which loss of a codec does DeepCAM's training tolerate? Two one-sided tests (TOST) over paired seeds.

    mlhpc data make deepcam --preset smoke --out data/deepcam-tested --set data.train_samples=256
        --set data.simulation.storm_size=2.0 --set data.simulation.strains=0
    python tests/perf/codec_equivalence.py --data data/deepcam-tested --out results/codecs [--seeds 20]

converts the data set to every format below, trains the preset with each format and seed, tests each lossy format
against the lossless one, and draws the picture. ``--test`` only tests and draws what is there.

Written down before the runs, so that nothing is chosen after seeing them:
- seeds 1001 to 1000 + N, the same for all formats; no run is left out, whatever its value;
- the order: all seeds of the lossless format, then all seeds of each lossy one in the order of ``FORMATS``. An
  interrupted study then has complete comparisons. A format with fewer than N pairs is reported with their number;
- the quantity: the intersection over union after the last of ``--epochs`` epochs (``target.value`` is out of
  reach, and the learning rate is the preset's, whose schedule is longer than the run);
- the margin: one seed-to-seed standard deviation of the lossless runs;
- equivalent if the 90% confidence interval of the mean difference of the pairs lies within ± the margin;
- bounds are tested from the smallest to the largest, and the first that is not equivalent ends the row: the
  tolerable bound is the last one before it.
Of normal values, 20 pairs and uncorrelated seeds, 80% of studies of equal means find equivalence, 5% of those
whose means are a whole standard deviation apart.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from equivalence import FIRST_SEED, Study, paired

SETTINGS = (
    "data.train_samples=256",
    "data.simulation.storm_size=2.0",
    "data.simulation.strains=0",
    "hyperparameters.scheduler_t_max=768",
)
"""The preset smoke as it was when the tests were written and the runs of docs/evidence/training.md were
made."""
LOSSLESS = "npy"
BOUNDS = ("1e-3", "1e-2", "3e-2", "1e-1")
"""Of ``delta``, as shares of a channel's range."""
FORMATS = {
    LOSSLESS: ["npy"],
    **{f"delta {bound}": ["delta", "--max-error", bound] for bound in BOUNDS},
    "npy-float16": ["npy-float16"],
    "delta-paper": ["delta-paper"],
}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=Path("data/deepcam-tested"))
    parser.add_argument("--out", type=Path, default=Path("results/codecs"))
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--test", action="store_true", help="only test the runs that are there")
    options = parser.parse_args()
    study = Study(options.out, "deepcam", "smoke", options.epochs, metric="eval_accuracy", unreachable=0.999)
    if not options.test:
        for name in FORMATS:
            data = convert(options.data, options.out, name)
            for seed in range(FIRST_SEED, FIRST_SEED + options.seeds):
                study.train(name.replace(" ", "-"), seed, data, SETTINGS)
    tests = {name: test(study, name) for name in FORMATS if name != LOSSLESS and pairs(study, name) > 1}
    print(json.dumps(tests, indent=1))
    print(f"tolerable bound of delta: {tolerable_bound(tests) or 'none of ' + ', '.join(BOUNDS)}")
    draw(tests, options.out / "codec_equivalence.svg")
    return 0


def convert(source: Path, out: Path, name: str) -> Path:
    """``source`` in the format, converted unless it is there."""
    data = out / "data" / name.replace(" ", "-")
    if not data.exists():
        subprocess.run(
            [sys.executable, "-m", "mlhpc", "data", "convert", "deepcam", source, data, "--codec", *FORMATS[name]],
            check=True,
        )  # fmt: skip
    return data


def pairs(study: Study, name: str) -> int:
    """How many seeds a format has in common with the lossless one."""
    return len(study.values(name.replace(" ", "-")).keys() & study.values(LOSSLESS).keys())


def test(study: Study, name: str) -> dict[str, Any]:
    """The test of a format on the seeds that it and the lossless format have."""
    lossy, lossless = study.values(name.replace(" ", "-")), study.values(LOSSLESS)
    seeds = sorted(set(lossy) & set(lossless))
    return paired(np.array([lossy[s] for s in seeds]), np.array([lossless[s] for s in seeds]))


def tolerable_bound(tests: dict[str, dict[str, Any]]) -> str | None:
    """The largest bound that is equivalent, with all smaller ones."""
    tolerable = None
    for bound in BOUNDS:
        if not tests.get(f"delta {bound}", {"equivalent": False})["equivalent"]:
            break
        tolerable = bound
    return tolerable


def draw(tests: dict[str, dict[str, Any]], out: Path) -> None:
    """Differences with their 90% intervals, and the margin as a band."""
    import altair as alt

    rows = [
        {
            "format": name,
            "difference": t["difference"],
            "low": t["interval_90"][0],
            "high": t["interval_90"][1],
        }
        for name, t in tests.items()
    ]
    margin = next(iter(tests.values()))["margin"]
    base = alt.Chart(alt.InlineData(values=rows)).encode(y=alt.Y("format:N", sort=list(tests), title=None))
    band = (
        alt.Chart(alt.InlineData(values=[{"low": -margin, "high": margin}]))
        .mark_rect(opacity=0.15)
        .encode(x="low:Q", x2="high:Q")
    )
    title = "IoU minus IoU of the lossless format: mean of the pairs, 90% interval; band: margin"
    intervals = base.mark_rule().encode(x=alt.X("low:Q", title=title), x2="high:Q")
    (band + intervals + base.mark_point(filled=True, size=60).encode(x="difference:Q")).properties(
        width=480, height=200
    ).save(out)


if __name__ == "__main__":
    sys.exit(main())
