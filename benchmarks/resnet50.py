"""The settings of a ResNet-50 run, whose values are in ``resnet50.toml``."""

from typing import ClassVar, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from mlhpc.benchmarks import schema
from mlhpc.benchmarks.schema import setting
from mlhpc.errors import UserError


class Simulation(schema.FrozenModel):
    """How ``mlhpc data make resnet50`` draws the images of a data set."""

    generator: ClassVar[int] = 3
    """Version of the drawing, incremented whenever a seed gives different images."""

    seed: NonNegativeInt = 2021
    classes: PositiveInt = setting(1000, "number of classes, equal to network.classes")
    side: PositiveInt = setting(500, "longer side of most images in pixels", ge=32)


class Data(schema.Data):
    """The data set of a ResNet-50 run. ``sample_shape``: rows, columns, channels of an image as the network sees
    it, after cropping."""

    chosen: ClassVar[frozenset[str]] = schema.Data.chosen | {"sample_shape"}
    simulation: Simulation | None = None

    @model_validator(mode="after")
    def _colours(self) -> "Data":
        shape = self.sample_shape
        if len(shape) != 3 or shape[0] != shape[1] or shape[2] != 3 or shape[0] < 32:
            raise ValueError(f"sample_shape {list(shape)} must be [side, side, 3], side at least 32")
        return self


class Network(schema.Network):
    """The network to train. ResNet-50 v1.5 is the benchmark's; other networks are for scaling studies."""

    name: Literal["resnet50", "resnet101", "alexnet", "lenet"] = "resnet50"
    classes: PositiveInt = 1000
    width: PositiveFloat = setting(1.0, "ResNets: factor for the number of filters inside blocks", le=2)
    blocks: tuple[PositiveInt, ...] = setting((), "ResNets: blocks per stage; []: the standard numbers")

    @model_validator(mode="after")
    def _stages(self) -> "Network":
        if len(self.blocks) not in (0, 4):
            raise ValueError(f"blocks {list(self.blocks)} must be empty or four numbers, one per stage")
        if self.name == "resnet101" and self.blocks:  # blocks of a preset are ResNet-50's
            raise ValueError(f"blocks {list(self.blocks)} would override resnet101; set network.blocks=[]")
        return self

    def unused(self) -> dict[str, str]:
        if self.name in ("resnet50", "resnet101"):
            return {}
        return dict.fromkeys(("width", "blocks"), f"applies to ResNets, not to {self.name}")


class Hyperparameters(schema.Hyperparameters):
    """The hyperparameters of a run, named as in the MLPerf logging rules (mlperf-logging,
    training_4.0.0/closed_resnet*.yaml).

    Names that begin with the name of an optimizer apply to that optimizer; ``opt_learning_rate_warmup_epochs`` and
    ``model_bn_span`` (logged as the images per backward pass of a rank) apply to sgd. The learning rate rises from
    zero to the base rate in the warm-up epochs, and falls to the end rate during the following ``decay_steps``
    steps.
    """

    gradient_accumulation_steps: PositiveInt = setting(1, "backward passes per step")
    opt_name: Literal["sgd", "lars"] = "sgd"
    opt_learning_rate_warmup_epochs: NonNegativeInt = setting(5, "warm-up of sgd")
    sgd_opt_base_learning_rate: PositiveFloat = 0.1
    sgd_opt_end_learning_rate: float = Field(0.0001, ge=0)
    sgd_opt_learning_rate_decay_poly_power: PositiveFloat = 2
    sgd_opt_learning_rate_decay_steps: PositiveInt
    sgd_opt_weight_decay: float = Field(0.0001, ge=0)
    sgd_opt_momentum: float = Field(0.9, ge=0, lt=1)
    lars_opt_base_learning_rate: PositiveFloat = 10.0
    lars_opt_end_learning_rate: float = Field(0.0001, ge=0)
    lars_opt_learning_rate_decay_poly_power: PositiveFloat = 2
    lars_opt_learning_rate_decay_steps: PositiveInt
    lars_opt_learning_rate_warmup_epochs: NonNegativeInt = 5
    lars_opt_weight_decay: float = Field(0.0002, ge=0)
    lars_opt_momentum: float = Field(0.9, ge=0, lt=1)
    lars_epsilon: float = setting(0.0, "added to the denominator of the trust ratio", ge=0)

    def unused(self) -> dict[str, str]:
        other = "lars" if self.opt_name == "sgd" else "sgd"
        names = [key for key in type(self).model_fields if key.startswith(f"{other}_")]
        names += [] if self.opt_name == "sgd" else ["opt_learning_rate_warmup_epochs"]
        return dict.fromkeys(names, f"applies to {other}, not to {self.opt_name}")


class Training(schema.DdpTraining):
    preprocessing: Literal["mlperf", "torchvision"] = setting(
        "mlperf",
        "mlperf: as in the MLPerf reference; torchvision: antialiased, by mean and standard deviation",
    )
    sgd: Literal["mlperf", "pytorch"] = setting(
        "mlperf", "mlperf: biases decay too, as in the reference; pytorch: torch.optim.SGD"
    )
    label_smoothing: float = Field(0.1, ge=0, lt=1)
    epochs_between_evals: PositiveInt = setting(4, "epochs between evaluations")
    eval_offset_epochs: NonNegativeInt = setting(
        0, "epoch after which the first evaluation takes place; 0: after epochs_between_evals"
    )

    @model_validator(mode="after")
    def _offset(self) -> "Training":
        if self.eval_offset_epochs >= self.epochs_between_evals:
            raise ValueError(
                f"eval_offset_epochs must be below {self.epochs_between_evals}, epochs_between_evals"
            )
        return self

    def evaluates(self, epoch: int) -> bool:
        """Return whether an evaluation follows ``epoch`` (epochs are counted from 1): every
        ``epochs_between_evals`` epochs, starting after ``eval_offset_epochs`` (mlcommons/training,
        image_classification, "Evaluation frequency"), and always after the last epoch."""
        return epoch % self.epochs_between_evals == self.eval_offset_epochs or epoch == self.max_epochs


class Staging(schema.Staging):
    pack: bool = setting(
        False, "pack the JPEG files into TFRecord shards during the copy; requires mode replicate"
    )

    @model_validator(mode="after")
    def _pack_needs_replicas(self) -> "Staging":
        if self.pack and self.mode == "shard":
            raise ValueError("pack requires mode=replicate; set that, or pack the data beforehand")
        if self.pack and self.read_once:
            raise ValueError("pack and read_once cannot be combined; omit one, or pack the data beforehand")
        return self


class Loading(schema.FeedLoading):
    broken_images: Literal["stop", "skip"] = setting(
        "stop", "skip: replace a damaged image by the next one in training, omit it in evaluation"
    )

    @model_validator(mode="after")
    def _skipping_needs_own_decoder(self) -> "Loading":
        if self.broken_images == "skip" and self.loader == "dali":
            raise ValueError("broken_images=skip does not work with DALI; set loading.loader=threads")
        return self


class ResNet50(schema.Run):
    data: Data
    network: Network
    hyperparameters: Hyperparameters
    training: Training
    staging: Staging = Field(default=Staging())
    loading: Loading = Field(default=Loading())

    @model_validator(mode="after")
    def _classes(self) -> "ResNet50":
        drawn = self.data.simulation.classes if self.data.simulation else self.network.classes
        if drawn != self.network.classes:
            raise ValueError(f"network.classes must equal data.simulation.classes {drawn}")
        return self

    @property
    def backward_passes(self) -> int:
        """Backward passes per step: ``gradient_accumulation_steps``."""
        return self.hyperparameters.gradient_accumulation_steps

    @property
    def evaluations_per_epoch(self) -> float:
        """Mean number of evaluations per epoch, without the one that follows the last epoch in any case."""
        return 1 / self.training.epochs_between_evals

    def require_startable(self, ranks: int, *, staged: bool) -> None:
        """Like ``schema.Run.require_startable``; also refuses ``staging.pack`` without staging."""
        super().require_startable(ranks, staged=staged)
        if self.staging.pack and not staged:
            raise UserError("staging.pack requires --stage; pass it, or set staging.pack=false")


def require_servers(run: ResNet50) -> None:
    """Raise UserError for settings that a study with parameter servers does not support, because the servers own
    parts of the weights and the study has its own training loop."""
    hparams = run.hyperparameters
    for key, value, needed in (
        ("hyperparameters.opt_name", hparams.opt_name, "sgd"),
        ("hyperparameters.gradient_accumulation_steps", hparams.gradient_accumulation_steps, 1),
        ("training.precision", run.training.precision, "float32"),
        ("training.compile", run.training.compile, False),
    ):
        if value != needed:
            chosen, only = (str(word).lower() for word in (value, needed))  # in the notation of --set
            raise UserError(f"{key}={chosen}: parameter servers require {key}={only}")
