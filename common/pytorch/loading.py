"""Loaders and PyTorch: what they need before the clock, and their batches as tensors."""

from collections.abc import Iterator
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor

from mlhpc.common.pytorch import dali, workers


def prepare(loader: str, module: str) -> None:
    """Import what ``loader`` needs, and start the fork server for the workers of ``module``: both take seconds,
    which are spent before the clock starts. Raises UserError when DALI is not installed."""
    if loader == "workers":
        workers.start(module)
    elif loader == "dali":
        dali.load()


def as_tensors(
    batches: Iterator[tuple[npt.NDArray[Any], npt.NDArray[Any]]], device: torch.device
) -> Iterator[tuple[Tensor, Tensor]]:
    """NumPy ``batches`` as tensors: the same memory, or page-locked copies for a GPU, which reads these without
    waiting."""
    for x, y in batches:
        tensors = torch.from_numpy(x), torch.from_numpy(y)
        if device.type != "cpu":
            tensors = tensors[0].pin_memory(), tensors[1].pin_memory()
        yield tensors
