"""Taking up time as a computation would: to the deadline, and neither sleeping past it nor starving the
threads that read."""

import ctypes
import os
import threading
import time
from contextlib import suppress

SPIN_S = 1e-3
"""Waits up to this are spent spinning."""
WAKE_S = 2e-4
"""Of longer waits this last part is: a sleeping thread wakes late. Ranks whose steps end at the same time spin
at the same time, so on a node with more ranks than cores a longer part would delay them."""
HOLD_S = 2e-5
"""Before the deadline the interpreter lock is kept: giving it away may cost more than what is left."""
READER_NICENESS = 4
"""The most that leaves a thread its I/O priority, which Linux derives from niceness in fives (ioprio_set(2))."""
_PR_SET_TIMERSLACK = 29  # linux/prctl.h

clock = time.perf_counter


def sharpen_timers() -> None:
    """Have the kernel wake this thread within a nanosecond of its timers, not 50 µs (prctl(2),
    PR_SET_TIMERSLACK)."""
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)


def give_way() -> None:
    """Let this thread have a core less than the loop. The time that the loop takes up is an accelerator's, and no
    reader slows that down; on a machine with fewer cores than threads it would be preempted for milliseconds."""
    with suppress(OSError):  # where it is not permitted, steps oversleep more, and say so
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), READER_NICENESS)


def occupy(seconds: float) -> float:
    """Return after ``seconds``; the seconds it really took, which are never fewer."""
    start = now = clock()
    end = start + seconds
    if seconds > SPIN_S:
        time.sleep(seconds - WAKE_S)
    while (now := clock()) < end - HOLD_S:
        time.sleep(0)  # lets reader threads have the interpreter
    while now < end:
        now = clock()
    return max(seconds, now - start)  # the difference of two large numbers is rounded
