"""CosmoFlow, trained to target. The clock runs inside ``with log.span("run", sync=True)``, and nowhere else."""

from dataclasses import asdict
from functools import partial
from pathlib import Path

import numpy as np

from mlhpc.benchmarks import rules
from mlhpc.benchmarks.cosmoflow import CosmoFlow
from mlhpc.common.data.assign import assign_samples
from mlhpc.common.data.manifest import Manifest, describe, take
from mlhpc.common.data.sharding import local_batch_size, steps_per_epoch
from mlhpc.common.host.progress import track
from mlhpc.common.ranks.world import World, mean
from mlhpc.common.staging.stage import stage
from mlhpc.common.timing.runlog import RunLog
from mlhpc.common.training.schedules import learning_rate
from mlhpc.cosmoflow.data.loader import Loader
from mlhpc.cosmoflow.tf.model import build_model
from mlhpc.cosmoflow.tf.state import broadcast_weights, restore, save
from mlhpc.cosmoflow.tf.step import make_eval_step, make_optimizer, make_train_step, warm_up
from mlhpc.errors import UserError


def train(
    run: CosmoFlow, data: Path, staged: Path | None, seed: int, resume: Path | None, world: World, log: RunLog
) -> None:
    """Train until an evaluation meets the target, or the epochs run out; what happened is in ``log``.

    ``data`` is the data set, ``staged`` the node-local folder to copy it to (None: read it where it lies),
    ``resume`` the folder of a run to go on from. Raises UserError for what the user can mend.
    """
    hparams, training = run.hyperparameters, run.training
    local_batch = local_batch_size(hparams.global_batch_size, world.size)

    # Before the clock: network, optimizer, compilation on synthetic samples. The data set is not touched.
    with log.span("init", sync=True):
        model = build_model(
            run.network,
            run.data.sample_shape,
            dropout=hparams.dropout,
            weight_decay=hparams.opt_weight_decay,
            precision=training.precision,
            seed=seed,
            dropout_seed=seed + 1 + world.rank,
        )
        if run.network.parameters not in (None, model.count_params()):
            raise UserError(
                f"the network has {model.count_params()} parameters, not {run.network.parameters}"
            )
        optimizer = make_optimizer(hparams, training.precision)
        train_step = make_train_step(model, optimizer, _average_gradients(world))
        eval_step = make_eval_step(model)
        warm_up(model, optimizer, train_step, eval_step, local_batch, training.eval_batch_size)
        last_epoch = restore(resume, model, optimizer, world) if resume else 0
        broadcast_weights(model, optimizer, world)
        rate_of = partial(
            learning_rate,
            peak=hparams.opt_base_learning_rate,
            warmup_epochs=hparams.opt_learning_rate_warmup_epochs,
            warmup_factor=hparams.opt_learning_rate_warmup_factor,
            decay_boundary_epochs=hparams.opt_learning_rate_decay_boundary_epochs,
            decay_factors=hparams.opt_learning_rate_decay_factor,
            schedule=hparams.opt_learning_rate_schedule,
            max_epochs=training.max_epochs,
        )

    with log.span("run", sync=True):
        if staged:
            with log.span("staging", sync=True):
                dataset = _dataset(run, data, world)
                report = stage(dataset, staged, world, run.staging.mode, run.staging.workers)
            log.note("staging", **asdict(report))
        else:
            dataset = _dataset(run, data, world)
        loader = _open_loader(run, dataset, staged, local_batch, seed, world)

        bytes_before = 0
        for epoch in range(last_epoch + 1, training.max_epochs + 1):
            with log.span("epoch", epoch=epoch, step=(epoch - 1) * loader.steps) as ended:
                with log.span("train", epoch=epoch):
                    optimizer.learning_rate = rate = rate_of(epoch - 1)
                    batches = log.timed(loader.train_epoch(epoch - 1), "data_wait", epoch=epoch)
                    losses = []
                    for x, y in track(batches, loader.steps, f"epoch {epoch}", world):
                        losses.append(train_step(x, y))
                        if len(losses) == run.study.warmup_steps:
                            log.mark("warm", loss=float(losses[-1]))  # float() waits for the device
                    (loss,) = mean(world, np.mean(losses), weight=1)
                    bytes_read = loader.bytes_read - bytes_before
                    ended["step"] = epoch * loader.steps
                if run.study.steps:
                    _require_finite(loss, epoch, rate)
                    break
                with log.span("eval", epoch=epoch):
                    errors = [eval_step(x, y) for x, y in loader.evaluation()]
                    error_sum, count = world.sum(np.sum(errors, axis=0) if errors else (0, 0))
                    error = error_sum / count
                    bytes_before = loader.bytes_read

            log.metric("samples", loader.steps * hparams.global_batch_size, epoch=epoch)
            log.metric("bytes", int(world.sum(bytes_read)), epoch=epoch)
            log.metric("learning_rate", rate, epoch=epoch)
            log.metric("train_loss", loss, epoch=epoch)
            log.metric(run.target.metric, error, epoch=epoch)
            log.say(
                f"epoch {epoch}: loss {loss:.4f}, {run.target.label} {error:.4f} (target {run.target.value})"
            )
            _require_finite(loss, epoch, rate)
            if run.target.met_by(error):
                log.finish("success")
                return
            if training.checkpoint_epochs and epoch % training.checkpoint_epochs == 0:
                with log.span("checkpoint", epoch=epoch):
                    save(log.out, run, seed, epoch, model, optimizer, world)
        log.finish("failed")


def _require_finite(loss: float, epoch: int, rate: float) -> None:
    if not np.isfinite(loss):
        raise UserError(f"the loss became {loss} in epoch {epoch}, at learning rate {rate:g}; lower the rate")


def _dataset(run: CosmoFlow, data: Path, world: World) -> Manifest:
    """The part of the data set that the run needs; the closed division's rules on data are held here."""
    dataset = describe(data, world, run.benchmark)
    dataset = take(dataset, train=run.data.train_samples, validation=run.data.eval_samples)
    rules.enforce(rules.RunContext(run, facts=dataset.facts))
    return dataset


def _open_loader(
    run: CosmoFlow, dataset: Manifest, staged: Path | None, local_batch: int, seed: int, world: World
) -> Loader:
    mine = assign_samples(
        dataset,
        staged,
        run.staging.mode,
        world,
        train_samples=run.data.train_samples,
        eval_samples=run.data.eval_samples,
    )
    return Loader(
        mine.train_files,
        mine.eval_files,
        mine.train_pool,
        mine.eval_pool,
        place=mine.place,
        sample_shape=run.data.sample_shape,
        targets=run.network.targets,
        local_batch=local_batch,
        eval_batch=run.training.eval_batch_size,
        steps=run.study.cut(steps_per_epoch(world.gather(mine.train_pool), local_batch)),
        seed=seed,
        augment=run.training.augment,
        readers=run.loading.workers,
        batches_ahead=run.loading.prefetch,
    )


def _average_gradients(world: World):  # type: ignore[no-untyped-def]
    if world.size == 1:
        return None
    from mlhpc.common.ranks.horovod_world import average_gradients

    return average_gradients
