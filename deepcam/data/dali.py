"""Batches normalised by an NVIDIA DALI pipeline. With a GPU, the field is transferred as stored and normalised on
the GPU."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from mlhpc.common.pytorch.loading import TensorPair
from mlhpc.deepcam.data.hdf5 import Statistics
from mlhpc.deepcam.data.sample import Reader, shift_and_scale


class NormalisedByDali:
    """A ``common.pytorch.dali.Pipeline`` over ``reader``, which reads samples as they are stored."""

    def __init__(self, reader: Reader, statistics: Statistics, device: str) -> None:
        self.parts, self.read, self.finish = reader.parts, reader.read, reader.finish
        self._shape, self._statistics, self._gpu = reader.shape, statistics, device != "cpu"

    def inputs(self, batch: tuple[TensorPair, int]) -> list[npt.NDArray[np.float32]]:
        """The fields of the samples, each [rows, columns · channels]."""
        (x, _), _ = batch
        return [field.reshape(len(field), -1) for field in x.numpy()]  # a row is one axis

    def outputs(self, fn: Any, types: Any, feed: Callable[[], Any], key: Any) -> Any:
        """The pipeline's output: fields normalised by channel, of shape (rows, columns · channels)."""
        field = fn.external_source(source=feed, batch=True, dtype=types.FLOAT, ndim=2, no_copy=True)
        rows = shift_and_scale(self._statistics, self._shape[1])
        shift, scale = (types.Constant(row[None], device="gpu" if self._gpu else "cpu") for row in rows)
        return ((field.gpu() if self._gpu else field) - shift) * scale

    def collect(self, x: Tensor, batch: tuple[TensorPair, int]) -> tuple[TensorPair, int]:
        """Reshape ``x`` [b, rows, columns · channels] to [b, rows, columns, channels], and add the masks."""
        (_, y), size = batch
        return (x.view(-1, *self._shape), y.to(x.device, non_blocking=True)), size

    def errors(self, in_use: Sequence[Any]) -> AbstractContextManager[None]:
        """Does nothing: samples are decoded before they enter the pipeline, so none of them can cause an error in
        it."""
        return nullcontext()
