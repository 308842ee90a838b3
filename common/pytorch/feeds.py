"""Selects the feed that reads a loader's samples ahead (``loading.loader``), and prepares that feed before the
clock starts."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial

from mlhpc.benchmarks.schema import FeedLoading
from mlhpc.common.data.loader import Feed, by_threads
from mlhpc.common.data.prefetch import reader_threads
from mlhpc.common.pytorch import dali, workers
from mlhpc.common.pytorch.buffers import Buffers
from mlhpc.common.pytorch.loading import as_array, dtype_of


def prepare(name: str, module: str) -> None:
    """Import what the loader ``name`` needs, and start the fork server for workers whose reader is in
    ``module``: both take seconds and are done before the clock starts. Raises UserError if DALI is not
    installed."""
    if name == "workers":
        workers.start(module)
    elif name == "dali":
        dali.load()


def feed_of(
    loading: FeedLoading,
    device: str,
    ranks_on_node: int,
    threads: Callable[[int], AbstractContextManager[ThreadPoolExecutor]] = reader_threads,
) -> Feed:
    """The feed that ``loading.loader`` names: "threads" of this process, in the pool that ``threads`` opens;
    "workers", which are processes; or "dali", for a reader that is a ``dali.Pipeline``. The feed's tensors are on
    the host, page-locked unless ``device`` is "cpu". ``ranks_on_node``: number of ranks that need memory at the
    same time."""
    if loading.loader == "workers":
        return partial(
            workers.batches,
            workers=loading.workers,
            prefetch=loading.prefetch,
            device=device,
            ranks_on_node=ranks_on_node,
        )
    memory = Buffers(pinned=device != "cpu")
    feed = by_threads(loading, lambda shape, dtype: memory.take(shape, dtype_of(dtype)), as_array, threads)
    if loading.loader == "dali":
        return partial(dali.batches, feed=feed, workers=loading.workers, device=device)
    return feed
