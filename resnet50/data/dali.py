"""Batches made by an NVIDIA DALI pipeline: on its threads, or decoded on the GPU if there is one.

The images are read, and their views drawn, as for the other loaders; DALI gets the bytes as an external
source and decodes only the box of the view. So all formats are supported, and errors name the image.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from mlhpc.common.data.prefetch import read_batches
from mlhpc.common.pytorch.buffers import single_threaded_readers
from mlhpc.common.pytorch.dali import load, new_pipeline, outputs_of
from mlhpc.errors import UserError
from mlhpc.resnet50.data import mlperf
from mlhpc.resnet50.data.augment import MEAN, STD, View
from mlhpc.resnet50.data.formats import Bytes
from mlhpc.resnet50.data.image import BrokenImage, decode
from mlhpc.resnet50.data.reader import Batch, Reader, Sample, finish

_END = b"\xff\xd9"  # of a JPEG


class _Source(NamedTuple):
    """An image as stored, and its view."""

    number: int
    data: Bytes
    view: View
    label: int


def batches(
    batches: Sequence[Sequence[int]], reader: Reader, *, workers: int, prefetch: int, device: str
) -> Generator[Batch, None, None]:
    """``batches`` of image numbers in order, read by ``workers`` threads and decoded by as many of DALI's; by
    the GPU, and then returned there, if ``device`` is not "cpu".

    Raises UserError if DALI is not installed, and naming the image when one cannot be read or decoded.
    """
    dali, fn, types = load()
    if not batches:
        return
    gpu = device != "cpu"
    geometry = _geometry(reader)
    encoded = reader.images.read(batches[0][0])[0].ndim == 1
    in_use: deque[list[_Source]] = deque()  # read in place by DALI: kept until it has finished
    source = read_batches(
        batches,
        allocate=lambda samples: (None, [()] * samples),
        read=partial(_take, reader),
        finish=lambda _, sources: sources,
        workers=workers,
        prefetch=prefetch,
        threads=single_threaded_readers,
    )

    def feed() -> Iterator[tuple[list[Any], ...]]:
        for sources in source:
            in_use.append(sources)
            yield _columns(sources, geometry)

    pipeline = new_pipeline(dali, max(map(len, batches)), workers, device)
    with pipeline:
        data, start, shape, *where = fn.external_source(
            source=feed,
            num_outputs=3 + len(geometry),
            batch=True,
            dtype=[types.UINT8] + [types.INT32] * 2 + [types.FLOAT] * len(geometry),
            ndim=[1 if encoded else 3, 1, 1, *(dimensions for _, dimensions in geometry)],
        )
        if encoded:
            box = fn.decoders.image_slice(
                data, start=start, shape=shape, axes=(0, 1), device="mixed" if gpu else "cpu"
            )
        else:
            box = fn.slice(data.gpu() if gpu else data, start=start, shape=shape, axes=(0, 1))
        pipeline.set_outputs(_render(reader, fn, types, box, where))
    with outputs_of(pipeline, source) as next_output:
        for _ in batches:
            try:
                x = next_output()
            except RuntimeError as error:
                raise _as_user_error(reader, in_use, error) from error
            sources = in_use.popleft()
            _, y, total, _ = finish(x, [Sample(source.label, source.data.nbytes) for source in sources], gpu)
            yield x, y.to(x.device, non_blocking=True), total, ()


def _columns(
    sources: Sequence[_Source], geometry: Sequence[tuple[Callable[[View], Any], int]]
) -> tuple[list[Any], ...]:
    """The pipeline's inputs for each image: its bytes; top left corner and extent of the box to decode; and the
    results of ``geometry`` for its view."""
    views = [source.view for source in sources]
    return (
        [source.data for source in sources],
        [np.array((view.top, view.left), np.int32) for view in views],
        [np.array((view.height, view.width), np.int32) for view in views],
        *([np.array(kind(view), np.float32) for view in views] for kind, _ in geometry),
    )


def _geometry(reader: Reader) -> list[tuple[Callable[[View], Any], int]]:
    """DALI's inputs for each view besides its box: a function of the view, and its number of dimensions."""
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
    """The affine map from output to box, columns before rows, with the sampling points of ``mlperf.render``.
    DALI's coordinates refer to a pixel's corner, half a pixel before its centre."""
    rows, columns = view.height / view.rows, view.width / view.columns
    right = columns * (view.right - 0.5) + 0.5
    across = [-columns, 0, view.width - right] if view.mirrored else [columns, 0, right]
    return [across, [0, rows, rows * (view.down - 0.5) + 0.5]]


def _render(reader: Reader, fn: Any, types: Any, box: Any, where: list[Any]) -> Any:
    """The operators from a box's pixels to the network's input."""
    side = reader.size
    if reader.preprocessing == "mlperf":
        (matrix,) = where
        # Beyond the centre of the last pixel the edge is repeated, as in TensorFlow.
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


def _take(reader: Reader, index: int) -> _Source:
    data, label = reader.images.read(index)
    try:
        # DALI silently fills the missing part of a truncated image.
        if data.ndim == 1 and _END not in data[-1024:].tobytes():
            decode(data)
        return _Source(index, data, reader.view(index, data), label)
    except BrokenImage as error:
        raise reader.named(index, error) from error


def _as_user_error(reader: Reader, batches: Sequence[Sequence[_Source]], error: RuntimeError) -> UserError:
    """An error naming the image that DALI could not decode, if our decoder also fails on it."""
    for source in (source for sources in batches for source in sources):
        try:
            decode(source.data)
        except BrokenImage as broken:
            return reader.named(source.number, broken)
    return UserError(f"loading.loader=dali: {' '.join(str(error).split())[:300]}; set loading.loader=threads")
