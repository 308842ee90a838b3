"""The settings of a DeepCAM run, whose values are in ``deepcam.toml``."""

from collections.abc import Iterator, Mapping
from typing import ClassVar, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from mlhpc.benchmarks import schema
from mlhpc.benchmarks.schema import setting
from mlhpc.errors import UserError


class Simulation(schema.FrozenModel):
    """How ``mlhpc data make deepcam`` simulates the weather of a data set."""

    generator: ClassVar[int] = 2
    """Version of the simulation, incremented whenever a seed gives different weather."""

    seed: NonNegativeInt = 2021
    test_samples: NonNegativeInt = setting(0, "samples in test/, which is not used by runs")
    cyclones: float = setting(2.5, "mean number of tropical cyclones placed in a sample", ge=0)
    rivers: float = setting(5.0, "mean number of atmospheric rivers placed in a sample", ge=0)
    decoys: float = setting(
        6.0, "mean number of near misses (excluded from the masks) per type of storm", ge=0
    )
    strains: float = setting(0.0, "mean number of lows that look like cyclones but have no circulation", ge=0)
    storm_size: PositiveFloat = setting(1.0, "scale factor of the storms, for coarse grids")


class Data(schema.Data):
    """The data set of a DeepCAM run. ``sample_shape``: rows (latitude), columns (longitude), channels; rows and
    columns must be divisible by 16."""

    sample_shape: tuple[int, int, int]
    simulation: Simulation | None = None

    @model_validator(mode="after")
    def _sides(self) -> "Data":
        if any(side % 16 or side < 32 for side in self.sample_shape[:2]):
            raise ValueError(
                f"sample_shape {list(self.sample_shape)}: rows and columns must be multiples of 16, at least 32"
            )
        return self


class Network(schema.Network):
    """DeepLabv3+ with an Xception encoder at output stride 16."""

    width: PositiveFloat = setting(1.0, "fraction of the reference's filters in every layer", le=1)
    middle_blocks: PositiveInt = setting(16, "residual blocks of the middle flow")
    classes: Literal[3] = 3


class Hyperparameters(schema.Hyperparameters):
    """The hyperparameters of a run, named as in the MLPerf logging rules (mlperf-logging,
    hpc_*/closed_deepcam*.yaml)."""

    batchnorm_group_size: PositiveInt = setting(1, "ranks that share batch-norm statistics")
    gradient_accumulation_frequency: PositiveInt = setting(1, "backward passes per step")
    opt_name: Literal["LAMB", "Adam", "AdamW"] = "LAMB"
    opt_lr: PositiveFloat
    opt_betas: tuple[float, float] = (0.9, 0.999)
    opt_eps: PositiveFloat = 1e-6
    opt_weight_decay: float = Field(0.01, ge=0)
    opt_bias_correction: bool = True
    opt_grad_averaging: bool = True
    opt_max_grad_norm: PositiveFloat = 1.0
    scheduler_type: Literal["multistep", "cosine_annealing"] = "multistep"
    scheduler_lr_warmup_steps: NonNegativeInt = setting(0, "steps until the end of warm-up")
    scheduler_lr_warmup_factor: float = setting(
        1.0, "1: warm-up from zero to opt_lr; above 1: from opt_lr to opt_lr times this", ge=1
    )
    scheduler_milestones: tuple[PositiveInt, ...] = setting((), "steps after warm-up (multistep)")
    scheduler_decay_rate: float = setting(0.1, "factor at each milestone (multistep)", gt=0, le=1)
    scheduler_t_max: PositiveInt = setting(1, "steps after warm-up, for cosine_annealing")
    scheduler_eta_min: float = setting(0.0, "final learning rate, for cosine_annealing", ge=0)

    @model_validator(mode="after")
    def _possible(self) -> "Hyperparameters":
        milestones = list(self.scheduler_milestones)
        if milestones != sorted(set(milestones)):
            raise ValueError(f"scheduler_milestones {milestones} must be increasing")
        if any(not 0 <= beta < 1 for beta in self.opt_betas):
            raise ValueError(f"opt_betas {list(self.opt_betas)} must lie in [0, 1)")
        return self

    @classmethod
    def unclear(cls, logged: Mapping[str, object]) -> Iterator[tuple[str, str]]:
        """Like ``schema.Hyperparameters.unclear``; reports the batch size if it may be per pass or per step."""
        passes = logged.get("gradient_accumulation_frequency", 1)
        if passes != 1 and "global_batch_size" in logged:
            why = (
                f"per backward pass, as the reference logs it, or per step of {passes} passes, as this "
                "suite does"
            )
            yield "global_batch_size", why

    def unused(self) -> dict[str, str]:
        lamb = ("opt_bias_correction", "opt_grad_averaging", "opt_max_grad_norm")
        cosine = ("scheduler_t_max", "scheduler_eta_min")
        multistep = ("scheduler_milestones", "scheduler_decay_rate")
        other = cosine if self.scheduler_type == "multistep" else multistep
        reasons = dict.fromkeys(other, f"does not apply to {self.scheduler_type}")
        return reasons | dict.fromkeys(() if self.opt_name == "LAMB" else lamb, "applies to LAMB")


class Training(schema.DdpTraining):
    cpu_kernels: bool = setting(
        True, "on a CPU, use this suite's convolutions instead of the framework's; same function"
    )
    eval_steps: NonNegativeInt = setting(0, "steps between evaluations; 0: only after each epoch")
    freeze_below: float = setting(
        0.0,
        "freeze leading blocks whose weights changed by less than this fraction of their norm in "
        "an epoch (open division, Farrell et al. 2021, section 4.2.2); 0: never",
        ge=0,
    )


class Loading(schema.FeedLoading):
    cache: bool = setting(
        False, "keep the rank's samples in memory, so that only the first epoch reads files"
    )
    sample_dtype: Literal["float32", "float16", "bfloat16"] = setting(
        "float32", "type of the normalised field sent to the device; normalised in float32, rounded once"
    )
    decode: Literal["host", "device"] = setting(
        "host", "device: decode samples of delta, delta-small and delta-paper on the GPU"
    )

    @model_validator(mode="after")
    def _cache_needs_threads(self) -> "Loading":
        if self.cache and self.loader != "threads":
            raise ValueError("cache keeps samples in the memory of the rank: set loading.loader=threads")
        return self

    @model_validator(mode="after")
    def _decoding_on_a_device_needs_threads(self) -> "Loading":
        if self.decode == "device" and (self.cache or self.loader != "threads"):
            other = "cache=true" if self.cache else f"loader={self.loader}"
            raise ValueError(f"decode=device and {other} cannot be combined; set loading.decode=host")
        return self


class DeepCam(schema.Run):
    exchanges_shards: ClassVar[bool] = True

    data: Data
    network: Network
    hyperparameters: Hyperparameters
    training: Training
    loading: Loading = Field(default=Loading())

    @property
    def backward_passes(self) -> int:
        """Backward passes per step: ``gradient_accumulation_frequency``."""
        return self.hyperparameters.gradient_accumulation_frequency

    @property
    def evaluations_per_epoch(self) -> float:
        """Number of evaluations per epoch, within it and at its end."""
        steps = max(1, self.data.train_samples // self.hyperparameters.global_batch_size)
        return float(sum(1 for _ in self.between_evaluations(steps)))

    def between_evaluations(self, steps: int) -> Iterator[tuple[int, int]]:
        """The ranges of steps between the evaluations of an epoch of ``steps`` steps; the network is evaluated
        after each range."""
        every = steps if self.study.steps or not self.training.eval_steps else self.training.eval_steps
        for start in range(0, steps, every):
            yield start, min(start + every, steps)

    @model_validator(mode="after")
    def _batch_divides(self) -> "DeepCam":
        batch, passes = self.hyperparameters.global_batch_size, self.backward_passes
        if batch % passes:
            raise ValueError(
                f"hyperparameters.gradient_accumulation_frequency={passes} must divide the global batch of {batch}"
            )
        return self

    def require_startable(self, ranks: int, *, staged: bool) -> None:
        """Like ``schema.Run.require_startable``; also refuses caching combined with exchanged shards, and ranks
        that ``batchnorm_group_size`` does not divide."""
        super().require_startable(ranks, staged=staged)
        if self.staging.exchange and self.loading.cache:
            raise UserError("loading.cache and staging.exchange cannot be combined; omit one of them")
        group = self.hyperparameters.batchnorm_group_size
        if ranks % group:
            raise UserError(
                f"hyperparameters.batchnorm_group_size {group} must divide the number of ranks, {ranks}"
            )
