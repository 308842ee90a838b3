"""Making a data set of many files: by several ranks, in several processes, going on where one was cut off."""

import json
import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, TypeVar

from mlhpc.common.files import atomic
from mlhpc.common.host.malloc import keep_memory
from mlhpc.common.ranks.world import World
from mlhpc.errors import UserError

Task = TypeVar("Task")
Result = TypeVar("Result")

SETTINGS = ".simulation.json"
"""Says how the files beside it were made, so that a restart never mixes two data sets. Hidden: not staged."""


def claim_folder(out: Path, settings: dict[str, object], name: str = SETTINGS) -> None:
    """Make ``out`` the place of a data set with these ``settings``, or find that it is, by the file ``name``.

    Raises UserError when it holds anything else.
    """
    path = out / name
    try:
        if not path.exists():
            if out.exists() and any(out.iterdir()):
                raise UserError(f"{out}: not empty, and not begun by this command; give another folder")
            out.mkdir(parents=True, exist_ok=True)
            atomic.write_bytes(path, json.dumps(settings, indent=1).encode())
        found = json.loads(path.read_bytes())
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}; mend that or give another folder") from error
    except ValueError as error:
        raise UserError(f"{path}: {error}; give another folder") from error
    # Through JSON, as what was read has been: tuples are lists there.
    wanted = json.loads(json.dumps(settings))
    if found != wanted:
        differ = sorted(key for key in found.keys() | wanted.keys() if found.get(key) != wanted.get(key))
        raise UserError(
            f"{out}: holds a data set made with another {', '.join(differ)}; remove it or give another folder"
        )


def missing(out: Path, names: Sequence[str]) -> list[str]:
    """Those of the files ``names`` (``folder/file``) that are not under ``out``; its folders are made."""
    folders = {os.path.dirname(name) for name in names}
    for folder in folders:
        (out / folder).mkdir(exist_ok=True)
    atomic.sweep(out / folder for folder in folders)
    there = {f"{folder}/{name}" for folder in folders for name in os.listdir(out / folder)}
    return [name for name in names if name not in there]


def in_processes(
    work: Callable[[Task], Result],
    tasks: Sequence[Task],
    workers: int,
    advance: Callable[[int], None] = lambda count: None,
) -> list[Result]:
    """``work`` of every task, in order, by ``workers`` processes, or in this one if that is enough.

    Raises what ``work`` raises, and UserError when a process was killed.
    """
    workers = min(workers, len(tasks))
    results = []
    if workers <= 1:
        keep_memory()
        for task in tasks:
            results.append(work(task))
            advance(1)
        return results
    # Spawned, not forked: the parent may hold MPI, threads of a framework, locks.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=keep_memory)
    try:
        # Small chunks for an even end, large enough that handing them out costs nothing.
        for result in pool.map(work, tasks, chunksize=max(1, min(8, len(tasks) // (4 * workers)))):
            results.append(result)
            advance(1)
    except BrokenProcessPool as error:
        raise UserError(
            "a worker process was killed, most likely for want of memory; run it again with fewer --workers"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)
    return results


def on_all(world: World, out: Path, work: Callable[[], Any]) -> None:
    """Do ``work``, which writes below ``out``, on every rank and wait for all.

    An error of the user's or of the file system on any rank is raised on all of them as UserError.
    """
    message = None
    try:
        work()
    except UserError as error:
        message = str(error)
    except OSError as error:
        # A write that fails knows no name, and h5py's errors have none: the folder then says which disk.
        message = (
            f"{error.filename or out}: cannot be written: {error.strerror or error}; check the space and the "
            "rights there"
        )
    for rank, other in enumerate(world.gather(message)):
        if other is not None:
            raise UserError(other if world.size == 1 else f"rank {rank}: {other}")
