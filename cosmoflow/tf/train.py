"""Trains CosmoFlow to the target. The clock runs inside ``with log.span("run", sync=True)`` and nowhere else."""

import math
from contextlib import ExitStack, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from mlhpc.benchmarks import load
from mlhpc.benchmarks.cosmoflow import CosmoFlow
from mlhpc.common.data.sharding import divide_batch
from mlhpc.common.host.progress import track
from mlhpc.common.ranks.world import World, mean
from mlhpc.common.timing.runlog import RunLog
from mlhpc.common.training.dataset import format_of, open_loader
from mlhpc.common.training.emulation import WaitingStep
from mlhpc.common.training.epoch import (
    checkpoint,
    log_epoch,
    log_quality,
    mark_warm,
    mean_quality,
    named,
    require_parameters,
)
from mlhpc.common.training.finite import require_finite
from mlhpc.common.training.staging import exchanging, staging
from mlhpc.cosmoflow.check import check as check_settings
from mlhpc.cosmoflow.cpu.convolution import MinimalConv3D, start_xla
from mlhpc.cosmoflow.data.source import CosmoFlowSource, open_data
from mlhpc.cosmoflow.schedule import rate_at
from mlhpc.cosmoflow.tf.batches import as_tensors
from mlhpc.cosmoflow.tf.device import (
    LaunchEvents,
    device_ranges,
    oom_as_user_error,
    peak_memory,
    seen_gpus,
    to_device,
    use_one_gpu,
)
from mlhpc.cosmoflow.tf.model import build_model, require_precision
from mlhpc.cosmoflow.tf.state import broadcast_weights, restore, save
from mlhpc.cosmoflow.tf.step import Steps, make_optimizer, make_steps, warm_up
from mlhpc.cosmoflow.weights import load as load_weights

ADVICE = "look at them with mlhpc data show cosmoflow, or lower hyperparameters.opt_base_learning_rate"
"""Advice for a loss that is not finite."""


def check(run: CosmoFlow, staged: Path | None, world: World) -> None:
    """Raise UserError if the run cannot start on these ranks and this machine. No side effects."""
    run.require_startable(world.size, staged=staged is not None)
    seen_gpus()
    require_precision(run.training.precision)
    check_settings(run)
    if run.training.hierarchical_allreduce and world.size > 1:
        from mlhpc.common.ranks.horovod_world import require_nccl

        require_nccl()


@oom_as_user_error()
def train(
    run: CosmoFlow, data: Path, staged: Path | None, seed: int, resume: Path | None, world: World, log: RunLog
) -> None:
    """Train until an evaluation meets the target or the epochs run out: see ``registry.Framework``."""
    hparams, training = run.hyperparameters, run.training
    local_batch_size = divide_batch(hparams.global_batch_size, world.size)

    # Before the clock starts: network, optimizer, compilation on zeros. The data set is not accessed.
    with log.span("init", sync=True):
        device = use_one_gpu(world.local_rank)
        log.ranges = device_ranges(device)
        model = network(run, device, seed, world)
        optimizer = make_optimizer(hparams, training.precision)
        steps = _steps(run, model, optimizer, world, local_batch_size)
        last_epoch = restore(resume, model, optimizer, world) if resume else 0
        broadcast_weights(model, optimizer, world)
        events = LaunchEvents() if device and not run.emulation.enabled else None
        steps = steps.watched(events)
        write = partial(save, log.out, load.dumps(run), seed)

    # The clock runs from the moment when the last rank is ready until the slowest rank has finished.
    with log.span("run", sync=True), ExitStack() as beside:
        with log.span("staging", sync=True) if staged else nullcontext():
            dataset = open_data(run, data, world)
            finish_staging = beside.enter_context(staging(run, dataset, staged, world, log))
        log.data_format(**format_of(run, dataset, staged, world))
        source = CosmoFlowSource.of(run, dataset, gpu=device is not None)
        loader = open_loader(run, dataset, staged, source, local_batch_size, seed, world)

        convert = partial(as_tensors, sample_dtype=run.loading.sample_dtype)
        epochs = range(last_epoch + 1, training.max_epochs + 1)
        own_share = exchanging(run, dataset, staged, epochs, seed, world, log)
        met = False
        for epoch in epochs:
            loader.samples = own_share(epoch, loader.samples)
            before, bytes_before, losses = (epoch - 1) * loader.steps, loader.bytes_read, []
            with log.span("epoch", epoch=epoch, step=before) as span:
                with log.span("train", epoch=epoch):
                    optimizer.learning_rate = rate = rate_at(hparams, epoch - 1, training.max_epochs)
                    batches = to_device(loader.train_epoch(epoch - 1), device, convert)
                    timed = log.timed(batches, "data_wait", events, epoch=epoch)
                    for x, y in track(timed, loader.steps, f"epoch {epoch}", world):
                        losses.append(steps.train(x, y))
                        mark_warm(run, losses, log)
                    local_losses = tf.stack(losses).numpy()  # waits for the device
                    (loss,) = mean(world, local_losses.mean(), weight=1)
                    span["step"] = before + loader.steps
                finish_staging()
                bytes_read = loader.bytes_read - bytes_before
                require_finite(local_losses, epoch, partial(loader.files_of, epoch - 1), ADVICE, world)
                if run.study.steps:
                    checkpoint(run, log, epoch, partial(write, epoch, model, optimizer, world))
                    break
                with log.span("eval", epoch=epoch):
                    batches = to_device(loader.evaluation(), device, convert)
                    timed = log.timed(batches, "eval_data_wait", events, "eval", epoch=epoch)
                    results = [steps.evaluate(x, y) for x, y in timed]
                    error = mean_quality(results, world)
                log_quality(run, error, log, epoch)

            trained = loader.steps * hparams.global_batch_size
            log_epoch(run, log, epoch, trained, bytes_read, rate=rate, loss=loss, quality=error)
            if met := run.target.met_by(error):
                break
            checkpoint(run, log, epoch, partial(write, epoch, model, optimizer, world))
        log.finish("success" if met else "failed", peak_memory(device), named(run, loader))


def network(run: CosmoFlow, device: str | None, seed: int, world: World) -> keras.Model:
    """The network with its initial weights, on ``device`` (None: the CPU)."""
    cpu_kernels = device is None and run.training.cpu_kernels
    if cpu_kernels:
        start_xla()
    model = build_model(
        run.network,
        run.data.sample_shape,
        dropout=run.hyperparameters.dropout,
        weight_decay=run.hyperparameters.opt_weight_decay,
        precision=run.training.precision,
        seed=seed,
        dropout_seed=seed + 1 + world.rank,
        conv3d=MinimalConv3D if cpu_kernels else keras.layers.Conv3D,
    )
    require_parameters(model.count_params(), run.network.parameters)
    if run.training.weights:
        model.set_weights(load_weights(Path(run.training.weights), run.network))
    return model


def _steps(
    run: CosmoFlow,
    model: keras.Model,
    optimizer: keras.optimizers.Optimizer,
    world: World,
    local_batch_size: int,
) -> Steps:
    """Compile the steps by a warm-up on zeros."""
    if run.emulation.enabled:
        waiting = WaitingStep[Any].pair(run, world, np.float32(0), lambda n: (math.nan, n))
        return Steps(*waiting)
    steps = make_steps(model, optimizer, world, run.loading.sample_dtype)
    sizes = local_batch_size, run.training.eval_batch_size
    warm_up(model, optimizer, steps, *sizes, run.loading.sample_dtype)
    return steps
