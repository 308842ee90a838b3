"""Threads with low priority, and waits during which they continue."""

import os
import subprocess
import sys
import threading
import time

import pytest

from mlhpc.common.timing import waiting


@pytest.fixture(autouse=True)
def load(monkeypatch):
    """The load of the machine: none, or what the test sets."""

    def set_load(number):
        waiting._others_are_busy.cache_clear()
        monkeypatch.setattr(waiting.os, "getloadavg", lambda: (number,) * 3)

    set_load(0.0)
    yield set_load
    waiting._others_are_busy.cache_clear()


def in_thread(work):
    """What ``work(id of a new thread)`` returns there."""
    results = []
    thread = threading.Thread(target=lambda: results.append(work(threading.get_native_id())))
    thread.start()
    thread.join()
    return results[0]


def io_priority(thread):
    """As ionice of util-linux says it: "best-effort: prio 4"."""
    return subprocess.run(
        ["ionice", "-p", str(thread)], capture_output=True, text=True, check=True
    ).stdout.strip()


def give_way_and_look(thread):
    waiting.give_way()
    return io_priority(thread), os.sched_getscheduler(thread)


def test_a_thread_that_gives_way_keeps_its_io_priority():
    niceness = os.getpriority(os.PRIO_PROCESS, 0)
    level = (niceness + 20) // 5  # ioprio_set(2): what Linux takes where none is set
    assert in_thread(give_way_and_look) == (f"best-effort: prio {level}", os.SCHED_IDLE)
    assert os.sched_getscheduler(0) == os.SCHED_OTHER  # the loop's


def test_a_thread_does_not_give_way_to_a_whole_machine_of_others(load):
    """Of a core that others want all the time, the idle class gets three of a thousand parts."""
    load(3.0 * os.cpu_count())
    assert in_thread(give_way_and_look)[1] == os.SCHED_OTHER


def test_an_io_priority_that_somebody_set_stays():
    def set_and_look(thread):
        subprocess.run(["ionice", "-c", "2", "-n", "6", "-p", str(thread)], check=True)
        return give_way_and_look(thread)

    assert in_thread(set_and_look) == ("best-effort: prio 6", os.SCHED_IDLE)


def test_without_a_way_to_keep_it_niceness_stays_where_it_does_not_matter(monkeypatch):
    monkeypatch.setattr(waiting.platform, "machine", lambda: "sparc")
    niceness = os.getpriority(os.PRIO_PROCESS, 0)

    def give_way_and_look(thread):
        waiting.give_way()
        return os.sched_getscheduler(thread), os.getpriority(os.PRIO_PROCESS, thread)

    assert in_thread(give_way_and_look) == (os.SCHED_OTHER, max(niceness, 4))


@pytest.mark.parametrize("slower_by", [1, 2])
def test_the_lock_is_won_back_a_few_times_and_never_late(monkeypatch, slower_by):
    """With a simulated clock: a product takes a nanosecond for each number, and more from the second on where the
    processor slows down."""
    now, products = [0.0], []

    class Ones:
        def __getitem__(self, which):
            self.number = which.stop
            return self

        def prod(self):
            products.append(self.number)
            now[0] += 1e-9 * self.number * (slower_by if len(products) > 1 else 1)

    def clock():
        now[0] += 5e-8
        return now[0]

    monkeypatch.setattr(waiting, "_ONES", Ones())
    monkeypatch.setattr(waiting, "clock", clock)
    assert waiting.occupy(5e-4) == pytest.approx(5e-4, abs=2e-7)
    assert len(products) < 12  # a chunk of 8 µs at a time was 60


def test_other_threads_go_on_while_time_is_taken_up():
    """They get the interpreter only when it is released: no switch is forced within a minute."""
    before = sys.getswitchinterval()
    done, turns = threading.Event(), []

    def count() -> None:
        while not done.is_set():
            turns.append(None)
            time.sleep(0)

    thread = threading.Thread(target=count)
    sys.setswitchinterval(60)
    try:
        thread.start()
        for _ in range(10_000):
            waiting.occupy(5e-4)
            if len(turns) > 20:
                break
    finally:
        sys.setswitchinterval(before)
        done.set()
        thread.join()
    assert len(turns) > 20
