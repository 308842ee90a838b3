"""How much of a core ``mlhpc watch`` needs to follow 1 024 ranks.

    python tests/perf/watch.py [--ranks 1024] [--looks 30]

Writes the events of a run with that many ranks, each of which adds an epoch's events between two looks (far more
than a real run, whose epochs take longer than two seconds), and prints processor time per look and the share of a
core at the default interval of two seconds. Run it on an idle machine.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

from mlhpc.benchmarks import load
from mlhpc.submission.logs.progress import Follower

INTERVAL_S = 2.0


def epoch_events(epoch: int) -> str:
    t = 10.0 * epoch
    events = [
        {"t": t, "event": "begin", "name": "epoch", "epoch": epoch},
        {"t": t, "event": "begin", "name": "train", "epoch": epoch},
        {"t": t + 9, "event": "timed", "name": "data_wait", "epoch": epoch, "count": 100, "seconds": 0.4},
        {"t": t + 9, "event": "end", "name": "train", "epoch": epoch, "seconds": 9.0},
        {"t": t + 9, "event": "metric", "name": "samples", "epoch": epoch, "value": 100000},
        {"t": t + 9, "event": "end", "name": "epoch", "epoch": epoch, "seconds": 9.0},
    ]
    return "".join(json.dumps(event) + "\n" for event in events)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--looks", type=int, default=30)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "run.log").touch()
        (folder / "config.toml").write_text(load.dumps(load.load("cosmoflow", "closed")))
        paths = [folder / f"events.rank{rank}.jsonl" for rank in range(options.ranks)]
        follower = Follower(folder)
        busy = 0.0
        for look in range(1, options.looks + 1):
            for path in paths:
                with path.open("a") as file:
                    file.write(epoch_events(look))
            start = time.process_time()
            progress = follower.look()
            busy += time.process_time() - start
            assert progress.epoch == look
    each = busy / options.looks
    print(
        f"{options.ranks} ranks: {1e3 * each:.1f} ms per look, {each / INTERVAL_S:.1%} of a core "
        f"every {INTERVAL_S:g} s"
    )


if __name__ == "__main__":
    main()
