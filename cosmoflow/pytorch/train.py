"""CosmoFlow, trained to target in PyTorch. The clock runs inside ``with log.span("run", sync=True)`` and nowhere
else."""

import math
from contextlib import ExitStack, nullcontext
from functools import partial
from pathlib import Path

import torch

from mlhpc.benchmarks import load
from mlhpc.benchmarks.cosmoflow import CosmoFlow
from mlhpc.common.data.sharding import divide_batch
from mlhpc.common.host.malloc import keep_memory
from mlhpc.common.host.progress import track
from mlhpc.common.pytorch.devices import (
    device_events,
    device_ranges,
    oom_as_user_error,
    peak_memory,
    pick_device,
    place,
    wants_graphs,
)
from mlhpc.common.pytorch.emulation import waiting_steps
from mlhpc.common.pytorch.loading import dtype_of
from mlhpc.common.pytorch.slab_batches import Batch
from mlhpc.common.pytorch.spatial import Traffic, spatial_group
from mlhpc.common.pytorch.state import restore, save
from mlhpc.common.pytorch.step import WarmUpSizes, make_scaler, make_steps, warm_up
from mlhpc.common.ranks.mesh import mesh_of
from mlhpc.common.ranks.world import World, mean
from mlhpc.common.timing.runlog import RunLog, Status
from mlhpc.common.training.dataset import format_of
from mlhpc.common.training.epoch import log_epoch, require_parameters
from mlhpc.common.training.finite import require_finite
from mlhpc.common.training.staging import exchanging, staging
from mlhpc.cosmoflow.check import check as check_settings
from mlhpc.cosmoflow.check import slab_plan
from mlhpc.cosmoflow.cpu import pooled
from mlhpc.cosmoflow.data.dataset import open_data, open_loader
from mlhpc.cosmoflow.pytorch.batches import Batches
from mlhpc.cosmoflow.pytorch.metric import absolute_error, training_loss
from mlhpc.cosmoflow.pytorch.model import ConvolveAndPool, CosmoFlowNet, convolve_and_pool
from mlhpc.cosmoflow.pytorch.optimizer import make_optimizer, set_rate
from mlhpc.cosmoflow.schedule import rate_at
from mlhpc.cosmoflow.weights import load as load_weights
from mlhpc.cosmoflow.weights import to_pytorch

ADVICE = "look at them with mlhpc data show cosmoflow, or lower hyperparameters.opt_base_learning_rate"
"""Advice for a loss that is not finite."""


def check(run: CosmoFlow, staged: Path | None, world: World) -> None:
    """Raise UserError if the run cannot start on these ranks and this machine. No side effects."""
    check_settings(run)
    run.require_startable(world.size, staged=staged is not None)
    make_scaler(run.training.precision, pick_device(run.training.device, world.local_rank))


@oom_as_user_error()
def train(
    run: CosmoFlow, data: Path, staged: Path | None, seed: int, resume: Path | None, world: World, log: RunLog
) -> None:
    """Train until an evaluation meets the target or the epochs run out; recorded in ``log``.

    ``data`` is the data set, ``staged`` the node-local folder to copy it to (None: read it in place),
    ``resume`` the folder of a run to continue. Raises UserError for errors that the user can fix.
    """
    hparams, training = run.hyperparameters, run.training
    spatial_size = training.spatial_size
    mesh = mesh_of(world.rank, world.size, spatial_size)
    local_batch_size = divide_batch(hparams.global_batch_size, mesh.data_size)

    # Before the clock: network, optimizer, compilation on zeros. The data set is not touched.
    with log.span("init", sync=True):
        device = pick_device(training.device, world.local_rank)
        log.ranges = device_ranges(device)
        if device.type == "cpu":
            keep_memory()
        torch.manual_seed(seed)
        shape, channels_last = run.data.sample_shape, training.channels_last
        group = spatial_group(slab_plan(run), world) if spatial_size > 1 else None
        convolution: ConvolveAndPool = convolve_and_pool
        if device.type == "cpu" and training.cpu_kernels and not training.compile:
            convolution = partial(pooled.convolve_and_pool, otherwise=convolve_and_pool)
        model = CosmoFlowNet(
            run.network,
            shape,
            dropout=hparams.dropout,
            channels_last=channels_last,
            group=group,
            convolve_and_pool=convolution,
        )
        require_parameters(sum(weight.numel() for weight in model.parameters()), run.network.parameters)
        if training.weights:
            start = to_pytorch(load_weights(Path(training.weights), run.network), run.network)
            model.load_state_dict({name: torch.from_numpy(value) for name, value in start.items()})
        place(model, device, channels_last=channels_last, dimensions=3)
        optimizer = make_optimizer(hparams, model.parameters())
        scaler = make_scaler(training.precision, device)
        torch.manual_seed(seed + 1 + mesh.data_rank)  # dropout: each group of ranks drops different units
        last_epoch, _ = restore(resume, model, optimizer, scaler, world) if resume else (0, {})
        loss_of = partial(training_loss, model=model, weight_decay=hparams.opt_weight_decay)
        steps = make_steps(
            model, training, world, optimizer, scaler, loss_of=loss_of, measure=absolute_error, accumulate=1
        )
        if emulated := run.emulation.enabled:
            steps = waiting_steps(run.emulation, world, 1, lambda samples: (math.nan, samples))
        slab = (*group.plan.shape(group.rank), shape[-1]) if group else shape
        dtype = dtype_of(run.loading.sample_dtype)
        zeros = partial(_zeros_batch, sample_shape=slab, targets=run.network.targets, dtype=dtype)
        sizes = WarmUpSizes(local_batch_size, training.eval_batch_size)
        for halvings in range(len(training.coarse_epochs) + 1) if not emulated else ():
            model.halvings = halvings
            warm_up(model, optimizer, scaler, steps, zeros, sizes, graphs=wants_graphs(training))
        if group:
            group.traffic.take()  # excludes the warm-up
        events = None if emulated else device_events(device)

    # The clock: from the moment the last rank is ready until the slowest one has finished.
    with log.span("run", sync=True), ExitStack() as beside:
        with log.span("staging", sync=True) if staged else nullcontext():
            dataset = open_data(run, data, world)
            finish_staging = beside.enter_context(staging(dataset, staged, run.staging, world, log))
        log.data_format(**format_of(dataset, staged, run.staging, world))
        gpu = device.type != "cpu"
        loader = open_loader(
            run, dataset, staged, local_batch_size, seed, world, gpu=gpu, spatial_size=spatial_size
        )
        batches = Batches(loader, group, device)
        shared = (lambda: batches.traffic.seconds) if group else None

        record = partial(log_epoch, log, world, run.target, run.training.max_epochs, emulated=emulated)
        epochs = range(last_epoch + 1, training.max_epochs + 1)
        own_share = exchanging(dataset, staged, run.staging, run.data.train_samples, epochs, seed, world, log)
        status: Status = "failed"
        for epoch in epochs:
            loader.samples = own_share(epoch, loader.samples)
            before, bytes_before, losses = (epoch - 1) * loader.steps, loader.bytes_read, []
            with log.span("epoch", epoch=epoch, step=before) as span:
                with log.span("train", epoch=epoch):
                    rate = rate_at(hparams, epoch - 1, training.max_epochs)
                    set_rate(optimizer, rate)
                    model.halvings = training.halvings(epoch)
                    read = batches.training(epoch - 1)
                    timed = log.timed(read, "data_wait", events, shared=shared, epoch=epoch)
                    for x, y in track(timed, loader.steps, f"epoch {epoch}", world):
                        losses.append(steps.train(x, y))
                        if len(losses) == run.study.warmup_steps:
                            log.mark("warm", loss=float(losses[-1]))  # float() waits for the device
                    local_losses = torch.stack(losses).double().cpu().numpy()  # waits for the device
                    (loss,) = mean(world, local_losses.mean(), weight=1)
                    span["step"] = before + loader.steps
                finish_staging()
                bytes_read = loader.bytes_read - bytes_before
                require_finite(local_losses, epoch, partial(loader.files_of, epoch - 1), ADVICE, world)
                if run.study.steps:
                    break
                with log.span("eval", epoch=epoch):
                    read = batches.evaluation()
                    timed = log.timed(read, "eval_data_wait", events, "eval", shared=shared, epoch=epoch)
                    results = [steps.evaluate(x, y) for x, y in timed]
                    own = sum(float(total) for total, _ in results), sum(values for _, values in results)
                    # All ranks of a group have its sums; only the first one is counted.
                    error_sum, count = world.sum(own if mesh.spatial_rank == 0 else (0, 0))
                    error = error_sum / count
                if not emulated:
                    log.metric(run.target.metric, error, epoch=epoch)
                if training.coarse_epochs:
                    log.metric("trained_side", shape[0] >> model.halvings, epoch=epoch)
                if group:
                    _log_traffic(log, world, group.traffic, batches.traffic, epoch)

            trained = loader.steps * hparams.global_batch_size
            record(epoch, samples=trained, bytes_read=bytes_read, rate=rate, loss=loss, quality=error)
            if run.target.met_by(error):
                status = "success"
                break
            if training.checkpoint_epochs and epoch % training.checkpoint_epochs == 0:
                with log.span("checkpoint", epoch=epoch):
                    save(log.out, load.dumps(run), seed, epoch, model, optimizer, scaler, world)
        log.finish(status, peak_memory(device))


def _zeros_batch(samples: int, *, sample_shape: tuple[int, ...], targets: int, dtype: torch.dtype) -> Batch:
    return torch.zeros((samples, *sample_shape), dtype=dtype), torch.zeros((samples, targets))


def _log_traffic(log: RunLog, world: World, halos: Traffic, slabs: Traffic, epoch: int) -> None:
    """Log the bytes sent by all ranks for halos and for sharing samples in ``epoch`` including its
    evaluation, and the time this rank's host waited."""
    for name, traffic in (("halo", halos), ("slab", slabs)):
        sent, seconds = traffic.take()
        log.metric(f"{name}_bytes", int(world.sum(sent)), epoch=epoch)
        log.metric(f"{name}_seconds", seconds, epoch=epoch)
