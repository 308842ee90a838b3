"""Trains CosmoFlow to the target in PyTorch. The clock runs inside ``with log.span("run", sync=True)`` and nowhere
else."""

import math
from contextlib import ExitStack, nullcontext
from functools import partial
from pathlib import Path

import torch
from torch.amp.grad_scaler import GradScaler

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
)
from mlhpc.common.pytorch.graphs import require_graphs, start_steps
from mlhpc.common.pytorch.loading import TensorPair, dtype_of
from mlhpc.common.pytorch.slab_batches import Batches
from mlhpc.common.pytorch.spatial import SpatialGroup, Traffic, spatial_group
from mlhpc.common.pytorch.state import restore, save
from mlhpc.common.pytorch.step import (
    Steps,
    WarmUpSizes,
    gather_losses,
    make_scaler,
    make_steps,
    set_rate,
    waiting_steps,
    warm_up,
)
from mlhpc.common.ranks.mesh import mesh_of
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
from mlhpc.cosmoflow.check import check as check_settings
from mlhpc.cosmoflow.check import slab_plan
from mlhpc.cosmoflow.cpu import pooled
from mlhpc.cosmoflow.data.source import CosmoFlowSource, open_data
from mlhpc.cosmoflow.pytorch.batches import converter
from mlhpc.cosmoflow.pytorch.batches import warm_up as warm_up_decoding
from mlhpc.cosmoflow.pytorch.metric import absolute_error, training_loss
from mlhpc.cosmoflow.pytorch.model import ConvolveAndPool, CosmoFlowNet, convolve_and_pool
from mlhpc.cosmoflow.pytorch.optimizer import make_optimizer
from mlhpc.cosmoflow.schedule import rate_at
from mlhpc.cosmoflow.weights import load as load_weights
from mlhpc.cosmoflow.weights import to_pytorch

ADVICE = "look at them with mlhpc data show cosmoflow, or lower hyperparameters.opt_base_learning_rate"
"""Advice for a loss that is not finite."""


def check(run: CosmoFlow, staged: Path | None, world: World) -> None:
    """Raise UserError if the run cannot start on these ranks and this machine. No side effects."""
    check_settings(run)
    run.require_startable(world.size, staged=staged is not None)
    device = pick_device(run.training.device, world.local_rank)
    make_scaler(run.training.precision, device)
    require_graphs(run, device, world)


@oom_as_user_error()
def train(
    run: CosmoFlow, data: Path, staged: Path | None, seed: int, resume: Path | None, world: World, log: RunLog
) -> None:
    """Train until an evaluation meets the target or the epochs run out: see ``registry.Framework``."""
    hparams, training = run.hyperparameters, run.training
    spatial_size = training.spatial_size
    mesh = mesh_of(world.rank, world.size, spatial_size)
    local_batch_size = divide_batch(hparams.global_batch_size, mesh.data_size)

    # Before the clock starts: network, optimizer, compilation on zeros. The data set is not accessed.
    with log.span("init", sync=True):
        device = pick_device(training.device, world.local_rank)
        log.ranges = device_ranges(device)
        torch.manual_seed(seed)
        group = spatial_group(slab_plan(run), world) if spatial_size > 1 else None
        model = _network(run, device, group)
        optimizer = make_optimizer(hparams, model.parameters())
        scaler = make_scaler(training.precision, device)
        torch.manual_seed(seed + 1 + mesh.data_rank)  # dropout: each group of ranks drops different units
        last_epoch, _ = restore(resume, model, optimizer, scaler, world) if resume else (0, {})
        steps = _steps(run, (model, optimizer, scaler, world), group, local_batch_size, log)
        events = None if run.emulation.enabled else device_events(device)
        write = partial(save, log.out, load.dumps(run), seed)

    # The clock runs from the moment when the last rank is ready until the slowest rank has finished.
    with log.span("run", sync=True), ExitStack() as beside:
        with log.span("staging", sync=True) if staged else nullcontext():
            dataset = open_data(run, data, world)
            finish_staging = beside.enter_context(staging(run, dataset, staged, world, log))
        log.data_format(**format_of(run, dataset, staged, world))
        source = CosmoFlowSource.of(run, dataset, gpu=device.type != "cpu")
        loader = open_loader(run, dataset, staged, source, local_batch_size, seed, world, spatial_size)
        batches = Batches(loader, converter(run.loading.sample_dtype, device), group)
        shared = (lambda: batches.traffic.seconds) if group else None

        epochs = range(last_epoch + 1, training.max_epochs + 1)
        own_share = exchanging(run, dataset, staged, epochs, seed, world, log)
        met = False
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
                        mark_warm(run, losses, log)
                    local_losses, loss = gather_losses(losses, world)  # waits for the device
                    span["step"] = before + loader.steps
                finish_staging()
                bytes_read = loader.bytes_read - bytes_before
                require_finite(local_losses, epoch, partial(loader.files_of, epoch - 1), ADVICE, world)
                if run.study.steps:
                    checkpoint(run, log, epoch, partial(write, epoch, model, optimizer, scaler, world))
                    break
                with log.span("eval", epoch=epoch):
                    read = batches.evaluation()
                    timed = log.timed(read, "eval_data_wait", events, "eval", shared=shared, epoch=epoch)
                    results = [steps.evaluate(x, y) for x, y in timed]
                    # All ranks of a group have the group's sums; only the first rank's are counted.
                    error = mean_quality(results, world, counts=mesh.spatial_rank == 0)
                log_quality(run, error, log, epoch)
                _log_sizes(run, log, world, model, group, batches.traffic, epoch)

            trained = loader.steps * hparams.global_batch_size
            log_epoch(run, log, epoch, trained, bytes_read, rate=rate, loss=loss, quality=error)
            if met := run.target.met_by(error):
                break
            checkpoint(run, log, epoch, partial(write, epoch, model, optimizer, scaler, world))
        log.finish("success" if met else "failed", peak_memory(device), named(run, loader))


def _network(run: CosmoFlow, device: torch.device, group: SpatialGroup | None) -> CosmoFlowNet:
    """The network with its initial weights, on ``device``."""
    convolution: ConvolveAndPool = convolve_and_pool
    if device.type == "cpu":
        keep_memory()
        if run.training.cpu_kernels and not run.training.compile:
            convolution = partial(pooled.convolve_and_pool, otherwise=convolve_and_pool)
    model = CosmoFlowNet(
        run.network,
        run.data.sample_shape,
        dropout=run.hyperparameters.dropout,
        channels_last=run.training.channels_last,
        group=group,
        convolve_and_pool=convolution,
    )
    require_parameters(sum(weight.numel() for weight in model.parameters()), run.network.parameters)
    if run.training.weights:
        start = to_pytorch(load_weights(Path(run.training.weights), run.network), run.network)
        model.load_state_dict({name: torch.from_numpy(value) for name, value in start.items()})
    place(model, device, channels_last=run.training.channels_last, dimensions=3)
    return model


def _steps(
    run: CosmoFlow,
    state: tuple[CosmoFlowNet, torch.optim.Optimizer, GradScaler, World],
    group: SpatialGroup | None,
    local_batch_size: int,
    log: RunLog,
) -> Steps[tuple[torch.Tensor, int]]:
    """Compile the steps and warm them up on zeros, for every resolution at which the run trains."""
    training, shape, model = run.training, run.data.sample_shape, state[0]
    if run.emulation.enabled:
        return waiting_steps(run, state[3], lambda samples: (math.nan, samples))
    loss_of = partial(training_loss, model=model, weight_decay=run.hyperparameters.opt_weight_decay)
    make = partial(make_steps, state, training, loss_of=loss_of, measure=absolute_error)
    slab = (*group.plan.shape(group.rank), shape[-1]) if group else shape
    dtype = dtype_of(run.loading.sample_dtype)
    zeros = partial(_zeros_batch, sample_shape=slab, targets=run.network.targets, dtype=dtype)
    decoded = run.loading.decode == "device"
    sizes = WarmUpSizes(local_batch_size, training.eval_batch_size, decoded=decoded)
    steps, _ = start_steps(run, lambda captured: make(captured=captured), state, zeros, sizes, log)
    for model.halvings in range(1, len(training.coarse_epochs) + 1):
        warm_up(*state, steps, zeros, sizes)
    if group:
        group.traffic.take()  # discards the warm-up's
    device = next(model.parameters()).device
    if decoded and device.type != "cpu":  # on a CPU, nothing is compiled or page-locked
        for samples in {local_batch_size, training.eval_batch_size, 1}:
            warm_up_decoding(samples, shape, run.loading.sample_dtype, device)
    return steps


def _zeros_batch(
    samples: int, *, sample_shape: tuple[int, ...], targets: int, dtype: torch.dtype
) -> TensorPair:
    return torch.zeros((samples, *sample_shape), dtype=dtype), torch.zeros((samples, targets))


def _log_sizes(
    run: CosmoFlow,
    log: RunLog,
    world: World,
    model: CosmoFlowNet,
    group: SpatialGroup | None,
    slabs: Traffic,
    epoch: int,
) -> None:
    """Log the resolution used in ``epoch``, if it varies between epochs. With a spatial group, also log the bytes
    that all ranks sent for halos and for sharing samples in ``epoch``, including its evaluation, and the time that
    this rank's host waited."""
    if run.training.coarse_epochs:
        log.metric("trained_side", run.data.sample_shape[0] >> model.halvings, epoch=epoch)
    for name, traffic in (("halo", group.traffic), ("slab", slabs)) if group else ():
        sent, seconds = traffic.take()
        log.metric(f"{name}_bytes", int(world.sum(sent)), epoch=epoch)
        log.metric(f"{name}_seconds", seconds, epoch=epoch)
