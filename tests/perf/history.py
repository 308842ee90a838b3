"""Times of ``mlhpc history`` with many records: ``python tests/perf/history.py RUN [--records 10000]``.

The records are those of the folder RUN with other times. Seconds of whole processes, start included; the first
list builds the index. "start alone" is a process that only prints the version.
"""

import argparse
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from datetime import datetime, timedelta
from pathlib import Path

from mlhpc.history.reading import folder_record
from mlhpc.history.store import digest


def fill(store: Path, run: Path, records: int) -> None:
    record = folder_record(run, None)
    draw = random.Random(0)
    begin = datetime(2024, 1, 1)
    for n in range(records):
        (figures,) = record.runs
        seconds = draw.gauss(100, 2)
        figures = figures.model_copy(
            update={"time_to_train_s": seconds, "epoch_s": seconds / 10, "reached": True}
        )
        when = f"{begin + timedelta(hours=2 * n):%Y-%m-%dT%H:%M:%SZ}"
        one = record.model_copy(update={"runs": (figures,), "when": when, "status": "success"})
        data = one.canonical()
        (store / f"{digest(data)}.json").write_bytes(data)


def timed(env: dict[str, str], *words: str) -> tuple[float, float]:
    """Seconds of a process by the clock, and of its processor time."""
    begin, used = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, "-m", "mlhpc", *words], env=env, stdout=subprocess.DEVNULL)
    if done.returncode not in (0, 1, 3):
        raise SystemExit(f"mlhpc {' '.join(words)}: status {done.returncode}")
    now = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.perf_counter() - begin, now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--records", type=int, default=10_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder, "store")
        store.mkdir()
        fill(store, options.run, options.records)
        env = {**os.environ, "XDG_CACHE_HOME": folder, "MLHPC_HISTORY": str(store)}
        size = sum(path.stat().st_size for path in store.iterdir())
        print(f"{options.records} records, {size / 1e6:.0f} MB")
        clock, processor = timed(env, "history", "list", "--json")
        print(f"first list: {clock:.2f} s, {processor:.2f} s of the processor")
        commands = {
            "list --json": ("list", "--json"),
            "list": ("list",),
            "list --json --where": ("list", "--json", "--where", "time_to_train_s<98s"),
            "gate last=5 against last=40": ("gate", "last=5", "--baseline", "last=40"),
        }
        for name, words in [
            ("start alone", ("--version",)),
            *((n, ("history", *w)) for n, w in commands.items()),
        ]:
            clocks, processors = zip(*(timed(env, *words) for _ in range(5)), strict=True)
            middle = sorted(processors)[2]
            print(f"{name}: {min(clocks):.2f} to {max(clocks):.2f} s, {middle:.2f} s of the processor")


if __name__ == "__main__":
    main()
