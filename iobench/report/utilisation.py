"""Accelerator utilisation, and the breakdown of the remaining time.

MLPerf Storage (mlcommons/storage, Submission guidelines, "Metric"): AU = total compute time / total running time,
where compute time is that of the steps as configured, and the time before the first step's end is excluded.
DLIO's code adds up the measured sleep instead, so a machine that oversleeps scores higher; here compute is
the configured time, and oversleep counts against the utilisation.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from mlhpc.iobench.definition.schema import Metric
from mlhpc.iobench.emulate.steps import EpochTimes

KEEPS_UP = 5.0
"""Per cent: with smaller losses, compute is the bottleneck."""
BUSY = 90.0
"""Per cent of the cores: above this the processor is the bottleneck, not the work in the reader threads."""


@dataclass(frozen=True)
class Shares:
    """Seconds of one rank over the counted steps."""

    running_s: float
    compute_s: float
    wait_s: float
    barrier_s: float
    oversleep_s: float

    @property
    def utilisation(self) -> float | None:
        """Per cent; None without compute time or running time."""
        if self.running_s <= 0 or self.compute_s <= 0:
            return None
        return 100 * self.compute_s / self.running_s


def shares(epochs: Sequence[EpochTimes], metric: Metric) -> Shares:
    """The counted steps of all epochs: of each epoch without the first and last ones that ``metric`` excludes.
    Checkpoints are not running time."""
    sums = [0.0] * 5
    for epoch in epochs:
        first, last = metric.exclude_start_steps, len(epoch.steps) - metric.exclude_end_steps
        if last <= first:
            continue
        starts = epoch.column("start_s")
        after = float(starts[0]) + epoch.seconds if last == len(starts) else float(starts[last])
        checkpoints = sum(
            seconds
            for at, seconds in zip(epoch.checkpoint_at, epoch.checkpoint_step_s, strict=True)
            if first <= at < last
        )
        sums[0] += after - float(starts[first]) - checkpoints
        for number, name in enumerate(("compute_s", "wait_s", "barrier_s", "oversleep_s"), 1):
            sums[number] += float(epoch.column(name)[first:last].sum())
    return Shares(*sums)


@dataclass(frozen=True)
class Binding:
    """Per cent of the running time: compute and its losses, which add up to 100. ``oversleep``: the computing
    thread regained its core, or the interpreter, too late. ``resource``: the largest loss, or ``compute`` if
    losses are small; oversleep counts as the processor."""

    resource: str
    compute: float
    storage: float
    decode: float
    cpu: float
    barrier: float
    oversleep: float
    rest: float


def binding(real: Shares, null: Shares, cpu_busy_percent: float) -> Binding | None:
    """``real`` against steps of the same workload with ``null`` storage, each relative to its compute time.

    The waits for data and for other ranks beyond those of the null run are due to storage: ranks also wait
    for others that wait for data. The rest is divided as in the null run: between decoding, or the processor
    if its cores were ``cpu_busy_percent`` busy, and the barrier. None without compute time.
    """
    if real.utilisation is None or null.utilisation is None:
        return None
    percent = 100 / real.running_s
    stalled = real.wait_s + real.barrier_s
    null_wait, null_barrier = (s * real.compute_s / null.compute_s for s in (null.wait_s, null.barrier_s))
    without_storage = min(stalled, null_wait + null_barrier)
    part = without_storage / (null_wait + null_barrier) if without_storage else 0.0
    busy = cpu_busy_percent >= BUSY
    losses = {
        "storage": percent * (stalled - without_storage),
        "decode": 0.0 if busy else percent * null_wait * part,
        "cpu": percent * null_wait * part if busy else 0.0,
        "barrier": percent * null_barrier * part,
    }
    oversleep = percent * real.oversleep_s
    rest = 100 - real.utilisation - sum(losses.values()) - oversleep
    compared = losses | {"cpu": losses["cpu"] + oversleep}
    lost = 100 - real.utilisation
    resource = "compute" if lost < KEEPS_UP else max(compared, key=lambda name: compared[name])
    return Binding(resource, real.utilisation, **losses, oversleep=oversleep, rest=rest)
