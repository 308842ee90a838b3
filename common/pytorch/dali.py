"""NVIDIA DALI, where it is installed."""

from collections import deque
from importlib import import_module
from types import ModuleType
from typing import Any

import torch
import torch.utils.dlpack
from torch import Tensor

from mlhpc.errors import UserError


def load() -> tuple[ModuleType, ModuleType, ModuleType]:
    """The modules ``nvidia.dali``, ``.fn`` and ``.types``; the first time takes seconds. Raises UserError."""
    try:
        dali, fn, types = (import_module(f"nvidia.dali{part}") for part in ("", ".fn", ".types"))
    except ImportError as error:
        raise UserError(
            f"loading.loader=dali: NVIDIA DALI cannot be loaded ({error}); install it with "
            "pip install 'mlhpc[dali]', or set loading.loader=threads"
        ) from error
    return dali, fn, types


class Outputs:
    """What a pipeline hands out, as tensors that are the caller's to keep.

    On a GPU they are copies in PyTorch's memory: DALI uses its own again when Python lets go of it, and does not
    know that a stream of PyTorch's is yet to read it. What was copied is held until the copy is done.
    """

    def __init__(self) -> None:
        self._held: deque[tuple[torch.cuda.Event, Tensor]] = deque()

    def tensor(self, output: Any) -> Tensor:
        """``output``, a list of tensors of one shape, as one tensor."""
        made: Tensor = torch.utils.dlpack.from_dlpack(output.as_tensor())
        if made.device.type == "cpu":
            return made
        while self._held and self._held[0][0].query():
            self._held.popleft()
        copy, copied = made.clone(), torch.cuda.Event()
        copied.record()
        self._held.append((copied, made))
        return copy

    def close(self) -> None:
        """Wait for the copies; before the pipeline is shut down."""
        for copied, _ in self._held:
            copied.synchronize()
        self._held.clear()
