"""Batches read by worker processes of PyTorch's DataLoader, handed over in shared memory.

The workers come from a fork server: a process that was started fresh has no locks, threads or GPU of this one
to inherit. They read straight into shared memory, whose names PyTorch draws at random for each process and
removes as soon as both sides have it, so that a killed run leaves nothing and two runs cannot meet.
"""

import math
import multiprocessing
import os
import threading
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from mlhpc.common.data.filesystem import filesystem_of
from mlhpc.common.errors import UserError
from mlhpc.deepcam.sample import Reader
from mlhpc.deepcam.threads import Item

SHARED = Path("/dev/shm")


class _Samples(Dataset[Item | str]):
    """Whole batches: an index is the paths of one. An error is handed over as its message, for an exception
    would come with the traceback of the worker."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader

    def __getitem__(self, paths: Sequence[Path]) -> Item | str:
        x = _shared((len(paths), *self.reader.shape), torch.float32)
        y = _shared((len(paths), *self.reader.shape[:2]), torch.uint8)
        try:
            return x, y, sum(self.reader.read(p, x[k].numpy(), y[k].numpy()) for k, p in enumerate(paths))
        except UserError as error:
            return str(error)


def batches(
    reader: Reader,
    batches: Sequence[Sequence[Path]],
    workers: int,
    ahead: int,
    device: str,
    ranks_on_node: int,
) -> Generator[Item, None, None]:
    """``batches`` in order, read by ``workers`` processes; ``ahead`` of them, or one each, before they are
    asked for.

    Raises UserError naming the file when one cannot be read, and when the shared memory of the node cannot
    hold what the workers of all its ranks read ahead.
    """
    if not batches:
        return
    workers = min(workers, len(batches))
    each = -(-ahead // workers)
    # With what waits: the batch that the training step has, and the one before it.
    shown = min(len(batches), each * workers + 2) * ranks_on_node
    _require_shared_memory(len(batches[0]) * reader.nbytes, shown)
    context: Any = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch.utils.data", __name__])
    iterator: Any = iter(
        DataLoader(
            _Samples(reader),
            batch_size=None,
            sampler=batches,
            num_workers=workers,
            prefetch_factor=each,
            multiprocessing_context=context,
            pin_memory=device != "cpu",
            worker_init_fn=_end_with_run,
        )
    )
    try:
        for item in iterator:
            if isinstance(item, str):
                raise UserError(item)
            yield item
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise UserError(
            f"a worker process was lost: {reason}; for want of memory, most likely: lower loading.workers or "
            "loading.prefetch, or set loading.loader=threads"
        ) from error
    finally:
        # Now: a traceback that holds the iterator would keep them running.
        iterator._shutdown_workers()


def _end_with_run(worker: int) -> None:
    """Have this worker end when the process that reads from it is gone, killed or not. PyTorch's own watch is
    over the parent, which here is the fork server, and that stays as long as its workers do."""

    def watch() -> None:
        reader = multiprocessing.parent_process()
        assert reader is not None
        reader.join()
        os._exit(1)

    threading.Thread(target=watch, name="watch", daemon=True).start()


def _require_shared_memory(batch_bytes: int, batches: int) -> None:
    """Raise UserError where a worker would die of a bus error, writing to shared memory that is not there."""
    free = filesystem_of(SHARED).free_bytes
    if batches * batch_bytes > free:
        raise UserError(
            f"{SHARED}: {free / 2**20:.1f} MiB free, and the workers of this node hand over {batches} "
            f"batches of {batch_bytes / 2**20:.1f} MiB in it; lower loading.workers or loading.prefetch, set "
            "loading.loader=threads, or have it enlarged"
        )


def _shared(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """An empty tensor in shared memory. One that is filled first and shared later would be copied."""
    kind: Any = torch.UntypedStorage
    storage = kind._new_shared(math.prod(shape) * dtype.itemsize)
    return torch.empty(0, dtype=dtype).set_(storage, 0, shape)  # type: ignore[call-overload, no-any-return]
