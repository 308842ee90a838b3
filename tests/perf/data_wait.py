"""Data wait and the other parts of a run against injected delays: ``python tests/perf/data_wait.py OUT``.

Every cell is a run with emulated steps in which a library delays reads or steps by about twelve seconds in sum,
and logs every delay by a clock of its own (tests/helpers/slow_reads.c). An event simulation
(tests/helpers/loader_model.py) says from that log what the parts of the run must be. Prints a table in Markdown,
with the parts outside the tolerance in bold; the results are kept in OUT, so that an interrupted matrix continues.
Cells sleep most of the time: several run at once.
"""

import argparse
import json
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from helpers.slow_reads import Cell, make_data, run, tolerance, truth

TENSORFLOW, PYTORCH = {"framework": "tensorflow"}, {"framework": "pytorch"}
LOADERS: list[tuple[str, dict[str, Any]]] = [("cosmoflow", PYTORCH), ("cosmoflow", TENSORFLOW)] + [
    (benchmark, {"loader": loader, "workers": workers})
    for benchmark in ("deepcam", "resnet50")
    for loader, workers in (("threads", 1), ("workers", 2), ("dali", 1))
]
PARTS = "staging", "data_wait", "step", "evaluation"


def cells() -> Iterator[Cell]:
    """Every value of every axis with each loader; not every combination."""
    for benchmark, loader in LOADERS:
        yield Cell(benchmark, 2, **loader)
    for benchmark, loader in LOADERS[:3] + LOADERS[5:6]:
        for where in ("evaluation", "staging", "steps"):
            yield Cell(benchmark, 2, where, **loader)
    for ranks in (2, 4):
        yield Cell("cosmoflow", ranks, spatial=True)
    for benchmark in ("cosmoflow", "deepcam"):
        yield Cell(benchmark, 2, packed=True)
    for benchmark, loader in LOADERS[2:]:
        for slow in ("one", "alternating"):
            yield Cell(benchmark, 2, slow=slow, passes=4, **loader)
    for slow in ("alternating", "random", "all"):
        for benchmark, loader in LOADERS:
            yield Cell(benchmark, 2, slow=slow, **loader)
    for ranks in (1, 4):
        for benchmark, loader in LOADERS:
            yield Cell(benchmark, ranks, **loader)
    for benchmark, loader in LOADERS[:3] + LOADERS[5:6]:
        for slow in ("all", "alternating", "random"):
            for where in ("evaluation", "staging", "steps"):
                yield Cell(benchmark, 2, where, slow, **loader)


def measure(cell: Cell, data: Path) -> dict[str, Any]:
    """Simulated and reported seconds of the parts of a run."""
    with TemporaryDirectory() as folder:
        result, calls = run(cell, data / cell.benchmark, Path(folder), timeout=900)
    expected, reported, waits = (
        truth(cell, calls, result["emulation"]["eval_step_s"]),
        result["breakdown_s"],
        result["data_wait"],
    )
    return {
        "cell": cell.name,
        "injected": sum(call.seconds for call in calls if call.seconds > 1e-3),
        "simulated": asdict(expected),
        "reported": {**{part: reported[part] or 0.0 for part in reported}, "eval_data_wait": waits["eval_s"]},
        "lost": [[rank["rank"], rank["train_s"]] for rank in waits["ranks"]],
    }


def outside(row: dict[str, Any]) -> list[str]:
    """The parts that differ by more than the tolerance."""
    simulated, reported = row["simulated"], row["reported"]
    return [
        p for p in (*PARTS, "eval_data_wait") if abs(reported[p] - simulated[p]) > tolerance(simulated[p])
    ]


def table(rows: list[dict[str, Any]]) -> str:
    names = ("staging", "data wait", "steps", "evaluation", "its data wait")
    lines = [
        "Seconds, simulated / reported; bold: further apart than 5% and 0.3 s. Cost: of the delays to the run.\n",
        f"| cell | delays | cost | {' | '.join(names)} | largest cost, by rank |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        texts, bad = [], outside(row)
        for part in (*PARTS, "eval_data_wait"):
            text = f"{row['simulated'][part]:.2f} / {row['reported'][part]:.2f}"
            texts.append(f"**{text}**" if part in bad else text)
        texts.append(f"{_slowest(enumerate(row['simulated']['lost']))} / {_slowest(row['lost'])}")
        lines.append(
            f"| {row['cell']} | {row['injected']:.1f} | {row['simulated']['cost']:.1f} | {' | '.join(texts)} |"
        )
    return "\n".join(lines)


def _slowest(lost: Iterable[Any]) -> str:
    """The rank that cost most, and its seconds."""
    rank, seconds = max(lost, key=lambda each: each[1], default=(0, 0.0))
    return f"{rank}: {seconds:.1f}" if seconds > 0.3 else "none"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, help="folder of the data sets and the results")
    parser.add_argument("--jobs", type=int, default=3, help="cells at the same time")
    parser.add_argument("--only", default="", help="cells whose name contains this")
    parser.add_argument("--first", type=int, help="run at most this many of the cells without a result")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    results = options.out / "cells.jsonl"
    rows = [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []
    known = {row["cell"] for row in rows}
    left = [cell for cell in cells() if options.only in cell.name and cell.name not in known]
    left = left[: options.first]
    for benchmark in sorted({cell.benchmark for cell in left}):
        if not (options.out / benchmark).exists():
            make_data(benchmark, options.out / benchmark)

    def work(cell: Cell) -> None:
        row = measure(cell, options.out)
        rows.append(row)
        with results.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(
            f"{row['cell']}: {'outside in ' + ', '.join(bad) if (bad := outside(row)) else 'inside'}",
            file=sys.stderr,
            flush=True,
        )

    with ThreadPoolExecutor(options.jobs) as pool:
        running = {cell.name: pool.submit(work, cell) for cell in left}
    failed = {name: error for name, future in running.items() if (error := future.exception())}
    for name, error in failed.items():
        print(f"{name}: {error!r}", file=sys.stderr)
    order = {cell.name: number for number, cell in enumerate(cells())}
    print(table(sorted(rows, key=lambda row: order.get(row["cell"], len(order)))))
    return int(bool(failed) or any(map(outside, rows)))


if __name__ == "__main__":
    sys.exit(main())
