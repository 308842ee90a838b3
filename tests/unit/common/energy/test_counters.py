"""Sums of counters that wrap, are reset, fail and stand still."""

import pytest

from mlhpc.common.energy.counters import Counters, Sum, named_once

RANGE_J = 65_532.610987  # AMD's packages


class Counter:
    """A counter of a device that uses ``watts``, which wraps at ``wrap`` joules; ``now`` is its clock too."""

    def __init__(self, joules=0.0, watts=300.0, wrap=None):
        self.joules, self.watts, self.wrap, self.now, self.fails = joules, watts, wrap, 0.0, False

    def wait(self, seconds):
        self.now += seconds
        self.joules += self.watts * seconds

    def read(self):
        if self.fails:
            raise OSError("Input/output error")
        return self.joules % self.wrap if self.wrap else self.joules


def summing(counter, measured="processors"):
    wraps = {"package-0": counter.wrap} if counter.wrap else {}
    made = Sum(
        Counters(measured, "RAPL", {"package-0": counter.read}, wraps=wraps), clock=lambda: counter.now
    )
    made.start()
    return made


@pytest.mark.parametrize("watts", [1.0, 300.0, 900.0])
def test_a_counter_that_wraps_many_times_is_summed_over_every_wrap(watts):
    counter = Counter(65_500.0, watts, RANGE_J)
    made = summing(counter)
    for _ in range(1000):
        counter.wait(10.0)
        made.read()
    spent = made.spent("n0")
    assert spent.joules == pytest.approx(10_000 * watts, rel=1e-9)
    assert (spent.counters, spent.nodes, spent.problems, spent.host) == (1, 1, [], "n0")


def test_a_counter_that_may_have_wrapped_unseen_is_not_counted():
    """At most 1 kW: 65.5 kJ could pass in 65 s."""
    counter = Counter(0.0, 100.0, RANGE_J)
    made = summing(counter)
    counter.wait(70.0)
    spent = made.spent("")
    assert (spent.joules, spent.counters, spent.nodes) == (0, 0, 0)
    assert spent.problems == ["package-0 may have wrapped unnoticed: it was not read for 70 s"]


def test_a_counter_that_was_set_back_is_not_taken_for_one_that_wrapped():
    counter = Counter(5000.0, 100.0, RANGE_J)
    made = summing(counter)
    counter.wait(10.0)
    counter.joules = 100.0
    assert made.spent("").problems == ["package-0 counted 60.63 kJ in 10 s: it was reset"]


def test_a_counter_without_a_range_that_was_reset_makes_no_figure():
    """What it had counted since it was last read is not known."""
    counter = Counter(100.0, 0.0)
    made = summing(counter, "accelerators")
    counter.joules = 30.0
    spent = made.spent("")
    assert (spent.joules, spent.counters) == (0, 0)
    assert spent.problems == ["package-0 was reset: it went from 100 J to 30 J"]


def test_readings_are_counted_and_the_longest_gap_between_two_is_kept():
    counter = Counter(0.0, 100.0)
    made = summing(counter)
    for seconds in (0.9, 0.9, 7.5, 0.9):
        counter.wait(seconds)
        made.read()
    counter.wait(0.2)
    spent = made.spent("")
    assert (spent.readings, spent.longest_gap_s) == (6, pytest.approx(7.5))


def test_a_power_limit_that_cannot_be_read_is_none():
    def denied():
        raise PermissionError("denied")

    made = Sum(Counters("processors", "RAPL", {"package-0": lambda: 1.0}, caps=(lambda: 280.0, denied)))
    made.start()
    assert made.spent("").caps_w == (280.0,)


def test_a_failed_reading_in_between_is_made_up_for_by_the_next():
    counter = Counter(100.0, 50.0, RANGE_J)
    made = summing(counter)
    for fails in (True, False, True, False):
        counter.wait(10.0)
        counter.fails = fails
        made.read()
        assert (made.joules is None) == fails
    assert made.spent("").joules == 2000.0


@pytest.mark.parametrize("at", ["start", "stop"])
def test_a_counter_that_fails_at_the_start_or_the_stop_is_left_out(at):
    counter = Counter(100.0)
    counter.fails = at == "start"
    made = summing(counter)
    counter.wait(1.0)
    counter.fails = at == "stop"
    spent = made.spent("")
    assert (spent.joules, spent.counters) == (0, 0)
    assert spent.problems == ["package-0 could not be read during the run (OSError: Input/output error)"]


@pytest.mark.parametrize(("measured", "problems"), [
    ("processors", ["package-0 did not advance for 20 s"]),
    ("node", ["package-0 did not advance for 20 s"]),
    ("accelerators", []),  # the second die of an MI250X may
])  # fmt: skip
def test_processors_and_nodes_that_used_nothing_have_a_broken_counter(measured, problems):
    """Some virtual machines have RAPL registers that never change."""
    counter = Counter(100.0, 0.0)
    made = summing(counter, measured)
    counter.wait(20.0)
    assert made.spent("").problems == problems


def test_a_problem_of_many_nodes_is_named_once():
    missing = "NVML is not installed"
    by_host = [("node0", [missing]), ("node1", [missing]), ("node2", [missing, "GPU 3 has no counter"])]
    assert named_once(by_host) == [
        "NVML is not installed on node0 and 2 other nodes",
        "GPU 3 has no counter on node2",
    ]
    assert named_once([("", [missing])]) == [missing]
