"""Taking up time as a computation would: to the deadline, and neither sleeping past it nor starving the
threads that read."""

import ctypes
import os
import platform
import threading
import time
from contextlib import suppress

import numpy as np

SPIN_S = 1e-3
"""Waits up to this are spent spinning."""
WAKE_S = 2e-4
"""Of longer waits this last part is: a sleeping thread wakes late. Ranks whose steps end at the same time spin
at the same time, so on a node with more ranks than cores a longer part would delay them."""
HOLD_S = 2e-5
"""Before the deadline the interpreter lock is kept: giving it away may cost more than what is left."""
READER_NICENESS = 19
MILD_NICENESS = 4
"""The most that leaves a thread its I/O priority where that cannot be set: Linux derives it from niceness, in
fives (ioprio_set(2))."""
_ONES = np.broadcast_to(np.ones(1), (1 << 22,))
"""One number in memory. A product of so many takes no cache from readers, and no system call."""
_SHORTEST = 2048
"""Their product takes some microseconds, less than ``HOLD_S``."""
_IOPRIO = {"x86_64": (251, 252), "aarch64": (30, 31), "riscv64": (30, 31), "ppc64le": (273, 274)}
"""Numbers of the system calls ioprio_set and ioprio_get, for which glibc has no functions."""
_CLASS_SHIFT, _BEST_EFFORT, _THREADS = 13, 2, 1  # linux/ioprio.h: class above the level; who: a thread
_PR_SET_TIMERSLACK = 29  # linux/prctl.h

clock = time.perf_counter


def sharpen_timers() -> None:
    """Have the kernel wake this thread within a nanosecond of its timers, not 50 µs (prctl(2),
    PR_SET_TIMERSLACK)."""
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)


def give_way() -> None:
    """Let this thread have a core only where the loop does not want it; its I/O priority stays what it is. The
    time that the loop takes up is an accelerator's, and no reader slows that down; on a machine with fewer cores
    than threads it would be preempted for milliseconds."""
    with suppress(OSError):  # where it is not permitted, steps oversleep more, and say so
        thread = threading.get_native_id()
        niceness = READER_NICENESS if _keep_io_priority() else MILD_NICENESS
        os.setpriority(os.PRIO_PROCESS, thread, max(niceness, os.getpriority(os.PRIO_PROCESS, thread)))


def _keep_io_priority() -> bool:
    """Make this thread's I/O priority independent of its niceness; returns whether it is."""
    numbers = _IOPRIO.get(platform.machine())
    if numbers is None:
        return False
    set_number, get_number = numbers
    libc = ctypes.CDLL(None)
    current: int = libc.syscall(get_number, _THREADS, 0)
    if current < 0:
        return False
    if current >> _CLASS_SHIFT:  # somebody has set it, with ionice or in the launcher
        return True
    level = (os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) + 20) // 5
    return bool(libc.syscall(set_number, _THREADS, 0, _BEST_EFFORT << _CLASS_SHIFT | level) == 0)


def occupy(seconds: float) -> float:
    """Return after ``seconds``; the seconds it really took, which are never fewer."""
    start = now = clock()
    end = start + seconds
    if seconds > SPIN_S:
        time.sleep(seconds - WAKE_S)
        now = clock()
    number = _SHORTEST
    while end - now > HOLD_S:
        # NumPy computes without the interpreter's lock, so that readers have it, and this thread stays on its
        # core: after a sleep, however short, it would have to win that back.
        _ONES[:number].prod()
        before, now = now, clock()
        # The next one takes half of what is left, going by this one: each time the lock is won back from a reader.
        number = max(_SHORTEST, int(number * (end - now) / 2 / (now - before)))
    while now < end:
        now = clock()
    return max(seconds, now - start)  # the difference of two large numbers is rounded
