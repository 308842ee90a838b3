"""Progress of long operations: a bar with rate and remaining time, on a terminal only."""

import os
import sys
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

T = TypeVar("T")


class _Rate(ProgressColumn):
    def __init__(self, unit: str) -> None:
        super().__init__()
        self._unit = unit

    def render(self, task: Task) -> Text:
        rate = task.finished_speed or task.speed
        return Text(f"{rate:,.1f} {self._unit}/s" if rate else "")


@contextmanager
def progress(total: int, description: str, unit: str, show: bool = True) -> Iterator[Callable[[int], None]]:
    """Yield ``advance(count)``. Draws on standard error when it is a terminal and ``show`` is true (on rank 0,
    say)."""
    console = Console(file=sys.stderr)
    if not (show and console.is_terminal) or os.environ.get(QUIET):
        yield lambda count: None
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


def track(items: Iterable[T], total: int, description: str, world: World, unit: str = "steps") -> Iterator[T]:
    """Yield ``items`` with a bar on rank 0's terminal."""
    with progress(total, description, unit, show=world.rank == 0) as advance:
        for item in items:
            yield item
            advance(1)
