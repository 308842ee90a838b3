"""The loader's batches as tensors on the host, or on the device if they are decoded there; in that case, keys and
tables of the lookup-table codec are transferred, and one look-up decodes a batch."""

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from mlhpc.common.data.codecs import dtypes
from mlhpc.common.pytorch.buffers import page_lock
from mlhpc.common.pytorch.devices import mover, oom_as_user_error
from mlhpc.common.pytorch.loading import TensorPair, as_tensor, pinned
from mlhpc.cosmoflow.data.augment import SYMMETRIES
from mlhpc.cosmoflow.data.encoded import Encoded
from mlhpc.cosmoflow.data.source import Batch


def converter(sample_dtype: str, device: torch.device) -> Callable[[Batch], TensorPair]:
    """Return a function that converts a batch of the loader to the tensors ``x``, of type ``sample_dtype``, and
    ``y``."""
    move = mover(device)

    def as_tensors(batch: Batch) -> TensorPair:
        x, y = batch
        targets = pinned(torch.from_numpy(y), device)
        if isinstance(x, Encoded):
            with oom_as_user_error("decoding a batch", "loading.decode=host"):
                return decode(x, sample_dtype, lambda part: move(pinned(part, device))), targets
        return pinned(as_tensor(x, sample_dtype), device), targets

    return as_tensors


def decode(batch: Encoded, sample_dtype: str, move: Callable[[Tensor], Tensor]) -> Tensor:
    """Decode ``batch`` to ``[b, n, n, n, channels]`` in the type ``sample_dtype``, on the device to which ``move``
    moves tensors. The result is bit-identical to decoding on the host."""
    # PyTorch has few operations on uint16, so keys are transferred as int16 and made unsigned on the device.
    keys = move(torch.from_numpy(batch.keys.view(np.int16))).int() & 0xFFFF
    starts, voxels = move(torch.from_numpy(batch.starts)), move(torch.from_numpy(batch.voxels))
    rows = keys + torch.repeat_interleave(starts, voxels, output_size=len(batch.keys))
    x = move(as_tensor(batch.tables, sample_dtype)).index_select(0, rows).view(batch.shape)
    if not any(batch.symmetries):
        return x
    return torch.stack(
        [_turned(sample, symmetry) for sample, symmetry in zip(x, batch.symmetries, strict=True)]
    )


def warm_up(samples: int, shape: tuple[int, ...], sample_dtype: str, device: torch.device) -> None:
    """Decode batches of zeros, whose samples have ``shape`` and consist of one block, and allocate
    page-locked memory for each entry of a batch; called before the clock starts."""
    convert = converter(sample_dtype, device)
    voxels, table = (
        np.full(samples, math.prod(shape[:3])),
        np.zeros((1, shape[3]), dtypes.NUMPY[sample_dtype]),
    )
    keys, starts = np.zeros(voxels.sum(), np.uint16), np.zeros(samples, np.int32)
    for symmetries in ((0,) * samples, tuple(1 + n % 47 for n in range(samples))):
        batch = Encoded((samples, *shape), keys, table, starts, voxels, symmetries)
        convert((batch, np.zeros((samples, 1), np.float32)))
    page_lock(keys.nbytes, 3)


def _turned(sample: Tensor, symmetry: int) -> Tensor:
    """``augment.apply_symmetry`` for a tensor [n, n, n, ...]."""
    axes, flips = SYMMETRIES[symmetry]
    return sample.permute(*axes, 3).flip([axis for axis, flip in enumerate(flips) if flip])
