"""Accelerator utilisation, and the breakdown of the remaining time.

MLPerf Storage (mlcommons/storage, Submission guidelines, "Metric"): AU = total compute time / total running time,
where compute time is the configured time of the steps, and the time before the end of the first step is excluded.
This is ``Shares.utilisation``, which oversleep reduces. MLPerf Storage's verdict, however, uses a different
figure, which its tool DLIO computes: ``dlio_percent``.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from mlhpc.iobench.definition.schema import Metric
from mlhpc.iobench.emulate.steps import EpochTimes
from mlhpc.iobench.report.record import Binding

KEEPS_UP = 5.0
"""Per cent of the running time. If all losses together are smaller, no loss is named."""
BUSY = 90.0
"""Per cent of the cores' time. Above this, the processor is the bottleneck, not the work in the reader threads."""


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
        """Utilisation in per cent; None without compute time or running time."""
        if self.running_s <= 0 or self.compute_s <= 0:
            return None
        return 100 * self.compute_s / self.running_s


def shares(epochs: Sequence[EpochTimes], metric: Metric) -> Shares:
    """Sums over the steps of all epochs, without the first and last steps of each epoch that ``metric`` excludes.
    Checkpoints are not running time."""
    sums = [0.0] * 5
    for epoch in epochs:
        first, last = metric.exclude_start_steps, len(epoch.steps) - metric.exclude_end_steps
        if last <= first:
            continue
        starts = epoch.column("start_s")
        after = float(starts[0]) + epoch.seconds if last == len(starts) else float(starts[last])
        written = zip(epoch.checkpoint_at, epoch.checkpoint_step_s, epoch.checkpoint_wait_s, strict=True)
        checkpoints = sum(own_s + wait_s for at, own_s, wait_s in written if first <= at < last)
        sums[0] += after - float(starts[first]) - checkpoints
        for number, name in enumerate(("compute_s", "wait_s", "barrier_s", "oversleep_s"), 1):
            sums[number] += float(epoch.column(name)[first:last].sum())
    return Shares(*sums)


def dlio_percent(epoch: EpochTimes, metric: Metric, less_s: float = 0.0) -> float | None:
    """The utilisation of an epoch of one rank as DLIO computes it (dlio_benchmark, utils/statscounter.py,
    ``compute_metrics_train`` and ``end_train``). Its mean over ranks and then epochs is what MLPerf Storage
    compares with the threshold. Compute time is as measured, including oversleep. An epoch is divided at its
    checkpoints; each part excludes its first steps, but not their barriers, and is weighted by its steps. The wait
    for a rank that still writes counts in the next part, as DLIO's loop has it in the next barrier.
    ``less_s``: seconds by which each step is assumed to be shorter. Returns None if the counted steps have no
    compute time."""
    steps = len(epoch.steps)
    excluded_steps = metric.exclude_start_steps + metric.exclude_end_steps
    if steps <= excluded_steps or not float(epoch.column("compute_s").sum()):
        return None
    starts = epoch.column("start_s")
    computed = epoch.column("compute_s") + epoch.column("oversleep_s")
    busy = epoch.column("wait_s") + computed
    cuts = [0, *(at + 1 for at in epoch.checkpoint_at), steps]
    written, waited = [*epoch.checkpoint_step_s, 0.0], [0.0, *epoch.checkpoint_wait_s, 0.0]
    pauses = zip(written, waited[1:], waited[:-1], strict=True)
    paused = [own_s + wait_s - earlier_s for own_s, wait_s, earlier_s in pauses]
    total = 0.0
    for begin, end, paused_s in zip(cuts[:-1], cuts[1:], paused, strict=True):
        if begin == end:
            continue
        after = starts[end] if end < steps else starts[0] + epoch.seconds
        first, last = begin + metric.exclude_start_steps, begin + steps - metric.exclude_end_steps
        excluded = float(busy[begin:end][: first - begin].sum() + busy[begin:end][last - begin :].sum())
        inner = computed[begin:end][first - begin : last - begin]
        running = float(after - starts[begin]) - paused_s - excluded - less_s * len(inner)
        counted = float(inner.sum())
        total += (end - begin) * (counted / running if counted and running > 0 else 0.0)
    return 100 * total / steps


def binding(real: Shares, null: Shares, cpu_busy_percent: float) -> Binding | None:
    """Compare ``real`` with steps of the same workload with ``null`` storage, each relative to its compute time.

    Waits for data and for other ranks in excess of the null run's are due to storage, as ranks also wait for
    others that wait for data. The rest is divided as in the null run, between the barrier and decoding, or the
    processor if ``cpu_busy_percent`` of its cores' time shows that it was busy. Returns None without compute time.
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
    largest = max(compared, key=lambda name: compared[name])
    resource = "compute" if real.utilisation >= compared[largest] else largest
    loss = None if 100 - real.utilisation < KEEPS_UP else largest
    parts = {"compute": real.utilisation, **losses, "oversleep": oversleep, "rest": rest}
    return Binding.model_validate({"resource": resource, "loss": loss, **parts})
