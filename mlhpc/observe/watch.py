"""``mlhpc watch``: shows the progress of a run from its events, on any node that can read its folder."""

import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.text import Text

from mlhpc.errors import MISSED
from mlhpc.record.progress import Follower, Progress
from mlhpc.record.run_directory import read, running
from mlhpc.submission.report.summary import place, progress_facts

LINE_S = 60.0
"""Seconds between two lines if the output is not a terminal."""


def progress_of(folder: Path) -> Progress:
    """The progress of the run in ``folder``. Raises UserError if ``folder`` contains no run."""
    return _with_life(Follower(folder).look(), folder)


def watch(
    folder: Path,
    interval_s: float,
    console: Console,
    *,
    once: bool = False,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Show the progress of the run in ``folder`` until it ends: on a terminal, in a display that is updated in
    place; otherwise one line per minute and one per epoch. Returns 0 if the run met its target, was emulated, or
    is still running with ``once``; MISSED if it missed its target, 1 if it was aborted."""
    follower = Follower(folder)
    said, at = None, 0.0
    in_place = console.is_terminal and not once
    with Live(console=console, auto_refresh=False) if in_place else nullcontext() as live:
        while True:
            now = _with_life(follower.look(), folder)
            ended = once or now.status != "running"
            if once:
                console.print(_panel(now))
            elif live:
                live.update(_panel(now), refresh=True)
            elif ended or now.epoch != said or time.monotonic() - at >= LINE_S:
                console.print(Text(line(now)), soft_wrap=True)
                console.file.flush()
                said, at = now.epoch, time.monotonic()
            if ended:
                return exit_status(now)
            sleep(interval_s)


def exit_status(now: Progress) -> int:
    """The exit status of the command: 0 for a run that met its target, was emulated, or is still running; MISSED
    if the target was missed, 1 if the run was aborted."""
    if now.status in ("running", "success", "emulated"):
        return 0
    return MISSED if now.status == "failed" else 1


def _with_life(now: Progress, folder: Path) -> Progress:
    """``now``, with its status changed to "gone" if the run's processes have ended without a result."""
    if now.status != "running" or now.quiet_s < 5:
        return now
    run = read(folder)
    if run.result:
        return replace(now, status=run.result.status)
    if running(run):
        return now
    energy = {kind: replace(used, watts=None, at_least=True) for kind, used in now.energy.items()}
    return replace(now, status="gone", left_s=None, energy=energy)


def line(now: Progress) -> str:
    """The progress ``now`` in one line, for a log."""
    parts = [f"{now.status}, {place(now)}", *(f"{key} {value}" for key, value in progress_facts(now).items())]
    return "; ".join(parts)


def _panel(now: Progress) -> Text:
    text = Text.assemble((now.status, "bold"), f", {place(now)}")
    for key, value in progress_facts(now).items():
        text.append(f"\n  {key}: ", "dim").append(value)
    return text
