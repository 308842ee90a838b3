"""Launches of Triton kernels for which the host does little."""

from collections.abc import Callable
from typing import Any

import torch
import triton
from torch import Tensor
from triton.runtime import driver

KNOWN = "3.7.1"
"""The version of Triton whose compiled kernels are launched directly."""
ALIGNED = 16
"""Bytes, of which Triton compiles another kernel where a pointer is no multiple."""


class Kernel:
    """``function``, in Triton's language, as a kernel.

    At every launch ``triton.jit`` works out in Python which of its compiled kernels fits. ``launch`` remembers it
    by the types and devices of tensors and the values of numbers. Tensors that are not aligned, other versions
    of Triton, AMD's GPUs, where the bytes behind a pointer matter too, and the interpreter take Triton's way.
    """

    def __init__(self, function: Callable[..., None]) -> None:
        self.jit = triton.jit(function)
        self._direct = (
            isinstance(self.jit, triton.JITFunction)
            and triton.__version__ == KNOWN
            and torch.version.cuda is not None
        )
        self._compiled: dict[tuple[Any, ...], tuple[Any, tuple[Any, ...]]] = {}

    def launch(self, grid: tuple[int, int], *arguments: Tensor | int | float, **constants: Any) -> None:
        """``kernel[grid](*arguments, **constants)`` on the current device, with tensors of any shape."""
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
    """Parts of ``size`` in ``whole``, of which the last may be smaller; ``triton.cdiv`` takes microseconds."""
    return -(-whole // size)
