"""Profiles CosmoFlow's training step with TensorFlow's profiler, on zeros in memory or on samples of a data
set."""

import os
import re
import shutil
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf
from tensorflow.tsl.profiler.protobuf.xplane_pb2 import XSpace

from mlhpc.benchmarks.cosmoflow import CosmoFlow
from mlhpc.common.ranks.world import World
from mlhpc.common.timing.profile import Feed, Part, Profile, Request, Work, plain_seconds
from mlhpc.common.training.dataset import open_loader
from mlhpc.cosmoflow.data.source import CosmoFlowSource, open_data
from mlhpc.cosmoflow.tf.batches import as_tensors
from mlhpc.cosmoflow.tf.device import to_device, use_one_gpu
from mlhpc.cosmoflow.tf.model import require_precision
from mlhpc.cosmoflow.tf.step import make_optimizer, make_train_step
from mlhpc.cosmoflow.tf.train import network

if TYPE_CHECKING:
    from mlhpc.cosmoflow.tf.exchange import HorovodTimes

_OPERATION = re.compile(r"[\w./-]+:\w+")  # node of the graph, colon, type of the operation
_BACKWARD = "gradient_tape/"
_OPTIMIZERS = ("sgd", "adam", "loss_scale_optimizer")
_INPUT = ("Log1p", "Cast")


def profile(run: CosmoFlow, request: Request, world: World) -> Profile:
    """Profile the requested steps, which are the same as in ``train``. Called by all ranks. ``request.trace``:
    folder to which the trace is written, for TensorBoard's profiler."""
    require_precision(run.training.precision)
    device = use_one_gpu(world.local_rank)
    model = network(run, device, 1, world)
    exchange = _exchange(world, on_host=device is None)
    average = exchange.average if exchange else None
    optimizer = make_optimizer(run.hyperparameters, run.training.precision)
    step = make_train_step(model, optimizer, average, run.loading.sample_dtype)
    feed = _feed(run, request, world, device)
    step(*feed.next()).numpy()
    plain = plain_seconds(lambda: step(*feed.next()), lambda loss: loss.numpy(), request.steps)
    space, wall = _traced(step, feed, request, exchange)
    layers = [layer.name for layer in model.layers]
    modules = [layer.name for layer in model.layers if layer.weights]
    name = device or f"CPU, {os.environ.get('TF_NUM_INTRAOP_THREADS') or 'all'} threads"
    work = list(_work(space, layers, request.steps))
    exchanged = exchange.exchange(request.steps) if exchange else None
    if exchanged and exchanged.exposed is not None:
        # TensorFlow's trace contains only the launch of Horovod's operation.
        work = [each for each in work if each.part != "communication"]
        work.append(Work("communication", "", "all-reduce", exchanged.exposed, 1))
    reading = feed.reading(request.steps)
    return Profile(
        str(name),
        request.batch,
        request.steps,
        wall,
        tuple(modules),
        tuple(work),
        exchanged,
        reading,
        plain,
        gpu=device is not None,
    )


def _feed(run: CosmoFlow, request: Request, world: World, device: str | None) -> Feed:
    sample_dtype = run.loading.sample_dtype
    if request.data is None:
        x = tf.zeros((request.batch, *run.data.sample_shape), sample_dtype)
        y = np.zeros((request.batch, run.network.targets), np.float32)
        return Feed(lambda _: repeat((x, y)))
    dataset = open_data(run, request.data, world)
    source = CosmoFlowSource.of(run, dataset, gpu=device is not None)
    loader = open_loader(run, dataset, None, source, request.batch, 1, world)
    convert = partial(as_tensors, sample_dtype=sample_dtype)
    return Feed(
        lambda epoch: to_device(loader.train_epoch(epoch), device, convert), lambda: loader.bytes_read
    )


def _exchange(world: World, on_host: bool) -> "HorovodTimes | None":
    if world.size == 1:  # needs no Horovod
        return None
    from mlhpc.cosmoflow.tf.exchange import HorovodTimes

    return HorovodTimes(world, on_host)


def _traced(
    step: Callable[[Any, Any], Any], feed: Feed, request: Request, exchange: "HorovodTimes | None"
) -> tuple[Any, float]:
    """TensorFlow's trace of the requested steps, and the seconds per step."""
    folder = Path(tempfile.mkdtemp(prefix="mlhpc-profile-"))
    options = tf.profiler.experimental.ProfilerOptions(host_tracer_level=2, python_tracer_level=0)
    try:
        with exchange.recorded(request.steps) if exchange else nullcontext():
            tf.profiler.experimental.start(str(folder), options)
            try:
                feed.start()
                begin = time.perf_counter()
                for _ in range(request.steps):
                    loss = step(*feed.next())
                loss.numpy()  # waits for the device
                wall = (time.perf_counter() - begin) / request.steps
            finally:
                tf.profiler.experimental.stop()
        (written,) = folder.rglob("*.xplane.pb")
        if request.trace:
            shutil.copytree(folder, request.trace, dirs_exist_ok=True)
        return XSpace.FromString(written.read_bytes()), wall
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _work(space: Any, layers: Sequence[str], steps: int) -> Iterator[Work]:
    """The work of the graph's operations: on a GPU, measured from their kernels; otherwise, on the host."""
    gpus = [plane for plane in space.planes if plane.name.startswith("/device:GPU")]
    seconds: defaultdict[tuple[Part, str, str], float] = defaultdict(float)
    calls: Counter[tuple[Part, str, str]] = Counter()
    for plane in gpus or [plane for plane in space.planes if plane.name == "/host:CPU"]:
        for line in plane.lines:
            for event, own in _own_times(line.events, plane):
                if operation := _operation(event, plane):
                    key = _place(operation, layers)
                    seconds[key] += own / 1e12
                    calls[key] += 1
    for key, total in seconds.items():
        yield Work(*key, total / steps, calls[key] / steps)


def _operation(event: Any, plane: Any) -> str:
    """The ``node:type`` of an event that is an operation; an empty string for other events."""
    name = str(plane.event_metadata[event.metadata_id].name)
    if plane.name == "/host:CPU":
        return name if _OPERATION.fullmatch(name) else ""
    for stat in event.stats:
        if plane.stat_metadata[stat.metadata_id].name == "tf_op":
            return str(stat.str_value or plane.stat_metadata[stat.ref_value].name)
    return f"kernel:{name}"


def _own_times(events: Sequence[Any], plane: Any) -> Iterator[tuple[Any, int]]:
    """The operations of one thread, each with its duration in picoseconds, excluding nested operations."""
    inside: list[tuple[Any, int]] = []
    for event in sorted(events, key=lambda e: (e.offset_ps, -e.duration_ps)):
        if not _operation(event, plane):
            continue
        while inside and inside[-1][0].offset_ps + inside[-1][0].duration_ps <= event.offset_ps:
            yield inside.pop()
        if inside:
            around, own = inside[-1]
            inside[-1] = around, own - event.duration_ps
        inside.append((event, event.duration_ps))
    yield from reversed(inside)


def _place(operation: str, layers: Sequence[str]) -> tuple[Part, str, str]:
    node, _, kind = operation.rpartition(":")
    backward = node.startswith(_BACKWARD)
    scopes = node.removeprefix(_BACKWARD).split("/")
    layer = next((name for scope in scopes if (name := _layer(scope, layers))), "")
    if any(scope.startswith(_OPTIMIZERS) for scope in scopes[:1]):
        return "optimizer", "", kind
    if "Horovod" in kind or "Nccl" in kind:
        return "communication", "", kind
    if backward:
        return "backward", layer, kind
    if layer:
        return "forward", layer, kind
    return ("input" if kind in _INPUT else "other"), "", kind


def _layer(scope: str, layers: Sequence[str]) -> str:
    """The Keras layer to which ``scope`` belongs: a scope is the layer's name, followed by a number from the
    second call on."""
    called = re.sub(r"_\d+$", "", scope)
    return called if called in layers else scope if scope in layers else ""
