"""Runs to report on."""

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
    return [row for row in page.rows("mean absolute error") if "epoch" in row]


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
