"""Batches decoded and resized by an NVIDIA DALI pipeline. Images are read, and their views drawn, as for the other
loaders; DALI decodes only the box of the view."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from mlhpc.common.data.loader import Parts
from mlhpc.resnet50.data import mlperf
from mlhpc.resnet50.data.augment import MEAN, STD, View
from mlhpc.resnet50.data.formats import Bytes
from mlhpc.resnet50.data.image import BrokenImage, decode
from mlhpc.resnet50.data.reader import Batch, Reader, Sample

_END = b"\xff\xd9"  # of a JPEG file


class _Source(NamedTuple):
    """An image as stored, and its view."""

    number: int
    data: Bytes
    view: View
    label: int


class DecodedByDali:
    """A ``common.pytorch.dali.Pipeline`` over ``reader`` that decodes on the GPU if ``gpu``."""

    parts: Parts = ()

    def __init__(self, reader: Reader, gpu: bool) -> None:
        self._reader, self._gpu, self._geometry = reader, gpu, _geometry(reader)

    def read(self, index: int) -> _Source:
        """Read an image as stored. Raises a UserError that names it."""
        data, label = self._reader.images.read(index)
        try:
            # DALI would silently fill the missing part of a truncated image.
            if data.ndim == 1 and _END not in data[-1024:].tobytes():
                decode(data)
            return _Source(index, data, self._reader.view(index, data), label)
        except BrokenImage as error:
            raise self._reader.named(index, error) from error

    def finish(self, arrays: Sequence[Any], results: list[_Source]) -> list[_Source]:
        """Return the sources themselves as the batch, since DALI decodes them."""
        return results

    def inputs(self, batch: list[_Source]) -> tuple[list[Any], ...]:
        """For each image: its bytes; the top left corner and the extent of the box to decode; and the results of
        ``_geometry`` for its view."""
        views = [source.view for source in batch]
        return (
            [source.data for source in batch],
            [np.array((view.top, view.left), np.int32) for view in views],
            [np.array((view.height, view.width), np.int32) for view in views],
            *([np.array(kind(view), np.float32) for view in views] for kind, _ in self._geometry),
        )

    def outputs(self, fn: Any, types: Any, feed: Callable[[], Any], key: int) -> Any:
        """Like ``dali.Pipeline.outputs``; the output consists of the decoded and resized images."""
        encoded = self._reader.images.read(key)[0].ndim == 1
        data, start, shape, *where = fn.external_source(
            source=feed,
            num_outputs=3 + len(self._geometry),
            batch=True,
            dtype=[types.UINT8] + [types.INT32] * 2 + [types.FLOAT] * len(self._geometry),
            ndim=[1 if encoded else 3, 1, 1, *(dimensions for _, dimensions in self._geometry)],
        )
        box = {"start": start, "shape": shape, "axes": (0, 1)}
        if encoded:
            pixels = fn.decoders.image_slice(data, **box, device="mixed" if self._gpu else "cpu")
        else:
            pixels = fn.slice(data.gpu() if self._gpu else data, **box)
        return _render(self._reader, fn, types, pixels, where)

    def collect(self, x: torch.Tensor, batch: list[_Source]) -> Batch:
        """The batch of ``x`` [b, 3, size, size] and its labels."""
        samples = [Sample(source.label, source.data.nbytes) for source in batch]
        _, y, total, _ = self._reader.finish((x,), samples)
        return x, y.to(x.device, non_blocking=True), total, ()

    @contextmanager
    def errors(self, in_use: Sequence[list[_Source]]) -> Iterator[None]:
        """Context manager that replaces DALI's error with one that names the image, if the suite's decoder also
        fails to decode it."""
        try:
            yield
        except RuntimeError:
            for source in (source for batch in in_use for source in batch):
                try:
                    decode(source.data)
                except BrokenImage as broken:
                    raise self._reader.named(source.number, broken) from broken
            raise


def _geometry(reader: Reader) -> list[tuple[Callable[[View], Any], int]]:
    """DALI's inputs for each view in addition to its box: pairs of a function of the view and the number of
    dimensions of its result."""
    size = reader.size
    if reader.preprocessing == "mlperf":
        return [(partial(_pixels_seen, size=size), 2)]
    return [
        (lambda view: (view.rows, view.columns), 1),
        (lambda view: view.down / max(1, view.rows - size), 0),
        (lambda view: view.right / max(1, view.columns - size), 0),
        (lambda view: view.mirrored, 0),
    ]


def _pixels_seen(view: View, size: int) -> list[list[float]]:
    """The affine map from output to box (columns before rows) that yields the sampling points of
    ``mlperf.render``. DALI's coordinates refer to a pixel's corner, which is half a pixel before its centre."""
    rows, columns = view.height / view.rows, view.width / view.columns
    right = columns * (view.right - 0.5) + 0.5
    across = [-columns, 0, view.width - right] if view.mirrored else [columns, 0, right]
    return [across, [0, rows, rows * (view.down - 0.5) + 0.5]]


def _render(reader: Reader, fn: Any, types: Any, box: Any, where: list[Any]) -> Any:
    """Add the operators that turn a box's pixels into the network's input."""
    side = reader.size
    if reader.preprocessing == "mlperf":
        (matrix,) = where
        # Beyond the centre of the last pixel, the edge is repeated as in TensorFlow.
        resized = fn.warp_affine(
            box,
            matrix=matrix,
            size=(side, side),
            inverse_map=True,
            dtype=types.FLOAT,
            interp_type=types.INTERP_LINEAR,
        )
        return fn.crop_mirror_normalize(
            resized, mean=list(mlperf.MEAN), std=[1.0], dtype=types.FLOAT, output_layout="HWC"
        )
    size, down, right, mirror = where
    resized = fn.resize(box, size=size, interp_type=types.INTERP_LINEAR, antialias=True)
    return fn.crop_mirror_normalize(
        resized,
        crop=(side, side),
        crop_pos_y=down,
        crop_pos_x=right,
        mirror=fn.cast(mirror, dtype=types.INT32),
        mean=[255 * mean for mean in MEAN],
        std=[255 * std for std in STD],
        dtype=types.FLOAT,
        output_layout="HWC",
    )
