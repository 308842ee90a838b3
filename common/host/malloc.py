"""How this process reuses memory."""

import ctypes


def keep_memory() -> None:
    """Make the C library keep freed memory for reuse (glibc only; other libraries have no such call).

    A simulation, and a training step on a CPU, repeatedly allocate and free hundreds of arrays of the same sizes.
    Arrays above 32 MiB would be returned to the system; zeroing the new pages then took longer than a simulation's
    arithmetic, and a tenth of a large network's step.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(-1, -1)  # M_TRIM_THRESHOLD of <malloc.h>: never trim
        mallopt(-4, 0)  # M_MMAP_MAX: no block gets its own mapping
