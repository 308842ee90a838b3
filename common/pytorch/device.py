"""The device that a rank trains on: which one, its events, its memory."""

from typing import Self

import torch
from torch import nn

from mlhpc.common.timing.steps import RecordEvent
from mlhpc.errors import UserError


def pick_device(choice: str, local_rank: int) -> torch.device:
    """``training.device``: "cpu", "cuda" (the rank's own GPU of its node), or "auto", the GPU where there is one.

    Raises ``UserError`` when "cuda" is asked for and PyTorch sees no GPU.
    """
    gpus = torch.cuda.device_count()
    if choice == "cpu" or (choice == "auto" and not gpus):
        return torch.device("cpu")
    if not gpus:
        raise UserError("training.device=cuda needs a GPU, and PyTorch sees none; use cpu or auto")
    torch.backends.cudnn.benchmark = True  # shapes stay: the fastest convolutions are found in ``warm_up``
    return torch.device("cuda", local_rank % gpus)


def place(model: nn.Module, device: torch.device, *, channels_last: bool) -> None:
    """Move ``model`` to ``device``, in place; with ``channels_last`` in that memory layout."""
    layout = torch.channels_last if channels_last else torch.contiguous_format
    model.to(device, memory_format=layout)  # type: ignore[call-overload]


class CudaEvent:
    """A point in the queue of the current stream of ``device`` (``DeviceEvent``)."""

    def __init__(self, device: torch.device) -> None:
        self._event = torch.cuda.Event(enable_timing=True)
        self._event.record(torch.cuda.current_stream(device))

    def wait(self) -> None:
        self._event.synchronize()

    def seconds_since(self, earlier: Self) -> float:
        self._event.synchronize()
        return float(earlier._event.elapsed_time(self._event)) / 1e3  # it gives milliseconds


def device_events(device: torch.device) -> RecordEvent | None:
    """Records events on ``device``; None for a CPU, whose steps are done when they return."""
    return None if device.type == "cpu" else lambda: CudaEvent(device)


def peak_memory(device: torch.device) -> int | None:
    """Bytes of device memory that PyTorch's tensors have taken at most; None for a CPU."""
    return None if device.type == "cpu" else torch.cuda.max_memory_allocated(device)
