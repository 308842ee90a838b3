"""``result.json``: the outcome of a run. ``conclusion`` writes the file, and all readers use this module to parse
it."""

from pathlib import Path
from statistics import median
from typing import Annotated, Self

from pydantic import Field

from mlhpc.benchmarks.schema import Run, meets
from mlhpc.record.energy import Energies, Energy, in_order, whole_joules
from mlhpc.record.fields import Count, Fields, Measured, Name, Ranks, Seconds, Text


class Target(Fields):
    """The quality that ends a run, and ``best``, the best value that an evaluation reached."""

    metric: Name
    label: Text
    value: Annotated[float, Field(allow_inf_nan=False)]
    best: Measured = None
    reached: bool = False

    @classmethod
    def of(cls, run: Run) -> Self:
        """The target of ``run``, before it has been met."""
        return cls(metric=run.target.metric, label=run.target.label, value=run.target.value)

    @property
    def higher_is_better(self) -> bool:
        """Return whether higher values of the metric are better, which is true only for accuracies."""
        return self.metric == "eval_accuracy"

    def met_by(self, value: float) -> bool:
        """Return whether ``value`` meets the target, by the rule that also ends a run."""
        return meets(value, self.value, higher_is_better=self.higher_is_better)


class Epoch(Fields):
    """Seconds, samples and bytes of one epoch, and the quality under the name of the metric."""

    epoch: Count
    train_s: Seconds | None = None
    data_wait_s: Seconds | None = None
    step_s: Seconds | None = None
    eval_s: Seconds | None = None
    eval_data_wait_s: Seconds | None = None
    samples: Count | None = None
    samples_per_s: Measured = None
    bytes: Count | None = None
    learning_rate: Measured = None
    train_loss: Measured = None
    halo_bytes: Count | None = None
    halo_seconds: Seconds | None = None
    slab_bytes: Count | None = None
    slab_seconds: Seconds | None = None
    trained_side: Count | None = None
    exchange_bytes: Count | None = None

    def quality(self, metric: str) -> float | None:
        """The value of ``metric`` after the epoch; None if the value is missing or unusable."""
        value = (self.model_extra or {}).get(metric)
        if isinstance(value, bool) or not isinstance(value, int | float) or not -1e300 < value < 1e300:
            return None
        return float(value)


class Samples(Fields):
    """Numbers of training and evaluation samples, and the ``shape`` of a sample as the network reads it."""

    train: Count
    eval: Count
    shape: tuple[Count, ...]


class Staging(Fields):
    """Counts of staging, summed over ranks (``StagingReport``). ``files`` and ``bytes``: the number of copied
    files and their bytes; ``kept``: number of files that were already in place, of which ``shared`` were in use by
    another run. ``waited_s``: if training ``overlapped`` with staging, the seconds that it waited after the first
    epoch until the slowest rank had copied its files."""

    files: Count
    bytes: Count
    seconds: Seconds
    slowest_rank: Count | None = None
    mode: Name | None = None
    target_filesystem: Text | None = None
    target_is_ram: bool | None = None
    kept: Count = 0
    shared: Count = 0
    verified: bool | None = None
    packed: bool = False
    source_bytes: Count | None = None
    read_once: bool = False
    shuffle_scope: Name | None = None
    overlapped: bool = False
    waited_s: Seconds = 0.0
    rank_seconds: tuple[Seconds, ...] = ()


class SlowRank(Fields):
    """A rank for which other ranks waited: the seconds of data wait that the rank caused in training and in
    evaluation. ``epoch``: the epoch in which the rank caused most data wait."""

    rank: Count
    train_s: Seconds = 0.0
    eval_s: Seconds = 0.0
    epoch: Count | None = None


class SlowBatch(Fields):
    """A slow batch: the ``seconds`` that ``rank`` waited for a training batch, and the names of some ``samples``
    in the batch, if known."""

    seconds: Seconds
    rank: Count
    epoch: Count
    step: Count
    samples: tuple[Text, ...] = ()


class DataWait(Fields):
    """The data wait of a run in seconds. ``of``: "all ranks", or "rank 0" if the run was aborted. ``ranks``: the
    ranks for which other ranks waited, slowest first; ``batches``: the batches that took much longer than usual to
    arrive."""

    of: Text
    train_s: Seconds = 0.0
    eval_s: Seconds = 0.0
    ranks: tuple[SlowRank, ...] = ()
    batches: tuple[SlowBatch, ...] = ()


class DataFormat(Fields):
    """The format in which the data set was stored. ``codec``: None means the published format. ``max_error``: the
    error bound of a lossy codec, as a share of the value or of the channel's range (``max_error_of``).
    ``decoder``: "compiled" or "numpy". ``samples_per_archive``: None means that samples were not packed.
    ``shuffle_scope``: "sample", "node" or "global"."""

    codec: Name | None = None
    lossy: bool = False
    max_error: float | None = None
    max_error_of: Name | None = None
    decoder: Name | None = None
    samples_per_archive: Count | None = None
    shuffle_scope: Name | None = None

    def __str__(self) -> str:
        packed = f", {self.samples_per_archive} samples per archive" if self.samples_per_archive else ""
        if self.codec is None:
            return f"as published{packed}"
        if not self.lossy:
            return f"{self.codec}, lossless{packed}"
        bound = f", error at most {self.max_error:g} of the {self.max_error_of}" if self.max_error else ""
        return f"{self.codec}, lossy{bound}{packed}"


class Emulation(Fields):
    """The durations of emulated steps in seconds."""

    step_s: Seconds
    eval_step_s: Seconds = 0.0


class Result(Fields):
    """The result of a run. ``status``: "success" (target met), "failed" (finished without meeting the target),
    "aborted" or "emulated" (``--compute``). Emulated runs, resumed runs and runs of a study
    have no time to train.
    ``extended_from_epochs``: the earlier maximum number of epochs, if the run was resumed with a larger one.
    ``breakdown_s``: the seconds of the parts, with ``exchange`` only if nodes exchanged their shards;
    ``first_epoch_excess`` is None with fewer than three whole epochs, and ``staging`` is None if nothing was
    staged. ``energy``: by kind of counter; None without counters; the kind ``node`` includes all other kinds.
    ``versions``: the versions of the ``preset``, of the ``parts``, and of the generator of synthetic ``data``."""

    mlhpc: Text | None = None
    benchmark: Name
    preset: Name
    division: Name
    framework: Name | None = None
    status: Name
    resumed: bool
    extended_from_epochs: Count | None = None
    seed: int | None = None
    ranks: Ranks
    nodes: Ranks | None = None
    launcher: Text | None = None
    source_evicted: bool | None = None
    target: Target
    time_to_train_s: Seconds | None = None
    time_to_train_without_staging_s: Seconds | None = None
    breakdown_s: dict[Name, Seconds | None] | None = None
    epochs: tuple[Epoch, ...] = ()
    data_wait: DataWait | None = None
    samples: Samples
    global_batch_size: Count | None = None
    data: DataFormat | None = None
    energy: Energies | None = None
    staging: Staging | None = None
    emulation: Emulation | None = None
    versions: dict[Name, Count] | None = None

    @property
    def trained_samples(self) -> int:
        """Total number of training samples over all epochs."""
        return sum(epoch.samples or 0 for epoch in self.epochs)

    @property
    def samples_per_s(self) -> float | None:
        """Samples per second during training: the median over epochs; if some epochs trained on coarser samples,
        the median over epochs with the largest samples."""
        largest = max((e.trained_side or 0 for e in self.epochs), default=0)
        rates = [e.samples_per_s for e in self.epochs if e.samples_per_s and (e.trained_side or 0) == largest]
        return median(rates) if rates else None

    @property
    def joules(self) -> dict[str, float]:
        """The joules of the run by kind of counter, without kinds for which a counter is missing."""
        return whole_joules(self.energy)

    @property
    def joules_per_sample(self) -> dict[str, float]:
        """The joules of training per training sample, by kind of counter."""
        samples = self.trained_samples
        return {kind: joules / samples for kind, joules in self.joules.items() if samples}


def energies_of(log: Path) -> dict[str, Energy]:
    """The energies of the run with the log ``log``; empty if the run was not made by this suite or has no
    energies."""
    result = Result.read_or_none(log.with_name("result.json")) if log.name == "run.log" else None
    return in_order(result.energy) if result else {}
