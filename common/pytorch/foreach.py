"""Lists of tensors, each multiplied by its own factor, which stays on the device."""

import torch
from torch import Tensor


def multiply_each(tensors: list[Tensor], factors: Tensor) -> None:
    """``tensors[i] *= factors[i]``, in place; ``factors`` [len(tensors)] on their device. Does not wait for the
    device.

    With a list of 0-dimensional tensors PyTorch launches a kernel per tensor on a GPU; with tensors of equal shape
    and strides a few kernels process all of them (``can_use_fast_route`` in ATen/native/ForeachUtils.h).
    """
    if factors.device.type == "cpu" or torch.compiler.is_compiling():
        torch._foreach_mul_(tensors, list(factors.unbind()))
    else:
        torch._foreach_mul_(tensors, spread(tensors, factors))


def spread(tensors: list[Tensor], factors: Tensor) -> list[Tensor]:
    """For each of ``tensors``, dense in memory, a tensor of its shape and strides filled with its factor."""
    sizes = [tensor.numel() for tensor in tensors]
    filled = torch.cat([factor.expand(size) for factor, size in zip(factors.unbind(), sizes, strict=True)])
    parts = zip(tensors, filled.split(sizes), strict=True)
    return [part.as_strided(tensor.shape, tensor.stride()) for tensor, part in parts]
