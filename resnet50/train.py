"""Trains ResNet-50 to the target. The clock runs inside ``with log.span("run", sync=True)`` and nowhere else."""

import math
from contextlib import nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path

import torch

from mlhpc.benchmarks import load
from mlhpc.benchmarks.resnet50 import ResNet50
from mlhpc.common.data.manifest import Manifest
from mlhpc.common.data.sharding import divide_batch
from mlhpc.common.host.progress import track
from mlhpc.common.pytorch.devices import (
    device_events,
    device_ranges,
    oom_as_user_error,
    peak_memory,
    pick_device,
    place,
)
from mlhpc.common.pytorch.feeds import prepare
from mlhpc.common.pytorch.graphs import require_graphs, start_steps
from mlhpc.common.pytorch.state import restore, save
from mlhpc.common.pytorch.step import (
    Captured,
    State,
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
from mlhpc.common.staging.stage import StagingReport, stage
from mlhpc.common.timing.runlog import RunLog
from mlhpc.common.training.dataset import format_of, open_loader
from mlhpc.common.training.epoch import (
    checkpoint,
    log_epoch,
    log_quality,
    mark_warm,
    named,
    require_parameters,
    total,
)
from mlhpc.common.training.finite import require_finite
from mlhpc.resnet50.data.pack import pack
from mlhpc.resnet50.data.source import ResNet50Source, open_data, zeros_batch
from mlhpc.resnet50.metric import count_correct, cross_entropy
from mlhpc.resnet50.model import build_model
from mlhpc.resnet50.optim.optimizer import make_optimizer, rate_at

ADVICE = "look at them, or lower the base learning rate in hyperparameters"
"""Advice for a loss that is not finite."""


def check(run: ResNet50, staged: Path | None, world: World) -> None:
    """Raise UserError if the run cannot start on these ranks and this machine. No side effects."""
    run.require_startable(world.size, staged=staged is not None)
    device = pick_device(run.training.device, world.local_rank)
    make_scaler(run.training.precision, device)
    require_graphs(run, device, world)


@oom_as_user_error()
def train(
    run: ResNet50, data: Path, staged: Path | None, seed: int, resume: Path | None, world: World, log: RunLog
) -> None:
    """Train until an evaluation meets the target or the epochs run out: see ``registry.Framework``."""
    hparams, training = run.hyperparameters, run.training
    accumulate = hparams.gradient_accumulation_steps
    local_batch_size = divide_batch(hparams.global_batch_size, world.size * accumulate)
    log.hyperparameters({"model_bn_span": local_batch_size})  # images per batch of batch-norm statistics

    # Before the clock starts: network, optimizer, compilation on zeros. The data set is not accessed.
    with log.span("init", sync=True):
        device = pick_device(training.device, world.local_rank)
        log.ranges = device_ranges(device)
        torch.manual_seed(seed)
        model = build_model(run.network)
        require_parameters(sum(weight.numel() for weight in model.parameters()), run.network.parameters)
        place(model, device, channels_last=training.channels_last)
        optimizer = make_optimizer(hparams, model, training.sgd)
        scaler = make_scaler(training.precision, device)
        last_epoch, _ = restore(resume, model, optimizer, scaler, world) if resume else (0, {})
        steps = _steps(run, (model, optimizer, scaler, world), local_batch_size, log)
        prepare(run.loading.loader, "mlhpc.resnet50.data.reader")
        events = None if run.emulation.enabled else device_events(device)
        write = partial(save, log.out, load.dumps(run), seed)

    # The clock runs from the moment when the last rank is ready until the slowest rank has finished.
    with log.span("run", sync=True):
        with log.span("staging", sync=True) if staged else nullcontext():
            dataset, report = _stage(run, open_data(run, data, world), staged, world)
        log.data_format(**format_of(run, dataset, staged, world))
        if report:
            log.note("staging", **asdict(report), packed=run.staging.pack)
        source = ResNet50Source.of(run, device.type, world.local_size)
        loader = open_loader(run, dataset, staged, source, local_batch_size, seed, world)
        epoch_steps = loader.steps // accumulate  # optimizer steps

        met = False
        for epoch in range(last_epoch + 1, training.max_epochs + 1):
            before, bytes_before, losses, accuracy = (epoch - 1) * epoch_steps, loader.bytes_read, [], None
            with log.span("epoch", epoch=epoch, step=before) as span:
                with log.span("train", epoch=epoch):
                    batches = loader.train_epoch(epoch - 1)
                    timed = log.timed(batches, "data_wait", events, passes=accumulate, epoch=epoch)
                    for step, (x, y) in enumerate(track(timed, loader.steps, f"epoch {epoch}", world)):
                        rate = rate_at(hparams, before + step // accumulate, epoch_steps)
                        set_rate(optimizer, rate)
                        losses.append(steps.train(x, y))
                        mark_warm(run, losses, log)
                    local_losses, loss = gather_losses(losses, world)  # waits for the device
                    span["step"] = before + epoch_steps
                bytes_read = loader.bytes_read - bytes_before
                require_finite(local_losses, epoch, partial(loader.files_of, epoch - 1), ADVICE, world)
                if run.study.steps:
                    checkpoint(run, log, epoch, partial(write, epoch, model, optimizer, scaler, world))
                    break
                if training.evaluates(epoch):
                    with log.span("eval", epoch=epoch):
                        average_statistics(model, world)
                        timed = log.timed(loader.evaluation(), "eval_data_wait", events, "eval", epoch=epoch)
                        results = [steps.evaluate(x, y) for x, y in timed]
                        (right,) = world.sum([total(results)])
                        # Out of all images: skipped ones (loading.broken_images) count as wrong.
                        accuracy = float(right) / run.data.eval_samples
                    log_quality(run, accuracy, log, epoch)

            trained = len(losses) * local_batch_size * world.size
            log_epoch(run, log, epoch, trained, bytes_read, rate=rate, loss=loss, quality=accuracy)
            _log_skipped(run, source, epoch, world, log)
            if met := accuracy is not None and run.target.met_by(accuracy):
                break
            checkpoint(run, log, epoch, partial(write, epoch, model, optimizer, scaler, world))
        log.finish("success" if met else "failed", peak_memory(device), named(run, loader))


def _steps(run: ResNet50, state: State, local_batch_size: int, log: RunLog) -> Steps[torch.Tensor]:
    """Compile the steps and warm them up on zeros."""
    training, accumulate = run.training, run.backward_passes
    loss_of = partial(cross_entropy, label_smoothing=training.label_smoothing)

    def make(captured: Captured | None) -> Steps[torch.Tensor]:
        if run.emulation.enabled:
            return waiting_steps(run, state[3], lambda _: math.nan)
        build = partial(make_steps, state, training, accumulate=accumulate, captured=captured)
        return build(loss_of=loss_of, measure=count_correct)

    zeros = partial(zeros_batch, sample_shape=run.data.sample_shape)
    evaluated, loading = training.eval_batch_size, run.loading
    sizes = WarmUpSizes(local_batch_size, evaluated, accumulate, loading.prefetch, loading.loader == "dali")
    steps, _ = start_steps(run, make, state, zeros, sizes, log)
    return steps


def _stage(
    run: ResNet50, dataset: Manifest, staged: Path | None, world: World
) -> tuple[Manifest, StagingReport | None]:
    """Stage ``dataset`` to ``staged``, packed or unpacked; if ``staged`` is None, the data set is read in place.
    Returns the data set to read and the report."""
    how = run.staging
    if staged is None:
        return dataset, None
    if how.pack:
        return pack(dataset, staged, world, run.network.classes, how.workers)
    return dataset, stage(dataset, staged, world, how.mode, how.workers, how.read_once)


def _log_skipped(run: ResNet50, source: ResNet50Source, epoch: int, world: World, log: RunLog) -> None:
    """If images may be skipped, record how many and which ones all ranks have skipped so far, counting each
    once."""
    if run.loading.broken_images == "skip":
        skipped = sorted(set[str]().union(*world.gather(source.skipped)))
        log.metric("images_skipped", len(skipped), epoch=epoch)
        log.note("images_skipped", images=skipped)
