"""ResNet-50, trained to target. The clock runs inside ``with log.span("run", sync=True)`` and nowhere else."""

import math
from contextlib import nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path

import torch

from mlhpc.benchmarks import load
from mlhpc.benchmarks.resnet50 import ResNet50
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
from mlhpc.common.pytorch.emulation import waiting_steps
from mlhpc.common.pytorch.loading import prepare
from mlhpc.common.pytorch.state import restore, save
from mlhpc.common.pytorch.step import WarmUpSizes, average_statistics, make_scaler, make_steps, warm_up
from mlhpc.common.ranks.world import World, mean
from mlhpc.common.staging.stage import stage
from mlhpc.common.timing.runlog import RunLog, Status
from mlhpc.common.training.dataset import format_of
from mlhpc.common.training.epoch import log_epoch, require_parameters
from mlhpc.common.training.finite import require_finite
from mlhpc.resnet50.data.loader import Loader, zeros_batch
from mlhpc.resnet50.data.opening import open_data, open_loader
from mlhpc.resnet50.data.pack import pack
from mlhpc.resnet50.metric import count_correct, cross_entropy
from mlhpc.resnet50.model import build_model
from mlhpc.resnet50.optim.optimizer import make_optimizer, rate_at, set_rate

ADVICE = "look at them, or lower the base learning rate in hyperparameters"
"""Advice for a loss that is not finite."""


def check(run: ResNet50, staged: Path | None, world: World) -> None:
    """Raise UserError if the run cannot start on these ranks and this machine. No side effects."""
    run.require_startable(world.size, staged=staged is not None)
    make_scaler(run.training.precision, pick_device(run.training.device, world.local_rank))


@oom_as_user_error()
def train(
    run: ResNet50, data: Path, staged: Path | None, seed: int, resume: Path | None, world: World, log: RunLog
) -> None:
    """Train until an evaluation meets the target or the epochs run out, recorded in ``log``.

    ``data`` is the data set, ``staged`` the node-local folder to copy it to (None: read it in place),
    ``resume`` the folder of a run to continue. Raises UserError for errors that the user can fix.
    """
    hparams, training = run.hyperparameters, run.training
    accumulate = hparams.gradient_accumulation_steps
    local_batch_size = divide_batch(hparams.global_batch_size, world.size * accumulate)
    log.hyperparameters({"model_bn_span": local_batch_size})  # images per batch of batch norm's statistics

    # Before the clock: network, optimizer, compilation on zeros. The data set is not touched.
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
        loss_of = partial(cross_entropy, label_smoothing=training.label_smoothing)
        make = partial(make_steps, model, training, world, optimizer, scaler)
        steps = make(loss_of=loss_of, measure=count_correct, accumulate=accumulate)
        if emulated := run.emulation.enabled:
            steps = waiting_steps(run.emulation, world, accumulate, lambda _: math.nan)
        prepare(run.loading.loader, "mlhpc.resnet50.data.workers")
        zeros = partial(zeros_batch, sample_shape=run.data.sample_shape)
        sizes = WarmUpSizes(local_batch_size, training.eval_batch_size, accumulate)
        if not emulated:
            warm_up(model, optimizer, scaler, steps, zeros, sizes)
        events = None if emulated else device_events(device)

    # The clock: from the moment the last rank is ready until the slowest one has finished.
    with log.span("run", sync=True):
        with log.span("staging", sync=True) if staged else nullcontext():
            dataset = open_data(run, data, world)
            if staged and run.staging.pack:
                dataset, report = pack(dataset, staged, world, run.network.classes, run.staging.workers)
            elif staged:
                how = run.staging
                report = stage(dataset, staged, world, how.mode, how.workers, how.read_once)
        log.data_format(**format_of(dataset, staged, run.staging, world))
        if staged:
            log.note("staging", **asdict(report), packed=run.staging.pack)
        loader = open_loader(run, dataset, staged, local_batch_size, seed, world, device.type)
        epoch_steps = loader.steps // accumulate  # of the optimizer

        record = partial(log_epoch, log, world, run.target, run.training.max_epochs, emulated=emulated)
        status: Status = "failed"
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
                        if len(losses) == run.study.warmup_steps * accumulate:
                            log.mark("warm", loss=float(losses[-1]))  # float() waits for the device
                    local_losses = torch.stack(losses).double().cpu().numpy()  # waits for the device
                    (loss,) = mean(world, local_losses.mean(), weight=1)
                    span["step"] = before + epoch_steps
                bytes_read = loader.bytes_read - bytes_before
                require_finite(local_losses, epoch, partial(loader.files_of, epoch - 1), ADVICE, world)
                if run.study.steps:
                    break
                if training.evaluates(epoch):
                    with log.span("eval", epoch=epoch):
                        average_statistics(model, world)
                        timed = log.timed(loader.evaluation(), "eval_data_wait", events, "eval", epoch=epoch)
                        results = [steps.evaluate(x, y) for x, y in timed]
                        (right,) = world.sum([sum(float(right) for right in results)])
                        # Out of all images: a skipped one (loading.broken_images) counts as wrong.
                        accuracy = float(right) / run.data.eval_samples
                    if not emulated:
                        log.metric(run.target.metric, accuracy, epoch=epoch)

            trained = len(losses) * local_batch_size * world.size
            record(epoch, samples=trained, bytes_read=bytes_read, rate=rate, loss=loss, quality=accuracy)
            _log_skipped(run, loader, epoch, world, log)
            if accuracy is not None and run.target.met_by(accuracy):
                status = "success"
                break
            if training.checkpoint_epochs and epoch % training.checkpoint_epochs == 0:
                with log.span("checkpoint", epoch=epoch):
                    save(log.out, load.dumps(run), seed, epoch, model, optimizer, scaler, world)
        log.finish(status, peak_memory(device))


def _log_skipped(run: ResNet50, loader: Loader, epoch: int, world: World, log: RunLog) -> None:
    """If images may be skipped, record how many and which have been so far, over all ranks, each counted once."""
    if run.loading.broken_images == "skip":
        skipped = sorted(set[str]().union(*world.gather(loader.skipped)))
        log.metric("images_skipped", len(skipped), epoch=epoch)
        log.note("images_skipped", images=skipped)
