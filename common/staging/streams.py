"""Tunes the number of files that a rank copies concurrently: a disk that one stream saturates is slower with four,
while a parallel file system needs many.

The number is doubled, or halved, for as long as that raises the rate by more than ``GAIN``; then it is kept,
and the search is repeated later, since the load of other jobs changes.
"""

import threading
import time
from collections.abc import Callable

WINDOW_S = 0.1
"""Minimum time over which a rate is measured, with at least ``WINDOW_FILES`` files per stream."""
WINDOW_FILES = 2
GAIN = 1.05
FIRST = 4
"""Initial number of streams. A data set of a gigabyte is staged in half a second, too short for a search from 2 to
8 streams (docs/reference/performance.md); a disk that one stream saturates loses a tenth of a second or two."""
HOLD_WINDOWS = 50
"""Number of windows after which another number of streams is tried."""


class Streams:
    """Limits how many of ``most`` threads work concurrently. Thread-safe."""

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._clock = clock
        self.allowed = min(FIRST, most)
        self._turn = threading.Condition()
        self._open = True
        self._rates: dict[int, float] = {}  # bytes/s by number of streams, in this search
        self._step = 2.0
        self._held = 0
        self._begin_window()

    def wait_for_turn(self, thread: int) -> bool:
        """Wait until thread number ``thread`` may start the next file. Returns False once ``close`` was called."""
        with self._turn:
            self._turn.wait_for(lambda: thread < self.allowed or not self._open)
            return self._open

    def close(self) -> None:
        """Release all waiting threads, because no work is left."""
        with self._turn:
            self._open = False
            self._turn.notify_all()

    def done(self, size: int) -> None:
        """Record that a thread has finished a file of ``size`` bytes."""
        with self._turn:
            self._bytes += size
            self._files += 1
            seconds = self._clock() - self._started
            if seconds >= WINDOW_S and self._files >= WINDOW_FILES * self.allowed:
                # The overhead of a file takes as long as copying about 64 KiB, so it is counted as such.
                self._choose((self._bytes + 65536 * self._files) / seconds)
                self._begin_window()
                self._turn.notify_all()

    def _begin_window(self) -> None:
        self._started, self._bytes, self._files = self._clock(), 0, 0

    def _choose(self, rate: float) -> None:
        if self._held:
            self._held -= 1
            if not self._held:
                self._rates, self._step = {}, 2.0
            return
        self._rates[self.allowed] = rate
        best = max(self._rates, key=lambda streams: self._rates[streams])
        # More streams must improve the rate; at about equal rates, fewer streams are preferred.
        best = min(streams for streams in self._rates if self._rates[streams] * GAIN >= self._rates[best])
        further = self._next(best)
        if further is None and self._step > 1 and len(self._rates) < 3:
            self._step = 0.5
            further = self._next(best)
        if further is None:
            self._held = HOLD_WINDOWS
        self.allowed = further or best

    def _next(self, best: int) -> int | None:
        streams = max(1, min(self._most, int(best * self._step)))
        return streams if streams not in self._rates else None
