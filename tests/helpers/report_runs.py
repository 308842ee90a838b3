"""Runs to report on."""

import json
import math
import os
import time
from io import StringIO
from pathlib import Path
from typing import Any

from golden.make_run import make_run
from helpers.page import Page
from rich.console import Console

from mlhpc.submission.report.report import report


def report_of(run: Path) -> tuple[Page, str]:
    """The page of a run, and what is printed."""
    out = StringIO()
    path = report(run, Console(file=out, width=200))
    assert path == run / "report.html"
    return Page(path.read_text("utf-8")), " ".join(out.getvalue().split())


def curve(page: Page) -> list[dict[str, Any]]:
    """The evaluations in the learning curve."""
    return [row for row in page.rows("mean absolute error") if "series" in row]


def aborted(result: dict[str, Any]) -> None:
    result.update(
        status="aborted", time_to_train_s=None, time_to_train_without_staging_s=None, breakdown_s=None
    )
    result["target"]["reached"] = False


def unfinished(folder: Path) -> Path:
    run = make_run(folder, log=lambda lines: lines.pop())
    (run / "result.json").unlink()
    os.utime(run / "events.rank0.jsonl", (time.time() - 3600,) * 2)
    return run


def with_events(run: Path, ranks: int) -> Path:
    """``run`` with what ``ranks`` ranks recorded of one epoch, and damaged lines."""
    for rank in range(ranks):
        events: list[dict[str, Any]] = [
            {"t": 0.1, "event": "end", "name": "init", "seconds": 10.5},
            {"t": 0.2, "event": "end", "name": "train", "epoch": 1, "seconds": 20.0},
            {"t": 0.3, "event": "timed", "name": "data_wait", "count": 4, "seconds": 1.0 + rank, "max": 0.5,
             "epoch": 1},
            {"t": 0.4, "event": "steps", "name": "train", "count": 4, "seconds": 8.0, "p50": 2.0 + rank,
             "p90": 2.5, "p99": 2.6, "max": 2.7, "epoch": 1},
            {"t": 0.4, "event": "steps", "name": "eval", "count": 4, "seconds": 8.0, "p50": 9.0, "epoch": 1},
            {"t": 0.5, "event": "note", "name": "memory", "peak_bytes": 3_000_000_000, "device_peak_bytes": None},
            {"t": 0.6, "event": "timed", "name": "data_wait", "seconds": "lots", "max": math.inf},
        ]  # fmt: skip
        lines = "".join(json.dumps(event) + "\n" for event in events)
        (run / f"events.rank{rank}.jsonl").write_text(f'{lines}["no event"]\n{{"cut', "utf-8")
    return run
