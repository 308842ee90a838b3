"""Trains DeepCAM to the target. The clock runs inside ``with log.span("run", sync=True)`` and nowhere else."""

import math
from collections.abc import Callable
from contextlib import ExitStack, closing, nullcontext
from functools import partial
from itertools import islice
from pathlib import Path

import torch
from torch.amp.grad_scaler import GradScaler

from mlhpc.benchmarks import load
from mlhpc.benchmarks.deepcam import DeepCam
from mlhpc.common.data.sharding import divide_batch
from mlhpc.common.host.malloc import keep_memory
from mlhpc.common.host.progress import track
from mlhpc.common.pytorch.batchnorm import group_batchnorm
from mlhpc.common.pytorch.devices import (
    device_events,
    device_ranges,
    oom_as_user_error,
    peak_memory,
    pick_device,
    place,
)
from mlhpc.common.pytorch.feeds import prepare
from mlhpc.common.pytorch.graphs import Graphs, require_graphs, start_steps
from mlhpc.common.pytorch.loading import dtype_of
from mlhpc.common.pytorch.state import restore, save
from mlhpc.common.pytorch.step import (
    Captured,
    Steps,
    WarmUpSizes,
    average_statistics,
    gather_losses,
    make_scaler,
    make_steps,
    set_rate,
    waiting_steps,
)
from mlhpc.common.ranks.world import World
from mlhpc.common.timing.runlog import RunLog
from mlhpc.common.training.dataset import format_of, open_loader
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
from mlhpc.deepcam.cpu.kernels import use_cpu_kernels
from mlhpc.deepcam.data.source import DeepCamSource, open_data, zeros_batch
from mlhpc.deepcam.freeze import Freezer
from mlhpc.deepcam.metric import summed_iou, weighted_cross_entropy
from mlhpc.deepcam.model import DeepLab, build_model, current_name
from mlhpc.deepcam.optim.optimizer import make_optimizer, rate_at
from mlhpc.errors import UserError

TrainAndEvaluate = Steps[tuple[torch.Tensor, int]]
State = tuple[DeepLab, torch.optim.Optimizer, GradScaler, World]
ADVICE = "look at them with mlhpc data show deepcam, or lower hyperparameters.opt_lr"
"""Advice for a loss that is not finite."""


def check(run: DeepCam, staged: Path | None, world: World) -> None:
    """Raise UserError if the run cannot start on these ranks and this machine. No side effects."""
    run.require_startable(world.size, staged=staged is not None)
    device = pick_device(run.training.device, world.local_rank)
    make_scaler(run.training.precision, device)
    require_graphs(run, device, world)
    if run.loading.decode == "device" and device.type == "cpu":
        raise UserError("loading.decode=device needs a GPU; on a CPU set loading.decode=host")


@oom_as_user_error()
def train(
    run: DeepCam, data: Path, staged: Path | None, seed: int, resume: Path | None, world: World, log: RunLog
) -> None:
    """Train until an evaluation meets the target or the epochs run out: see ``registry.Framework``."""
    hparams, training = run.hyperparameters, run.training
    accumulate = hparams.gradient_accumulation_frequency
    local_batch_size = divide_batch(hparams.global_batch_size, world.size * accumulate)

    # Before the clock starts: network, optimizer, compilation on zeros. The data set is not accessed.
    with log.span("init", sync=True):
        device = pick_device(training.device, world.local_rank)
        log.ranges = device_ranges(device)
        torch.manual_seed(seed)
        model = network(run, device, world)
        optimizer = make_optimizer(hparams, model.parameters(), compiled=training.compile)
        scaler = make_scaler(training.precision, device)
        state = (model, optimizer, scaler, world)
        last_epoch, numbers = restore(resume, *state, current_name) if resume else (0, {})
        freezer = Freezer(model, training.freeze_below, frozen=numbers.get("frozen", 0))
        make = partial(_steps, run, state)
        prepare(run.loading.loader, "mlhpc.deepcam.data.sample")
        steps, graphs = _start(run, make, state, local_batch_size, log)
        events = None if run.emulation.enabled else device_events(device)
        write = partial(save, log.out, load.dumps(run), seed)

    # The clock runs from the moment when the last rank is ready until the slowest rank has finished.
    with log.span("run", sync=True), ExitStack() as beside:
        with log.span("staging", sync=True) if staged else nullcontext():
            dataset, statistics = open_data(run, data, world)
            beside.enter_context(staging(run, dataset, staged, world, log))
        log.data_format(**format_of(run, dataset, staged, world))
        source = DeepCamSource.of(run, dataset, statistics, device.type, world)
        loader = open_loader(run, dataset, staged, source, local_batch_size, seed, world)
        epoch_steps = loader.steps // accumulate  # optimizer steps
        epochs = range(last_epoch + 1, training.max_epochs + 1)
        own_share = exchanging(run, dataset, staged, epochs, seed, world, log)
        met = False
        for epoch in epochs:
            loader.samples = own_share(epoch, loader.samples)
            before, bytes_read, losses = (epoch - 1) * epoch_steps, 0, []
            batches = loader.train_epoch(epoch - 1)
            with log.span("epoch", epoch=epoch, step=before) as span, closing(batches):
                for start, stop in run.between_evaluations(epoch_steps):
                    bytes_before = loader.bytes_read
                    with log.span("train", epoch=epoch):
                        count = (stop - start) * accumulate
                        read = islice(batches, count)
                        timed = log.timed(read, "data_wait", events, passes=accumulate, epoch=epoch)
                        for step, (x, y) in enumerate(track(timed, count, f"epoch {epoch}", world)):
                            rate = rate_at(hparams, before + start + step // accumulate)
                            set_rate(optimizer, rate)
                            losses.append(steps.train(x, y))
                            mark_warm(run, losses, log)
                        local_losses, loss = gather_losses(losses, world)  # waits for the device
                        span["step"] = before + stop
                    bytes_read += loader.bytes_read - bytes_before
                    require_finite(local_losses, epoch, partial(loader.files_of, epoch - 1), ADVICE, world)
                    if run.study.steps:
                        checkpoint(run, log, epoch, partial(write, epoch, *state, frozen=freezer.frozen))
                        break
                    with log.span("eval", epoch=epoch):
                        average_statistics(model, world)
                        timed = log.timed(loader.evaluation(), "eval_data_wait", events, "eval", epoch=epoch)
                        iou = mean_quality([steps.evaluate(x, y) for x, y in timed], world)
                    log_quality(run, iou, log, epoch)
                    if met := run.target.met_by(iou):
                        break

            if run.study.steps:
                break
            trained = len(losses) * local_batch_size * world.size
            log_epoch(run, log, epoch, trained, bytes_read, rate=rate, loss=loss, quality=iou)
            if met:
                break
            if freezer.after_epoch(world, log, epoch):
                steps = make(graphs.for_new_steps() if graphs else None)
            checkpoint(run, log, epoch, partial(write, epoch, *state, frozen=freezer.frozen))
        log.finish("success" if met else "failed", peak_memory(device), named(run, loader))


def network(run: DeepCam, device: torch.device, world: World) -> DeepLab:
    """The network with its initial weights, on ``device``."""
    model = build_model(run.network, channels=run.data.sample_shape[-1])
    if device.type == "cpu":
        keep_memory()
        if run.training.cpu_kernels:
            use_cpu_kernels(model)
    require_parameters(sum(weight.numel() for weight in model.parameters()), run.network.parameters)
    group_batchnorm(model, world, run.hyperparameters.batchnorm_group_size)
    place(model, device, channels_last=run.training.channels_last)
    return model


def _steps(run: DeepCam, state: State, captured: Captured | None) -> TrainAndEvaluate:
    """Make the training and evaluation steps; only weights that are not frozen are updated."""
    training, accumulate = run.training, run.backward_passes
    if run.emulation.enabled:
        return waiting_steps(run, state[3], lambda samples: (math.nan, samples))
    if training.compile:  # earlier compiled code is obsolete, and PyTorch's cache is limited
        torch.compiler.reset()
    loss_of, measure = weighted_cross_entropy, summed_iou
    return make_steps(
        state, training, loss_of=loss_of, measure=measure, accumulate=accumulate, captured=captured
    )


def _start(
    run: DeepCam,
    make: Callable[[Captured | None], TrainAndEvaluate],
    state: State,
    local_batch: int,
    log: RunLog,
) -> tuple[TrainAndEvaluate, Graphs | None]:
    """Compile the steps and warm them up on zeros; return them, and their graphs if these are replayed."""
    shape, dtype = run.data.sample_shape, dtype_of(run.loading.sample_dtype)
    evaluated = run.training.eval_batch_size
    if run.loading.decode == "device" and not run.emulation.enabled:
        from mlhpc.deepcam.data import delta_triton  # needs Triton

        delta_triton.warm_up(max(local_batch, evaluated), shape, dtype, next(state[0].parameters()).device)
    zeros = partial(zeros_batch, sample_shape=shape, dtype=dtype)
    passes, loading = run.backward_passes, run.loading
    sizes = WarmUpSizes(local_batch, evaluated, passes, loading.prefetch, loading.decode == "device")
    return start_steps(run, make, state, zeros, sizes, log)
