"""CosmoFlow's training step in PyTorch under the profiler, on samples of zeros in memory or of a data set."""

from functools import partial
from itertools import repeat

import torch

from mlhpc.benchmarks.cosmoflow import CosmoFlow
from mlhpc.common.host.malloc import keep_memory
from mlhpc.common.pytorch.devices import oom_as_user_error, pick_device, place
from mlhpc.common.pytorch.loading import dtype_of
from mlhpc.common.pytorch.profile import modules_in_order, profile_steps
from mlhpc.common.pytorch.step import make_scaler, make_train_step, wrap_ddp
from mlhpc.common.ranks.world import World
from mlhpc.common.timing.profile import Feed, Profile, Request
from mlhpc.cosmoflow.data.dataset import open_data, open_loader
from mlhpc.cosmoflow.pytorch.batches import Batches
from mlhpc.cosmoflow.pytorch.metric import training_loss
from mlhpc.cosmoflow.pytorch.model import CosmoFlowNet
from mlhpc.cosmoflow.pytorch.optimizer import make_optimizer
from mlhpc.errors import UserError


@oom_as_user_error()
def profile(run: CosmoFlow, request: Request, world: World) -> Profile:
    """Profile the requested steps as in ``train``, but not compiled, and without the CPU kernels, whose time
    belongs to no single layer. Called by all ranks."""
    training, hparams, shape = run.training, run.hyperparameters, run.data.sample_shape
    if training.spatial_size > 1:
        raise UserError(
            f"training.spatial={list(training.spatial)}: only steps on undivided samples can be profiled; "
            f"omit it"
        )
    device = pick_device(training.device, world.local_rank)
    if device.type == "cpu":
        keep_memory()
    model = CosmoFlowNet(run.network, shape, dropout=hparams.dropout, channels_last=training.channels_last)
    place(model, device, channels_last=training.channels_last, dimensions=3)
    order = modules_in_order(model, torch.zeros((1, *shape), device=device))
    wrapped = wrap_ddp(model, world, training.bucket_cap_mib)
    step = make_train_step(
        wrapped,
        partial(training_loss, model=model, weight_decay=hparams.opt_weight_decay),
        make_optimizer(hparams, model.parameters()),
        make_scaler(training.precision, device),
        training.precision,
        layout=torch.channels_last if training.channels_last else torch.contiguous_format,
    )
    return profile_steps(wrapped, step, _feed(run, request, world, device), device, request, modules=order)


def _feed(run: CosmoFlow, request: Request, world: World, device: torch.device) -> Feed:
    if request.data is None:
        x = torch.zeros((request.batch, *run.data.sample_shape), dtype=dtype_of(run.loading.sample_dtype))
        return Feed(lambda _: repeat((x, torch.zeros((request.batch, run.network.targets)))))
    dataset, gpu = open_data(run, request.data, world), device.type != "cpu"
    loader = open_loader(run, dataset, None, request.batch, 1, world, gpu=gpu)
    return Feed(Batches(loader, None, device).training, lambda: loader.bytes_read)
