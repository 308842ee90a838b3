"""How long check and score take, and how much of it the official tools.

    python tests/perf/submission.py [TREE] [--sets 100]

Makes a log of 1 MB and sets of ten logs of published size (140 kB) in a temporary folder, and times: check of
the one log; check of all sets of TREE, where given (the published results of MLPerf HPC, say); scores of the
sets, and with the check that stands beside a score, for one set; score of as many instances in one set. Times
are of one processor core.
"""

import argparse
import io
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from golden.make_tree import make_set, records, write_log
from rich.console import Console

from mlhpc.submission.check import check, console
from mlhpc.submission.result_sets import result_sets
from mlhpc.submission.score import set_score

official_s = 0.0


def timed(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function``, its time added to ``official_s``."""

    def wrapper(*arguments: Any) -> Any:
        global official_s
        begin = time.process_time()
        try:
            return function(*arguments)
        finally:
            official_s += time.process_time() - begin

    return wrapper


def measure(what: str, work: Callable[[], object]) -> None:
    global official_s
    official_s, begin = 0.0, time.process_time()
    work()
    took = time.process_time() - begin
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    shares = f"{took:.2f} s of processor, {official_s:.2f} s of that the official tools"
    print(f"{what}: {shares}; peak {peak:.0f} MiB")


def score_all(top: Path) -> None:
    sets = result_sets(top)
    while sets:
        set_score.score_set(sets.pop(0))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tree", type=Path, nargs="?")
    parser.add_argument("--sets", type=int, default=100)
    options = parser.parse_args()
    tree, logs = options.tree, 10 * options.sets
    for module, names in (
        (check, ("official_findings", "package_findings", "seed_findings")),
        (console, ("summary", "rcp_verdict")),
    ):
        for name in names:
            setattr(module, name, timed(getattr(module, name)))
    quiet = Console(file=io.StringIO())
    with tempfile.TemporaryDirectory() as scratch, redirect_stderr(io.StringIO()):
        log = write_log(Path(scratch) / "one" / "result_1.txt", records(epochs=1100))
        measure(f"check, one log of {log.stat().st_size / 1e6:.2f} MB", lambda: check.check(log))
        if tree:
            there = sum(len(results.log_paths) for results in result_sets(tree))
            measure(f"check, {there} logs of {tree}", lambda: console.print_check(tree, "1.0.0", quiet))
        for n in range(options.sets):
            make_set(Path(scratch) / "many" / f"org{n}", minutes=[10.0 + i for i in range(10)], epochs=150)
        many = Path(scratch) / "many"
        size = sum(path.stat().st_size for path in many.rglob("result_*.txt")) / 1e6
        measure(f"score alone, {logs} logs in {options.sets} sets, {size:.0f} MB", lambda: score_all(many))
        few = many / "org0"
        measure("score with check, 10 logs of them", lambda: console.print_score(few, "2.0.0", quiet))
        instances = Path(scratch) / "instances" / "org"
        make_set(instances, "deepcam", [10.0 + n / 100 for n in range(logs)], level="weak", epochs=150)
        measure(f"score alone, {logs} instances in one set", lambda: score_all(instances))


if __name__ == "__main__":
    main()
