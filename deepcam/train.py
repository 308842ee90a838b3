"""DeepCAM, trained to target. The clock runs inside ``with log.span("run", sync=True)``, and nowhere else."""

from contextlib import closing
from dataclasses import asdict
from functools import partial
from pathlib import Path

import torch

from mlhpc.benchmarks import rules
from mlhpc.benchmarks.deepcam import DeepCam
from mlhpc.common.data.assign import assign_samples
from mlhpc.common.data.manifest import Manifest, describe, take
from mlhpc.common.data.sharding import local_batch_size, steps_per_epoch
from mlhpc.common.host.malloc import keep_memory
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
from mlhpc.common.ranks.collectives import on_rank0
from mlhpc.common.ranks.world import World, mean
from mlhpc.common.staging.stage import stage
from mlhpc.common.timing.runlog import RunLog
from mlhpc.common.training.finite import require_finite
from mlhpc.common.training.schedules import step_learning_rate
from mlhpc.deepcam.data.hdf5 import Statistics, read_statistics
from mlhpc.deepcam.data.loader import Loader, zeros_batch
from mlhpc.deepcam.data.sample import is_sample
from mlhpc.deepcam.freeze import count_converged_blocks, freeze, frozen_blocks, weights_of
from mlhpc.deepcam.layers.batchnorm import group_batchnorm
from mlhpc.deepcam.metric import summed_iou, weighted_cross_entropy
from mlhpc.deepcam.model import build_model
from mlhpc.deepcam.optim.optimizer import make_optimizer, set_rate
from mlhpc.errors import UserError

ADVICE = "look at them with mlhpc data show deepcam, or lower hyperparameters.opt_lr"
"""Where a loss is not finite."""


def train(
    run: DeepCam, data: Path, staged: Path | None, seed: int, resume: Path | None, world: World, log: RunLog
) -> None:
    """Train until an evaluation meets the target, or the epochs run out; what happened is in ``log``.

    ``data`` is the data set, ``staged`` the node-local folder to copy it to (None: read it where it lies),
    ``resume`` the folder of a run to go on from. Raises UserError for what the user can mend.
    """
    hparams, training = run.hyperparameters, run.training
    accumulated = hparams.gradient_accumulation_frequency
    if hparams.global_batch_size % accumulated:
        raise UserError(
            f"a global batch of {hparams.global_batch_size} samples cannot be gathered in {accumulated} equal "
            "backward passes; take another hyperparameters.gradient_accumulation_frequency"
        )
    if training.cuda_graphs and accumulated > 1:
        # Replayed graphs write gradients where those of the passes before lie (PyTorch issue 96693).
        raise UserError(
            f"training.cuda_graphs would lose all but the last of {accumulated} backward passes to an update; "
            "set it to false, or hyperparameters.gradient_accumulation_frequency to 1"
        )
    if training.cuda_graphs and hparams.batchnorm_group_size > 1:
        # Graphs would hold NCCL's communicators, whose end waits for that of the graphs (PyTorch issue 115388).
        raise UserError(
            "training.cuda_graphs would capture the exchange of statistics, and the run would not end; set it to "
            "false, or hyperparameters.batchnorm_group_size to 1"
        )
    local_batch = local_batch_size(hparams.global_batch_size // accumulated, world.size)

    # Before the clock: network, optimizer, compilation on synthetic samples. The data set is not touched.
    with log.span("init", sync=True):
        device = pick_device(training.device, world.local_rank)
        if device.type == "cpu":
            keep_memory()
        torch.manual_seed(seed)
        model = build_model(run.network, channels=run.data.sample_shape[-1])
        parameters = sum(parameter.numel() for parameter in model.parameters())
        if run.network.parameters not in (None, parameters):
            raise UserError(f"the network has {parameters} parameters, not {run.network.parameters}")
        group_batchnorm(model, world, hparams.batchnorm_group_size)
        layout = torch.channels_last if training.channels_last else torch.contiguous_format
        model.to(device, memory_format=layout)  # type: ignore[call-overload]
        optimizer = make_optimizer(hparams, model.parameters(), compiled=training.compile)
        scaler = make_scaler(training.precision, device)
        last_epoch, numbers = restore(resume, model, optimizer, scaler, world) if resume else (0, {})
        freeze(model, numbers.get("frozen", 0))
        make_step = partial(
            make_train_step,
            loss_of=weighted_cross_entropy,
            optimizer=optimizer,
            scaler=scaler,
            precision=training.precision,
            layout=layout,
            accumulate=accumulated,
            compiled=training.compile,
            cuda_graphs=training.cuda_graphs,
        )
        network = wrap_ddp(model, world)
        train_step = make_step(network)
        eval_step = make_eval_step(
            model,
            summed_iou,
            training.precision,
            batch=training.eval_batch_size,
            layout=layout,
            compiled=training.compile,
            cuda_graphs=training.cuda_graphs,
        )
        prepare(run.loading.loader, "mlhpc.deepcam.data.workers")
        # CUDA graphs: what is compiled runs once before it is captured, at its second call.
        for _ in range(2 if training.cuda_graphs else 1):
            warm_up(
                network,
                optimizer,
                scaler,
                train_step,
                eval_step,
                partial(zeros_batch, sample_shape=run.data.sample_shape),
                train_batch=local_batch,
                eval_batch=training.eval_batch_size,
                accumulate=accumulated,
            )
        rate_of = partial(
            step_learning_rate,
            base=hparams.opt_lr,
            warmup_steps=hparams.scheduler_lr_warmup_steps,
            warmup_factor=hparams.scheduler_lr_warmup_factor,
            schedule=hparams.scheduler_type,
            milestones=hparams.scheduler_milestones,
            decay_rate=hparams.scheduler_decay_rate,
            t_max=hparams.scheduler_t_max,
            eta_min=hparams.scheduler_eta_min,
        )

    with log.span("run", sync=True):
        if staged:
            with log.span("staging", sync=True):
                dataset, statistics = _dataset(run, data, world)
                report = stage(dataset, staged, world, run.staging.mode, run.staging.workers)
            log.note("staging", **asdict(report))
        else:
            dataset, statistics = _dataset(run, data, world)
        loader = _open_loader(run, dataset, statistics, staged, local_batch, seed, world, device)
        updates = loader.steps // accumulated

        for epoch in range(last_epoch + 1, training.max_epochs + 1):
            bytes_read, losses, done = 0, [], (epoch - 1) * updates
            before = weights_of(model) if training.freeze_below else []
            with (
                log.span("epoch", epoch=epoch, step=done) as ended,
                closing(log.timed(loader.train_epoch(epoch - 1), "data_wait", epoch=epoch)) as batches,
            ):
                for start, stop in _between_evaluations(
                    updates, 0 if run.study.steps else training.eval_steps
                ):
                    bytes_before = loader.bytes_read
                    with log.span("train", epoch=epoch):
                        for update in track(range(start, stop), stop - start, f"epoch {epoch}", world):
                            rate = rate_of(done + update)
                            set_rate(optimizer, rate)
                            losses += [train_step(*next(batches)) for _ in range(accumulated)]
                            if update + 1 == run.study.warmup_steps:
                                log.mark("warm", loss=float(losses[-1]))  # float() waits for the device
                        local = torch.stack(losses).double().cpu().numpy()
                        (loss,) = mean(world, local.mean(), weight=1)
                        ended["step"] = done + stop
                    bytes_read += loader.bytes_read - bytes_before
                    require_finite(local, epoch, partial(loader.files_of, epoch - 1), ADVICE, world)
                    if run.study.steps:
                        break
                    with log.span("eval", epoch=epoch):
                        average_statistics(model, world)
                        evaluated = [eval_step(x, y) for x, y in loader.evaluation()]
                        iou_sum, count = world.sum(
                            [sum(float(s) for s, _ in evaluated), sum(n for _, n in evaluated)]
                        )
                        iou = iou_sum / count
                    log.metric(run.target.metric, iou, epoch=epoch)
                    if run.target.met_by(iou):
                        break

            if run.study.steps:
                break
            log.metric("samples", len(losses) * local_batch * world.size, epoch=epoch)
            log.metric("bytes", int(world.sum(bytes_read)), epoch=epoch)
            log.metric("learning_rate", rate, epoch=epoch)
            log.metric("train_loss", loss, epoch=epoch)
            log.say(
                f"epoch {epoch}: loss {loss:.4f}, {run.target.label} {iou:.4f} (target {run.target.value})"
            )
            if run.target.met_by(iou):
                log.finish("success")
                return
            if training.freeze_below:
                count = count_converged_blocks(model, before, training.freeze_below, world)
                if count > frozen_blocks(model):
                    freeze(model, count)
                    if training.compile:  # what was is of no use now, and PyTorch keeps only so much of it
                        torch.compiler.reset()
                    network = wrap_ddp(model, world)
                    train_step = make_step(network)
                log.metric("frozen_blocks", frozen_blocks(model), epoch=epoch)
            if training.checkpoint_epochs and epoch % training.checkpoint_epochs == 0:
                with log.span("checkpoint", epoch=epoch):
                    save(
                        log.out,
                        run,
                        seed,
                        epoch,
                        model,
                        optimizer,
                        scaler,
                        world,
                        frozen=frozen_blocks(model),
                    )
        log.finish("failed")


def _between_evaluations(updates: int, every: int) -> list[tuple[int, int]]:
    """The stretches of an epoch's updates after each of which the network is evaluated."""
    starts = range(0, updates, every or updates)
    return [(start, min(start + (every or updates), updates)) for start in starts]


def _dataset(run: DeepCam, data: Path, world: World) -> tuple[Manifest, Statistics]:
    """The part of the data set that the run needs, and its statistics, which cost nothing to look at before
    terabytes are copied. The closed division's rules on data are held here."""
    dataset = describe(data, world, run.benchmark)
    dataset = take(dataset, train=run.data.train_samples, validation=run.data.eval_samples)
    rules.enforce(rules.RunContext(run, facts=dataset.facts))
    if "dtype" not in dataset.facts and any(file.path.endswith(".npy") for file in dataset.files):
        raise UserError(
            f"{data}: its .npy files have no manifest that says what they hold, a sample being two of them; make "
            "them with mlhpc data convert deepcam"
        )
    return dataset, on_rank0(world, lambda: read_statistics(data, run.data.sample_shape[-1]))


def _open_loader(
    run: DeepCam,
    dataset: Manifest,
    statistics: Statistics,
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
        train_samples=run.data.train_samples,
        eval_samples=run.data.eval_samples,
        is_sample=is_sample,
    )
    accumulated = run.hyperparameters.gradient_accumulation_frequency
    updates = run.study.cut(steps_per_epoch(world.gather(mine.train_pool), local_batch * accumulated))
    return Loader(
        mine.train_files,
        mine.eval_files,
        mine.train_pool,
        mine.eval_pool,
        place=mine.place,
        sample_shape=run.data.sample_shape,
        statistics=statistics,
        local_batch=local_batch,
        eval_batch=run.training.eval_batch_size,
        steps=updates * accumulated,
        seed=seed,
        readers=run.loading.workers,
        batches_ahead=run.loading.prefetch,
        loader=run.loading.loader,
        cache=run.loading.cache,
        ranks_on_node=world.local_size,
        device=device.type,
    )
