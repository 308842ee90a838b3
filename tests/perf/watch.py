"""What ``mlhpc watch`` needs to follow a run of many ranks, and what an operator's commands need to show one.

    python tests/perf/watch.py [--ranks 1024] [--looks 30]
    python tests/perf/watch.py --commands [--ranks 8192] [--keep FOLDER]

Writes the events of a run with that many ranks, each of which adds an epoch's events between two looks (far more
than a real run, whose epochs take longer than two seconds), and prints processor time per look and the share of a
core at the default interval of two seconds. Run it on an idle machine.

``--commands`` writes the folder of a run of ten epochs instead, as it is after the run, while it is running and
after it was killed, and prints seconds, processor seconds and peak memory of each command on it.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from golden.make_run import make_run

from mlhpc.benchmarks import load
from mlhpc.common.ranks.world import Solo
from mlhpc.common.timing.event_files import PER_FOLDER, events_path
from mlhpc.record.events import read_events
from mlhpc.record.progress import Follower
from mlhpc.record.rank_table import NAME, RankTable, write_rank_table

INTERVAL_S = 2.0
RANKS_PER_NODE = 4
WAIT = list(RankTable.model_fields).index("data_wait_s") - 2
"""The column of a rank's own data wait."""


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


def write_run(folder: Path, ranks: int, epochs: int = 10) -> Path:
    """The folder of a run that met its target, on nodes of ``RANKS_PER_NODE`` ranks."""
    nodes = -(-ranks // RANKS_PER_NODE)

    def result(told: dict[str, Any]) -> None:
        told.update(ranks=ranks, nodes=nodes, launcher="srun")
        told["staging"]["rank_seconds"] = [3.0 + rank % 97 / 1000 for rank in range(ranks)]

    def env(facts: dict[str, Any]) -> None:
        machine = facts["nodes"][0]
        facts["nodes"] = [{**machine, "hostname": f"nid{node:06}"} for node in range(nodes)]
        facts["bindings"] = [
            {"rank": rank, "hostname": f"nid{rank // RANKS_PER_NODE:06}", "local_rank": rank % RANKS_PER_NODE,
             "cores": f"{8 * (rank % RANKS_PER_NODE)}-{8 * (rank % RANKS_PER_NODE) + 7}",
             "numa_nodes": str(rank % RANKS_PER_NODE), "memory_policy": "default", "threads": 8}
            for rank in range(ranks)
        ]  # fmt: skip

    make_run(folder, epochs=epochs, result=result, env=env)
    for rank in range(ranks):
        start = [{"t": 0, "event": "begin", "name": "init"}]
        start += [{"t": 4, "event": "end", "name": "init", "seconds": 4.0}]
        start += [{"t": 4, "event": "note", "name": "facts", "ranks": ranks, "nodes": nodes}] * (rank == 0)
        start += [{"t": 4, "event": "begin", "name": "run"}]
        end = [
            {"t": 104, "event": "end", "name": "run", "seconds": 100.0},
            {
                "t": 104,
                "event": "note",
                "name": "memory",
                "peak_bytes": 4e9 + rank,
                "device_peak_bytes": 7e10,
            },
            {"t": 104, "event": "note", "name": "finish", "status": "success"},
        ]
        path = events_path(folder, rank)
        path.parent.mkdir(parents=True, exist_ok=True)
        between = "".join(epoch_events(rank, epoch, nodes) for epoch in range(1, epochs + 1))
        path.write_text(lines(start) + between + lines(end))
    write_table(folder, ranks)
    return folder


def write_table(folder: Path, ranks: int) -> None:
    """As rank 0 does, with the rows of the others: theirs have its values, with a data wait of their own."""

    class Rank0(Solo):
        def sum(self, values: Any) -> Any:
            rows = np.repeat(np.asarray(values)[:1], ranks, axis=0)
            rows[:, WAIT] += np.random.default_rng(0).exponential(0.3, ranks)
            return rows

    events = read_events(events_path(folder, 0))
    write_rank_table(folder, Rank0(size=ranks), events)


def lines(events: list[dict[str, Any]]) -> str:
    """One event each."""
    return "".join(json.dumps(event) + "\n" for event in events)


def measure(name: str, *words: object) -> None:
    """Run ``mlhpc`` with ``words`` and print what it needed."""
    start = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "mlhpc", *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    assert process.stdout
    output = process.stdout.read().decode()
    _, status, used = os.wait4(process.pid, 0)
    assert "Traceback" not in output, output
    print(
        f"{name}: {time.monotonic() - start:.1f} s, {used.ru_utime + used.ru_stime:.1f} s of CPU, "
        f"{used.ru_maxrss / 1e3:.0f} MB, status {os.waitstatus_to_exitcode(status)}",
        flush=True,
    )


def commands(folder: Path, ranks: int) -> None:
    """What each command needs for a run that has ended, that runs, and that was killed."""
    run = folder if folder.exists() else write_run(folder, ranks)
    whole = (run / "result.json").read_text(), (run / "run.log").read_text()
    for state in ("ended", "killed"):
        measure(f"{state}: watch", "watch", "--once", run)
        measure(f"{state}: report", "report", run)
        measure(f"{state}: check", "check", run)
        measure(f"{state}: score", "score", run)
        if state == "ended":
            (run / "result.json").unlink()
            (run / NAME).unlink(missing_ok=True)
            (run / "run.log").write_text(whole[1][: len(whole[1]) // 2])
    (run / "result.json").write_text(whole[0])
    (run / "run.log").write_text(whole[1])
    write_table(run, ranks)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int)
    parser.add_argument("--looks", type=int, default=30)
    parser.add_argument("--commands", action="store_true")
    parser.add_argument("--keep", type=Path, help="write the run here, or use the one that is here")
    options = parser.parse_args()
    options.ranks = options.ranks or (8192 if options.commands else 1024)
    if options.commands:
        with tempfile.TemporaryDirectory() as name:
            commands(options.keep or Path(name) / "run", options.ranks)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "run.log").touch()
        (folder / "config.toml").write_text(load.dumps(load.load("cosmoflow", "closed")))
        paths = [events_path(folder, rank) for rank in range(options.ranks)]
        for path in paths:
            path.parent.mkdir(exist_ok=True)
        nodes = -(-options.ranks // RANKS_PER_NODE)
        followed = -(-min(options.ranks, PER_FOLDER) // RANKS_PER_NODE)
        follower = Follower(folder)
        busy = 0.0
        for look in range(1, options.looks + 1):
            for rank, path in enumerate(paths):
                with path.open("a") as file:
                    file.write(epoch_events(rank, look, nodes))
            start = time.process_time()
            progress = follower.look()
            busy += time.process_time() - start
            assert progress.epoch == look and progress.energy["node"].nodes == followed
    each = busy / options.looks
    print(
        f"{options.ranks} ranks: {1e3 * each:.1f} ms per look, {each / INTERVAL_S:.1%} of a core "
        f"every {INTERVAL_S:g} s"
    )


if __name__ == "__main__":
    main()
