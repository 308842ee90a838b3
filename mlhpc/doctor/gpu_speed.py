"""Measures in a few seconds, with PyTorch, the speed of a GPU (matrix products by precision, memory, host link)
and of the network between ranks."""

import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from mlhpc.common.pytorch.devices import (
    StreamEvent,
    accelerator,
    first_device,
    pick_device,
    precisions,
    wait_for,
)

_SIDE = 8192
_COPIED = 2**30
_REDUCED = (2**20, 2**24, 2**28)
_LARGEST_ON_HOSTS = 2**24
_ROUNDS = 5


def gpu_speed() -> dict[str, Any] | None:
    """Measurements of the first GPU: ``model``, ``count`` (number of GPUs), ``memory`` (bytes), FLOP/s by
    precision, ``bandwidth`` (bytes/s that a copy within GPU memory reads and writes) and ``host`` (bytes/s of a
    copy from page-locked host memory). None without a GPU."""
    if not accelerator():
        return None
    device = first_device()
    about = torch.get_device_module(device).get_device_properties(0)
    speeds: dict[str, Any] = {
        "model": about.name,
        "count": torch.accelerator.device_count(),
        "memory": about.total_memory,
    }
    has = precisions(device)
    kept = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("highest")
        speeds["float32"] = _product(torch.float32, device)
        if has.tf32:
            torch.set_float32_matmul_precision("high")
            speeds["tf32"] = _product(torch.float32, device)
    finally:
        torch.set_float32_matmul_precision(kept)
    if has.bfloat16:
        speeds["bfloat16"] = _product(torch.bfloat16, device)
    speeds["float16"] = _product(torch.float16, device)
    source = torch.empty(_COPIED, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    speeds["bandwidth"] = 2 * _COPIED / _seconds(lambda: target.copy_(source), device)
    pinned = torch.empty(_COPIED, dtype=torch.uint8, pin_memory=True)
    speeds["host"] = _COPIED / _seconds(lambda: target.copy_(pinned, non_blocking=True), device)
    return speeds


def _product(dtype: torch.dtype, device: torch.device) -> float:
    a = torch.randn(_SIDE, _SIDE, device=device).to(dtype)
    out = torch.empty_like(a)
    return 2 * _SIDE**3 / _seconds(lambda: torch.matmul(a, a, out=out), device)


def _seconds(work: Callable[[], object], device: torch.device, repeats: int = 20) -> float:
    """Duration in seconds of the fastest of ``repeats`` calls of ``work``, timed by events in the device's
    queue."""
    for _ in range(3):
        work()
    times: list[float] = []
    for _ in range(repeats):
        begin = StreamEvent(device)
        work()
        times.append(StreamEvent(device).seconds_since(begin))
    return min(times)


def bus_bandwidths(local_rank: int) -> dict[int, float]:
    """Bus bandwidth in bytes/s of all-reduces over all ranks, by message size in bytes, on accelerators if there
    are any. Bus bandwidth is 2 (n - 1) / n times bytes over seconds for n ranks, so it can be compared with the
    bandwidth of the slowest link whatever n is (nccl-tests, doc/PERFORMANCE.md). Called by all ranks."""
    device, ranks = pick_device("auto", local_rank), dist.get_world_size()
    found = {}
    for size in _REDUCED:
        if device.type == "cpu" and size > _LARGEST_ON_HOSTS:
            break
        tensor = torch.zeros(size // 4, device=device)
        dist.all_reduce(tensor)  # the first call connects the ranks
        wait_for(device)
        start = time.perf_counter()
        for _ in range(_ROUNDS):
            dist.all_reduce(tensor)
        wait_for(device)
        found[size] = 2 * (ranks - 1) / ranks * size * _ROUNDS / (time.perf_counter() - start)
    return found
