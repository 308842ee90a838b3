"""Do CosmoFlow's two implementations reach the same error? Two one-sided tests (TOST) over many seeds.

    python tests/perf/cosmoflow_equivalence.py --data data/cosmoflow-smoke --out results/equivalence [--seeds 20]

trains the preset with each framework and seed, in turns, and then tests. ``--test`` only tests what is there.

Written down before the runs, so that nothing is chosen after seeing them:
- seeds 1001 to 1000 + N, the same for both frameworks; no run is left out, whatever its error;
- the quantity: the evaluation error after the last epoch (``target.value`` is out of reach, so that every run
  trains all epochs);
- the margin: one seed-to-seed standard deviation, pooled over the two frameworks;
- equivalent if the 90% confidence interval of the difference of the means (Welch) lies within ± the margin.
Simulated with normal errors and 20 seeds each: 85% of studies of equal means find equivalence, 5% of those whose
means are a whole standard deviation apart.
"""

import argparse
import json
import sys
from pathlib import Path

import numpy as np
from equivalence import FIRST_SEED, Study, independent

FRAMEWORKS = ("tensorflow", "pytorch")


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
    study = Study(
        options.out, "cosmoflow", options.preset, options.epochs, metric="eval_error", unreachable=1e-9
    )
    for seed in range(FIRST_SEED, FIRST_SEED + options.seeds) if not options.test else ():
        for framework in FRAMEWORKS:
            study.train(framework, seed, options.data, [f"training.framework={framework}"])
    errors = (np.array(list(study.values(framework).values())) for framework in FRAMEWORKS)
    print(json.dumps(independent(*errors), indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
