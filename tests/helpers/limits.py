"""Bounds on what an input may make a reader use: 256 MiB of memory beyond its own size, 10 s of processor time."""

import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

MEMORY = 256 * 2**20
CPU_S = 10.0


class TooSlow(BaseException):
    """More than the allowed processor time."""


@contextmanager
def limited(own_size: int = 0, memory: int = MEMORY, seconds: float = CPU_S) -> Iterator[None]:
    """This block may allocate ``memory`` bytes and the input's ``own_size``, else MemoryError; it may take
    ``seconds`` of processor time, else ``TooSlow``. Address space that is only reserved does not count."""

    def stop(signum: int, frame: FrameType | None) -> None:
        raise TooSlow(f"more than {seconds:g} s of processor time")

    before = resource.getrlimit(resource.RLIMIT_DATA)
    handler = signal.signal(signal.SIGVTALRM, stop)
    with open("/proc/self/statm", encoding="ascii") as file:
        data = int(file.read().split()[5]) * resource.getpagesize()  # proc(5)
    resource.setrlimit(resource.RLIMIT_DATA, (data + memory + own_size, before[1]))
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, handler)
        resource.setrlimit(resource.RLIMIT_DATA, before)
