"""Progress of long operations: on a terminal, a bar with rate and remaining time; elsewhere, an occasional
line."""

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from mlhpc.common.ranks.world import World
from mlhpc.errors import QUIET
from mlhpc.quantities import digits, duration_text

T = TypeVar("T")

FIRST_S, EVERY_S = 4.0, 60.0
"""Without a terminal: seconds until the first line, and the maximum between lines; the intervals double up to
it."""


class _Rate(ProgressColumn):
    def __init__(self, unit: str) -> None:
        super().__init__()
        self._unit = unit

    def render(self, task: Task) -> Text:
        rate = task.finished_speed or task.speed
        return Text(f"{digits(rate)} {self._unit}/s" if rate else "")


@contextmanager
def progress(
    total: int, description: str, unit: str, show: bool = True, lines: bool = True
) -> Iterator[Callable[[int], None]]:
    """Yield a function ``advance(count)``. If ``show`` is true (for instance on rank 0), calls of ``advance``
    update a bar on a terminal; elsewhere they write lines, unless ``lines`` is false because the caller writes its
    own."""
    console = Console(file=sys.stderr)
    if not show or os.environ.get(QUIET):
        yield lambda count: None
        return
    if not console.is_terminal:
        yield _in_lines(total, description, unit) if lines else lambda count: None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        _Rate(unit),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as bar:
        task = bar.add_task(description, total=total)
        yield lambda count: bar.advance(task, count)


def _in_lines(total: int, description: str, unit: str) -> Callable[[int], None]:
    begin, next_s, done = time.monotonic(), FIRST_S, 0

    def advance(count: int) -> None:
        nonlocal next_s, done
        done += count
        seconds = time.monotonic() - begin
        if seconds >= next_s and done < total:
            next_s = seconds + min(seconds, EVERY_S)
            sys.stderr.write(
                f"mlhpc: {description}: {done:,} of {total:,} {unit}, {duration_text(round(seconds))}\n"
            )

    return advance


def track(items: Iterable[T], total: int, description: str, world: World, unit: str = "steps") -> Iterator[T]:
    """Yield ``items`` while showing progress on rank 0."""
    with progress(total, description, unit, show=world.rank == 0, lines=False) as advance:
        for item in items:
            yield item
            advance(1)
