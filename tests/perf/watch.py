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
from mlhpc.record.progress import Follower

INTERVAL_S = 2.0
RANKS_PER_NODE = 4


def epoch_events(rank: int, epoch: int, nodes: int) -> str:
    """Of an epoch of ten seconds, the kinds of lines that ``common/timing/runlog.py`` writes in one."""
    t, own = 10.0 * epoch, {"epoch": epoch}
    times = {"p50": 0.00385612, "p90": 0.0041907, "p99": 0.00623114, "max": 0.0094321}
    events: list[dict[str, object]] = [
        {"t": t, "event": "begin", "name": "epoch", **own},
        {"t": t, "event": "begin", "name": "train", **own},
    ]
    if rank == 0:  # every five seconds
        phase = f"train of epoch {epoch}"
        events += [{"t": t + s, "event": "progress", "name": phase, "step": 10 * s} for s in (4, 9)]
    if rank % RANKS_PER_NODE == 0:  # every ten seconds
        events += [
            {"t": t + 5, "event": "energy", "name": kind, "joules": 4321.125 * epoch, "nodes": nodes}
            for kind in ("accelerators", "processors", "node")
        ]
    events += [
        {"t": t + 9, "event": "timed", "name": "data_wait", "count": 100, "seconds": 0.4, **times, **own},
        {"t": t + 9, "event": "steps", "name": "train", "count": 100, "seconds": 8.6, **times, **own},
        {"t": t + 9, "event": "end", "name": "train", **own, "seconds": 9.0},
        {"t": t + 9, "event": "begin", "name": "eval", **own},
        {
            "t": t + 9.9,
            "event": "timed",
            "name": "eval_data_wait",
            "count": 9,
            "seconds": 0.1,
            **times,
            **own,
        },
        {"t": t + 9.9, "event": "steps", "name": "eval", "count": 9, "seconds": 0.8, **times, **own},
        {"t": t + 9.9, "event": "end", "name": "eval", **own, "seconds": 0.9},
    ]
    if rank == 0:
        events += [
            {"t": t + 9.9, "event": "metric", "name": "eval_error", "value": 1 / epoch, **own},
            {"t": t + 9.9, "event": "metric", "name": "samples", "value": 100000, **own},
        ]
    events.append({"t": t + 10, "event": "end", "name": "epoch", **own, "seconds": 10.0})
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
        nodes = -(-options.ranks // RANKS_PER_NODE)
        follower = Follower(folder)
        busy = 0.0
        for look in range(1, options.looks + 1):
            for rank, path in enumerate(paths):
                with path.open("a") as file:
                    file.write(epoch_events(rank, look, nodes))
            start = time.process_time()
            progress = follower.look()
            busy += time.process_time() - start
            assert progress.epoch == look and progress.energy["node"].nodes == nodes
    each = busy / options.looks
    print(
        f"{options.ranks} ranks: {1e3 * each:.1f} ms per look, {each / INTERVAL_S:.1%} of a core "
        f"every {INTERVAL_S:g} s"
    )


if __name__ == "__main__":
    main()
