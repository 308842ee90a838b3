"""Separates step time and data wait, on processors that compute synchronously and on devices that queue work.

On a CPU, the training step returns when it is complete, so the time that the loop waits for its next batch is data
wait, and the rest is the step. On a GPU, the step returns as soon as its kernels are queued, and the host could
run many steps ahead. It would then wait for batches while the device is still computing: measured on the host,
most of the step would be reported as data wait, and the batches in flight would fill the device's memory.
Therefore the host stays at most ``MAX_IN_FLIGHT`` steps ahead, and times are read from events in the device's own
queue after the device has reached them, without any synchronisation per step.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, Self

MAX_IN_FLIGHT = 2
"""Maximum number of steps that are launched but not finished: one running and one queued keep a device busy."""


class DeviceEvent(Protocol):
    """A point in a device's queue of work, such as a CUDA event with timing."""

    def wait(self) -> None:
        """Block the host until the device has reached this event."""

    def seconds_since(self, earlier: Self) -> float:
        """Seconds of device time since ``earlier``. Both events must have been reached."""


RecordEvent = Callable[[], DeviceEvent]
"""Queues an event after the work launched so far; does not block."""


class _Step(NamedTuple):
    waited: float  # seconds that the host waited for its batch
    begin: DeviceEvent
    end: DeviceEvent


class StepTimer:
    """Measures one loop over batches. The loop calls ``ask`` before it requests a batch, ``start`` when it has the
    batch, and ``ask`` or ``stop`` when it has launched the step.

    If ``record_event`` is None, a step is done when it returns, and all times are host times. Otherwise the data
    wait of a step is the time that the device was idle because the batch was missing: the smaller of the host's
    wait for the batch and the device's idle time before the step. Step times are the rest of the time from the end
    of one step to the end of the next, so that waits and steps add up to the time of the loop.
    """

    def __init__(
        self, record_event: RecordEvent | None = None, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.waits: list[float] = []  # seconds, one per finished wait
        self.steps: list[float] = []  # seconds, one per finished step
        self.last_wait = 0.0  # seconds until the loop learned that there are no more batches
        self._record, self._clock = record_event, clock
        self._asked = 0.0
        self._started: float | None = None
        self._begin: tuple[float, DeviceEvent] | None = None  # host wait and first event of the open step
        self._in_flight: deque[_Step] = deque()
        self._last_end: DeviceEvent | None = None

    def ask(self) -> None:
        """Called when the step of the previous batch has been launched and the loop asks for the next batch."""
        if self._record is None:
            self._asked = self._clock()
            if self._started is not None:
                self.steps.append(self._asked - self._started)
                self._started = None
            return
        if self._begin is not None:
            self._in_flight.append(_Step(*self._begin, self._record()))
            self._begin = None
        while len(self._in_flight) >= MAX_IN_FLIGHT:
            self._settle()
        self._asked = self._clock()

    def start(self) -> None:
        """Called when the batch has arrived, just before its step is launched."""
        now = self._clock()
        if self._record is None:
            self._started = now
            self.waits.append(now - self._asked)
        else:
            self._begin = (now - self._asked, self._record())

    def stop(self) -> None:
        """Called when there are no more batches. Waits for the device."""
        if self._record is None:
            self.last_wait = self._clock() - self._asked
        while self._in_flight:
            self._settle()

    @property
    def started(self) -> int:
        """Number of batches that have arrived, including that of the open step."""
        open_ = self._started if self._record is None else self._begin
        return len(self.steps) + len(self._in_flight) + (open_ is not None)

    @property
    def total_wait(self) -> float:
        """Seconds of data wait of the finished steps and at the end of the loop."""
        return sum(self.waits) + self.last_wait

    def waited(self) -> float:
        """Seconds of data wait so far, including that of the open step. Waits for the device to begin that
        step."""
        while self._in_flight:
            self._settle()
        waited = self.total_wait
        if self._begin is not None:
            waited += self._data_wait(*self._begin)
        return waited

    def _settle(self) -> None:
        """Read the times of the oldest step in flight."""
        step = self._in_flight.popleft()
        step.end.wait()
        wait = self._data_wait(step.waited, step.begin)
        if self._last_end is None:
            self.steps.append(step.end.seconds_since(step.begin))
        else:
            self.steps.append(max(0.0, step.end.seconds_since(self._last_end) - wait))
        self.waits.append(wait)
        self._last_end = step.end

    def _data_wait(self, waited: float, begin: DeviceEvent) -> float:
        if self._last_end is None:  # the loop's first step: the device was idle before it
            return waited
        begin.wait()
        return max(0.0, min(waited, begin.seconds_since(self._last_end)))


def percentiles(seconds: Sequence[float]) -> dict[str, float]:
    """The 50th, 90th and 99th percentile of ``seconds``, by nearest rank, and the maximum; empty if there are no
    values."""
    if not seconds:
        return {}
    ordered = sorted(seconds)
    ranks = {f"p{share}": ordered[-(-share * len(ordered) // 100) - 1] for share in (50, 90, 99)}
    return ranks | {"max": ordered[-1]}
