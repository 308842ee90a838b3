"""The settings of a CosmoFlow run, whose values are in ``cosmoflow.toml``."""

from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import ClassVar, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from mlhpc.benchmarks import schema
from mlhpc.benchmarks.schema import setting
from mlhpc.errors import UserError


class Simulation(schema.FrozenModel):
    """How ``mlhpc data make cosmoflow`` simulates the universes of a data set."""

    generator: ClassVar[int] = 2
    """Version of the simulation, incremented whenever a seed gives different universes."""

    box_mpc_h: PositiveFloat = Field(description="side of the simulated box, Mpc/h")
    grid: PositiveInt = Field(description="voxels along a side of the box")
    particles: PositiveInt = Field(description="particles along a side of the box")
    cola_steps: int = setting(
        0, "COLA particle-mesh steps after 2LPT; 10 lose a tenth of the power at 1 h/Mpc", ge=0
    )
    spread: float = setting(0.3, "parameters are within ±spread of the mean cosmology", gt=0, lt=1)
    seed: int = Field(2019, ge=0)


class Data(schema.Data):
    gzip: bool = setting(True, "format written by `data make` and `convert`; readers detect it")
    packer: Literal["zlib", "isal"] = setting(
        "zlib", "compressor for `data make`: zlib, as in the official preparation, or isal, 25 times faster"
    )
    simulation: Simulation | None = None


class Network(schema.Network):
    """The CosmoFlow network: blocks of convolution, leaky ReLU and max pooling, then three dense layers."""

    conv_layers: PositiveInt = 5
    conv_filters: PositiveInt = setting(32, "filters of the first block; doubled in every block")
    conv_kernel: PositiveInt = 3
    dense_units: tuple[int, ...] = (128, 64)
    targets: PositiveInt = 4
    input_mean: tuple[float, ...] = setting(
        (), "mean of log(1 + counts) per redshift, subtracted before the first block (open division)"
    )
    input_spread: tuple[PositiveFloat, ...] = setting((), "standard deviation per redshift")

    @model_validator(mode="after")
    def _input_lists_match(self) -> "Network":
        if len(self.input_mean) != len(self.input_spread):
            raise ValueError("input_mean and input_spread must each be empty or have one number per redshift")
        return self


class Hyperparameters(schema.Hyperparameters):
    """The hyperparameters of a run, named as in the MLPerf logging rules (mlperf-logging,
    hpc_*/closed_cosmoflow.yaml)."""

    opt_name: Literal["sgd", "adam"] = "sgd"
    opt_momentum: float = Field(0.9, ge=0, lt=1)
    opt_base_learning_rate: float = Field(gt=0, description="peak learning rate, after warm-up")
    opt_learning_rate_warmup_epochs: int = Field(0, ge=0)
    opt_learning_rate_warmup_factor: float = setting(
        1.0, "warm-up starts at the base rate divided by this; below 1 the rate falls", gt=0
    )
    opt_learning_rate_decay_boundary_epochs: tuple[PositiveInt, ...] = ()
    opt_learning_rate_decay_factor: tuple[float, ...] = setting(
        (), "fraction of the base rate after each boundary"
    )
    opt_learning_rate_schedule: Literal["multistep", "linear"] = setting(
        "multistep", "linear: down to zero over max_epochs (open division, Farrell et al. 2021)"
    )
    dropout: float = Field(0.5, ge=0, lt=1)
    opt_weight_decay: float = setting(0.0, "L2 on the dense layers", ge=0)

    def unused(self) -> dict[str, str]:
        unused = {} if self.opt_name == "sgd" else {"opt_momentum": "applies to sgd"}
        if self.opt_learning_rate_schedule == "linear":
            keys = ("opt_learning_rate_decay_boundary_epochs", "opt_learning_rate_decay_factor")
            unused |= dict.fromkeys(keys, "applies to multistep")
        return unused

    @classmethod
    def unclear(cls, logged: Mapping[str, object]) -> Iterator[tuple[str, str]]:
        """Like ``schema.Hyperparameters.unclear``; reports the warm-up factor if its meaning may differ."""
        factor = logged.get("opt_learning_rate_warmup_factor")
        if isinstance(factor, int | float) and factor < 1:
            why = (
                "below 1, it may be the fraction of the rate at which warm-up starts rather than the divisor"
            )
            yield "opt_learning_rate_warmup_factor", why

    @model_validator(mode="after")
    def _decay_lists_match(self) -> "Hyperparameters":
        boundaries, factors = (
            self.opt_learning_rate_decay_boundary_epochs,
            self.opt_learning_rate_decay_factor,
        )
        if len(boundaries) != len(factors):
            raise ValueError(
                f"opt_learning_rate_decay_factor {list(factors)} must have one factor per "
                f"boundary of {list(boundaries)}"
            )
        if list(boundaries) != sorted(set(boundaries)):
            raise ValueError(f"opt_learning_rate_decay_boundary_epochs {list(boundaries)} must be increasing")
        if any(not 0 < f < 1 for f in factors):
            raise ValueError(f"opt_learning_rate_decay_factor {list(factors)} must lie between 0 and 1")
        return self


class Training(schema.HorovodTraining, schema.SpatialTraining):
    cpu_kernels: bool = setting(
        True, "on a CPU, use this suite's convolutions (TensorFlow) or their gradients (PyTorch)"
    )
    augment: bool = setting(
        False, "augment samples by the 48 symmetries of the cube (open division, Farrell et al. 2021)"
    )
    weights: str = setting(
        "", "initial weights (open division): a file of mlhpc weights from either framework"
    )
    coarse_epochs: tuple[NonNegativeInt, ...] = setting(
        (),
        "multi-resolution training with coarser samples in the first epochs; [a, b]: a epochs "
        "at a quarter of the resolution, then b at half (open division, arXiv 2510.25170)",
        only_in="pytorch",
    )

    def halvings(self, epoch: int) -> int:
        """How many times each side of a sample is halved for training in ``epoch`` (epochs are counted from 1)."""
        for stage, last in enumerate(accumulate(self.coarse_epochs)):
            if epoch <= last:
                return len(self.coarse_epochs) - stage
        return 0

    @model_validator(mode="after")
    def _some_epochs_are_whole(self) -> "Training":
        if self.coarse_epochs and sum(self.coarse_epochs) >= self.max_epochs:
            epochs = list(self.coarse_epochs)
            raise ValueError(f"coarse_epochs {epochs} must be fewer than max_epochs={self.max_epochs}")
        if self.coarse_epochs and (self.compile or self.spatial_size > 1):
            raise ValueError("coarse_epochs cannot be combined with compile or spatial")
        return self


class Loading(schema.Loading):
    sample_dtype: Literal["int16", "float32", "float16", "bfloat16"] = setting(
        "int16", "type of samples sent to the device: int16 counts, or log(1 + counts) rounded once"
    )
    decode: Literal["host", "device"] = setting(
        "host", "device: look up the voxels of lut and lut-small on the device"
    )


class CosmoFlow(schema.Run):
    reads_while_staging: ClassVar[bool] = True
    exchanges_shards: ClassVar[bool] = True

    data: Data
    network: Network
    hyperparameters: Hyperparameters
    training: Training
    loading: Loading = Field(default=Loading())

    @model_validator(mode="after")
    def _coarse_samples_are_counts(self) -> "CosmoFlow":
        stages = len(self.training.coarse_epochs)
        if stages and self.loading.sample_dtype != "int16":
            raise ValueError("training.coarse_epochs averages counts: set loading.sample_dtype=int16")
        if stages >= self.network.conv_layers:
            raise ValueError(
                f"training.coarse_epochs: this network allows at most {self.network.conv_layers - 1} "
                f"stages, not {stages}"
            )
        return self

    def uncapturable(self) -> str:
        """Like ``schema.Run.uncapturable``; coarse epochs are also a reason, because a CUDA graph supports only
        one resolution."""
        return (
            "training.coarse_epochs changes the size of samples"
            if self.training.coarse_epochs
            else super().uncapturable()
        )

    def require_startable(self, ranks: int, *, staged: bool) -> None:
        if self.training.spatial_size > 1 and self.loading.decode == "device":
            raise UserError("training.spatial divides samples on the host; set loading.decode=host")
        super().require_startable(ranks, staged=staged)
