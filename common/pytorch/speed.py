"""How fast a GPU is, measured by PyTorch in a few seconds: matrix products by precision, memory, host's link."""

from collections.abc import Callable
from typing import Any

import torch

_SIDE = 8192
_COPIED = 2**30


def gpu_speed() -> dict[str, Any] | None:
    """Of the first GPU: ``model``, ``count`` of GPUs, ``memory`` in bytes, FLOP/s by precision, ``bandwidth``
    (bytes/s that a copy reads and writes) and ``host`` (bytes/s from page-locked memory). None without a GPU."""
    if not torch.cuda.is_available():
        return None
    about = torch.cuda.get_device_properties(0)
    found: dict[str, Any] = {
        "model": about.name,
        "count": torch.cuda.device_count(),
        "memory": about.total_memory,
    }
    kept = torch.backends.cuda.matmul.allow_tf32
    try:
        torch.backends.cuda.matmul.allow_tf32 = False
        found["float32"] = _product(torch.float32)
        if about.major >= 8:
            torch.backends.cuda.matmul.allow_tf32 = True
            found["tf32"] = _product(torch.float32)
            found["bfloat16"] = _product(torch.bfloat16)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = kept
    found["float16"] = _product(torch.float16)
    source = torch.empty(_COPIED, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    found["bandwidth"] = 2 * _COPIED / _seconds(lambda: target.copy_(source))
    pinned = torch.empty(_COPIED, dtype=torch.uint8, pin_memory=True)
    found["host"] = _COPIED / _seconds(lambda: target.copy_(pinned, non_blocking=True))
    return found


def _product(dtype: torch.dtype) -> float:
    a = torch.randn(_SIDE, _SIDE, device="cuda").to(dtype)
    out = torch.empty_like(a)
    return 2 * _SIDE**3 / _seconds(lambda: torch.matmul(a, a, out=out))


def _seconds(work: Callable[[], object], repeats: int = 20) -> float:
    """The shortest of ``repeats``, by events in the GPU's queue."""
    for _ in range(3):
        work()
    times: list[float] = []
    for _ in range(repeats):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        work()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1e3)
    return min(times)
