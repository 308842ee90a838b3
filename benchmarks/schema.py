"""The settings of a run that all benchmarks share, fully resolved before it starts.

What is specific to a benchmark is next to its TOML file: ``benchmarks/cosmoflow.py`` narrows these
classes for ``benchmarks/cosmoflow.toml``. Every class is frozen and refuses unknown keys. The field names of
``Hyperparameters`` are the keys of the MLPerf logging rules, so that configuration, logs and rules use
the same names.
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, JsonValue, NonNegativeInt, PositiveInt, model_validator

from mlhpc.errors import UserError, count

Device = Literal["auto", "cpu", "cuda", "rocm", "xpu"]
DEVICE = (
    "cpu, cuda (NVIDIA), rocm (AMD), xpu (Intel), or auto: the accelerator that PyTorch sees, else the CPU"
)
"""What ``training.device`` is, for benchmarks in PyTorch."""


class FrozenModel(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Target(FrozenModel):
    """The quality that ends a run (MLPerf HPC training rules, section 3)."""

    metric: Literal["eval_error", "eval_accuracy"]
    label: str
    value: float
    higher_is_better: bool = False

    def met_by(self, value: float) -> bool:
        """Whether an evaluation of ``value`` meets the target: see :func:`meets`."""
        return meets(value, self.value, higher_is_better=self.higher_is_better)


def meets(value: float, target: float, *, higher_is_better: bool) -> bool:
    """Whether ``value`` meets ``target``: an accuracy reaches it, an error falls to it. NaN never does.

    An error of zero or less does not count, nor an accuracy above 1 where the target is at most 1 (mlperf-logging
    4.1.68, hpc_2.0.0/closed_*.yaml): some published logs contain the error twice, the second time negated.
    """
    if higher_is_better:
        return target <= value and (value <= 1 or target > 1)
    return 0 < value <= target


class Data(FrozenModel):
    """The data set that a preset needs."""

    train_samples: PositiveInt
    eval_samples: PositiveInt
    sample_shape: tuple[int, ...] = Field(description="of one sample as stored, channels last")
    official: bool = Field(False, description="the published data set, which `data make` cannot make")


class Network(FrozenModel):
    parameters: PositiveInt | None = Field(None, description="trainable parameters, checked before a run")


class Hyperparameters(FrozenModel):
    """The names are those of the MLPerf logging rules (mlperf-logging, hpc_*/closed_*.yaml)."""

    global_batch_size: PositiveInt = Field(description="samples of all ranks per update")

    def logged(self) -> dict[str, object]:
        """Keys and values as they are logged."""
        return self.model_dump(mode="json")

    @classmethod
    def unclear(cls, logged: Mapping[str, object]) -> Iterator[tuple[str, str]]:
        """Keys whose value may mean something else in the log of another implementation, and why. ``logged``: what
        the log has of the hyperparameters; a value may be of any type."""
        yield from ()


def only_in(framework: str) -> dict[str, JsonValue]:
    """Marks a field of ``Training`` (``json_schema_extra``) as a setting of one framework of the benchmark."""
    return {"framework": framework}


class Training(FrozenModel):
    """Choices that are neither the rules' hyperparameters nor the network."""

    framework: str = Field("", description="the implementation; empty: the benchmark's first")
    max_epochs: PositiveInt
    eval_batch_size: PositiveInt = Field(
        description="samples per rank and evaluation step; no effect on the metric"
    )
    precision: Literal["float32", "mixed_bfloat16", "mixed_float16"] = "float32"
    checkpoint_epochs: int = Field(
        0, ge=0, description="epochs between checkpoints, which are written inside the clock; 0: none"
    )

    def applicable(self) -> dict[str, object]:
        """The settings without those of other frameworks."""
        return {
            name: value for name, value in self.model_dump().items() if not self._of_another_framework(name)
        }

    @model_validator(mode="after")
    def _settings_suit_the_framework(self) -> Self:
        for name, field in type(self).model_fields.items():
            if (other := self._of_another_framework(name)) and getattr(self, name) != field.default:
                raise ValueError(
                    f"{name} is a setting of {other}; set training.framework={other} as well, or leave it out"
                )
        return self

    def _of_another_framework(self, name: str) -> str:
        """The framework that has the setting ``name`` where that is not the one in use; empty otherwise."""
        marks = type(self).model_fields[name].json_schema_extra
        of = str(marks.get("framework", "")) if isinstance(marks, dict) else ""
        return of if of and self.framework and of != self.framework else ""

    def exchange(self) -> dict[str, float]:
        """The settings of the gradients' exchange that are set, for the log: names and values."""
        return {}

    def variables(self) -> dict[str, str]:
        """Environment variables through which a library takes settings, to be set before it starts."""
        return {}


class DdpTraining(Training):
    """With gradients averaged over ranks by PyTorch's DistributedDataParallel."""

    bucket_cap_mib: float | None = Field(
        None,
        gt=0,
        le=1024 * 1024,
        allow_inf_nan=False,
        description="gradients that DistributedDataParallel sends in one all-reduce, at most; none: PyTorch's 25, "
        "of which the first holds 1",
        json_schema_extra=only_in("pytorch"),
    )

    def exchange(self) -> dict[str, float]:
        own = {} if self.bucket_cap_mib is None else {"ddp_bucket_cap_mib": self.bucket_cap_mib}
        return super().exchange() | own


class HorovodTraining(Training):
    """With gradients averaged over ranks by Horovod. A setting given here replaces the site's environment variable
    of the same purpose (horovod/common/operations.cc, 0.28.1)."""

    fusion_threshold_mib: float | None = Field(
        None,
        ge=0,
        le=1024 * 1024,
        allow_inf_nan=False,
        description="gradients that Horovod fuses into one all-reduce, at most; 0: none; none: as the environment "
        "says, or Horovod's 128",
        json_schema_extra=only_in("tensorflow"),
    )
    cycle_time_ms: float | None = Field(
        None,
        ge=0,
        le=60_000,
        allow_inf_nan=False,
        description="time between two rounds in which Horovod looks for gradients to send; none: as the "
        "environment says, or Horovod's 1",
        json_schema_extra=only_in("tensorflow"),
    )
    hierarchical_allreduce: bool = Field(
        False,
        description="reduce inside each node first, by NCCL, then between nodes; no effect on one node",
        json_schema_extra=only_in("tensorflow"),
    )

    def exchange(self) -> dict[str, float]:
        names = ("fusion_threshold_mib", "cycle_time_ms", "hierarchical_allreduce")
        chosen = {name: getattr(self, name) for name in names}
        own = {f"horovod_{name}": value for name, value in chosen.items() if value is not None}
        if not self.hierarchical_allreduce:
            del own["horovod_hierarchical_allreduce"]
        return super().exchange() | own

    def variables(self) -> dict[str, str]:
        own = {}
        if self.fusion_threshold_mib is not None:
            own["HOROVOD_FUSION_THRESHOLD"] = str(round(self.fusion_threshold_mib * 2**20))  # bytes
        if self.cycle_time_ms is not None:
            own["HOROVOD_CYCLE_TIME"] = str(self.cycle_time_ms)
        if self.hierarchical_allreduce:
            own["HOROVOD_HIERARCHICAL_ALLREDUCE"] = "1"
        return super().variables() | own


class Staging(FrozenModel):
    """How the data set is copied to node-local storage when ``--stage`` gives a folder for it."""

    mode: Literal["replicate", "shard"] = Field(
        "replicate", description="shard: a node holds only its part of the training set, for the whole run"
    )
    workers: PositiveInt = Field(8, description="files that a rank copies at the same time, at most")
    read_once: bool = Field(
        False,
        description="what several nodes hold is read from the shared file system by one of them, which passes it "
        "on over the network",
    )
    overlap: bool = Field(
        False,
        description="training starts at once, and reads from the source what is not copied yet; at the end of the "
        "first epoch it waits for the rest",
    )

    exchange: bool = Field(
        False,
        description="shard: between epochs nodes exchange training files over the network, so that in every epoch "
        "each node has a new random share of all of them",
    )

    @model_validator(mode="after")
    def _exchange(self) -> Self:
        if self.exchange and self.mode != "shard":
            raise ValueError(
                "exchange=true exchanges shards, and with mode=replicate every node has everything; set "
                "staging.mode=shard or staging.exchange=false"
            )
        if self.exchange and self.overlap:
            raise ValueError(
                "overlap=true reads what is not staged yet, and exchange=true needs whole shards; set "
                "staging.overlap or staging.exchange to false"
            )
        return self

    @model_validator(mode="after")
    def _overlap(self) -> Self:
        if self.overlap and self.read_once:
            raise ValueError(
                "overlap=true copies while training communicates, so nodes cannot pass files on to each other; "
                "set staging.overlap or staging.read_once to false"
            )
        return self


class Loading(FrozenModel):
    """How a rank reads its samples while training."""

    workers: NonNegativeInt = Field(
        0,
        description="threads or processes per rank that read ahead of the training loop; 0: with a GPU one "
        "per core of the rank, at most 16; otherwise 2",
    )
    prefetch: PositiveInt = Field(4, description="batches read ahead, at most")

    def resolved(self, *, gpu: bool, cores: int) -> Self:
        """These settings with the number of workers filled in for a rank with ``cores`` cores."""
        workers = self.workers or (max(1, min(16, cores)) if gpu else 2)
        return self.model_copy(update={"workers": workers})


class Study(FrozenModel):
    """A run of ``mlhpc study``: it ends after some steps of its first epoch, without an evaluation."""

    warmup_steps: NonNegativeInt = Field(0, description="steps before the measured ones")
    steps: NonNegativeInt = Field(0, description="steps to measure; 0: train to the target")
    earlier_epochs: NonNegativeInt = Field(
        0,
        description="epochs that are read before the steps, and not computed: memory then holds what it can",
    )

    def cut(self, steps: int) -> int:
        """The training steps to take of an epoch of ``steps``. Raises UserError when it has too few, since reading
        a sample twice within them would measure the page cache."""
        requested = self.warmup_steps + self.steps
        if not self.steps:
            return steps
        if requested > steps:
            raise UserError(
                f"{count(self.warmup_steps, 'step')} of warm-up and {self.steps} to measure exceed "
                f"the {steps} of an epoch; take fewer, a smaller batch, or more training samples"
            )
        return requested


Seconds = Annotated[float, Field(ge=0, le=86_400, allow_inf_nan=False)]


class Emulation(FrozenModel):
    """Steps that take up time and compute nothing, so that the input pipeline runs without an accelerator
    (``mlhpc run --compute``). Such a run trains nothing and is never a result."""

    step_s: Seconds | None = Field(None, description="seconds of a training step; none: steps are computed")
    eval_step_s: Seconds = Field(0.0, description="seconds of an evaluation step")

    @property
    def enabled(self) -> bool:
        return self.step_s is not None


class Submission(FrozenModel):
    """Who submits; goes into the log's submission_* records."""

    org: str = "unnamed"
    platform: str = "unnamed"
    status: Literal["cloud", "onprem", "preview", "research"] = "research"


class HyperparametersSource(FrozenModel):
    """The log that hyperparameters were taken from (``mlhpc run --hyperparameters-from``)."""

    file: str = Field(description="name of the log")
    sha256: str = Field(description="of the log")
    submitter: str = Field(description="submission_org of the log")

    def __str__(self) -> str:
        return (
            f"hyperparameters of {self.submitter} from {self.file} (SHA-256 {self.sha256[:12]}…), without its "
            "target, data and seed"
        )


class Run(FrozenModel):
    """One training to target: everything decided before it starts."""

    reads_while_staging: ClassVar[bool] = False
    """Whether training can begin before its files are staged: it looks for each file when it reads it, in the
    source or staged, and the files have checksums of their own."""
    exchanges_shards: ClassVar[bool] = False
    """Whether nodes can exchange their training files: each has as many samples as another, as files or in
    archives."""

    benchmark: str
    preset: str
    description: str
    division: Literal["closed", "open"]
    target: Target
    data: Data
    network: Network
    hyperparameters: Hyperparameters
    hyperparameters_from: HyperparametersSource | None = None
    training: Training
    staging: Staging = Field(default=Staging())
    loading: Loading = Field(default=Loading())
    study: Study = Field(default=Study())
    emulation: Emulation = Field(default=Emulation())
    submission: Submission = Field(default=Submission())

    @property
    def backward_passes(self) -> int:
        """Backward passes whose gradients are accumulated for one update."""
        return 1

    def require_startable(self, ranks: int, *, staged: bool) -> None:
        """Raise UserError when the run cannot start with this number of ``ranks``, or needs ``staged`` data.
        Called before the output folder is created."""
        batch, passes = self.hyperparameters.global_batch_size, self.backward_passes
        if batch % (ranks * passes):
            accumulated = f" in {passes} backward passes each" if passes > 1 else ""
            raise UserError(
                f"a global batch of {count(batch, 'sample')} cannot be shared equally by {count(ranks, 'rank')}"
                f"{accumulated}; use a multiple of {ranks * passes} as hyperparameters.global_batch_size, or "
                "another number of ranks"
            )
        if self.study.earlier_epochs and not self.study.steps:
            raise UserError(
                "study.earlier_epochs is for mlhpc study, whose runs measure steps: a run to the target reads the "
                "data set on its clock; leave it out"
            )
        if self.staging.overlap:
            self._require_overlap(staged)
        if self.staging.exchange:
            self._require_exchange(staged)

    def _require_overlap(self, staged: bool) -> None:
        """Raise UserError unless training can read while staging goes on, and nothing takes its steps for steps
        alone."""
        remedy = "set staging.overlap=false"
        if not self.reads_while_staging:
            raise UserError(f"staging.overlap is not for {self.benchmark}; {remedy}")
        if not staged:
            raise UserError(f"staging.overlap needs staged data; give --stage, or {remedy}")
        if self.study.steps:
            raise UserError(
                f"a study measures steps, and with staging.overlap also the copying beside them; {remedy}"
            )

    def _require_exchange(self, staged: bool) -> None:
        """Raise UserError unless nodes have training files of their own that they can exchange."""
        remedy = "set staging.exchange=false"
        if not self.exchanges_shards:
            raise UserError(f"staging.exchange is not for {self.benchmark}; {remedy}")
        if not staged:
            raise UserError(f"staging.exchange needs staged data; give --stage, or {remedy}")
        if self.study.steps:
            raise UserError(
                f"a study measures steps of an epoch, and shards are exchanged between them; {remedy}"
            )

    @classmethod
    def hyperparameter_keys(cls) -> tuple[str, ...]:
        """The keys of the logging rules that are hyperparameters of this benchmark."""
        chosen = cls.model_fields["hyperparameters"].annotation
        assert isinstance(chosen, type) and issubclass(chosen, Hyperparameters)
        return tuple(chosen.model_fields)
