"""Staging that runs concurrently with the first epoch of training."""

import contextlib
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from mlhpc.common.data.manifest import Manifest
from mlhpc.common.data.partition import Mode
from mlhpc.common.ranks.collectives import on_all_ranks
from mlhpc.common.ranks.world import World
from mlhpc.common.staging.copier import copy_all
from mlhpc.common.staging.stage import RankReport, StagingReport, prepared, report_of
from mlhpc.errors import UserError


@contextlib.contextmanager
def stage_beside(
    manifest: Manifest, target: Path, world: World, mode: Mode, workers: int = 8
) -> Iterator[Callable[[], StagingReport]]:
    """Run ``stage`` while the block runs; the block may read files in the target as soon as they are complete.

    Yields a function that waits until all ranks have copied everything, and returns the report; all ranks call it
    once, collectively. That function raises the errors of copying; ``stage_beside`` itself raises those of
    preparing the target. If the block raises an error, or does not call the function, copying is abandoned.
    """
    started, failures = time.monotonic(), list[BaseException]()
    with ExitStack() as held, ThreadPoolExecutor(1, thread_name_prefix="staging") as thread:
        ready = held.enter_context(prepared(manifest, target, world, mode, False))

        def work() -> RankReport:
            missing, present = ready.todo
            copied = copy_all(missing, present, manifest.root, target, workers, lambda file: None, failures)
            return ready.report(copied, started)

        copying = thread.submit(work)

        def finish() -> StagingReport:
            waiting_since = time.monotonic()
            outcomes = on_all_ranks(world, lambda: (copying.result(), time.monotonic() - waiting_since))
            held.close()
            report = report_of([rank for rank, _ in outcomes], manifest, target, world, mode)
            return replace(report, overlapped=True, waited_s=max(waited for _, waited in outcomes))

        try:
            yield finish
        finally:
            failures.append(UserError(f"{target}: staging stopped because the run ended"))
