"""Arrays of samples as tensors."""

from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor

TensorPair = tuple[Tensor, Tensor]


def dtype_of(sample_dtype: str) -> torch.dtype:
    """PyTorch's type of samples delivered as ``sample_dtype``."""
    dtype: torch.dtype = getattr(torch, sample_dtype)
    return dtype


def as_tensor(array: npt.NDArray[Any], sample_dtype: str) -> Tensor:
    """An array of samples as a tensor in the same memory. NumPy has no bfloat16: arrays hold its bits. Of the
    same shape."""
    return torch.from_numpy(array).view(dtype_of(sample_dtype))


def as_array(tensor: Tensor) -> npt.NDArray[Any]:
    """A tensor on the host as an array in the same memory, of bits for bfloat16. Of the same shape."""
    return tensor.view(torch.uint16).numpy() if tensor.dtype == torch.bfloat16 else tensor.numpy()


def pinned(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor, or a page-locked copy for asynchronous transfers to a GPU. Of the same shape."""
    return tensor if device.type == "cpu" else tensor.pin_memory()
