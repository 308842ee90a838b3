"""Batches normalised by an NVIDIA DALI pipeline: on its threads, or on the GPU where there is one.

The samples are read and checked as for the loader of threads, as they are stored; DALI takes them from there
(an external source), so that every layout of files can be read and every error names its file. On the GPU
the field travels as it is stored and is normalised there.
"""

from collections import deque
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from mlhpc.common.pytorch.dali import Outputs, load
from mlhpc.deepcam.data import threads
from mlhpc.deepcam.data.hdf5 import Statistics
from mlhpc.deepcam.data.sample import Reader, shift_and_scale
from mlhpc.deepcam.data.threads import Item


def batches(
    reader: Reader,
    statistics: Statistics,
    batches: Sequence[Sequence[Path]],
    readers: int,
    ahead: int,
    device: str,
    memory: threads.Memory,
) -> Generator[Item, None, None]:
    """``batches`` in order, read by ``readers`` threads and normalised by as many of DALI's; on the GPU, and
    handed out there, when ``device`` is not "cpu". ``reader`` is one that does not normalise.

    Raises UserError when DALI is not installed, and naming the file when one cannot be read.
    """
    dali, fn, types = load()
    if not batches:
        return
    source = threads.batches(reader, batches, readers, ahead, memory)
    taken: deque[Item] = deque()  # by DALI, which reads them where they are: kept until it is done

    def feed() -> Iterator[list[npt.NDArray[np.float32]]]:
        for item in source:
            taken.append(item)
            yield [field.reshape(len(field), -1) for field in item[0].numpy()]  # a row is one axis

    gpu = device != "cpu"
    pipeline: Any = dali.Pipeline(
        batch_size=max(map(len, batches)),
        num_threads=readers,
        device_id=torch.cuda.current_device() if gpu else None,
        exec_dynamic=True,  # what it hands out is ours to keep
    )
    with pipeline:
        field = fn.external_source(source=feed, batch=True, dtype=types.FLOAT, ndim=2, no_copy=True)
        shift, scale = (
            types.Constant(row[None], device="gpu" if gpu else "cpu")
            for row in shift_and_scale(statistics, reader.shape[1])
        )
        pipeline.set_outputs(((field.gpu() if gpu else field) - shift) * scale)
    outputs = Outputs()
    try:
        for _ in batches:
            (fields,) = pipeline.run()  # waits until they are ready: what they were made from is free
            x = outputs.tensor(fields)
            _, y, size = taken.popleft()
            yield x.view(-1, *reader.shape), y.to(x.device, non_blocking=True), size
    finally:
        outputs.close()
        pipeline._shutdown()  # what DALI still works on must not be freed under it
        source.close()
