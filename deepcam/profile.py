"""DeepCAM's training step under the profiler, on samples of zeros in memory: no input path."""

from functools import partial
from pathlib import Path

import torch

from mlhpc.benchmarks.deepcam import DeepCam
from mlhpc.common.host.malloc import keep_memory
from mlhpc.common.pytorch.devices import oom_as_user_error, pick_device, place
from mlhpc.common.pytorch.profile import modules_in_order, profile_steps
from mlhpc.common.pytorch.step import make_scaler, make_train_step
from mlhpc.common.timing.profile import Profile
from mlhpc.deepcam.cpu.kernels import use_cpu_kernels
from mlhpc.deepcam.data.loader import zeros_batch
from mlhpc.deepcam.metric import weighted_cross_entropy
from mlhpc.deepcam.model import build_model
from mlhpc.deepcam.optim.optimizer import make_optimizer


@oom_as_user_error()
def profile(run: DeepCam, batch: int, steps: int, trace: Path | None) -> Profile:
    """``steps`` steps of ``batch`` samples on one rank, as ``train`` makes them, not compiled."""
    training, channels = run.training, run.data.sample_shape[-1]
    device = pick_device(training.device, 0)
    model = build_model(run.network, channels)
    if device.type == "cpu":
        keep_memory()
        if training.cpu_kernels:
            use_cpu_kernels(model)
    place(model, device, channels_last=training.channels_last)
    with torch.device("meta"):
        order = modules_in_order(build_model(run.network, channels), torch.empty(2, channels, 64, 64))
    step = make_train_step(
        model,
        weighted_cross_entropy,
        make_optimizer(run.hyperparameters, model.parameters()),
        make_scaler(training.precision, device),
        training.precision,
        layout=torch.channels_last if training.channels_last else torch.contiguous_format,
    )
    work = partial(step, *zeros_batch(batch, run.data.sample_shape))
    return profile_steps(model, work, device, batch=batch, steps=steps, modules=order, trace=trace)
