"""Computes a 3³ convolution and the max pooling after it on CPUs, with gradients that skip the values set to
zero."""

import ctypes
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from mlhpc.common.files.compiled import compiled_library

LAST = torch.channels_last_3d
CHUNK = 16  # channels computed at once, as CHUNK in _pooled.c
MOST_FILTERS = 512


class Layer(ctypes.Structure):
    """The struct ``layer`` of ``_pooled.c``."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("depth", "height", "width", "channels", "filters")),
        *((name, ctypes.c_void_p) for name in ("x", "pooled", "chosen")),
        ("half", ctypes.c_int),
    ]


@cache
def library() -> Any:
    """The library compiled for the instruction set that PyTorch uses (which ``ATEN_CPU_CAPABILITY`` can limit);
    None if no library was compiled, in which case PyTorch computes everything."""
    kind = torch.backends.cpu.get_cpu_capability().lower()  # such as "avx512" or "avx2"
    compiled = compiled_library(__file__, f"_pooled_{kind}") or compiled_library(__file__, "_pooled")
    if compiled is not None:
        planes = [ctypes.c_int64] * 3
        compiled.mlhpc_pool.argtypes = [ctypes.POINTER(Layer), *planes]
        for function in (compiled.mlhpc_weight_gradient, compiled.mlhpc_input_gradient):
            function.argtypes = [ctypes.POINTER(Layer), ctypes.c_void_p, *planes, ctypes.c_void_p]
        compiled.mlhpc_scratch_bytes.restype = ctypes.c_int64
    return compiled


def convolve_and_pool(
    x: Tensor, convolution: torch.nn.Conv3d, otherwise: Callable[[Tensor, torch.nn.Conv3d], Tensor]
) -> Tensor:
    """Like ``convolve_and_pool`` in ``cosmoflow/pytorch/model.py``, for ``x`` [b, channels, d, h, w], with faster
    gradients.

    Seven of eight outputs of the convolution have no gradient, since one of their neighbours is larger. PyTorch
    fills an array with these zeros and multiplies all of them; ``_pooled.c`` multiplies each pooled voxel's
    gradient by the 27 voxels under its filter, which is an eighth of the arithmetic. Sums are float32, also in
    mixed precision. The backward pass requires ``x`` and one byte per pooled voxel, which says which of the eight
    voxels was the largest. ``otherwise`` computes what the library cannot: other kernels, no padding, odd sides,
    channels first, other devices.
    """
    channels, filters, kernel = convolution.in_channels, convolution.out_channels, convolution.kernel_size
    suitable = (
        library() is not None
        and kernel == (3, 3, 3)
        and convolution.padding == (1, 1, 1)
        and convolution.bias is None
        and (channels <= CHUNK or channels % CHUNK == 0)
        and filters <= MOST_FILTERS
        and not any(side % 2 for side in x.shape[2:])
        and x.device.type == "cpu"
        and x.dtype in (torch.float32, torch.bfloat16)
        and x.is_contiguous(memory_format=LAST)
    )
    if not suitable:
        return otherwise(x, convolution)
    pooled: Tensor = _ConvolveAndPool.apply(x, convolution.weight)
    return pooled


class _ConvolveAndPool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        y = F.conv3d(x, weight, padding=1).contiguous(memory_format=LAST)  # in autocast's type
        shape = (*y.shape[:2], *(side // 2 for side in y.shape[2:]))
        pooled = torch.empty(shape, dtype=y.dtype, memory_format=LAST)
        chosen = torch.empty(shape, dtype=torch.uint8, memory_format=LAST)
        _on_planes(partial(library().mlhpc_pool, _layer(y, pooled, chosen, y.shape[1])), chosen)
        ctx.save_for_backward(x.to(y.dtype), weight, chosen)
        return pooled

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, weight, chosen = ctx.saved_tensors
        gradient = gradient.contiguous(memory_format=LAST)
        of_input, of_weight = ctx.needs_input_grad
        return (
            _input_gradient(x, weight, gradient, chosen) if of_input else None,
            _weight_gradient(x, weight, gradient, chosen) if of_weight else None,
        )


def _weight_gradient(x: Tensor, weight: Tensor, gradient: Tensor, chosen: Tensor) -> Tensor:
    sums: dict[int, Tensor] = {}  # one per thread, by its first plane

    def add(layer: Layer, begin: int, end: int, step: int) -> None:
        own = sums[begin] = torch.zeros(_packed_shape(weight))
        scratch = _scratch()  # named, or it would be freed before the call
        library().mlhpc_weight_gradient(layer, scratch.data_ptr(), begin, end, step, own.data_ptr())

    _on_planes(partial(add, _layer(x, gradient, chosen, x.shape[1])), chosen)
    # Add in the order of planes, not of threads: float sums depend on the order, and two runs should be equal.
    return _unpacked(torch.stack([sums[begin] for begin in sorted(sums)]).sum(0), weight)


def _input_gradient(x: Tensor, weight: Tensor, gradient: Tensor, chosen: Tensor) -> Tensor:
    x_gradient = torch.zeros_like(x, dtype=torch.float32, memory_format=LAST)
    packed = _packed(weight.to(gradient.dtype))  # rounded as in the forward pass

    def add(layer: Layer, begin: int, end: int, step: int) -> None:
        scratch = _scratch()  # named, or it would be freed before the call
        library().mlhpc_input_gradient(layer, scratch.data_ptr(), begin, end, step, packed.data_ptr())

    layer = _layer(x_gradient, gradient, chosen, x.shape[1])
    layer.half = gradient.dtype == torch.bfloat16
    for parity in range(2):
        _on_planes(partial(add, layer), chosen, first=parity, step=2)
    return x_gradient.to(x.dtype)


def _layer(x: Tensor, pooled: Tensor, chosen: Tensor, channels: int) -> Layer:
    return Layer(
        *x.shape[2:], channels, pooled.shape[1], x.data_ptr(), pooled.data_ptr(), chosen.data_ptr(),
        x.dtype == torch.bfloat16,
    )  # fmt: skip


def _on_planes(
    work: Callable[[int, int, int], None], chosen: Tensor, *, first: int = 0, step: int = 1
) -> None:
    """Call ``work(begin, end, step)`` in as many threads as PyTorch uses; each handles a part of the planes."""
    planes = len(chosen) * chosen.shape[2]
    steps = range(first, planes, step)
    threads = max(1, min(torch.get_num_threads(), len(steps)))  # at least 1: a single plane has no odd planes
    cuts = [len(steps) * part // threads for part in range(threads + 1)]
    parts = [steps[begin:end] for begin, end in pairwise(cuts)]
    done = _threads(threads).map(lambda part: work(part.start, part.stop, part.step), parts)
    list(done)  # re-raises the exceptions of threads


@cache
def _threads(number: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(number, "pooled")


def _scratch() -> Tensor:
    return torch.empty(library().mlhpc_scratch_bytes(), dtype=torch.uint8)


def _packed_shape(weight: Tensor) -> tuple[int, ...]:
    """The shape [chunks, filters, 9, row] in which ``_pooled.c`` reads ``weight``."""
    filters, channels = weight.shape[:2]
    chunks, taken = max(1, channels // CHUNK), min(channels, CHUNK)
    return chunks, filters, 9, -(-3 * taken // CHUNK) * CHUNK


def _packed(weight: Tensor) -> Tensor:
    """``weight`` [filters, channels, 3, 3, 3] rearranged to the shape in which ``_pooled.c`` reads it."""
    chunks, filters, lines, row = _packed_shape(weight)
    lined = weight.detach().float().permute(2, 3, 0, 4, 1).reshape(lines, filters, 3, chunks, -1)
    taken = lined.permute(3, 1, 0, 2, 4).reshape(chunks, filters, lines, -1)
    return F.pad(taken, (0, row - taken.shape[-1])).contiguous()


def _unpacked(packed: Tensor, weight: Tensor) -> Tensor:
    """The inverse of ``_packed``; the result has the layout of ``weight`` [filters, channels, 3, 3, 3]."""
    filters, channels = weight.shape[:2]
    taken = min(channels, CHUNK)
    lined = packed[..., : 3 * taken].reshape(len(packed), filters, 3, 3, 3, taken)
    unpacked = lined.permute(1, 0, 5, 2, 3, 4).reshape(weight.shape)
    return torch.empty_like(weight).copy_(unpacked)
