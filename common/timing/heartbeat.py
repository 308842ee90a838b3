"""Progress reports of a run that prints nothing else: the first after four seconds of silence, then at increasing
intervals."""

import threading
import time
from collections.abc import Callable

FIRST_S = 4.0
"""Seconds of silence before the first line of a phase; the interval doubles with each further line."""
EVERY_S = 60.0
"""The longest interval in seconds: one line per minute in a batch log."""
EVENT_S = 5.0
"""Seconds between the events that ``mlhpc watch`` reads."""


class Heartbeat:
    """Calls ``report(phase, seconds in the phase, whether to print)`` from a separate thread until ``stop``."""

    def __init__(
        self, report: Callable[[str, float, bool], None], clock: Callable[[], float] = time.monotonic
    ):
        self._report, self._clock = report, clock
        self._phase, self._since, self._said, self._interval = "start", clock(), clock(), FIRST_S
        self._next_event = clock() + EVENT_S
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self._thread.start()

    def enter(self, phase: str) -> None:
        """Called when a phase begins, or when the enclosing phase continues."""
        self._phase, self._since, self._interval = phase, self._clock(), FIRST_S

    def said(self) -> None:
        """Called when the run has printed a line."""
        self._said = self._clock()

    def beat(self) -> None:
        """Report if a report is due."""
        now = self._clock()
        printed = now >= self._said + self._interval
        if printed:
            self._said, self._interval = now, min(2 * self._interval, EVERY_S)
        if printed or now >= self._next_event:
            self._next_event = now + EVENT_S
            self._report(self._phase, now - self._since, printed)

    def stop(self) -> None:
        """End the thread."""
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(1.0):
            self.beat()
