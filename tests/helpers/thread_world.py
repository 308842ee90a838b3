"""Ranks as threads of one process: a World for tests."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from mlhpc.common.ranks import wire
from mlhpc.common.ranks.world import Solo

T = TypeVar("T")


@dataclass
class _Rendezvous:
    size: int
    barrier: threading.Barrier = field(init=False)
    slots: list[Any] = field(init=False)

    def __post_init__(self) -> None:
        self.barrier = threading.Barrier(self.size, timeout=60)
        self.slots = [None] * self.size


@dataclass(frozen=True)
class ThreadWorld(Solo):
    rendezvous: _Rendezvous = field(default_factory=lambda: _Rendezvous(1))

    def barrier(self) -> None:
        self.rendezvous.barrier.wait()

    def gather(self, obj: T) -> list[T]:
        self.rendezvous.slots[self.rank] = wire.encode(obj)  # as between processes: no object is shared
        self.rendezvous.barrier.wait()
        gathered = [wire.decode(data) for data in self.rendezvous.slots]
        self.rendezvous.barrier.wait()
        return gathered

    def broadcast(self, obj: T) -> T:
        return self.gather(obj)[0]

    def sum(self, values: Any) -> Any:
        return np.sum(self.gather(np.asarray(values, dtype=np.float64)), axis=0)

    def max(self, values: Any) -> Any:
        return np.max(self.gather(np.asarray(values, dtype=np.float64)), axis=0)


def on_ranks(nodes: int, local_size: int, work: Callable[[ThreadWorld], T]) -> list[T | Exception]:
    """``work(world)`` on all ranks concurrently: its result or exception by rank. A hang fails after a minute."""
    rendezvous = _Rendezvous(nodes * local_size)
    results: list[Any] = [None] * rendezvous.size

    def run_rank(rank: int) -> None:
        world = ThreadWorld(
            rank=rank,
            size=rendezvous.size,
            local_rank=rank % local_size,
            local_size=local_size,
            node=rank // local_size,
            nodes=nodes,
            rendezvous=rendezvous,
        )
        try:
            results[rank] = work(world)
        except Exception as error:
            results[rank] = error

    threads = [threading.Thread(target=run_rank, args=(rank,)) for rank in range(rendezvous.size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results
