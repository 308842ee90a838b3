"""Launches Triton kernels with little work for the host."""

from collections.abc import Callable
from typing import Any

import torch
import triton
from torch import Tensor
from triton.runtime import driver

KNOWN = ("3.6.0", "3.7.1")
"""The versions of Triton, of PyTorch 2.11 and 2.12, whose compiled kernels are launched directly."""
ALIGNED = 16
"""Alignment in bytes. Triton compiles a different kernel for pointers that are not multiples of it."""


class Kernel:
    """A kernel made from ``function``, which is written in Triton's language.

    At every launch, ``triton.jit`` determines in Python which of its compiled kernels fits the arguments.
    ``launch`` does this only once for the same types and devices of tensors and the same values of numbers.
    ``triton.jit`` still launches the kernel if a tensor is not aligned, with other versions of Triton, on AMD's
    GPUs (where the size of a tensor's memory matters too), and in Triton's interpreter.
    """

    def __init__(self, function: Callable[..., None]) -> None:
        self.jit = triton.jit(function)
        self._direct = (
            isinstance(self.jit, triton.JITFunction)
            and triton.__version__ in KNOWN
            and torch.version.cuda is not None
        )
        self._compiled: dict[tuple[Any, ...], tuple[Any, tuple[Any, ...]]] = {}

    def launch(self, grid: tuple[int, int], *arguments: Tensor | int | float, **constants: Any) -> None:
        """Call ``kernel[grid](*arguments, **constants)`` on the current device, with tensors of any shape."""
        if not self._direct:
            self.jit[grid](*arguments, **constants)
            return
        key: list[Any] = [*constants.values()]
        passed: list[int | float] = []
        pointers = 0
        for argument in arguments:
            if isinstance(argument, Tensor):
                pointer = argument.data_ptr()
                pointers |= pointer
                passed.append(pointer)
                key += argument.dtype, argument.get_device()
            else:
                passed.append(argument)
                key += type(argument), argument
        found = self._compiled.get(tuple(key))
        if found is None or pointers % ALIGNED:
            compiled = self.jit[grid](*arguments, **constants)
            if not pointers % ALIGNED:
                rest = tuple(constants[name] for name in self.jit.arg_names[len(arguments) :])
                self._compiled[tuple(key)] = compiled, rest
            return
        compiled, rest = found
        stream = driver.active.get_current_stream(torch._C._cuda_getDevice())
        compiled.run(
            *grid, 1, stream, compiled.function, compiled.packed_metadata, None, None, None, *passed, *rest
        )


def parts(whole: int, size: int) -> int:
    """Number of parts of ``size`` in ``whole``; the last part may be smaller. ``triton.cdiv`` would take
    microseconds."""
    return -(-whole // size)
