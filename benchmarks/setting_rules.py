"""The rules of the closed division about settings; each rule is a short function (``benchmarks/rules.py``)."""

from collections.abc import Iterator, Sequence

from mlhpc.benchmarks.bounds import bounds, within
from mlhpc.benchmarks.findings import Finding
from mlhpc.benchmarks.load import definition_of, toml_value
from mlhpc.benchmarks.rule_context import OPEN, RunContext, violation
from mlhpc.quantities import seconds_text

_LARGE_BATCH, _LARS_MOMENTUM = 32768, 0.9
_PREPROCESSING = (
    "network.input_mean", "training.augment", "training.coarse_epochs", "training.preprocessing",
)  # fmt: skip


def closed_division(context: RunContext) -> Iterator[Finding]:
    """The benchmark has a closed division.

    Source: training rules, "Divisions".
    """
    if "closed_fixes" not in definition_of(context.run.benchmark):
        actual = f"closed, which {context.run.benchmark} does not have"
        yield violation("division", "open", actual, OPEN)


def submitter(context: RunContext) -> Iterator[Finding]:
    """Logs name the submitting organization and its platform, since they may not be edited later.

    Source: training rules, "Submission"; mlperf-logging, hpc_2.0.0/common.yaml, submission_org.
    """
    for name in ("org", "platform"):
        if getattr(context.run.submission, name) == "unnamed":
            remedy = f"set it now with --set submission.{name}=NAME: logs may not be edited later"
            yield violation(f"submission.{name}", "the submitter's", "unnamed", remedy, "warning")


def target(context: RunContext) -> Iterator[Finding]:
    """The target quality is the official one.

    Source: HPC rules, "Benchmarks".
    """
    yield from _fixed(context, "target.")


def training_set(context: RunContext) -> Iterator[Finding]:
    """The run trains on the complete official training set.

    Source: HPC rules, "Closed Division"; for DeepCAM also mlperf-logging, hpc_2.0.0/closed_deepcam.yaml.
    """
    yield from _fixed(context, "data.train_samples", "data.official", "loading.broken_images")


def evaluation_set(context: RunContext) -> Iterator[Finding]:
    """The quality is evaluated on the whole evaluation set.

    Source: training rules, "Quality measure" (at least as thoroughly as the reference).
    """
    yield from _fixed(context, "data.eval_samples")


def evaluation_frequency(context: RunContext) -> Iterator[Finding]:
    """The quality is evaluated as often as in the reference: after every epoch; for ResNet-50, after every fourth
    epoch.

    Source: training rules, "Quality measure" (at the same frequency as the reference).
    """
    yield from _fixed(context, "training.eval_steps", "training.epochs_between_evals")


def sample(context: RunContext) -> Iterator[Finding]:
    """Samples have the same size as in the reference.

    Source: training rules, "Data Representation".
    """
    yield from _fixed(context, "data.sample_shape")


def network(context: RunContext) -> Iterator[Finding]:
    """The network is that of the reference. Its number of parameters is verified when the network has been built.

    Source: training rules, "Graph Definition".
    """
    yield from _fixed(context, "network.", exclude=_PREPROCESSING)


def preprocessing(context: RunContext) -> Iterator[Finding]:
    """Preprocessing is that of the reference: the crops, resizing, standardisation and augmentation are the same.

    Source: training rules, "Preprocessing During the Run".
    """
    yield from _fixed(context, *_PREPROCESSING)


def optimizer(context: RunContext) -> Iterator[Finding]:
    """The optimizer is that of the reference, unless the rules allow a choice.

    Source: HPC rules, "Hyperparameters and Optimizer"; training rules, "Hyperparameters".
    """
    yield from _fixed(context, "hyperparameters.opt_name", "training.sgd")


def momentum(context: RunContext) -> Iterator[Finding]:
    """The momentum of SGD is that of the reference. The official checker does not check this.

    Source: HPC rules, "Hyperparameters and Optimizer" (sgd_opt_momentum); training rules, "Hyperparameters"
    (the momentum of LARS is free for batches of 32768 or more).
    """
    yield from _fixed(context, "hyperparameters.opt_momentum", "hyperparameters.sgd_opt_momentum")
    chosen = context.run.hyperparameters
    lars = getattr(chosen, "lars_opt_momentum", None) if chosen.global_batch_size < _LARGE_BATCH else None
    if lars not in (None, _LARS_MOMENTUM):
        where = "hyperparameters.lars_opt_momentum"
        yield violation(
            where,
            f"{_LARS_MOMENTUM}",
            f"{lars}",
            f"do not change it for batches below {_LARGE_BATCH}, or {OPEN}",
        )


def epsilon(context: RunContext) -> Iterator[Finding]:
    """The epsilon of Adam and LARS is that of the reference.

    Source: HPC rules, "Hyperparameters and Optimizer"; mlperf-logging, hpc_2.0.0/closed_deepcam.yaml and
    training_4.0.0/closed_resnet_lars.yaml.
    """
    yield from _fixed(context, "hyperparameters.opt_eps", "hyperparameters.lars_epsilon")


def lamb(context: RunContext) -> Iterator[Finding]:
    """LAMB uses bias correction, gradient averaging and norm clipping as in the reference.

    Source: mlperf-logging, hpc_2.0.0/closed_deepcam_lamb.yaml.
    """
    yield from _fixed(
        context,
        "hyperparameters.opt_bias_correction",
        "hyperparameters.opt_grad_averaging",
        "hyperparameters.opt_max_grad_norm",
    )


def schedule(context: RunContext) -> Iterator[Finding]:
    """The learning-rate schedule is that of the reference, unless the rules allow a choice.

    Source: HPC rules, "Hyperparameters and Optimizer"; mlperf-logging, training_4.0.0/closed_resnet_*.yaml.
    """
    yield from _fixed(
        context,
        "hyperparameters.opt_learning_rate_schedule",
        "hyperparameters.sgd_opt_end_learning_rate",
        "hyperparameters.sgd_opt_learning_rate_decay_poly_power",
        "hyperparameters.lars_opt_end_learning_rate",
        "hyperparameters.lars_opt_learning_rate_decay_poly_power",
    )


def training_method(context: RunContext) -> Iterator[Finding]:
    """The training method is that of the reference: initial weights are random, and every step updates every
    weight.

    Source: HPC rules, "Closed Division".
    """
    yield from _fixed(context, "training.freeze_below", "training.weights")


def free_hyperparameters(context: RunContext) -> Iterator[Finding]:
    """Hyperparameters that may be chosen freely are within their bounds, and all others have the reference's
    values.

    Source: HPC rules, "Hyperparameters and Optimizer"; training rules, "Hyperparameters" (label
    smoothing 0 or 0.1); mlperf-logging, hpc_2.0.0/closed_*.yaml.
    """
    definition = definition_of(context.run.benchmark)
    if "closed_free" not in definition:
        return
    fixes, free = definition["closed_fixes"], definition["closed_free"]
    settings = context.run.model_dump(mode="json")
    # A key in closed_free that includes a table's name is a free setting that logs do not record.
    chosen = {key: settings[key.split(".")[0]][key.split(".")[1]] for key in free if "." in key}
    for name, value in (settings["hyperparameters"] | chosen).items():
        where = name if name in chosen else f"hyperparameters.{name}"
        if where in fixes:
            continue
        if name not in free:
            remedy = f"{OPEN}, or add it to closed_free in benchmarks/{context.run.benchmark}.toml"
            yield violation(where, "what the rules name", toml_value(value), remedy)
        elif not all(within(each, free[name]) for each in (value if isinstance(value, list) else [value])):
            expected, remedy = bounds(free[name]), f"choose a value within these bounds, or {OPEN}"
            yield violation(where, expected, toml_value(value), remedy)


def computed_steps(context: RunContext) -> Iterator[Finding]:
    """Training steps are computed: a run with emulated steps (`--compute`) does not train.

    Source: training rules, "Training Loop" and "Run Results".
    """
    if (seconds := context.run.emulation.step_s) is not None:
        yield violation("emulation.step_s", "computed steps", f"{seconds_text(seconds)} of waiting", OPEN)


def from_the_start(context: RunContext) -> Iterator[Finding]:
    """A run trains from its first step to the target without interruption.

    Source: training rules, "Run Results" (the clock may not be paused).
    """
    if context.resumed:
        yield violation("--resume", "a run from the start", "a resumed one", OPEN)
    yield from _fixed(context, "study.")


def _fixed(context: RunContext, *keys: str, exclude: Sequence[str] = ()) -> Iterator[Finding]:
    """Yield a finding for each setting in ``keys`` whose value differs from the value in ``closed_fixes``. A key
    that ends in a dot selects a whole table."""
    settings = context.run.model_dump(mode="json")
    for key, value in definition_of(context.run.benchmark).get("closed_fixes", {}).items():
        table, _, name = key.partition(".")
        if key in exclude or not any(
            key == each or (each.endswith(".") and key.startswith(each)) for each in keys
        ):
            continue
        if (actual := settings[table][name]) != value:
            yield violation(key, toml_value(value), toml_value(actual), f"do not change it, or {OPEN}")
