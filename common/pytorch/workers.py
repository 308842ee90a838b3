"""Batches read by worker processes of PyTorch's DataLoader, handed over in shared memory.

The workers come from a fork server: a fresh process inherits no locks, threads or GPU of this one.
They read straight into shared memory, whose names PyTorch draws at random for each process and removes as soon as
both sides have it open, so that a killed run leaves nothing behind and two runs cannot collide.
"""

import math
import multiprocessing
import os
import threading
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from torch.utils.data import DataLoader, Dataset

from mlhpc.common.files.filesystem import filesystem_of
from mlhpc.errors import UserError

SHARED = Path("/dev/shm")

Reader = TypeVar("Reader")
Key = TypeVar("Key")
Item = TypeVar("Item")


class _Batches(Dataset[Any], Generic[Reader, Key, Item]):
    """Whole batches: an index is the keys of one batch. An error is passed as its message, because an exception
    would come with the traceback of the worker."""

    def __init__(self, read: Callable[[Reader, Sequence[Key]], Item], reader: Reader) -> None:
        self.read, self.reader = read, reader

    def __getitem__(self, keys: Sequence[Key]) -> Item | str:
        try:
            return self.read(self.reader, keys)
        except UserError as error:
            return str(error)


def start(module: str) -> None:
    """Start the fork server for the workers of ``module``, and wait until it has imported what they need: this
    takes seconds but touches no data, so it may be done before the clock starts."""
    first = _context(module).Process(target=_nothing)
    first.start()
    first.join()


def batches(
    read: Callable[[Reader, Sequence[Key]], Item],
    reader: Reader,
    batches: Sequence[Sequence[Key]],
    batch_bytes: int,
    workers: int,
    prefetch: int,
    device: str,
    ranks_on_node: int,
) -> Generator[Item, None, None]:
    """``read(reader, batch)`` for each of ``batches``, in order, by ``workers`` processes; ``prefetch`` batches,
    or one per worker if that is more, are read ahead. ``read`` is a module-level function, so that workers can
    import it; its tensors, of at most ``batch_bytes``, are ``in_shared_memory``. For a GPU they get page-locked
    memory.

    Raises what ``read`` raises as UserError, and UserError when the shared memory of the node cannot hold what
    the workers of all its ranks read ahead.
    """
    if not batches:
        return
    workers = min(workers, len(batches))
    prefetch_factor = -(-prefetch // workers)
    # Besides the waiting batches: the one in the training step, and the one before it.
    shown = min(len(batches), prefetch_factor * workers + 2) * ranks_on_node
    _require_shared_memory(batch_bytes, shown)
    iterator: Any = iter(
        DataLoader(
            _Batches(read, reader),
            batch_size=None,
            sampler=batches,
            num_workers=workers,
            prefetch_factor=prefetch_factor,
            multiprocessing_context=_context(read.__module__),
            pin_memory=device != "cpu",
            worker_init_fn=_end_with_run,
        )
    )
    try:
        for item in iterator:
            if isinstance(item, str):
                raise UserError(item)
            yield item
    # The last three come from a worker that was killed before the memory of a batch it had read was handed over.
    except (RuntimeError, ConnectionError, EOFError, FileNotFoundError) as error:
        reason = " ".join(str(error).split()) or "no message"
        raise UserError(
            f"a worker process was lost: {reason}; most likely out of memory: lower loading.workers or "
            "loading.prefetch, or set loading.loader=threads"
        ) from error
    finally:
        pids = [worker.pid for worker in iterator._workers]
        # Stop them now: a traceback that refers to the iterator would keep them running.
        iterator._shutdown_workers()
        for pid in pids:  # a killed worker may have had no time to remove a name
            for left in SHARED.glob(f"torch_{pid}_*"):
                left.unlink(missing_ok=True)


def in_shared_memory(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """An empty tensor that is passed on without a copy. A tensor that is filled first and shared later is
    copied."""
    kind: Any = torch.UntypedStorage
    storage = kind._new_shared(math.prod(shape) * dtype.itemsize)
    return torch.empty(0, dtype=dtype).set_(storage, 0, shape)  # type: ignore[call-overload, no-any-return]


def _context(module: str) -> Any:
    context: Any = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch.utils.data", module])
    return context


def _nothing() -> None:
    pass


def _end_with_run(worker: int) -> None:
    """End this worker when the process that reads from it is gone, killed or not. PyTorch itself watches the
    parent, which here is the fork server, and that lives as long as its workers do."""

    def watch() -> None:
        reader = multiprocessing.parent_process()
        assert reader is not None
        reader.join()
        os._exit(1)

    threading.Thread(target=watch, name="watch", daemon=True).start()


def _require_shared_memory(batch_bytes: int, batches: int) -> None:
    """Raise UserError if a worker would die of a bus error, for lack of shared memory."""
    free = filesystem_of(SHARED).free_bytes
    if batches * batch_bytes > free:
        raise UserError(
            f"{SHARED}: {free / 2**20:.1f} MiB free, and the workers of this node hand over {batches} "
            f"batches of {batch_bytes / 2**20:.1f} MiB in it; lower loading.workers or loading.prefetch, set "
            "loading.loader=threads, or enlarge it"
        )
