"""The memory of this process."""

import ctypes


def keep_memory() -> None:
    """Have the C library (glibc; others have no such call) keep the memory that is freed, for what comes next.

    A simulation and a training step on a CPU are hundreds of arrays that come and go, in the same sizes each time
    around. Those above 32 MiB would go back to the system, and its clearing of fresh pages took longer than a
    simulation's arithmetic, and a tenth of a large network's step.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(-1, -1)  # M_TRIM_THRESHOLD of <malloc.h>: never
        mallopt(-4, 0)  # M_MMAP_MAX: no block is mapped by itself
