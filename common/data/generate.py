"""Generates a data set of many files with several ranks and processes; an interrupted generation can be
resumed."""

import json
import multiprocessing
import os
import signal
import zipfile
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from mlhpc.common.data import manifest
from mlhpc.common.data.codecs import frame
from mlhpc.common.data.manifest import Manifest
from mlhpc.common.files import atomic
from mlhpc.common.formats import archive
from mlhpc.common.host.malloc import keep_memory
from mlhpc.common.host.progress import progress
from mlhpc.common.ranks.collectives import on_all_ranks, on_rank0
from mlhpc.common.ranks.world import World
from mlhpc.errors import UserError
from mlhpc.quantities import count

_LOOKS = 8  # files examined at the same time, since each waits for the file system
Task = TypeVar("Task")
Result = TypeVar("Result")

SETTINGS = ".simulation.json"
"""The file that records how the files in its folder were generated, so that a restart never mixes two data sets.
The file is hidden, so it is not staged."""


def require_outside(source: Path, out: Path) -> None:
    """Raise UserError if ``out`` is the data set's folder ``source`` or is inside it, since files written there
    would become part of the data set."""
    if out.resolve() == source.resolve():
        raise UserError(f"{out} is the data set to convert; choose another output folder")
    if out.resolve().is_relative_to(source.resolve()):
        raise UserError(f"{out} is inside the data set to convert; choose an output folder outside {source}")


def claim_folder(out: Path, settings: dict[str, object], name: str = SETTINGS) -> None:
    """Create the folder ``out`` for a data set with these ``settings``, which are recorded in its file ``name``.

    Raises UserError if ``out`` already contains a data set with different settings, or anything else.
    """
    path = out / name
    try:
        if not path.exists():
            if out.exists() and any(out.iterdir()):
                raise UserError(f"{out}: not empty and not created by this command; choose another folder")
            out.mkdir(parents=True, exist_ok=True)
            atomic.write_bytes(path, json.dumps(settings, indent=1).encode())
        recorded = json.loads(path.read_bytes())
    except OSError as error:
        raise UserError(
            f"{path}: {error.strerror or error}; correct this or choose another folder"
        ) from error
    except ValueError as error:
        raise UserError(f"{path}: {error}; choose another folder") from error
    # The recorded settings went through JSON, in which tuples become lists.
    requested = json.loads(json.dumps(settings))
    if recorded != requested:
        keys = recorded.keys() | requested.keys()
        differ = sorted(key for key in keys if recorded.get(key) != requested.get(key))
        raise UserError(
            f"{out} has a data set made with different settings ({', '.join(differ)}); "
            "remove it, or choose another folder"
        )


def write_missing(
    out: Path,
    settings: dict[str, object],
    tasks: Sequence[tuple[Task, Sequence[str]]],
    write: Callable[[tuple[Task, list[str]]], object],
    unit: str,
    world: World,
    workers: int,
) -> int:
    """Write the missing files of a data set to ``out``; returns the number of tasks that had missing files.
    Called by all ranks.

    A task has a key and its files (``folder/file``); ``write`` gets the key and the missing files. The ranks
    divide the tasks (which the progress bar calls ``unit``) among them; each rank uses ``workers`` processes.
    Raises UserError, the same on all ranks, if the folder was created with different ``settings``, the disk is
    full, or a worker is killed.
    """

    def find() -> list[tuple[Task, list[str]]]:
        claim_folder(out, settings)
        lacking = set(missing(out, [name for _, names in tasks for name in names]))
        left = [(key, [name for name in names if name in lacking]) for key, names in tasks]
        return [task for task in left if task[1]]

    # Rank 0 lists the existing files before any rank writes; if each rank did, some might already see new files.
    todo = on_rank0(world, find)
    own_tasks = todo[world.rank :: world.size]

    def write_mine() -> None:
        with progress(len(own_tasks), "generate", unit, show=world.rank == 0) as advance:
            in_processes(write, own_tasks, workers, advance)

    write_on_all_ranks(world, out, write_mine)
    return len(todo)


def write_manifest(out: Path, facts: dict[str, Any], files: int, world: World, workers: int) -> Manifest:
    """Checksum the ``files`` under ``out`` and write the manifest with these ``facts``. Called by all ranks."""
    with progress(files, "checksums", "files", show=world.rank == 0) as advance:
        return manifest.index(out, facts, world, workers, lambda size: advance(world.size))


def write_manifest_of_converted(
    out: Path, facts: dict[str, Any], files: int, world: World, workers: int
) -> Manifest:
    """Like ``write_manifest``, for a data set that was converted. Raises UserError, the same on all ranks, if
    ``out`` contains more or fewer files than the converted ``files``."""
    converted = write_manifest(out, facts, files, world, workers)
    if len(converted.files) != files:
        there = count(len(converted.files), "file")
        raise UserError(f"{out} contains {there}, but {files} were converted; choose an empty folder")
    return converted


def missing(out: Path, names: Sequence[str], check: Callable[[str], bool] | None = None) -> list[str]:
    """The files among ``names`` (``folder/file``) that are missing in ``out`` or fail ``check`` (default:
    ``is_whole``). Also creates the folders of ``names``."""
    folders = {os.path.dirname(name) for name in names}
    for folder in folders:
        (out / folder).mkdir(parents=True, exist_ok=True)
    atomic.sweep(out / folder for folder in folders)
    present = {f"{folder}/{name}" for folder in folders for name in os.listdir(out / folder)}
    present_names = [name for name in names if name in present]
    check = check or (lambda name: is_whole(out / name))
    whole = manifest.in_threads(check, present_names, _LOOKS)
    kept = {name for name, is_kept in zip(present_names, whole, strict=True) if is_kept}
    return [name for name in names if name not in kept]


def is_whole(path: Path) -> bool:
    """Return whether a file with its final name is complete, judged by its size, its beginning and its end: after
    a power cut, a file that was not synced may be empty or truncated. Raises OSError."""
    if path.suffix == ".mlc":
        return frame.is_whole(path)
    return path.stat().st_size > 0 and (path.suffix != archive.SUFFIX or zipfile.is_zipfile(path))


def in_processes(
    work: Callable[[Task], Result],
    tasks: Sequence[Task],
    workers: int,
    advance: Callable[[int], None] = lambda count: None,
) -> list[Result]:
    """The results of ``work`` for every task, in order, computed by ``workers`` processes, or in this process if a
    single process is enough.

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
    # Spawned, not forked: the parent may use MPI, run a framework's threads, or hold locks.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=keep_memory)
    try:
        # The worker processes start with the signal blocked.
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        try:
            # Chunks are small, so that workers finish together, but large enough that distributing them is cheap.
            chunk = max(1, min(8, len(tasks) // (4 * workers)))
            each = pool.map(partial(_interruptible, work), tasks, chunksize=chunk)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        for result in each:
            results.append(result)
            advance(1)
    except BrokenProcessPool as error:
        raise UserError("a worker process was killed (out of memory?); use fewer --workers") from error
    finally:
        pool.shutdown(cancel_futures=True)
    return results


def _interruptible(work: Callable[[Task], Result], task: Task) -> Result:
    """Call ``work(task)`` in a worker process that otherwise blocks SIGINT: between tasks, the signal would end
    the process with a traceback, and the pool would then kill the other processes while they write a file."""
    blocked = partial(signal.pthread_sigmask, signal.SIG_BLOCK, [signal.SIGINT])
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
        return work(task)
    except KeyboardInterrupt:
        blocked()
        signal.raise_signal(signal.SIGINT)  # stays pending, to end this process's remaining tasks
        raise
    finally:
        blocked()


def in_threads(work: Callable[[Task], object], tasks: Sequence[Task], workers: int) -> None:
    """Call ``work`` for every task, in ``workers`` threads; after a failure no further task is started.

    Raises what ``work`` raises.
    """
    with ThreadPoolExecutor(max(1, workers)) as pool:
        try:
            for _ in pool.map(work, tasks):
                pass
        except BaseException:  # Ctrl-C may come while tasks are still being submitted
            pool.shutdown(cancel_futures=True)
            raise


def write_on_all_ranks(world: World, out: Path | str, work: Callable[[], object]) -> None:
    """Like ``on_all_ranks``, for ``work`` that writes under ``out``: an error of the file system becomes a
    UserError with path and remedy, the same on all ranks."""
    on_all_ranks(world, partial(_write, out, work))


def write_on_rank0(world: World, out: Path | str, work: Callable[[], object]) -> None:
    """Like ``on_rank0``, for ``work`` that writes under ``out``; raises the same errors as
    ``write_on_all_ranks``."""
    on_rank0(world, partial(_write, out, work))


def _write(out: Path | str, work: Callable[[], object]) -> None:
    try:
        work()
    except OSError as error:
        # Failed writes and h5py's errors do not name a file; the folder tells which file system it is.
        raise UserError(
            f"{error.filename or out} cannot be written: {error.strerror or error}; check free space and "
            "permissions"
        ) from error
