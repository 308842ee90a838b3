"""Staging in a run: before its first epoch, or beside it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Protocol

from mlhpc.common.data.manifest import Manifest
from mlhpc.common.data.partition import Mode
from mlhpc.common.ranks.world import World
from mlhpc.common.staging.beside import stage_beside
from mlhpc.common.staging.stage import stage
from mlhpc.common.timing.runlog import RunLog


class How(Protocol):
    """The settings ``staging``."""

    @property
    def mode(self) -> Mode: ...
    @property
    def workers(self) -> int: ...
    @property
    def read_once(self) -> bool: ...
    @property
    def overlap(self) -> bool: ...


@contextmanager
def staging(
    dataset: Manifest, staged: Path | None, how: How, world: World, log: RunLog
) -> Iterator[Callable[[], None]]:
    """Stage ``dataset`` to ``staged`` (None: it is read in place); the report is the note "staging" of ``log``.

    Yields a function that every rank calls after every epoch's training, outside its span. With ``how.overlap``
    files are copied while the block runs, and the first call waits until all are there, in a span "staging": what
    such spans last is staging that training did not hide. Otherwise the files are there before the block, and the
    function does nothing. Raises UserError, the same on all ranks.
    """
    if staged is None or not how.overlap:
        if staged:
            log.note("staging", **asdict(stage(dataset, staged, world, how.mode, how.workers, how.read_once)))
        yield lambda: None
        return
    with stage_beside(dataset, staged, world, how.mode, how.workers) as wait:
        going_on = True

        def finish() -> None:
            nonlocal going_on
            if going_on:
                with log.span("staging", sync=True):
                    report = wait()
                log.note("staging", **asdict(report))
            going_on = False

        yield finish
