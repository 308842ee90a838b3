"""Do CosmoFlow's two implementations, or its two sample types, reach the same error? Two one-sided tests (TOST).

    python tests/perf/cosmoflow_equivalence.py --data data/cosmoflow-smoke --out results/equivalence
    python tests/perf/cosmoflow_equivalence.py --samples --preset demo --epochs 4 --data data/cosmoflow-demo
        --out results/samples --seeds 20 --first-seed 4001

trains the preset in each way with each seed, in turns, and then tests. ``--test`` only tests what is there.

Written down before the runs, so that nothing is chosen after seeing them:
- the quantity: the evaluation error after the last of 8 epochs (``target.value`` is out of reach, so that every
  run trains all epochs). It is the epoch of the goal, and was the first test's. That some networks have left the
  plateau of σ_8 by then and others have not makes the errors bimodal, which means over 30 seeds tolerate; a later
  epoch would cost as much per run as half of the seeds;
- seeds 3001 to 3030, the same for both frameworks and in no earlier study (the first test had 1001 to 1020); no
  run is left out, whatever its error;
- the margin: one seed-to-seed standard deviation, pooled over the two frameworks;
- equivalent if the 90% confidence interval of the difference of the means (Welch) lies within ± the margin;
- if time runs out, the seeds that both frameworks have completed count, from the lowest on, and at least 22 of
  them: the order is fixed, so no result has a say in how many there are.
Of ``--samples``, float16 against float32 (paper "Codecs", figure 7), likewise before its runs: the error after the
last of 4 epochs of PyTorch; 20 pairs of the same seed, 4001 to 4020; the margin is one standard deviation of
float32's; equivalent if the 90% interval of the mean difference of the pairs lies within it.
Normal errors, 4 000 simulated studies each: of equal means 97% find equivalence with 30 seeds, 89% with 22, 85%
with 20; of means a quarter of a standard deviation apart 88%, 76% and 74%; of means a whole one apart 5%.
"""

import argparse
import json
import sys
from pathlib import Path

import numpy as np
from equivalence import Study, independent, paired

FRAMEWORKS = {name: [f"training.framework={name}"] for name in ("tensorflow", "pytorch")}
SAMPLES = {
    name: ["training.framework=pytorch", f"loading.sample_dtype={name}"] for name in ("float16", "float32")
}
FIRST_SEED = 3001


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=Path("data/cosmoflow-smoke"))
    parser.add_argument("--out", type=Path, default=Path("results/equivalence"))
    parser.add_argument("--preset", default="smoke")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--seeds", type=int, default=30)
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED)
    parser.add_argument("--samples", action="store_true", help="compare the types of samples")
    parser.add_argument("--test", action="store_true", help="only test the runs that are there")
    options = parser.parse_args()
    study = Study(
        options.out, "cosmoflow", options.preset, options.epochs, metric="eval_error", unreachable=1e-9
    )
    ways, test = (SAMPLES, paired) if options.samples else (FRAMEWORKS, independent)
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    for seed in seeds if not options.test else ():
        for way, settings in ways.items():
            study.train(way, seed, options.data, settings)
    values = [study.values(way) for way in ways]
    complete = [seed for seed in seeds if all(seed in value for value in values)]
    errors = (np.array([value[seed] for seed in complete]) for value in values)
    print(json.dumps(test(*errors), indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
