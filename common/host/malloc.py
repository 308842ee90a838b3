"""The memory of this process."""

import ctypes


def keep_memory() -> None:
    """Make the C library (glibc; others have no such call) keep freed memory for reuse.

    A simulation and a training step on a CPU allocate and free hundreds of arrays of the same sizes repeatedly.
    Those above 32 MiB would be returned to the system, whose zeroing of fresh pages took longer than a
    simulation's arithmetic, and a tenth of the step of a large network.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(-1, -1)  # M_TRIM_THRESHOLD of <malloc.h>: never
        mallopt(-4, 0)  # M_MMAP_MAX: no block gets a mapping of its own
