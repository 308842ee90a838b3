"""Waits as a computation would: until the deadline, without oversleeping and without starving reader threads."""

import ctypes
import os
import platform
import threading
import time
from contextlib import suppress
from functools import cache

import numpy as np

SPIN_S = 1e-3
"""Longest wait spent spinning."""
WAKE_S = 2e-4
"""The last part of longer waits, also spent spinning: a sleeping thread wakes late. Ranks whose steps end at
the same time spin at the same time, so on a node with more ranks than cores a longer part would delay them."""
HOLD_S = 2e-5
"""Time before the deadline in which the interpreter lock is kept: releasing it may take longer than the
remaining time."""
MILD_NICENESS = 4
"""Largest niceness that keeps a thread's I/O priority if that cannot be set: Linux derives it from niceness,
in fives (ioprio_set(2))."""
_ONES = np.broadcast_to(np.ones(1), (1 << 22,))
"""A single number in memory: the product does not displace readers' data from the cache, and needs no system
call."""
_SHORTEST = 2048
"""Size of the product, which takes a few microseconds, less than ``HOLD_S``."""
_IOPRIO = {"x86_64": (251, 252), "aarch64": (30, 31), "riscv64": (30, 31), "ppc64le": (273, 274)}
"""Numbers of the system calls ioprio_set and ioprio_get, for which glibc has no functions."""
_CLASS_SHIFT, _BEST_EFFORT, _THREADS = 13, 2, 1  # linux/ioprio.h: class above the level; who: a thread
_PR_SET_TIMERSLACK = 29  # linux/prctl.h

clock = time.perf_counter


def sharpen_timers() -> None:
    """Let the kernel wake this thread within a nanosecond of its timers instead of 50 µs (prctl(2),
    PR_SET_TIMERSLACK)."""
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)


def give_way() -> None:
    """Give this thread lower priority than the loop, with unchanged I/O priority. The emulated time is that
    of an accelerator, which readers do not slow down; on a machine with fewer cores than threads, the loop
    would be preempted for milliseconds.

    The policy is SCHED_IDLE, not just niceness 19, because the kernel then counts a reader's core as idle and
    wakes its own threads there instead of on the loop's core. If other programs keep all cores busy, such a thread
    would hardly ever run; then it has only niceness."""
    with suppress(OSError):  # if this is not permitted, steps oversleep more, which is reported
        thread = threading.get_native_id()
        if _keep_io_priority() and not _others_are_busy():
            os.sched_setscheduler(thread, os.SCHED_IDLE, os.sched_param(0))
        else:
            niceness = max(MILD_NICENESS, os.getpriority(os.PRIO_PROCESS, thread))
            os.setpriority(os.PRIO_PROCESS, thread, niceness)


@cache
def _others_are_busy() -> bool:
    """Whether more than twice as many threads as cores wanted to run in the last minute; asked once, before this
    process has threads of its own."""
    return os.getloadavg()[0] > 2 * (os.cpu_count() or 1)


def _keep_io_priority() -> bool:
    """Make this thread's I/O priority independent of that of its processor time; returns whether it is."""
    numbers = _IOPRIO.get(platform.machine())
    if numbers is None:
        return False
    set_number, get_number = numbers
    libc = ctypes.CDLL(None)
    current: int = libc.syscall(get_number, _THREADS, 0)
    if current < 0:
        return False
    if current >> _CLASS_SHIFT:  # already set with ionice or by the launcher
        return True
    level = (os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) + 20) // 5
    return bool(libc.syscall(set_number, _THREADS, 0, _BEST_EFFORT << _CLASS_SHIFT | level) == 0)


def occupy(seconds: float) -> float:
    """Return after ``seconds``; returns the actual seconds, which are never fewer."""
    start = now = clock()
    end = start + seconds
    if seconds > SPIN_S:
        time.sleep(seconds - WAKE_S)
        now = clock()
    number = _SHORTEST
    while end - now > HOLD_S:
        # NumPy computes without the interpreter lock, so readers can use it while this thread keeps its core,
        # which it could lose during even a short sleep.
        _ONES[:number].prod()
        before, now = now, clock()
        # The next one takes half of the remaining time, estimated from this one, since each must reacquire
        # the lock from readers.
        number = max(_SHORTEST, int(number * (end - now) / 2 / (now - before)))
    while now < end:
        now = clock()
    return max(seconds, now - start)  # the difference of two large numbers is rounded
