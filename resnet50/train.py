"""ResNet-50, trained to target. The clock runs inside ``with log.span("run", sync=True)``, and nowhere else."""

from dataclasses import asdict
from functools import partial
from pathlib import Path

import torch

from mlhpc.benchmarks.resnet50 import ResNet50
from mlhpc.common.data.manifest import Manifest, describe
from mlhpc.common.data.sharding import local_batch_size, steps_per_epoch
from mlhpc.common.host.progress import track
from mlhpc.common.pytorch.loading import prepare
from mlhpc.common.pytorch.state import restore, save
from mlhpc.common.pytorch.step import (
    average_statistics,
    make_eval_step,
    make_scaler,
    make_train_step,
    pick_device,
    warm_up,
    wrap_ddp,
)
from mlhpc.common.ranks.world import World, mean
from mlhpc.common.staging.stage import stage
from mlhpc.common.timing.runlog import RunLog
from mlhpc.common.training.finite import require_finite
from mlhpc.errors import UserError
from mlhpc.resnet50.data.dataset import assign_samples, select
from mlhpc.resnet50.data.loader import Loader, zeros_batch
from mlhpc.resnet50.data.pack import pack
from mlhpc.resnet50.metric import cross_entropy, right_answers
from mlhpc.resnet50.model import build_model
from mlhpc.resnet50.optim.optimizer import make_optimizer, rate_at, set_rate

ADVICE = "look at them, or lower the base learning rate in hyperparameters"
"""Where a loss is not finite."""


def train(
    run: ResNet50, data: Path, staged: Path | None, seed: int, resume: Path | None, world: World, log: RunLog
) -> None:
    """Train until an evaluation meets the target, or the epochs run out; what happened is in ``log``.

    ``data`` is the data set, ``staged`` the node-local folder to copy it to (None: read it where it lies),
    ``resume`` the folder of a run to go on from. Raises UserError for what the user can mend.
    """
    if run.staging.pack and not staged:
        raise UserError("staging.pack is for data that is staged: give --stage, or leave it out")
    hparams, training = run.hyperparameters, run.training
    accumulated = hparams.gradient_accumulation_steps
    local_batch = local_batch_size(hparams.global_batch_size, world.size * accumulated)
    # The rules' name for the images that batch norm's statistics are taken over.
    log.hyperparameters({"model_bn_span": local_batch})

    # Before the clock: network, optimizer, compilation on synthetic samples. The data set is not touched.
    with log.span("init", sync=True):
        device = pick_device(training.device, world.local_rank)
        torch.manual_seed(seed)
        model = build_model(run.network)
        parameters = sum(parameter.numel() for parameter in model.parameters())
        if run.network.parameters not in (None, parameters):
            raise UserError(f"the network has {parameters} parameters, not {run.network.parameters}")
        layout = torch.channels_last if training.channels_last else torch.contiguous_format
        model = model.to(device).to(memory_format=layout)  # type: ignore[call-overload]
        optimizer = make_optimizer(hparams, model)
        scaler = make_scaler(training.precision, device)
        last_epoch, _ = restore(resume, model, optimizer, scaler, world) if resume else (0, {})
        train_step = make_train_step(
            wrap_ddp(model, world),
            partial(cross_entropy, label_smoothing=training.label_smoothing),
            optimizer,
            scaler,
            training.precision,
            layout=layout,
            accumulate=accumulated,
            compiled=training.compile,
        )
        eval_step = make_eval_step(
            model,
            right_answers,
            training.precision,
            batch=training.eval_batch_size,
            layout=layout,
            compiled=training.compile,
        )
        prepare(run.loading.loader, "mlhpc.resnet50.data.workers")
        sizes = {
            "train_batch": local_batch,
            "eval_batch": training.eval_batch_size,
            "accumulate": accumulated,
        }
        zeros = partial(zeros_batch, sample_shape=run.data.sample_shape)
        warm_up(model, optimizer, scaler, train_step, eval_step, zeros, **sizes)

    with log.span("run", sync=True):
        if staged:
            with log.span("staging", sync=True):
                dataset = select(describe(data, world, run.benchmark), run.data)
                if run.staging.pack:
                    classes = run.network.classes
                    dataset, report = pack(dataset, staged, world, classes, run.staging.workers)
                else:
                    report = stage(dataset, staged, world, run.staging.mode, run.staging.workers)
            log.note("staging", **asdict(report), packed=run.staging.pack)
        else:
            dataset = select(describe(data, world, run.benchmark), run.data)
        loader = _open_loader(run, dataset, staged, local_batch, seed, world, device)
        updates = loader.steps // accumulated

        for epoch in range(last_epoch + 1, training.max_epochs + 1):
            bytes_before, losses, accuracy = loader.bytes_read, [], None
            with log.span("epoch", epoch=epoch, step=(epoch - 1) * updates) as ended:
                with log.span("train", epoch=epoch):
                    batches = log.timed(loader.train_epoch(epoch - 1), "data_wait", epoch=epoch)
                    for step, (x, y) in enumerate(track(batches, loader.steps, f"epoch {epoch}", world)):
                        update = (epoch - 1) * updates + step // accumulated
                        rate = rate_at(hparams, update, updates)
                        set_rate(optimizer, rate)
                        losses.append(train_step(x, y))
                        if len(losses) == run.study.warmup_steps * accumulated:
                            log.mark("warm", loss=float(losses[-1]))  # float() waits for the device
                    local = torch.stack(losses).double().cpu().numpy()
                    (loss,) = mean(world, local.mean(), weight=1)
                    ended["step"] = epoch * updates
                bytes_read = loader.bytes_read - bytes_before
                require_finite(local, epoch, partial(loader.files_of, epoch - 1), ADVICE, world)
                if run.study.steps:
                    break
                if training.evaluates(epoch):
                    with log.span("eval", epoch=epoch):
                        average_statistics(model, world)
                        evaluated = [eval_step(x, y) for x, y in loader.evaluation()]
                        (right,) = world.sum([sum(int(right) for right in evaluated)])
                        # Of all images: one that was left out (loading.broken_images) counts as wrong.
                        accuracy = float(right) / run.data.eval_samples
                    log.metric(run.target.metric, accuracy, epoch=epoch)

            log.metric("samples", len(losses) * local_batch * world.size, epoch=epoch)
            log.metric("bytes", int(world.sum(bytes_read)), epoch=epoch)
            _log_skipped(run.loading.broken_images, loader, epoch, world, log)
            log.metric("learning_rate", rate, epoch=epoch)
            log.metric("train_loss", loss, epoch=epoch)
            told = f"{accuracy:.4f} (target {run.target.value})" if accuracy is not None else "not evaluated"
            log.say(f"epoch {epoch}: loss {loss:.4f}, {run.target.label} {told}")
            if accuracy is not None and run.target.met_by(accuracy):
                log.finish("success")
                return
            if training.checkpoint_epochs and epoch % training.checkpoint_epochs == 0:
                with log.span("checkpoint", epoch=epoch):
                    save(log.out, run, seed, epoch, model, optimizer, scaler, world)
        log.finish("failed")


def _log_skipped(broken_images: str, loader: Loader, epoch: int, world: World, log: RunLog) -> None:
    """Where images may be left out: how many have been until now, on all ranks, each once, and which."""
    if broken_images == "skip":
        skipped = sorted(set[str]().union(*world.gather(loader.skipped)))
        log.metric("images_skipped", len(skipped), epoch=epoch)
        log.note("images_skipped", images=skipped)


def _open_loader(
    run: ResNet50,
    dataset: Manifest,
    staged: Path | None,
    local_batch: int,
    seed: int,
    world: World,
    device: torch.device,
) -> Loader:
    mine = assign_samples(
        dataset,
        staged,
        run.staging.mode,
        world,
        classes=run.network.classes,
        train_samples=run.data.train_samples,
        eval_samples=run.data.eval_samples,
    )
    accumulated = run.hyperparameters.gradient_accumulation_steps
    updates = run.study.cut(steps_per_epoch(world.gather(mine.train_pool), local_batch * accumulated))
    return Loader(
        mine.train,
        mine.evaluation,
        mine.train_pool,
        mine.eval_pool,
        place=mine.place,
        size=run.data.sample_shape[0],
        local_batch=local_batch,
        eval_batch=run.training.eval_batch_size,
        steps=updates * accumulated,
        seed=seed,
        readers=run.loading.workers,
        batches_ahead=run.loading.prefetch,
        loader=run.loading.loader,
        broken_images=run.loading.broken_images,
        ranks_on_node=world.local_size,
        device=device.type,
    )
