"""``mlhpc io calibrate``: what a framework's loader costs beyond reading. Its Python workers spend time on each
batch and sample, and the training loop spends time on each step even if its batch is ready.

The cost is measured in a separate process with the framework's own loader, set up as in DLIO 2.0.0 (data_loader/,
reader/tf_reader.py), on data in memory. Steps are like DLIO's, too: they sleep for the computation and write a
line to a log.
"""

import logging
import math
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mlhpc.common.files.untrusted import read_object
from mlhpc.common.formats.tf_example import encode_features
from mlhpc.common.ranks.collectives import on_rank0
from mlhpc.common.ranks.world import World
from mlhpc.common.timing.waiting import clock
from mlhpc.errors import UserError, install
from mlhpc.iobench.definition.schema import Loader, LoaderCost, Workload

FRAMEWORKS = {"pytorch": "torch", "tensorflow": "tensorflow", "tfrecord": "tensorflow"}
"""The package of each kind of loader. "tfrecord" is TensorFlow's loader that parses records in a Python
function."""
REPEATS, STEPS, AHEAD = 5, 12, 3
"""Number of measurements per figure, steps per measurement, and steps before it, in which the loader gets
ahead."""
COMPUTATION_S = 0.04
"""Emulated computation per step, during which a worker can prepare the large batch. After a shorter sleep, steps
are cheaper."""
FILES, READERS = 16, 4
"""Number of record files, and of parallel reads, when records are in files."""
SMALL, MEDIUM, MANY, LARGE = (1, 4096), (1, 1 << 18), (33, 4096), (2, 2 << 20)
"""Batches as (samples, bytes per sample), chosen to tell apart the cost per batch, per sample and per byte."""


class Estimate(NamedTuple):
    """A time in seconds: the median of ``REPEATS`` measurements, with the smallest and the largest."""

    median: float
    low: float
    high: float


def kind_of(workload: Workload) -> str | None:
    """The kind of loader that a workload uses; None if it uses none."""
    loader: Loader = workload.reader.loader
    if loader == "none" or workload.dataset is None:
        return None
    return "tfrecord" if (loader, workload.dataset.format) == ("tensorflow", "tfrecord") else loader


def with_cost(workload: Workload, given: Path | None, world: World) -> Workload:
    """The workload with the cost of its loader: the workload's own figures, those in the file ``given``, or
    figures measured now. If the framework is not installed, the cost stays unknown and a message says so. Called
    by all ranks. Raises UserError if the file lacks the figures."""
    kind = kind_of(workload)
    if kind is None or workload.reader.loader_cost is not None:
        return workload

    def find() -> dict[str, Any] | None:
        if given:
            return _read(given, kind).model_dump()
        try:
            print(
                f"measuring the cost of the {kind} loader (mlhpc io calibrate can save it)", file=sys.stderr
            )
            return _cost(calibrate(kind)).model_dump()
        except UserError as error:
            print(f"utilisation will exclude the loader's cost: {error}", file=sys.stderr)
            return None

    found = on_rank0(world, find)
    return with_loader_cost(workload, LoaderCost(**found) if found else None)


def with_loader_cost(workload: Workload, cost: LoaderCost | None) -> Workload:
    """Return a copy of the workload with ``cost`` as its loader's cost."""
    return workload.model_copy(update={"reader": workload.reader.model_copy(update={"loader_cost": cost})})


def _read(path: Path, kind: str) -> LoaderCost:
    try:
        return _cost(read_object(path)[kind])
    except (OSError, ValueError, RecursionError, KeyError, TypeError) as error:
        reason = error.strerror if isinstance(error, OSError) else f"has no costs for the {kind} loader"
        raise UserError(f"{path}: {reason}; write it with 'mlhpc io calibrate --out {path}'") from None


def _cost(costs: Mapping[str, Any]) -> LoaderCost:
    worker = {name: costs[name][0] for name in ("batch", "sample", "per_mb")}
    return LoaderCost(**worker, steps=tuple((size, seconds[0]) for size, seconds in costs["steps"]))


def calibrate(kind: str) -> dict[str, Any]:
    """The result of ``measure``, run in a separate process, as JSON. Raises UserError if the framework is not
    installed."""
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor
    from importlib.util import find_spec

    package = FRAMEWORKS[kind]
    if find_spec(package) is None:
        extra = "pytorch" if package == "torch" else "tensorflow"
        raise UserError(
            f"the {kind} loader requires the package {package}, which is not installed; {install(extra)}"
        )
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(measure, kind).result()


def measure(kind: str) -> dict[str, Any]:
    """The fields of ``LoaderCost`` for this kind of loader, in seconds."""
    warnings.simplefilter("ignore")  # that memory is not pinned without an accelerator
    os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "OMP_NUM_THREADS": "1"}
    load = {"pytorch": _pytorch, "tensorflow": _tensorflow, "tfrecord": _tfrecord}[kind]
    small, many, large = (_worker(load(*batch)) for batch in (SMALL, MANY, LARGE))
    with tempfile.TemporaryDirectory(prefix="mlhpc-") as folder:
        # A TFRecordDataset reads files here, because its threads are part of what slows the loop.
        stepping = partial(_tfrecord, folder=Path(folder)) if kind == "tfrecord" else load
        steps = {math.prod(batch) / 1e6: _steps(stepping(*batch)) for batch in (SMALL, MEDIUM, LARGE)}
    more_mb = (math.prod(LARGE) - math.prod(SMALL)) / 1e6
    return {
        "batch": _estimate(small),
        "sample": _growth(small, many, MANY[0] - SMALL[0]),
        "per_mb": _growth(small, large, more_mb),
        "steps": [(size, _estimate(seconds)) for size, seconds in steps.items()],
    }


def _estimate(seconds: list[float]) -> Estimate:
    return Estimate(statistics.median(seconds), min(seconds), max(seconds))


def _growth(less: list[float], more: list[float], by: float) -> Estimate:
    """Seconds per unit of a quantity that is larger by ``by`` units in the measurements ``more`` than in
    ``less``."""
    return _estimate([max(0.0, each - statistics.median(less)) / by for each in more])


def _steps(loader: Iterable[Any]) -> list[float]:
    """Seconds per step beyond its computation, for each repeat."""
    batches = iter(loader)
    with tempfile.NamedTemporaryFile("w") as file, open(os.devnull, "w") as terminal:
        log = logging.getLogger("mlhpc.loader_cost")
        log.propagate, log.handlers = False, [logging.StreamHandler(file), logging.StreamHandler(terminal)]
        log.setLevel(logging.INFO)
        beyond = []
        for repeat in range(REPEATS):
            for step in range(AHEAD + STEPS):
                if step == AHEAD:
                    start = clock()
                batch = next(batches)
                time.sleep(COMPUTATION_S)
                log.info("repeat %d step %d: %d samples", repeat, step, len(batch))
            beyond.append((clock() - start) / STEPS - COMPUTATION_S)
    return [max(0.0, each) for each in beyond]


def _worker(loader: Iterable[Any]) -> list[float]:
    """Seconds that one worker needs per batch, for each repeat: batches are fetched as soon as they are ready."""
    batches: Iterator[Any] = iter(loader)
    seconds = []
    for _ in range(REPEATS):
        for _ in range(AHEAD):
            next(batches)
        start = clock()
        for _ in range(STEPS):
            next(batches)
        seconds.append((clock() - start) / STEPS)
    return seconds


_BATCHES = REPEATS * (AHEAD + STEPS)


def _picture(size: int) -> Any:
    return np.zeros((math.isqrt(size),) * 2, np.uint8)


def _pictures(count: int, size: int) -> list[Any]:
    """A data set like DLIO's TorchDataset, in which every sample is the same picture."""
    return [_picture(size)] * count


def _pytorch(batch: int, size: int) -> Any:
    from torch.utils.data import DataLoader

    pictures: Any = _pictures(batch * (_BATCHES + 2), size)
    return DataLoader(
        pictures, batch_size=batch, num_workers=1, pin_memory=True, drop_last=True, prefetch_factor=2,
        multiprocessing_context="fork", persistent_workers=True,
    )  # fmt: skip


def _tensorflow(batch: int, size: int) -> Any:
    import tensorflow as tf

    def pictures() -> Iterator[Any]:
        while True:
            yield np.array([picture] * batch)

    picture = _picture(size)
    shape = tf.TensorSpec((batch, *picture.shape), tf.uint8)
    return tf.data.Dataset.from_generator(pictures, output_signature=shape).prefetch(2)


def _tfrecord(batch: int, size: int, folder: Path | None = None) -> Any:
    """A loader of one record in memory, or of record files that are created in ``folder``."""
    import tensorflow as tf

    record = encode_features({"image": bytes(size), "size": [math.isqrt(size)]})
    picture = tf.constant(_picture(size))
    features = {"image": tf.io.FixedLenFeature([], tf.string), "size": tf.io.FixedLenFeature([], tf.int64)}

    def parse(records: Any) -> Any:
        tf.io.parse_example(records, features)
        return picture

    def in_python(records: Any) -> Any:
        return tf.py_function(parse, [records], [tf.uint8])

    records = tf.data.Dataset.from_tensors(record)
    if folder:
        paths = [str(folder / f"{size}-{number}") for number in range(FILES)]
        for path in paths:
            with tf.io.TFRecordWriter(path) as writer:
                writer.write(record)
        records = tf.data.TFRecordDataset(
            tf.data.Dataset.from_tensor_slices(paths), num_parallel_reads=READERS
        )
    batches = records.repeat().batch(batch, drop_remainder=True)
    return batches.map(in_python, num_parallel_calls=1).prefetch(2)
