"""The emulated training loop of a rank: wait for a batch, emulate computation, wait for the other ranks."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from mlhpc.common.ranks.world import World
from mlhpc.common.timing.waiting import clock, occupy
from mlhpc.iobench.definition.fields import Duration
from mlhpc.iobench.emulate.counters import ProcessIo
from mlhpc.iobench.emulate.pipeline import Pipeline

COLUMNS = (
    "start_s",
    "wait_s",
    "compute_s",
    "oversleep_s",
    "barrier_s",
    "reads",
    "read_bytes",
    "device_bytes",
)
"""Times and reads of a step. ``compute_s`` is the computing time to emulate, ``oversleep_s`` the time by which the
emulation exceeded it. The last three count the reads of the rank's threads during the step, including reads for
later steps; device bytes are -1 if not counted. The wait includes the time that the loader costs the loop."""


@dataclass
class EpochTimes:
    """One epoch of one rank. ``steps`` is ``[steps, columns]``; ``checkpoint_s`` is part of ``seconds``: for each
    checkpoint, the time to write it, and then to wait for the ranks that still write theirs."""

    epoch: int
    seconds: float = 0.0
    checkpoint_s: float = 0.0
    checkpoint_at: list[int] = field(default_factory=list)  # steps, from 0, before a checkpoint
    checkpoint_step_s: list[float] = field(default_factory=list)
    checkpoint_wait_s: list[float] = field(default_factory=list)
    steps: npt.NDArray[np.float64] = field(default_factory=lambda: np.empty((0, len(COLUMNS))))

    def column(self, name: str) -> npt.NDArray[np.float64]:
        """The values of one of ``COLUMNS`` for all steps, [steps]."""
        return self.steps[:, COLUMNS.index(name)]


def run_steps(
    epoch: int,
    steps: int,
    pipeline: Pipeline | None,
    computation: Duration,
    random: np.random.Generator,
    world: World | None,
    process: ProcessIo,
    after_step: Callable[[int], bool] = lambda step: False,
) -> EpochTimes:
    """Run ``steps`` steps. ``pipeline`` None: nothing is read. ``world``: the ranks that wait for each other after
    every step and checkpoint; None: each rank proceeds at its own pace. ``after_step`` may write a checkpoint, and
    returns whether one was due."""
    times = EpochTimes(epoch, steps=np.zeros((steps, len(COLUMNS))))
    statistics = [thread.statistics for thread in pipeline.times] if pipeline else []
    calls = read = 0
    device = process.read_bytes()
    begin = clock()
    batch: Any = None
    for step in range(steps):
        start = clock()
        if pipeline:
            del batch  # a training loop does not keep the last batch either
            pipeline.activity.waiting(True)
            batch = pipeline.next_batch()
            pipeline.activity.waiting(False)
            if pipeline.step_s:
                occupy(pipeline.step_s)
        ready = clock()
        target = computation.draw(random)
        took = occupy(target) if target else 0.0
        done = clock()
        if world:
            world.barrier()
        end = clock()
        now_calls, now_read = sum(s.calls for s in statistics), sum(s.bytes for s in statistics)
        now_device = process.read_bytes()
        fetched = -1 if now_device is None or device is None else now_device - device
        times.steps[step] = (
            start, ready - start, target, took - target, end - done, now_calls - calls, now_read - read, fetched
        )  # fmt: skip
        calls, read, device = now_calls, now_read, now_device
        if after_step(step):
            written = clock()
            if world:
                world.barrier()
            times.checkpoint_at.append(step)
            times.checkpoint_step_s.append(written - end)
            times.checkpoint_wait_s.append(clock() - written)
    times.seconds = clock() - begin
    times.checkpoint_s = sum(times.checkpoint_step_s) + sum(times.checkpoint_wait_s)
    return times
