"""Batches made by an NVIDIA DALI pipeline: on its threads, or decoded on the GPU where there is one.

The images are read as for the other loaders, and their views drawn as there; DALI takes the bytes from there
(an external source) and decodes only the box that is seen. So every format can be read, and every error names
its image.
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
from mlhpc.resnet50.data.image import BrokenImage, Bytes, decode
from mlhpc.resnet50.data.reader import Batch, Reader, Sample, finish

_END = b"\xff\xd9"  # of a JPEG


class _Source(NamedTuple):
    """An image as stored, and how it is seen."""

    number: int
    data: Bytes
    view: View
    label: int


def batches(
    batches: Sequence[Sequence[int]], reader: Reader, *, workers: int, prefetch: int, device: str
) -> Generator[Batch, None, None]:
    """``batches`` of image numbers in order, read by ``workers`` threads and decoded by as many of DALI's; by
    the GPU, and handed out there, when ``device`` is not "cpu".

    Raises UserError when DALI is not installed, and naming the image when one cannot be read or decoded.
    """
    dali, fn, types = load()
    if not batches:
        return
    gpu = device != "cpu"
    geometry = _geometry(reader)
    encoded = reader.images.read(batches[0][0])[0].ndim == 1
    taken: deque[list[_Source]] = deque()  # by DALI, which reads them in place: kept until it is done
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
            taken.append(sources)
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
                raise _as_user_error(reader, taken, error) from error
            sources = taken.popleft()
            _, y, total, _ = finish(x, [Sample(one.label, one.data.nbytes) for one in sources], gpu)
            yield x, y.to(x.device, non_blocking=True), total, ()


def _columns(
    sources: Sequence[_Source], geometry: Sequence[tuple[Callable[[View], Any], int]]
) -> tuple[list[Any], ...]:
    """What the pipeline takes for each image: its bytes; the box that is seen, its top left corner and its extent;
    and what ``geometry`` makes of its view."""
    views = [one.view for one in sources]
    return (
        [one.data for one in sources],
        [np.array((view.top, view.left), np.int32) for view in views],
        [np.array((view.height, view.width), np.int32) for view in views],
        *([np.array(kind(view), np.float32) for view in views] for kind, _ in geometry),
    )


def _geometry(reader: Reader) -> list[tuple[Callable[[View], Any], int]]:
    """What DALI is told of each view besides its box: how to make it, and how many dimensions it has."""
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
    """The affine map from output to box, columns before rows, that samples where ``mlperf.render`` does. DALI
    counts from a pixel's corner, half a pixel before its centre."""
    rows, columns = view.height / view.rows, view.width / view.columns
    right = columns * (view.right - 0.5) + 0.5
    across = [-columns, 0, view.width - right] if view.mirrored else [columns, 0, right]
    return [across, [0, rows, rows * (view.down - 0.5) + 0.5]]


def _render(reader: Reader, fn: Any, types: Any, box: Any, where: list[Any]) -> Any:
    """The operators from a box's pixels to what the network sees."""
    side = reader.size
    if reader.preprocessing == "mlperf":
        (matrix,) = where
        # Beyond the last pixel's centre the edge is repeated, as in TensorFlow.
        seen = fn.warp_affine(
            box,
            matrix=matrix,
            size=(side, side),
            inverse_map=True,
            dtype=types.FLOAT,
            interp_type=types.INTERP_LINEAR,
        )
        return fn.crop_mirror_normalize(
            seen, mean=list(mlperf.MEAN), std=[1.0], dtype=types.FLOAT, output_layout="HWC"
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
        # DALI fills what is missing of a truncated image without a word.
        if data.ndim == 1 and _END not in data[-1024:].tobytes():
            decode(data)
        return _Source(index, data, reader.view(index, data), label)
    except BrokenImage as error:
        raise reader.named(index, error) from error


def _as_user_error(reader: Reader, taken: Sequence[Sequence[_Source]], error: RuntimeError) -> UserError:
    """The image that DALI could not decode, where ours cannot either."""
    for one in (one for sources in taken for one in sources):
        try:
            decode(one.data)
        except BrokenImage as broken:
            return reader.named(one.number, broken)
    return UserError(f"loading.loader=dali: {' '.join(str(error).split())[:300]}; set loading.loader=threads")
