"""Batches normalised by an NVIDIA DALI pipeline: on its threads, or on the GPU if there is one.

The samples are read and checked as for the loader "threads", as they are stored; DALI gets them as an external
source, so that every file layout can be read and every error names its file. On the GPU
the field is transferred as stored and normalised there.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from mlhpc.common.formats.archive import Sample
from mlhpc.common.pytorch.dali import load, new_pipeline, outputs_of
from mlhpc.deepcam.data.hdf5 import Statistics
from mlhpc.deepcam.data.sample import Batch, shift_and_scale


def batches(
    batches: Sequence[Sequence[Sample]],
    *,
    read: Callable[[Sequence[Sequence[Sample]]], Generator[Batch, None, None]],
    shape: tuple[int, int, int],
    statistics: Statistics,
    workers: int,
    device: str,
) -> Generator[Batch, None, None]:
    """``batches`` in order, read by ``read`` as stored, normalised by ``workers`` threads of DALI, or on the GPU,
    and then returned there, if ``device`` is not "cpu". ``shape`` is that of a sample.

    Raises UserError if DALI is not installed, and naming the file when one cannot be read.
    """
    dali, fn, types = load()
    if not batches:
        return
    source = read(batches)
    in_use: deque[Batch] = deque()  # read in place by DALI: kept until it is done

    def feed() -> Iterator[list[npt.NDArray[np.float32]]]:
        for batch in source:
            in_use.append(batch)
            yield [field.reshape(len(field), -1) for field in batch[0].numpy()]  # a row is one axis

    place = "cpu" if device == "cpu" else "gpu"
    pipeline = new_pipeline(dali, max(map(len, batches)), workers, device)
    with pipeline:
        field = fn.external_source(source=feed, batch=True, dtype=types.FLOAT, ndim=2, no_copy=True)
        shift, scale = (
            types.Constant(row[None], device=place) for row in shift_and_scale(statistics, shape[1])
        )
        pipeline.set_outputs(((field if place == "cpu" else field.gpu()) - shift) * scale)
    with outputs_of(pipeline, source) as next_output:
        for _ in batches:
            x = next_output()  # waits until it is ready: its source is free then
            _, y, size = in_use.popleft()
            yield x.view(-1, *shape), y.to(x.device, non_blocking=True), size
