"""Stages before or during the first epoch of a run, and exchanges shards between epochs."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

from mlhpc.benchmarks.schema import Run
from mlhpc.common.data.assign import RankSamples, exchangeable, samples_of
from mlhpc.common.data.manifest import Manifest
from mlhpc.common.data.partition import Shards, balance, shuffle_scope
from mlhpc.common.ranks.world import World
from mlhpc.common.staging.beside import stage_beside
from mlhpc.common.staging.exchange import exchange, reserve
from mlhpc.common.staging.stage import stage
from mlhpc.common.timing.runlog import RunLog


@contextmanager
def staging(
    run: Run, dataset: Manifest, staged: Path | None, world: World, log: RunLog
) -> Iterator[Callable[[], None]]:
    """Stage ``dataset`` to ``staged`` (None: it is read in place); ``log`` gets the report as its note "staging".

    Yields a function that every rank calls after every epoch's training, outside the epoch's span. With
    ``run.staging.overlap``, files are copied while the block runs, and the first call waits, in a span "staging",
    until all have been copied; that span is the part of staging that training did not hide. Otherwise all files
    are copied before the block, and the function does nothing. Raises UserError, the same on all ranks.
    """
    how = run.staging
    if staged is None or not how.overlap:
        if staged:
            report = stage(dataset, staged, world, how.mode, how.workers, how.read_once)
            scope = shuffle_scope(how.mode, world.nodes, how.exchange)
            log.note("staging", **asdict(replace(report, shuffle_scope=scope)))
        yield lambda: None
        return
    with stage_beside(dataset, staged, world, how.mode, how.workers) as wait:
        going_on = True

        def finish() -> None:
            nonlocal going_on
            if going_on:
                with log.span("staging", sync=True):
                    report = wait()
                log.note("staging", **asdict(report))
            going_on = False

        yield finish


def exchanging(
    run: Run,
    dataset: Manifest,
    staged: Path | None,
    epochs: Sequence[int],
    seed: int,
    world: World,
    log: RunLog,
) -> Callable[[int, RankSamples], RankSamples]:
    """A function that every rank calls before each of ``epochs``, outside the epoch's span, with the epoch,
    counted from 1, and the rank's current samples. It returns the rank's samples for that epoch.

    With ``run.staging.exchange`` and several nodes, nodes exchange their training files before every epoch except
    the first, in a span "exchange"; the metric ``exchange_bytes`` counts the bytes that all nodes sent. The space
    for all epochs is reserved before the first epoch. Otherwise the training samples stay the same. Evaluation
    samples always stay the same. Called by all ranks. Raises UserError, the same on all ranks.
    """
    how = run.staging
    if staged is None or shuffle_scope(how.mode, world.nodes, how.exchange) != "global":
        return lambda epoch, samples: samples
    training = dataset.folder("train")
    at_first = balance(training.sizes, world.nodes)
    movable = exchangeable(dataset)
    shards = Shards(at_first[:movable], seed)
    before = 1
    reserve(training[:movable], shards, sorted({0, *(epoch - 1 for epoch in epochs)}), staged, world)

    def renew(epoch: int, samples: RankSamples) -> RankSamples:
        nonlocal before
        if epoch == before:
            return samples
        with log.span("exchange", sync=True, epoch=epoch):
            moved = exchange(training[:movable], shards, before - 1, epoch - 1, staged, world)
        log.metric("exchange_bytes", moved.bytes, epoch=epoch)
        before = epoch
        node_of = np.append(shards.nodes(epoch - 1), at_first[movable:])
        node_files = training.at(node_of == world.node)
        return replace(
            samples, train=samples_of(dataset, "train", node_files, staged, run.data.train_samples)
        )

    return renew
