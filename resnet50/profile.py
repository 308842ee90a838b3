"""ResNet-50's training step under the profiler, on images of zeros in memory: no input path."""

from functools import partial
from pathlib import Path

import torch

from mlhpc.benchmarks.resnet50 import ResNet50
from mlhpc.common.pytorch.devices import oom_as_user_error, pick_device, place
from mlhpc.common.pytorch.profile import modules_in_order, profile_steps
from mlhpc.common.pytorch.step import make_scaler, make_train_step
from mlhpc.common.timing.profile import Profile
from mlhpc.resnet50.data.loader import zeros_batch
from mlhpc.resnet50.metric import cross_entropy
from mlhpc.resnet50.model import build_model
from mlhpc.resnet50.optim.optimizer import make_optimizer


@oom_as_user_error()
def profile(run: ResNet50, batch: int, steps: int, trace: Path | None) -> Profile:
    """``steps`` steps of ``batch`` images on one rank, as ``train`` makes them, not compiled."""
    training, side = run.training, run.data.sample_shape[0]
    device = pick_device(training.device, 0)
    model = build_model(run.network)
    place(model, device, channels_last=training.channels_last)
    with torch.device("meta"):
        order = modules_in_order(build_model(run.network), torch.empty(2, 3, side, side))
    step = make_train_step(
        model,
        partial(cross_entropy, label_smoothing=training.label_smoothing),
        make_optimizer(run.hyperparameters, model, training.sgd),
        make_scaler(training.precision, device),
        training.precision,
        layout=torch.channels_last if training.channels_last else torch.contiguous_format,
    )
    work = partial(step, *zeros_batch(batch, run.data.sample_shape))
    return profile_steps(model, work, device, batch=batch, steps=steps, modules=order, trace=trace)
