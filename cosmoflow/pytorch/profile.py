"""Profiles CosmoFlow's training step in PyTorch, on zeros in memory or on samples of a data set."""

from functools import partial
from itertools import repeat

import torch

from mlhpc.benchmarks.cosmoflow import CosmoFlow
from mlhpc.common.host.malloc import keep_memory
from mlhpc.common.pytorch.devices import oom_as_user_error, pick_device, place
from mlhpc.common.pytorch.loading import dtype_of
from mlhpc.common.pytorch.profile import modules_in_order, profile_training
from mlhpc.common.pytorch.slab_batches import Batches
from mlhpc.common.ranks.world import World
from mlhpc.common.timing.profile import Feed, Profile, Request
from mlhpc.common.training.dataset import open_loader
from mlhpc.cosmoflow.data.source import CosmoFlowSource, open_data
from mlhpc.cosmoflow.pytorch.batches import converter
from mlhpc.cosmoflow.pytorch.metric import training_loss
from mlhpc.cosmoflow.pytorch.model import CosmoFlowNet
from mlhpc.cosmoflow.pytorch.optimizer import make_optimizer
from mlhpc.errors import UserError


@oom_as_user_error()
def profile(run: CosmoFlow, request: Request, world: World) -> Profile:
    """Profile the requested steps, which are the steps of ``train`` without compilation and without the CPU
    kernels, whose time cannot be attributed to a single layer. Called by all ranks."""
    training, hparams, shape = run.training, run.hyperparameters, run.data.sample_shape
    if training.spatial_size > 1:
        raise UserError(f"training.spatial={list(training.spatial)} cannot be profiled; omit it")
    device = pick_device(training.device, world.local_rank)
    if device.type == "cpu":
        keep_memory()
    model = CosmoFlowNet(run.network, shape, dropout=hparams.dropout, channels_last=training.channels_last)
    place(model, device, channels_last=training.channels_last, dimensions=3)
    order = modules_in_order(model, torch.zeros((1, *shape), device=device))
    loss_of = partial(training_loss, model=model, weight_decay=hparams.opt_weight_decay)
    optimizer = make_optimizer(hparams, model.parameters())
    feed = _feed(run, request, world, device)
    return profile_training(training, model, order, loss_of, optimizer, feed, request, world)


def _feed(run: CosmoFlow, request: Request, world: World, device: torch.device) -> Feed:
    if request.data is None:
        x = torch.zeros((request.batch, *run.data.sample_shape), dtype=dtype_of(run.loading.sample_dtype))
        return Feed(lambda _: repeat((x, torch.zeros((request.batch, run.network.targets)))))
    dataset = open_data(run, request.data, world)
    source = CosmoFlowSource.of(run, dataset, gpu=device.type != "cpu")
    loader = open_loader(run, dataset, None, source, request.batch, 1, world)
    batches = Batches(loader, converter(run.loading.sample_dtype, device))
    return Feed(batches.training, lambda: loader.bytes_read)
