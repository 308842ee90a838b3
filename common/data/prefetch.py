"""Batches read by a pool of threads, a few ahead of the training loop."""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar

Key = TypeVar("Key")
Arrays = TypeVar("Arrays")
Result = TypeVar("Result")
Batch = TypeVar("Batch")


@contextmanager
def reader_threads(threads: int) -> Iterator[ThreadPoolExecutor]:
    """A thread pool that cancels pending work when it is closed."""
    pool = ThreadPoolExecutor(threads, thread_name_prefix="reader")
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def read_batches(
    batches: Iterable[Sequence[Key]],
    allocate: Callable[[int], tuple[Arrays, Iterable[tuple[Any, ...]]]],
    read: Callable[..., Result],
    finish: Callable[[Arrays, list[Result]], Batch],
    *,
    workers: int,
    prefetch: int,
    threads: Callable[[int], AbstractContextManager[ThreadPoolExecutor]] = reader_threads,
) -> Generator[Batch, None, None]:
    """Read ``batches`` of sample keys, in order, each with ``workers`` threads; up to ``prefetch`` batches are
    finished or in progress before they are requested.

    ``allocate(samples)`` returns the arrays of a batch of that many samples and, for each sample, the parts of
    them that ``read(key, *parts)`` fills; ``finish(arrays, results)`` creates the batch from the arrays and the
    results of ``read``. ``threads`` opens the pool. Raises what ``read`` raises, when the batch concerned is
    requested.
    """

    def begin(keys: Sequence[Key]) -> tuple[Arrays, list[Future[Result]]]:
        arrays, parts = allocate(len(keys))
        return arrays, [pool.submit(read, key, *part) for key, part in zip(keys, parts, strict=True)]

    def end(arrays: Arrays, samples: list[Future[Result]]) -> Batch:
        return finish(arrays, [sample.result() for sample in samples])

    waiting: deque[tuple[Arrays, list[Future[Result]]]] = deque()
    with threads(workers) as pool:
        for keys in batches:
            waiting.append(begin(keys))
            if len(waiting) > prefetch:
                yield end(*waiting.popleft())  # not bound to a name: only the caller keeps the batch alive
        while waiting:
            yield end(*waiting.popleft())
