"""Step time and data wait on a device that only queues its work, simulated: its clock is the test's."""

from collections.abc import Iterator

import pytest

from mlhpc.common.timing.steps import MAX_IN_FLIGHT, StepTimer, percentiles


class Machine:
    """A host whose training step only queues work on a device, and a loader that reads ahead of both.

    ``loader_s``: seconds the loader takes per batch; it keeps at most ``prefetch`` finished batches.
    """

    def __init__(self, step_s: float, loader_s: float, launch_s: float = 0.001, prefetch: int = 4) -> None:
        self.now = 0.0  # seconds, of the host
        self.free = 0.0  # when the device has finished all queued work
        self.step_s, self.loader_s, self.launch_s, self.prefetch = step_s, loader_s, launch_s, prefetch
        self.finished: list[float] = []  # when the device finishes each step
        self.in_flight: list[int] = []  # steps launched and not finished, at each launch

    def clock(self) -> float:
        return self.now

    def record(self) -> "Event":
        return Event(self, max(self.now, self.free))

    def batches(self, count: int) -> Iterator[int]:
        ready, taken = 0.0, [0.0] * self.prefetch
        for number in range(count):
            ready = max(ready, taken[-self.prefetch]) + self.loader_s  # waits until one of its places is free
            self.now = max(self.now, ready)
            taken.append(self.now)
            yield number

    def launch(self) -> None:
        self.now += self.launch_s
        self.in_flight.append(sum(end > self.now for end in self.finished))
        self.free = max(self.now, self.free) + self.step_s
        self.finished.append(self.free)

    def train(self, steps: int, timer: StepTimer) -> None:
        batches = self.batches(steps)
        while True:
            timer.ask()
            if next(batches, None) is None:
                timer.stop()
                return
            timer.start()
            self.launch()


class Event:
    def __init__(self, machine: Machine, reached: float) -> None:
        self.machine, self.reached = machine, reached

    def wait(self) -> None:
        self.machine.now = max(self.machine.now, self.reached)

    def seconds_since(self, earlier: "Event") -> float:
        assert self.reached <= self.machine.now, "read before the device has reached it"
        return self.reached - earlier.reached


def on_device(machine: Machine, steps: int) -> StepTimer:
    timer = StepTimer(machine.record, machine.clock)
    machine.train(steps, timer)
    return timer


def test_a_loader_slightly_faster_than_the_device_causes_no_data_wait():
    machine = Machine(step_s=0.100, loader_s=0.098)
    timer = on_device(machine, 200)
    assert sum(timer.waits[1:]) == pytest.approx(0.0, abs=1e-9)
    assert timer.steps[1:] == pytest.approx([0.100] * 199)
    # By host time, nearly all would be data wait on the same machine.
    naive = Machine(step_s=0.100, loader_s=0.098)
    host = StepTimer(None, naive.clock)
    naive.train(200, host)
    assert sum(host.waits) > 0.9 * sum(timer.steps)


@pytest.mark.parametrize(("step_s", "loader_s"), [(0.100, 0.098), (0.1, 0.001), (0.1, 0.3), (0.001, 0.0001)])
def test_the_host_is_never_more_than_two_steps_ahead(step_s, loader_s):
    machine = Machine(step_s, loader_s)
    on_device(machine, 50)
    assert max(machine.in_flight) < MAX_IN_FLIGHT


def test_with_a_slow_loader_data_wait_is_the_idle_time_of_the_device():
    machine = Machine(step_s=0.100, loader_s=0.130, launch_s=0.0)
    timer = on_device(machine, 100)
    assert timer.waits[1:] == pytest.approx([0.030] * 99)
    assert timer.steps == pytest.approx([0.100] * 100)


def test_a_slow_launch_is_step_time():
    """The device is idle, but not waiting for data."""
    machine = Machine(step_s=0.010, loader_s=0.001, launch_s=0.050)
    timer = on_device(machine, 20)
    assert sum(timer.waits[1:]) == pytest.approx(0.0, abs=1e-9)
    assert timer.steps[1:] == pytest.approx(
        [0.050] * 19
    )  # the device computes while the next one is launched


@pytest.mark.parametrize(("step_s", "loader_s"), [(0.1, 0.098), (0.1, 0.13), (0.01, 0.02)])
def test_steps_and_waits_add_up_to_the_time_of_the_loop(step_s, loader_s):
    machine = Machine(step_s, loader_s, launch_s=0.0)
    timer = on_device(machine, 60)
    assert len(timer.steps) == len(timer.waits) == 60
    assert sum(timer.steps) + sum(timer.waits) == pytest.approx(machine.now)


def test_the_wait_so_far_includes_the_open_step():
    machine = Machine(step_s=0.100, loader_s=0.130, launch_s=0.0)
    timer = StepTimer(machine.record, machine.clock)
    batches = machine.batches(5)
    for _ in range(5):
        timer.ask()
        next(batches)
        timer.start()
        machine.launch()
    assert timer.waited() == pytest.approx(0.130 + 4 * 0.030)


def test_on_a_cpu_waits_and_steps_are_host_time():
    now = 0.0
    timer = StepTimer(None, lambda: now)
    for wait, step in ((3.0, 1.0), (0.5, 2.0)):
        timer.ask()
        now += wait
        timer.start()
        now += step
    timer.ask()
    now += 0.25
    timer.stop()
    assert (timer.waits, timer.steps, timer.total_wait) == ([3.0, 0.5], [1.0, 2.0], 3.75)


def test_percentiles_use_the_nearest_rank():
    assert percentiles([]) == {}
    assert percentiles([4.0]) == {"p50": 4.0, "p90": 4.0, "p99": 4.0, "max": 4.0}
    hundred = [float(n) for n in range(100, 0, -1)]
    assert percentiles(hundred) == {"p50": 50.0, "p90": 90.0, "p99": 99.0, "max": 100.0}
    assert percentiles([1.0, 2.0, 3.0])["p50"] == 2.0
