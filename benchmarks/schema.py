"""The settings common to the runs of all benchmarks, fully resolved before a run starts.

Settings of a single benchmark are in the module next to its TOML file: ``benchmarks/cosmoflow.py`` extends these
classes for ``benchmarks/cosmoflow.toml``. Every class is frozen and refuses unknown keys. The fields of
``Hyperparameters`` are named like the keys of the MLPerf logging rules, so configuration, logs and rules use the
same names.
"""

from collections.abc import Iterator, Mapping
from math import prod
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    NonNegativeInt,
    PositiveInt,
    model_validator,
)

from mlhpc.errors import UserError
from mlhpc.quantities import count

Device = Literal["auto", "cpu", "cuda", "rocm", "xpu"]
CudaGraphs = Annotated[
    Literal["auto", "on", "off"],
    # Earlier files contain a boolean.
    BeforeValidator(lambda v: ("on" if v else "off") if isinstance(v, bool) else v),
]
DEVICE = "cpu, cuda (NVIDIA), rocm (AMD), xpu (Intel), or auto: what PyTorch finds, else cpu"
"""Description of ``training.device`` for benchmarks in PyTorch."""


COMPUTATION = (
    "training.precision",
    "training.compile",
    "training.cuda_graphs",
    "training.channels_last",
    "training.cpu_kernels",
)
"""How a step of the network is computed."""


class FrozenModel(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


def setting(default: Any, meaning: str, *, only_in: str = "", **bounds: Any) -> Any:
    """A field with its default, its meaning and pydantic's ``bounds``, such as ``ge=0``. ``only_in``: the
    framework to which the setting applies; None if it applies to all frameworks."""
    extra: dict[str, JsonValue] | None = {"framework": only_in} if only_in else None
    return Field(default, description=meaning, json_schema_extra=extra, **bounds)


class Target(FrozenModel):
    """The quality that ends a run (MLPerf HPC training rules, section 3)."""

    metric: Literal["eval_error", "eval_accuracy"]
    label: str
    value: float
    higher_is_better: bool = False

    def met_by(self, value: float) -> bool:
        """Return whether an evaluation with result ``value`` meets the target, as defined by :func:`meets`."""
        return meets(value, self.value, higher_is_better=self.higher_is_better)


def meets(value: float, target: float, *, higher_is_better: bool) -> bool:
    """Return whether ``value`` meets ``target``: an accuracy must be at least the target, an error at most the
    target. NaN never meets a target.

    Errors of zero or less never meet a target, nor do accuracies above 1 if the target is at most 1
    (mlperf-logging 4.1.68, hpc_2.0.0/closed_*.yaml), because some published logs contain the error twice, the
    second time negated.
    """
    if higher_is_better:
        return target <= value and (value <= 1 or target > 1)
    return 0 < value <= target


class Data(FrozenModel):
    """The data set that a preset needs. ``chosen``: fields that a run may choose; others describe the files."""

    chosen: ClassVar[frozenset[str]] = frozenset({"train_samples", "eval_samples"})
    train_samples: PositiveInt
    eval_samples: PositiveInt
    sample_shape: tuple[int, ...] = Field(description="shape of one sample as stored, channels last")
    official: bool = setting(False, "the published data set, which `data make` cannot generate")


class Network(FrozenModel):
    parameters: PositiveInt | None = setting(None, "trainable parameters, checked before a run")

    def unused(self) -> dict[str, str]:
        """The settings that this network does not have, each with the reason."""
        return {}


class Hyperparameters(FrozenModel):
    """The hyperparameters of a run, named as in the MLPerf logging rules (mlperf-logging, hpc_*/closed_*.yaml)."""

    global_batch_size: PositiveInt = Field(description="samples per step over all ranks")

    def logged(self) -> dict[str, object]:
        """The keys and values of the hyperparameters to log: those in use."""
        unused = self.unused()
        return {key: value for key, value in self.model_dump(mode="json").items() if key not in unused}

    def unused(self) -> dict[str, str]:
        """The hyperparameters that the chosen optimizer and schedule do not have, each with the reason."""
        return {}

    @classmethod
    def unclear(cls, logged: Mapping[str, object]) -> Iterator[tuple[str, str]]:
        """Yield each key whose value may have a different meaning in the log of a different implementation, and
        the reason. ``logged``: the hyperparameters in that log; values may have any type."""
        yield from ()


class Training(FrozenModel):
    """Settings of training that are neither hyperparameters in the rules nor settings of the network."""

    framework: str = setting("", "the framework; empty: the benchmark's default")
    max_epochs: PositiveInt
    eval_batch_size: PositiveInt = Field(description="samples per rank and evaluation step")
    precision: Literal["float32", "mixed_bfloat16", "mixed_float16"] = "float32"
    checkpoint_epochs: int = setting(
        0, "epochs between checkpoints, which are written inside the timed region; 0: none", ge=0
    )

    def applicable(self) -> dict[str, object]:
        """The settings without any that apply only to other frameworks."""
        return {
            name: value for name, value in self.model_dump().items() if not self._of_another_framework(name)
        }

    @model_validator(mode="after")
    def _settings_suit_the_framework(self) -> Self:
        for name, field in type(self).model_fields.items():
            if (other := self._of_another_framework(name)) and getattr(self, name) != field.default:
                raise ValueError(f"{name} requires training.framework={other}; set that as well, or omit it")
        return self

    def _of_another_framework(self, name: str) -> str:
        """The only framework to which the setting ``name`` applies, if a different framework is selected;
        otherwise empty."""
        marks = type(self).model_fields[name].json_schema_extra
        of = str(marks.get("framework", "")) if isinstance(marks, dict) else ""
        return of if of and self.framework and of != self.framework else ""

    @property
    def spatial_size(self) -> int:
        """Number of ranks that work on one sample."""
        return 1

    def exchange(self) -> dict[str, float]:
        """Names and values of the gradient-exchange settings that are set, for the log."""
        return {}

    def variables(self) -> dict[str, str]:
        """Environment variables that configure a library and must be set before it is loaded."""
        return {}


class DdpTraining(Training):
    """Settings for training in PyTorch, where DistributedDataParallel averages gradients over ranks."""

    device: Device = setting("auto", DEVICE, only_in="pytorch")
    channels_last: bool = setting(
        True, "memory layout of activations and weights; same results", only_in="pytorch"
    )
    compile: bool = setting(False, "compile the network with torch.compile", only_in="pytorch")

    cuda_graphs: CudaGraphs = setting(
        "off",
        "replay whole steps as CUDA graphs (NVIDIA); auto: if a trial matches eager steps",
        only_in="pytorch",
    )
    bucket_cap_mib: float | None = setting(
        None,
        "maximum size of a DistributedDataParallel all-reduce; none: PyTorch's default",
        gt=0,
        le=1024 * 1024,
        only_in="pytorch",
    )

    def exchange(self) -> dict[str, float]:
        """Like ``Training.exchange``: the size of the gradient buckets, if set."""
        own = {} if self.bucket_cap_mib is None else {"ddp_bucket_cap_mib": self.bucket_cap_mib}
        return super().exchange() | own

    def variables(self) -> dict[str, str]:
        """Like ``Training.variables``. With CUDA graphs, NCCL's watchdog must not inspect the collectives in the
        graphs."""
        own = {} if self.cuda_graphs == "off" else {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"}
        return super().variables() | own


class SpatialTraining(DdpTraining):
    """Settings for training in which a group of ranks may share each sample (``common.pytorch.spatial``)."""

    spatial: tuple[PositiveInt, PositiveInt, PositiveInt] = setting(
        (1, 1, 1),
        "parts along each axis of a sample, one per rank of a group (Farrell et al. 2021, 4.2.1)",
        only_in="pytorch",
    )

    @property
    def spatial_size(self) -> int:
        return prod(self.spatial)

    def require_groups(self, ranks: int, batch: int) -> None:
        """Raise UserError unless ``ranks`` ranks can be divided into groups of ``spatial_size`` ranks, and a
        global ``batch`` equally among the groups."""
        group, cut = self.spatial_size, list(self.spatial)
        if group > 1 and self.compile:
            raise UserError(f"training.spatial={cut} requires compile=false")
        if ranks % group:
            raise UserError(f"training.spatial={cut} requires a multiple of {group} ranks, not {ranks}")
        if group > 1 and batch % (ranks // group):
            raise UserError(
                f"hyperparameters.global_batch_size {batch} must be a multiple of {ranks // group}, "
                f"the number of groups of {group} ranks"
            )


class HorovodTraining(Training):
    """Settings for training in which Horovod averages gradients over ranks. A setting made here overrides the
    site's environment variable for the same purpose (horovod/common/operations.cc, 0.28.1)."""

    fusion_threshold_mib: float | None = setting(
        None,
        "maximum size of gradients that Horovod fuses into one all-reduce; none: Horovod's own setting, or 128",
        ge=0,
        le=1024 * 1024,
        only_in="tensorflow",
    )
    cycle_time_ms: float | None = setting(
        None,
        "interval at which Horovod looks for gradients to send; none: Horovod's own setting, or 1",
        ge=0,
        le=60_000,
        only_in="tensorflow",
    )
    hierarchical_allreduce: bool = setting(
        False,
        "reduce within each node first (NCCL), then between nodes; no effect on a single node",
        only_in="tensorflow",
    )

    def exchange(self) -> dict[str, float]:
        """Like ``Training.exchange``: the Horovod settings that are set."""
        names = ("fusion_threshold_mib", "cycle_time_ms", "hierarchical_allreduce")
        chosen = {name: getattr(self, name) for name in names}
        own = {f"horovod_{name}": value for name, value in chosen.items() if value is not None}
        if not self.hierarchical_allreduce:
            del own["horovod_hierarchical_allreduce"]
        return super().exchange() | own

    def variables(self) -> dict[str, str]:
        """Like ``Training.variables``: Horovod's environment variables, for the settings that are set."""
        own = {}
        if self.fusion_threshold_mib is not None:
            own["HOROVOD_FUSION_THRESHOLD"] = str(round(self.fusion_threshold_mib * 2**20))  # bytes
        if self.cycle_time_ms is not None:
            own["HOROVOD_CYCLE_TIME"] = str(self.cycle_time_ms)
        if self.hierarchical_allreduce:
            own["HOROVOD_HIERARCHICAL_ALLREDUCE"] = "1"
        return super().variables() | own


class Staging(FrozenModel):
    """How the data set is copied to node-local storage with ``--stage``."""

    mode: Literal["replicate", "shard"] = setting(
        "replicate", "shard: each node stores only its part of the data set, for the whole run"
    )
    workers: PositiveInt = setting(8, "maximum number of files that a rank copies concurrently")
    read_once: bool = setting(
        False, "a file that several nodes need is read by one of them, and forwarded over the network"
    )
    overlap: bool = setting(
        False, "training starts immediately, and reads files at their source until they are copied"
    )

    exchange: bool = setting(
        False, "with mode shard: nodes exchange files before every epoch, for new random shares"
    )

    @model_validator(mode="after")
    def _combinations(self) -> Self:
        if self.exchange and self.mode != "shard":
            raise ValueError("exchange=true requires staging.mode=shard; set that, or exchange=false")
        if self.exchange and self.overlap:
            raise ValueError("exchange=true cannot overlap; set it or staging.overlap to false")
        if self.overlap and self.read_once:
            raise ValueError("overlap=true cannot forward files; set it or staging.read_once to false")
        return self


class Loading(FrozenModel):
    """How a rank reads its samples during training."""

    workers: NonNegativeInt = setting(
        0, "threads or processes per rank that read ahead; 0: one per core, at most 16, with a GPU, else 2"
    )
    prefetch: PositiveInt = setting(4, "maximum number of batches read ahead")

    def resolved(self, *, gpu: bool, cores: int) -> Self:
        """A copy of these settings in which ``workers``, if it is 0, is replaced by the default for a rank with
        ``cores`` cores."""
        workers = self.workers or (max(1, min(16, cores)) if gpu else 2)
        return self.model_copy(update={"workers": workers})


class FeedLoading(Loading):
    """Settings of samples for PyTorch, which several loaders can read (``common.pytorch.feeds``)."""

    loader: Literal["threads", "workers", "dali"] = setting(
        "threads", "threads of this process, PyTorch worker processes, or NVIDIA DALI"
    )


class Study(FrozenModel):
    """A run of ``mlhpc study``: it ends after some steps of its first epoch, without an evaluation."""

    warmup_steps: NonNegativeInt = setting(0, "steps before the measured ones")
    steps: NonNegativeInt = setting(0, "steps to measure; 0: train to the target")
    earlier_epochs: NonNegativeInt = setting(
        0, "epochs to read without computing before the steps, to fill caches"
    )

    def cut(self, steps: int) -> int:
        """The number of training steps to take in an epoch of ``steps`` steps. Raises UserError if the epoch has
        fewer steps than the study needs: a second epoch would read from the page cache."""
        requested = self.warmup_steps + self.steps
        if not self.steps:
            return steps
        if requested > steps:
            raise UserError(
                f"{self.warmup_steps} warm-up + {self.steps} measured steps exceed the {steps} steps of an epoch; "
                "use fewer steps or a smaller batch"
            )
        return requested


Seconds = Annotated[float, Field(ge=0, le=86_400)]


class Emulation(FrozenModel):
    """Steps that wait instead of computing, to run the input pipeline without an accelerator (``mlhpc run
    --compute``). Such a run does not train and is never a result."""

    step_s: Seconds | None = setting(None, "seconds of a training step; none: steps are computed")
    eval_step_s: Seconds = setting(0.0, "duration of a full evaluation step in seconds")

    @property
    def enabled(self) -> bool:
        """Whether steps wait instead of computing."""
        return self.step_s is not None


class Submission(FrozenModel):
    """The submitter, for the submission_* records of the log."""

    org: str = "unnamed"
    platform: str = "unnamed"
    status: Literal["cloud", "onprem", "preview", "research"] = "research"


class HyperparametersSource(FrozenModel):
    """The log from which the hyperparameters of a run were taken (``mlhpc run --hyperparameters-from``)."""

    file: str = Field(description="file name of the log")
    sha256: str = Field(description="of the log")
    submitter: str = Field(description="submission_org in the log")

    def __str__(self) -> str:
        return (
            f"hyperparameters of {self.submitter} from {self.file} (SHA-256 {self.sha256[:12]}…), without its "
            "target, data and seed"
        )


class Run(FrozenModel):
    """One training run to target: all settings, fixed before it starts."""

    reads_while_staging: ClassVar[bool] = False
    """Whether training can start before staging is complete. This requires that files contain checksums, and that
    each file is located (in the staging target or the source) only when it is read."""
    exchanges_shards: ClassVar[bool] = False
    """Whether nodes can exchange their training files, which requires that all files or archives have the same
    number of samples."""

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
        """Number of backward passes whose gradients are accumulated for one step."""
        return 1

    @property
    def evaluations_per_epoch(self) -> float:
        """Mean number of evaluations per epoch of training."""
        return 1.0

    @property
    def graphs(self) -> str:
        """The value of ``training.cuda_graphs``; "off" for benchmarks without that setting."""
        return self.training.cuda_graphs if isinstance(self.training, DdpTraining) else "off"

    def uncapturable(self) -> str:
        """The reason why the run's steps cannot be replayed as CUDA graphs; empty if they can."""
        if self.backward_passes > 1:
            return "gradients are accumulated over several passes, but a graph covers only one"
        if self.training.spatial_size > 1:
            return "training.spatial exchanges parts of samples through the host"
        return "steps are emulated" if self.emulation.enabled else ""

    @model_validator(mode="after")
    def _graphs_possible(self) -> Self:
        if self.graphs == "on" and (why := self.uncapturable()):
            raise ValueError(f"training.cuda_graphs=on: {why}; set it to auto or off")
        return self

    def require_startable(self, ranks: int, *, staged: bool) -> None:
        """Raise UserError if the run cannot start with ``ranks`` ranks, or if its settings require staging but
        ``staged`` is False. Called before the output folder is created."""
        batch, passes = self.hyperparameters.global_batch_size, self.backward_passes
        if isinstance(self.training, SpatialTraining):
            self.training.require_groups(ranks, batch)
            ranks //= self.training.spatial_size
        if batch % (ranks * passes):
            accumulated = f" with {passes} backward passes" if passes > 1 else ""
            raise UserError(
                f"hyperparameters.global_batch_size {batch} must be a multiple of {ranks * passes} for "
                f"{count(ranks, 'rank')}{accumulated}"
            )
        if self.study.earlier_epochs and not self.study.steps:
            raise UserError("study.earlier_epochs requires mlhpc study; omit it in other runs")
        for name, supported, during in (
            ("overlap", self.reads_while_staging, "would copy files while a study measures steps"),
            ("exchange", self.exchanges_shards, "would exchange shards only after the steps of a study"),
        ):
            if not getattr(self.staging, name):
                continue
            remedy = f"set staging.{name}=false"
            if not supported:
                raise UserError(f"staging.{name} is not supported for {self.benchmark}; {remedy}")
            if not staged:
                raise UserError(f"staging.{name} requires --stage; pass it, or {remedy}")
            if self.study.steps:
                raise UserError(f"staging.{name} {during}; {remedy}")

    @classmethod
    def hyperparameter_keys(cls) -> tuple[str, ...]:
        """The names that the MLPerf logging rules use for this benchmark's hyperparameters."""
        chosen = cls.model_fields["hyperparameters"].annotation
        assert isinstance(chosen, type) and issubclass(chosen, Hyperparameters)
        return tuple(chosen.model_fields)
