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
    """An array of samples as a tensor of the same shape in the same memory. NumPy has no bfloat16, so such arrays
    contain its bits as integers."""
    return torch.from_numpy(array).view(dtype_of(sample_dtype))


def as_array(tensor: Tensor) -> npt.NDArray[Any]:
    """A tensor on the host as an array of the same shape in the same memory; for bfloat16, an array of its bits as
    integers."""
    return tensor.view(torch.uint16).numpy() if tensor.dtype == torch.bfloat16 else tensor.numpy()


def pinned(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor, or, for asynchronous transfers to a GPU, a page-locked copy of the same shape."""
    return tensor if device.type == "cpu" else tensor.pin_memory()
