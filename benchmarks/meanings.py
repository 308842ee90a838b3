"""Units and meanings of settings, for ``mlhpc presets BENCHMARK PRESET --explain``.

Fields with a description in ``schema.py`` and in the benchmarks' classes have their meaning there; this file
has those whose names come from the MLPerf logging rules (mlperf-logging, hpc_*/common.yaml and closed_*.yaml;
for ResNet-50 training_4.0.0/closed_resnet.yaml), and all units.
"""

MEANINGS = {
    "benchmark": "the benchmark's name",
    "preset": "the preset's name",
    "description": "one-line description of the preset",
    "division": "closed: under MLPerf's rules; open: unrestricted",
    "target.metric": "the quality metric, by its name in logs",
    "target.label": "its name in reports",
    "target.value": "the quality that ends the run",
    "target.higher_is_better": "whether higher values of the metric are better",
    "data.train_samples": "size of the training set",
    "data.eval_samples": "size of the evaluation set",
    "data.sample_shape": "shape of one sample as stored",
    "data.simulation.seed": "random seed of the generated data set",
    "network.conv_layers": "number of convolution blocks",
    "network.conv_kernel": "width of a convolution's kernel",
    "network.dense_units": "units of the hidden dense layers",
    "network.targets": "number of predicted values per sample",
    "network.classes": "number of classes",
    "network.name": "the network",
    "opt_name": "the optimizer",
    "opt_lr": "peak learning rate",
    "opt_base_learning_rate": "peak learning rate",
    "opt_end_learning_rate": "learning rate at the end of the decay",
    "opt_momentum": "momentum",
    "opt_betas": "decay rates of the first and second moment",
    "opt_eps": "added to the denominator of the update",
    "opt_bias_correction": "whether the moments' bias is corrected",
    "opt_grad_averaging": "whether gradients are averaged into the first moment",
    "opt_max_grad_norm": "maximum norm of the gradient",
    "opt_weight_decay": "weight decay (L2)",
    "opt_learning_rate_warmup_epochs": "epochs over which the learning rate rises",
    "opt_learning_rate_decay_boundary_epochs": "epochs at which the learning rate falls",
    "opt_learning_rate_decay_poly_power": "exponent of the polynomial decay",
    "opt_learning_rate_decay_steps": "steps until the end of the decay",
    "scheduler_type": "learning-rate schedule",
    "dropout": "fraction of units dropped",
    "training.label_smoothing": "probability assigned to the other classes",
    "training.max_epochs": "maximum number of epochs",
    "training.precision": "precision of forward and backward pass; weights are float32",
    "submission.org": "submitting organization, in the log",
    "submission.platform": "name of the system, in the log",
    "submission.status": "availability of the system, in the log",
}
"""By dotted name; hyperparameters by their own name, without the prefix ``lars_`` or ``sgd_``."""

UNITS = {
    "train_samples": "samples",
    "eval_samples": "samples",
    "test_samples": "samples",
    "sample_shape": "values",
    "global_batch_size": "samples",
    "eval_batch_size": "samples",
    "parameters": "parameters",
    "max_epochs": "epochs",
    "checkpoint_epochs": "epochs",
    "epochs_between_evals": "epochs",
    "opt_learning_rate_warmup_epochs": "epochs",
    "opt_learning_rate_decay_boundary_epochs": "epochs",
    "opt_learning_rate_decay_steps": "steps",
    "lr_warmup_steps": "steps",
    "scheduler_lr_warmup_steps": "steps",
    "warmup_steps": "steps",
    "earlier_epochs": "epochs",
    "steps": "steps",
    "prefetch": "batches",
    "workers": "threads or processes",
    "box_mpc_h": "Mpc/h",
    "grid": "voxels",
    "particles": "particles",
    "cola_steps": "steps",
    "staging.workers": "files",
    "emulation.step_s": "seconds",
    "emulation.eval_step_s": "seconds",
    "training.eval_steps": "steps",
    "eval_offset_epochs": "epochs",
    "scheduler_milestones": "steps",
    "scheduler_t_max": "steps",
    "batchnorm_group_size": "ranks",
    "gradient_accumulation_frequency": "passes",
    "gradient_accumulation_steps": "passes",
    "simulation.side": "pixels",
    "bucket_cap_mib": "MiB",
    "fusion_threshold_mib": "MiB",
    "cycle_time_ms": "ms",
}
"""By dotted name or its last part; settings that are missing have no unit."""


def meaning(key: str) -> str:
    """The meaning of the setting ``key`` (dotted), empty if it is not in :data:`MEANINGS`."""
    return MEANINGS.get(key) or MEANINGS.get(_plain(key), "")


def unit(key: str) -> str:
    """The unit of the setting ``key`` (dotted); empty for a pure number, a name or a switch."""
    return UNITS.get(key) or UNITS.get(_plain(key), "")


def _plain(key: str) -> str:
    return key.rpartition(".")[2].removeprefix("lars_").removeprefix("sgd_")
