"""An emulated training run on one rank: epochs of steps, evaluations and checkpoints. Read ``emulate`` first."""

import random as random_module
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from mlhpc.common.files import pagecache
from mlhpc.common.ranks.world import World
from mlhpc.common.timing.waiting import clock, sharpen_timers
from mlhpc.iobench.dataset.layout import Layout, Split
from mlhpc.iobench.definition.schema import Workload
from mlhpc.iobench.emulate.checkpoints import Checkpoints
from mlhpc.iobench.emulate.counters import ProcessIo, cpu_seconds, device_io
from mlhpc.iobench.emulate.pipeline import NullStorage, OpenFile, Pipeline, Storage
from mlhpc.iobench.emulate.plan import pieces
from mlhpc.iobench.emulate.record import Run
from mlhpc.iobench.emulate.steps import run_steps
from mlhpc.iobench.formats.counting import Activity

Cache = Literal["each", "first", "warm", "keep"]
"""Treatment of the page cache: drop the data before each epoch, before the first one, fill it before the
first one, or leave it unchanged."""
LOOKED_AT = 32
"""Number of files per rank whose pages are counted."""
NULL_MEMORY = 256 << 20
"""Bytes of data per rank kept in memory for the null storage."""


@dataclass(frozen=True)
class Settings:
    cache: Cache = "each"
    null_steps: int = 50
    trace: bool = False


class _Rank:
    """State shared by the parts of an emulation on one rank."""

    def __init__(self, workload: Workload, layout: Layout | None, world: World, settings: Settings) -> None:
        self.workload, self.layout, self.world, self.settings = workload, layout, world, settings
        self.folder = layout.place.folder if layout else None
        # Reads from this machine's devices are unrelated to an object store.
        self.process = ProcessIo(counted=layout is None or self.folder is not None)
        self.random = np.random.default_rng([7, world.rank])  # of the waits

    def pipeline(
        self, split: Split, epoch: int, steps: int, batch: int, open_file: OpenFile, activity: Activity
    ) -> Pipeline:
        assert self.layout
        dataset, reader, world = self.layout.dataset, self.workload.reader, self.world
        work = pieces(dataset, self.layout.files(split), reader, world.rank, world.size, epoch, steps * batch)
        return Pipeline(dataset, reader, split, work, batch, open_file, activity, self.settings.trace)


def emulate(
    workload: Workload, layout: Layout | None, checkpoints: Checkpoints, world: World, settings: Settings
) -> Run:
    """The workload with its real storage. Called by all ranks. Raises UserError if a file is missing or
    damaged."""
    sharpen_timers()
    rank, run = _Rank(workload, layout, world, settings), Run()
    train, per_epoch = workload.train, workload.steps_per_epoch(world.size)
    left = train.steps or per_epoch * train.epochs
    read = layout is not None and not workload.reader.load_all
    node_before = device_io(rank.folder) if rank.folder and world.local_rank == 0 else None
    device_before, cpu_before, device_after = rank.process.read_bytes(), 0.0, None
    for epoch in range(train.epochs if left else 0):
        world.enter(f"epoch {epoch + 1}")
        if layout and rank.folder:
            _prepare_cache(layout, world, settings.cache, epoch, run)
        if epoch == 0:
            world.barrier()
            run.origin = clock()
            device_before, cpu_before = rank.process.read_bytes(), cpu_seconds()
            if layout and workload.reader.load_all:
                run.load_s = _load_all(rank, layout, run)
        steps = min(left, per_epoch)
        world.barrier()
        activity = Activity()
        pipeline = None
        if layout and read and steps:
            storage = Storage(layout, workload.reader)
            pipeline = rank.pipeline(
                "train", epoch, steps, workload.reader.batch_size, storage.open, activity
            )
        steps_done = train.steps - left if train.steps else epoch * per_epoch

        def after_step(step: int, before: int = steps_done) -> bool:
            every = workload.checkpoint.every_steps
            if not every or (before + step + 1) % every:
                return False
            checkpoints.write()
            return True

        with pipeline or nullcontext():
            times = run_steps(
                epoch, steps, pipeline, train.computation, rank.random, world if train.barrier else None,
                rank.process, activity, after_step,
            )  # fmt: skip
        run.epochs.append(times)
        _collect(run, pipeline, activity)
        left -= steps
        if workload.checkpoint.every_epochs and (epoch + 1) % workload.checkpoint.every_epochs == 0:
            checkpoints.write()
        if (
            layout
            and workload.evaluation.every_epochs
            and (epoch + 1) % workload.evaluation.every_epochs == 0
        ):
            _evaluate(rank, layout, epoch, run)
        if not left:
            break
    device_after = rank.process.read_bytes()
    run.cpu_s = cpu_seconds() - cpu_before
    if device_before is not None and device_after is not None:
        run.device_bytes = device_after - device_before
    world.barrier()
    if not run.epochs:
        run.origin = clock()
    if rank.folder and node_before and (now := device_io(rank.folder)):
        run.node_device = type(now)(
            now.read_bytes - node_before.read_bytes, now.written_bytes - node_before.written_bytes
        )
    for _ in range(workload.checkpoint.writes):
        world.enter("checkpoint")
        world.barrier()
        checkpoints.write()
    for _ in range(workload.checkpoint.reads):
        world.barrier()
        checkpoints.read()
    run.transfers = checkpoints.transfers
    rank.process.close()
    return run


def emulate_null(workload: Workload, layout: Layout, world: World, settings: Settings) -> Run:
    """Some steps of the same workload with its data in memory: the performance of the machine with infinitely
    fast storage. Called by all ranks."""
    rank, run, activity = _Rank(workload, layout, world, settings), Run(), Activity()
    reader, per_epoch = workload.reader, workload.steps_per_epoch(world.size)
    steps = min(settings.null_steps, per_epoch)
    world.enter("null storage")

    def first_files() -> Iterator[int]:
        seen: set[int] = set()
        dataset = layout.dataset
        work = pieces(dataset, dataset.files, reader, world.rank, world.size, 0, steps * reader.batch_size)
        for piece in work:
            if piece.file not in seen:
                seen.add(piece.file)
                yield piece.file

    storage = NullStorage.load(layout, first_files(), NULL_MEMORY)
    world.barrier()
    cpu = cpu_seconds()
    pipeline = rank.pipeline("train", 0, steps, reader.batch_size, storage.open, activity)
    barrier = world if workload.train.barrier else None
    with pipeline:
        times = run_steps(
            0, steps, pipeline, workload.train.computation, rank.random, barrier, rank.process, activity
        )
    run.epochs.append(times)
    _collect(run, pipeline, activity)
    run.cpu_s = cpu_seconds() - cpu
    rank.process.close()
    return run


def _collect(run: Run, pipeline: Pipeline | None, activity: Activity) -> None:
    if pipeline is None:
        return
    run.reading.add(pipeline.times)
    run.reading.reading_s += activity.reading_s
    run.reading.waited_s += activity.waited_s
    for number, times in enumerate(pipeline.times):
        if times.statistics.events is not None:
            run.events.append((number, times.statistics.events))


def _load_all(rank: _Rank, layout: Layout, run: Run) -> float:
    """Read all samples of the rank before the first step; returns the seconds."""
    workload = rank.workload
    sharing = rank.world.size if workload.reader.partition else 1
    samples = layout.dataset.samples // sharing
    activity, start = Activity(), clock()
    activity.waiting(True)  # without concurrent computation
    pipeline = rank.pipeline("train", 0, samples, 1, Storage(layout, workload.reader).open, activity)
    with pipeline:
        kept = [pipeline.next_batch() for _ in range(samples)]
    activity.waiting(False)
    seconds = clock() - start
    del kept
    _collect(run, pipeline, activity)
    return seconds


def _evaluate(rank: _Rank, layout: Layout, epoch: int, run: Run) -> None:
    workload, world = rank.workload, rank.world
    batch = workload.reader.eval_batch_size
    sharing = world.size if workload.reader.partition else 1
    steps = layout.dataset.eval_files * layout.dataset.samples_per_file // (sharing * batch)
    activity = Activity()
    pipeline = rank.pipeline(
        "validation", epoch, steps, batch, Storage(layout, workload.reader).open, activity
    )
    computation, barrier = workload.evaluation.computation, world if workload.train.barrier else None
    with pipeline:
        times = run_steps(epoch, steps, pipeline, computation, rank.random, barrier, rank.process, activity)
    run.evaluations.append(times)
    _collect(run, pipeline, activity)


def _prepare_cache(layout: Layout, world: World, cache: Cache, epoch: int, run: Run) -> None:
    """Prepare the page cache of each node as set, and return the share of the data in it."""
    splits: tuple[Split, ...] = ("train", "validation")
    paths = [layout.path(split, file) for split in splits for file in range(layout.files(split))]
    own_paths = paths[world.local_rank :: world.local_size]
    if cache == "each" or (cache == "first" and epoch == 0):
        pagecache.evict(own_paths)
    elif cache == "warm" and epoch == 0:
        for path in own_paths:
            _read_through(path)
    world.barrier()
    looked_at = random_module.Random(epoch).sample(own_paths, min(LOOKED_AT, len(own_paths)))
    resident = [pagecache.resident_fraction(path) for path in looked_at]
    run.resident.append(float(np.mean(resident)) if resident else 0.0)


def _read_through(path: Path) -> None:
    with path.open("rb", buffering=0) as file:
        buffer = bytearray(4 << 20)
        while file.readinto(buffer):
            pass
