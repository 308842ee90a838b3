"""How much of what network cards can move an exchange of shards moves, in a model, and how long its plan takes.

    .venv/bin/python tests/perf/exchange.py [--nodes 1024] [--files 512] [--ranks 1 4] [--spread 0 0.15]
        [--at-once 4]

Each node holds FILES files of CosmoFlow's uncompressed training set. SPREAD is the standard deviation of their
sizes over the mean. The order, the rounds and the ranks are those of the code; what the cards do with it is a
fluid model (helpers/node_network.py), in which a round ends for all nodes together, and neither disks, processors
nor the network between the cards take time."""

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from helpers.node_network import efficiency, shards_of

from mlhpc.common.staging.exchange import AT_ONCE, ROUND
from mlhpc.common.staging.moves import extra_space, moves_between


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=1024)
    parser.add_argument("--files", type=int, default=512)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--spread", type=float, nargs="+", default=[0.0, 0.15])
    parser.add_argument("--at-once", type=int, nargs="+", default=[AT_ONCE])
    options = parser.parse_args()
    for spread in options.spread:
        shards, sizes = shards_of(options.nodes, options.files, spread)
        began = time.process_time()
        moves = moves_between(sizes, shards, 0, 1)
        space = extra_space(moves, options.nodes, ROUND)
        print(f"{options.nodes} nodes, {options.files} files each, spread {spread}: planned in")
        print(
            f"  {time.process_time() - began:.2f} s of a processor; space needed {space.max() / 1e9:.2f} GB"
        )
        for ranks in options.ranks:
            for at_once in options.at_once:
                reached, flows = efficiency(moves, ROUND, ranks, at_once)
                print(f"  ranks {ranks}, {at_once} files at once: {reached:.3f} of the ideal, {flows} flows")


if __name__ == "__main__":
    main()
