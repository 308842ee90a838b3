"""The device that a rank trains on: which one, its events, its memory."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import torch
from torch import Tensor, nn

from mlhpc.common.timing.steps import RecordEvent
from mlhpc.errors import UserError


def pick_device(choice: str, local_rank: int) -> torch.device:
    """``training.device``: "cpu", "cuda" (the rank's own GPU of its node), or "auto", the GPU if there is one.

    Raises ``UserError`` when PyTorch sees no GPU, for "cuda" always and for "auto" if the machine has one.
    """
    gpus = torch.cuda.device_count()
    if choice == "auto" and not gpus and _has_hidden_gpu():
        raise UserError(
            "training.device=auto: this machine has an NVIDIA GPU that PyTorch does not see; check its driver "
            "and the build of PyTorch, or set training.device=cpu"
        )
    if choice == "cpu" or (choice == "auto" and not gpus):
        return torch.device("cpu")
    if not gpus:
        raise UserError("training.device=cuda needs a GPU, but PyTorch sees none; use cpu or auto")
    torch.backends.cudnn.benchmark = True  # shapes are constant: ``warm_up`` selects the fastest convolutions
    return torch.device("cuda", local_rank % gpus)


def place(model: nn.Module, device: torch.device, *, channels_last: bool, dimensions: int = 2) -> None:
    """Move ``model``, whose convolutions have 2 or 3 ``dimensions``, to ``device``, in place; with
    ``channels_last`` in that memory layout."""
    last = torch.channels_last if dimensions == 2 else torch.channels_last_3d
    layout = last if channels_last else torch.contiguous_format
    model.to(device, memory_format=layout)  # type: ignore[call-overload]


def mover(device: torch.device) -> Callable[[Tensor], Tensor]:
    """Moves tensors to ``device``: to a GPU on a stream of its own, during the step before."""
    if device.type != "cuda":
        return lambda tensor: tensor.to(device)
    copies = torch.cuda.Stream(device)

    def move(tensor: Tensor) -> Tensor:
        with torch.cuda.stream(copies):
            moved = tensor.to(device, non_blocking=True)
        computing = torch.cuda.current_stream(device)
        computing.wait_stream(copies)
        moved.record_stream(computing)  # its memory belongs to the other stream, which must not reuse it yet
        return moved

    return move


class CudaEvent:
    """A point in the queue of the current stream of ``device`` (``DeviceEvent``)."""

    def __init__(self, device: torch.device) -> None:
        self._event = torch.cuda.Event(enable_timing=True)
        self._event.record(torch.cuda.current_stream(device))

    def wait(self) -> None:
        self._event.synchronize()

    def seconds_since(self, earlier: Self) -> float:
        self._event.synchronize()
        return float(earlier._event.elapsed_time(self._event)) / 1e3  # milliseconds


def device_events(device: torch.device) -> RecordEvent | None:
    """Records events on ``device``; None for a CPU, whose steps are done when they return."""
    return None if device.type == "cpu" else lambda: CudaEvent(device)


def peak_memory(device: torch.device) -> int | None:
    """Peak bytes of device memory in PyTorch's tensors; None for a CPU."""
    return None if device.type == "cpu" else torch.cuda.max_memory_allocated(device)


@contextmanager
def oom_as_user_error(what: str = "this run", advice: str = "a smaller batch") -> Iterator[None]:
    """Raise UserError when a GPU, or the host on a CPU, has too little memory for ``what``. Also a decorator."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:  # torch.OutOfMemoryError, and what CUDA's libraries raise
        message = str(error)
        on_host = isinstance(error, MemoryError) or "DefaultCPUAllocator" in message
        out_of_memory = isinstance(error, torch.OutOfMemoryError) or "out of memory" in message.lower()
        if not (on_host or out_of_memory):
            raise
        if on_host:
            reason = message.partition("DefaultCPUAllocator: ")[2] or message or "an allocation failed"
            raise UserError(
                f"this rank has too little host memory for {what} ({reason}); use {advice}, more ranks on more "
                "nodes, or where the benchmark has it training.spatial"
            ) from error
        reason = " ".join(" ".join(message.split()).split(". ")[:2])
        raise UserError(
            f"a GPU has too little memory for {what} ({reason}); use training.precision=mixed_bfloat16, {advice}, "
            "or more GPUs"
        ) from error


def _has_hidden_gpu() -> bool:
    """Whether the driver knows a GPU that is not hidden from PyTorch on purpose."""
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
    return not hidden and any(Path("/proc/driver/nvidia/gpus").glob("*"))
