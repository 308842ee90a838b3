"""Batches read by worker processes of PyTorch's DataLoader, passed through shared memory.

The workers are started by a fork server, so they inherit no locks, threads or GPU of this process. They read
directly into shared memory. PyTorch chooses the names of shared memory at random for each process and removes each
name as soon as both sides have opened the memory, so a killed run leaves nothing behind and two runs cannot
collide.
"""

import contextlib
import math
import multiprocessing
import os
import threading
import time
from collections.abc import Generator, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from mlhpc.common.data.loader import Reader
from mlhpc.common.files.filesystem import filesystem_of
from mlhpc.common.pytorch.loading import as_array, dtype_of
from mlhpc.errors import UserError
from mlhpc.quantities import bytes_text

SHARED = Path("/dev/shm")
CLOCK_S = 0.1
"""Tolerance for modification times in seconds, since file systems have a coarser clock."""


class _Batches(Dataset[Any]):
    """Whole batches, read into shared memory; an index consists of the keys of one batch. Errors are passed as
    text, because an exception would include the worker's traceback."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader

    def __getitem__(self, keys: Sequence[Any]) -> Any:
        reader = self.reader
        try:
            arrays = [in_shared_memory((len(keys), *shape), dtype_of(dtype)) for shape, dtype in reader.parts]
            rows = zip(*map(as_array, arrays), strict=True)
            return reader.finish(
                arrays, [reader.read(key, *row) for key, row in zip(keys, rows, strict=True)]
            )
        except UserError as error:
            return str(error)


def start(module: str) -> None:
    """Start the fork server for workers whose reader is in ``module``, and wait until it has imported what they
    need. This takes seconds but accesses no data, so it is allowed before the clock starts."""
    first = _context(module).Process(target=_nothing)
    first.start()
    first.join()


def batches(
    reader: Reader,
    keys: Iterable[Sequence[Any]],
    *,
    workers: int,
    prefetch: int,
    device: str,
    ranks_on_node: int,
) -> Generator[Any, None, None]:
    """The batches with these ``keys``, in order, read by ``workers`` processes; ``prefetch`` batches, or one per
    worker if that is more, are read ahead. For a GPU, the tensors are in page-locked memory.

    Raises errors of ``reader`` as UserError, and UserError if the node's shared memory is too small for the
    batches that the workers of all its ranks read ahead.
    """
    batches = list(keys)
    if not batches:
        return
    workers = min(workers, len(batches))
    prefetch_factor = -(-prefetch // workers)
    # Besides the waiting batches, the one in the training step and the previous one.
    shown = min(len(batches), prefetch_factor * workers + 2) * ranks_on_node
    sample_bytes = sum(math.prod(shape) * dtype_of(dtype).itemsize for shape, dtype in reader.parts)
    _require_shared_memory(max(map(len, batches)) * sample_bytes, shown)
    started = time.time()
    loader = DataLoader(
        _Batches(reader),
        batch_size=None,
        sampler=batches,
        num_workers=workers,
        prefetch_factor=prefetch_factor,
        multiprocessing_context=_context(type(reader).__module__),
        pin_memory=device != "cpu",
        worker_init_fn=_end_with_run,
    )
    yield from _read(iter(loader), started)


def _read(iterator: Any, started: float) -> Generator[Any, None, None]:
    """The batches of a loader's ``iterator``, whose workers were started at ``started`` (seconds since 1970)."""
    try:
        for item in iterator:
            if isinstance(item, str):
                raise UserError(item)
            yield item
    # The last three are raised if a worker was killed before it passed on a batch's memory.
    except (RuntimeError, ConnectionError, EOFError, FileNotFoundError) as error:
        reason = " ".join(str(error).split()) or "no message"
        raise UserError(
            f"a worker process was lost ({reason}), most likely out of memory; lower loading.workers or "
            "loading.prefetch, or set loading.loader=threads"
        ) from error
    finally:
        workers_of_run = list(iterator._workers)
        # Stop them now: a traceback that refers to the iterator would keep them running.
        iterator._shutdown_workers()
        for worker in workers_of_run:
            if worker.exitcode != 0:  # a killed worker may not have removed a name
                _remove_names(worker.pid, started)


def _remove_names(pid: int, since: float) -> None:
    """Remove shared memory that a dead worker has left after the time ``since`` (seconds since 1970). Containers
    may share ``SHARED`` and have processes with the same id, so older files and those of other users are not
    touched."""
    for left in SHARED.glob(f"torch_{pid}_*"):
        with contextlib.suppress(OSError):
            status = left.lstat()
            if status.st_uid == os.getuid() and status.st_mtime >= since - CLOCK_S:
                left.unlink()


def in_shared_memory(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """An uninitialised tensor of the given shape in shared memory, which is passed on without a copy. (A tensor
    that is first filled and then shared is copied.)"""
    kind: Any = torch.UntypedStorage
    storage = kind._new_shared(math.prod(shape) * dtype.itemsize)
    return torch.empty(0, dtype=dtype).set_(storage, 0, shape)  # type: ignore[call-overload, no-any-return]


def _context(module: str) -> Any:
    context: Any = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch.utils.data", __name__, module])
    return context


def _nothing() -> None:
    pass


def _end_with_run(worker: int) -> None:
    """End this worker when the process that reads its batches has ended, killed or not. PyTorch itself watches the
    worker's parent, but here that is the fork server, which lives as long as its workers do."""

    def watch() -> None:
        reader = multiprocessing.parent_process()
        assert reader is not None
        reader.join()
        os._exit(1)

    threading.Thread(target=watch, name="watch", daemon=True).start()


def _require_shared_memory(batch_bytes: int, batches: int) -> None:
    """Raise UserError if shared memory is too small for ``batches`` batches; workers would die of a bus error."""
    free = filesystem_of(SHARED).free_bytes
    if batches * batch_bytes > free:
        raise UserError(
            f"{SHARED}: {bytes_text(free)} free, but the workers of this node keep {batches} "
            f"batches of {bytes_text(batch_bytes)} in it; lower loading.workers or loading.prefetch, set "
            "loading.loader=threads, or enlarge this file system"
        )
