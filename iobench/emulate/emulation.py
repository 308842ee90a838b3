"""An emulated training run on one rank: epochs of steps, evaluations and checkpoints. Read ``emulate`` first."""

import random as random_module
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from mlhpc.common.files import pagecache
from mlhpc.common.ranks.world import World
from mlhpc.common.timing.waiting import clock, sharpen_timers
from mlhpc.iobench.dataset.layout import SPLITS, Layout, Split
from mlhpc.iobench.definition.fields import Duration
from mlhpc.iobench.definition.schema import Workload
from mlhpc.iobench.emulate.checkpoints import Checkpoints
from mlhpc.iobench.emulate.counters import ProcessIo, cpu_seconds, device_io
from mlhpc.iobench.emulate.pipeline import NullStorage, OpenFile, Pipeline, Storage
from mlhpc.iobench.emulate.plan import files_of_rank, pieces
from mlhpc.iobench.emulate.record import Run
from mlhpc.iobench.emulate.steps import EpochTimes, run_steps
from mlhpc.iobench.formats.counting import ReadStatistics, Timeline

Cache = Literal["each", "first", "warm", "keep"]
"""Treatment of the page cache: drop the data before each epoch, drop it before the first epoch, load the data
before the first epoch, or leave the cache unchanged."""
LOOKED_AT = 32
"""Number of files per rank whose pages in the cache are counted."""
NULL_MEMORY = 256 << 20
"""Bytes of data that each rank keeps in memory as null storage."""


@dataclass(frozen=True)
class Settings:
    """Settings of one emulation. ``null_steps``: number of steps with the data in memory; ``trace``: keep the
    times of all reads; ``like_dlio``: read ahead beyond the last step of an epoch, as DLIO's loaders do."""

    cache: Cache = "each"
    null_steps: int = 50
    trace: bool = False
    like_dlio: bool = False


class _Rank:
    """The state of an emulation on one rank; ``run`` has the measurements."""

    def __init__(self, workload: Workload, layout: Layout | None, world: World, settings: Settings) -> None:
        self.workload, self.layout, self.world, self.settings = workload, layout, world, settings
        self.folder = layout.place.folder if layout else None
        # With an object store, reads from this machine's devices do not belong to the emulation.
        self.process = ProcessIo(counted=layout is None or self.folder is not None)
        self.random = np.random.default_rng([7, world.rank])  # for emulated waits
        self.run = Run()
        self._indexed: set[Split] = set()

    def pipeline(
        self, split: Split, epoch: int, steps: int, batch: int, open_file: OpenFile | None = None
    ) -> Pipeline:
        """The pipeline of an epoch. ``open_file``: how files are opened; None: from the real storage."""
        assert self.layout
        dataset, reader, world = self.layout.dataset, self.workload.reader, self.world
        storage, files = Storage(self.layout, reader), self.layout.files(split)
        samples = steps * batch
        if self.settings.like_dlio:  # TensorFlow's loader ends only after all epochs
            streams, own_samples = not reader.reopen, files * dataset.samples_per_file // self.sharing()
            samples = own_samples + batch * (reader.prefetch + 1) if streams else own_samples
        work = pieces(dataset, files, reader, world.rank, world.size, epoch, samples)
        own = files_of_rank(dataset, files, reader, world.rank, world.size)

        def begin(statistics: ReadStatistics) -> None:
            # DLIO's workers live for all epochs, and each reads the indices of all its rank's files once.
            for file in own:
                storage.read_index(split, file, statistics)

        if open_file or not storage.has_index or not reader.reopen or split in self._indexed:
            own = range(0)
        self._indexed.add(split)
        return Pipeline(
            dataset, reader, split, work, batch, open_file or storage.open, self.settings.trace, begin
        )

    def steps(
        self,
        epoch: int,
        steps: int,
        pipeline: Pipeline | None,
        computation: Duration,
        after_step: Callable[[int], bool] = lambda step: False,
    ) -> EpochTimes:
        """Call ``run_steps``, and add the reads of ``pipeline`` (None: nothing is read) to ``self.run``."""
        barrier = self.world if self.workload.train.barrier else None
        with pipeline or nullcontext():
            times = run_steps(
                epoch, steps, pipeline, computation, self.random, barrier, self.process, after_step
            )
        if pipeline:
            self.collect(pipeline)
        return times

    def collect(self, pipeline: Pipeline) -> None:
        """Add the reads of a finished pipeline to ``self.run``."""
        self.run.reading.add(pipeline.times)
        self.run.reading.reading_s += pipeline.activity.reading_s
        self.run.reading.waited_s += pipeline.activity.waited_s
        for number, times in enumerate(pipeline.times):
            self.run.read_bytes.include(times.statistics.timeline)
            if times.statistics.events is not None:
                self.run.events.append((number, times.statistics.events))

    def sharing(self) -> int:
        """Number of ranks among which the samples are divided."""
        return self.world.size if self.workload.reader.partition else 1


def emulate(
    workload: Workload, layout: Layout | None, checkpoints: Checkpoints, world: World, settings: Settings
) -> Run:
    """Emulate the workload with its real storage. Called by all ranks. Raises UserError if a file is missing or
    damaged."""
    sharpen_timers()
    rank = _Rank(workload, layout, world, settings)
    run = rank.run
    node_before = device_io(rank.folder) if rank.folder and world.local_rank == 0 else None
    _train(rank, checkpoints)
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


def _train(rank: _Rank, checkpoints: Checkpoints) -> None:
    """Run all epochs, with the preparation of the page cache before each, and checkpoints and evaluations after
    it."""
    workload, world, run = rank.workload, rank.world, rank.run
    train, per_epoch = workload.train, workload.steps_per_epoch(world.size)
    left = train.steps or per_epoch * train.epochs
    device_before, cpu_before = rank.process.read_bytes(), 0.0
    for epoch in range(train.epochs if left else 0):
        world.enter(f"epoch {epoch + 1}")
        if rank.layout and rank.folder:
            _prepare_cache(rank, rank.layout, epoch)
        if epoch == 0:
            world.barrier()
            run.origin = clock()
            run.read_bytes = Timeline(run.origin)
            device_before, cpu_before = rank.process.read_bytes(), cpu_seconds()
            if rank.layout and workload.reader.load_all:
                run.load_s = _load_all(rank, rank.layout)
        steps = min(left, per_epoch)
        world.barrier()
        before = 0 if workload.checkpoint.steps_of == "epoch" else epoch * per_epoch
        run.epochs.append(_epoch(rank, checkpoints, epoch, steps, before))
        left -= steps
        if _due(workload.checkpoint.every_epochs, epoch + 1, workload.checkpoint.first_epoch):
            checkpoints.write()
        evaluation = workload.evaluation
        if rank.layout and _due(evaluation.every_epochs, epoch + 1, evaluation.first_epoch):
            _evaluate(rank, rank.layout, epoch)
        if not left:
            break
    device_after = rank.process.read_bytes()
    run.cpu_s = cpu_seconds() - cpu_before
    if device_before is not None and device_after is not None:
        run.device_bytes = device_after - device_before


def _epoch(rank: _Rank, checkpoints: Checkpoints, epoch: int, steps: int, before: int) -> EpochTimes:
    """Run an epoch's training steps. ``before``: number of steps in earlier epochs, for the checkpoint
    interval."""
    workload = rank.workload

    def after_step(step: int) -> bool:
        due = _due(workload.checkpoint.every_steps, before + step + 1)
        if due:
            checkpoints.write()
        return due

    pipeline = None
    if rank.layout and steps and not workload.reader.load_all:
        pipeline = rank.pipeline("train", epoch, steps, workload.reader.batch_size)
    return rank.steps(epoch, steps, pipeline, workload.train.computation, after_step)


def _due(every: int, done: int, first: int = 0) -> bool:
    """Return whether a periodic action is due after step or epoch ``done``: it is first due after number ``first``
    (0: ``every``), then after every ``every`` more; never if ``every`` is 0."""
    first = first or every
    return every > 0 and done >= first and (done - first) % every == 0


def emulate_null(workload: Workload, layout: Layout, world: World, settings: Settings) -> Run:
    """Run some steps of the same workload with its data in memory, to measure the machine's performance with
    infinitely fast storage. Called by all ranks."""
    rank, reader = _Rank(workload, layout, world, settings), workload.reader
    steps = min(settings.null_steps, workload.steps_per_epoch(world.size))
    world.enter("null storage")
    dataset = layout.dataset
    work = pieces(dataset, dataset.files, reader, world.rank, world.size, 0, steps * reader.batch_size)
    storage = NullStorage.load(layout, dict.fromkeys(piece.file for piece in work), NULL_MEMORY, reader)
    world.barrier()
    cpu = cpu_seconds()
    pipeline = rank.pipeline("train", 0, steps, reader.batch_size, storage.open)
    rank.run.epochs.append(rank.steps(0, steps, pipeline, workload.train.computation))
    rank.run.cpu_s = cpu_seconds() - cpu
    rank.process.close()
    return rank.run


def _load_all(rank: _Rank, layout: Layout) -> float:
    """Read all samples of the rank before the first step, and return the seconds it took."""
    samples = layout.dataset.samples // rank.sharing()
    start = clock()
    pipeline = rank.pipeline("train", 0, samples, 1)
    with pipeline:
        kept = [pipeline.next_batch() for _ in range(samples)]
    pipeline.activity.waiting(False)
    seconds = clock() - start
    del kept
    rank.collect(pipeline)
    return seconds


def _evaluate(rank: _Rank, layout: Layout, epoch: int) -> None:
    batch, dataset = rank.workload.reader.eval_batch_size, layout.dataset
    steps = dataset.eval_files * dataset.samples_per_file // (rank.sharing() * batch)
    pipeline = rank.pipeline("validation", epoch, steps, batch)
    rank.run.evaluations.append(rank.steps(epoch, steps, pipeline, rank.workload.evaluation.computation))


def _prepare_cache(rank: _Rank, layout: Layout, epoch: int) -> None:
    """Prepare the page cache of each node as the setting ``cache`` requires, and record the share of the data in
    it."""
    world, cache = rank.world, rank.settings.cache
    paths = [layout.path(split, file) for split in SPLITS for file in range(layout.files(split))]
    own_paths = paths[world.local_rank :: world.local_size]
    if cache == "each" or (cache == "first" and epoch == 0):
        pagecache.evict(own_paths)
    elif cache == "warm" and epoch == 0:
        for path in own_paths:
            _read_through(path)
    world.barrier()
    looked_at = random_module.Random(epoch).sample(own_paths, min(LOOKED_AT, len(own_paths)))
    resident = [pagecache.resident_fraction(path) for path in looked_at]
    rank.run.resident.append(float(np.mean(resident)) if resident else 0.0)


def _read_through(path: Path) -> None:
    with path.open("rb", buffering=0) as file:
        buffer = bytearray(4 << 20)
        while file.readinto(buffer):
            pass
