"""3-D U-Net, trained to target. The clock runs inside ``with log.span("run", sync=True)`` and nowhere else."""

from contextlib import ExitStack, nullcontext
from functools import partial

import torch

from mlhpc.benchmarks import load
from mlhpc.common.data.sharding import divide_batch
from mlhpc.common.host.malloc import keep_memory
from mlhpc.common.host.progress import track
from mlhpc.common.pytorch import devices, graphs, state, step
from mlhpc.common.pytorch.batchnorm import group_batchnorm
from mlhpc.common.pytorch.loading import pinned
from mlhpc.common.pytorch.slab_batches import Batches
from mlhpc.common.pytorch.spatial import spatial_group
from mlhpc.common.ranks.mesh import mesh_of
from mlhpc.common.training.dataset import format_of, open_dataset, open_loader
from mlhpc.common.training.epoch import log_epoch, mark_warm, require_parameters
from mlhpc.common.training.finite import require_finite
from mlhpc.common.training.staging import staging
from mlhpc_unet3d.data import CLASSES, Volumes
from mlhpc_unet3d.metric import counts, mean_dice, voxel_loss
from mlhpc_unet3d.model import UNet
from mlhpc_unet3d.settings import slab_plan


def check(run, staged, world):
    slab_plan(run)
    run.require_startable(world.size, staged=staged is not None)
    step.make_scaler(run.training.precision, devices.pick_device(run.training.device, world.local_rank))


@devices.oom_as_user_error()
def train(run, data, staged, seed, resume, world, log):
    hparams, training = run.hyperparameters, run.training
    mesh = mesh_of(world.rank, world.size, training.spatial_size)
    batch_size = divide_batch(hparams.global_batch_size, mesh.data_size)

    # Before the clock: network, optimizer, compilation on zeros. The data set is not touched.
    with log.span("init", sync=True):
        device = devices.pick_device(training.device, world.local_rank)
        keep_memory()
        torch.manual_seed(seed)
        slab = slab_plan(run).shape(mesh.spatial_rank)
        group = spatial_group(slab_plan(run), world) if mesh.spatial_size > 1 else None
        model = UNet(run.network.filters, run.network.levels, CLASSES, group)
        require_parameters(sum(weight.numel() for weight in model.parameters()), run.network.parameters)
        group_batchnorm(model, world, mesh.spatial_size)
        devices.place(model, device, channels_last=training.channels_last, dimensions=3)
        optimizer = torch.optim.Adam(model.parameters(), hparams.opt_base_learning_rate)
        scaler = step.make_scaler(training.precision, device)
        trained = model, optimizer, scaler, world
        last_epoch, _ = state.restore(resume, *trained) if resume else (0, {})
        make = partial(step.make_steps, trained, training, loss_of=voxel_loss, measure=counts)
        sizes = step.WarmUpSizes(batch_size, training.eval_batch_size)
        steps, _ = graphs.start_steps(
            run, lambda held: make(captured=held), trained, lambda n: [torch.zeros(n, *slab)] * 2, sizes, log
        )

    # The clock: from the moment the last rank is ready until the slowest one has finished.
    with log.span("run", sync=True), ExitStack() as beside:
        with log.span("staging", sync=True) if staged else nullcontext():
            dataset = open_dataset(run, data, world)
            beside.enter_context(staging(run, dataset, staged, world, log))
        log.data_format(**format_of(run, dataset, staged, world))
        source = Volumes(run, gpu=device.type != "cpu")
        loader = open_loader(run, dataset, staged, source, batch_size, seed, world, mesh.spatial_size)
        batches = Batches(loader, lambda arrays: [pinned(torch.from_numpy(a), device) for a in arrays], group)
        shared = (lambda: batches.traffic.seconds) if group else None
        timed = partial(log.timed, record_event=devices.device_events(device), shared=shared)
        met = False
        for epoch in range(last_epoch + 1, training.max_epochs + 1):
            before, bytes_before, losses = (epoch - 1) * loader.steps, loader.bytes_read, []
            with log.span("epoch", epoch=epoch, step=before) as span:
                with log.span("train", epoch=epoch):
                    rate = hparams.opt_base_learning_rate * (1 - (epoch - 1) / training.max_epochs)
                    step.set_rate(optimizer, rate)
                    read = timed(batches.training(epoch - 1), "data_wait", epoch=epoch)
                    for x, y in track(read, loader.steps, f"epoch {epoch}", world):
                        losses.append(steps.train(x, y))
                        mark_warm(run, losses, log)
                    own, loss = step.gather_losses(losses, world)  # waits for the device
                    span["step"] = before + loader.steps
                bytes_read = loader.bytes_read - bytes_before
                files = partial(loader.files_of, epoch - 1)
                require_finite(own, epoch, files, "lower hyperparameters.opt_base_learning_rate", world)
                if run.study.steps:
                    break
                with log.span("eval", epoch=epoch):
                    step.average_statistics(model, world)
                    read = timed(batches.evaluation(), "eval_data_wait", phase="eval", epoch=epoch)
                    dice = mean_dice([steps.evaluate(x, y) for x, y in read], CLASSES, world)
                log.metric(run.target.metric, dice, epoch=epoch)
            samples = loader.steps * hparams.global_batch_size
            log_epoch(run, log, epoch, samples, bytes_read, rate=rate, loss=loss, quality=dice)
            if met := run.target.met_by(dice):
                break
            if training.checkpoint_epochs and epoch % training.checkpoint_epochs == 0:
                with log.span("checkpoint", epoch=epoch):
                    state.save(log.out, load.dumps(run), seed, epoch, *trained)
        log.finish("success" if met else "failed", devices.peak_memory(device))
