"""Waits as long as an emulated computation takes: exactly until the deadline, and without starving reader
threads."""

import ctypes
import os
import platform
import threading
import time
from contextlib import suppress
from functools import cache

import numpy as np

SPIN_S = 1e-3
"""Longest wait, in seconds, that is spent only spinning."""
WAKE_S = 2e-4
"""Seconds at the end of longer waits that are also spent spinning, since a sleeping thread wakes late. Ranks whose
steps end at the same time spin at the same time, so spinning longer would delay them on a node with more ranks
than cores."""
HOLD_S = 2e-5
"""Seconds before the deadline in which the interpreter lock is kept, since getting it back may take longer than
the remaining time."""
MILD_NICENESS = 4
"""Largest niceness that leaves a thread's I/O priority unchanged if that cannot be set separately: Linux derives
one I/O level from five levels of niceness (ioprio_set(2))."""
_ONES = np.broadcast_to(np.ones(1), (1 << 22,))
"""Ones that share a single number in memory, [4194304]. Computing their product displaces no data of readers
from the cache and needs no system call."""
_SHORTEST = 2048
"""Minimum number of factors; their product takes a few microseconds, less than ``HOLD_S``."""
_IOPRIO = {"x86_64": (251, 252), "aarch64": (30, 31), "riscv64": (30, 31), "ppc64le": (273, 274)}
"""Numbers of the system calls ioprio_set and ioprio_get, for which glibc has no functions."""
_CLASS_SHIFT, _BEST_EFFORT, _THREADS = 13, 2, 1  # linux/ioprio.h: class above the level; who: a thread
_PR_SET_TIMERSLACK = 29  # linux/prctl.h

clock = time.perf_counter


def sharpen_timers() -> None:
    """Make the kernel wake this thread within a nanosecond of its timers instead of within 50 µs (prctl(2),
    PR_SET_TIMERSLACK)."""
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)


def give_way() -> None:
    """Give this reader thread lower priority than the loop, but leave its I/O priority unchanged. Readers do not
    slow down the accelerator that is emulated; but on a machine with fewer cores than threads, they would preempt
    the loop for milliseconds.

    The policy is SCHED_IDLE, not just niceness 19, because the kernel then considers a reader's core idle and
    wakes its own threads there instead of on the loop's core. If other programs keep all cores busy, a thread with
    SCHED_IDLE would hardly ever run; this thread then only gets a higher niceness."""
    with suppress(OSError):  # if this is not permitted, steps oversleep more, which is reported
        thread = threading.get_native_id()
        if _keep_io_priority() and not _others_are_busy():
            os.sched_setscheduler(thread, os.SCHED_IDLE, os.sched_param(0))
        else:
            niceness = max(MILD_NICENESS, os.getpriority(os.PRIO_PROCESS, thread))
            os.setpriority(os.PRIO_PROCESS, thread, niceness)


@cache
def _others_are_busy() -> bool:
    """Return whether the number of runnable threads in the last minute was more than twice the number of cores.
    Determined only once, before this process has threads of its own."""
    return os.getloadavg()[0] > 2 * (os.cpu_count() or 1)


def _keep_io_priority() -> bool:
    """Make this thread's I/O priority independent of its CPU priority; returns whether that succeeded."""
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
    """Keep this thread busy for ``seconds``; returns the actual seconds, which are never fewer."""
    start = now = clock()
    end = start + seconds
    if seconds > SPIN_S:
        time.sleep(seconds - WAKE_S)
        now = clock()
    number = _SHORTEST
    while end - now > HOLD_S:
        # NumPy computes without the interpreter lock, so readers can take the lock while this thread keeps its
        # core, which it could lose even during a short sleep.
        _ONES[:number].prod()
        before, now = now, clock()
        # The next product is sized to take half of the remaining time, judging by this one, because the lock must
        # be reacquired from readers after each.
        number = max(_SHORTEST, int(number * (end - now) / 2 / (now - before)))
    while now < end:
        now = clock()
    return max(seconds, now - start)  # subtracting large numbers rounds
