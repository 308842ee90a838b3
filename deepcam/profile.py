"""Profiles DeepCAM's training step, on zeros in memory or on samples of a data set."""

from itertools import repeat

import torch

from mlhpc.benchmarks.deepcam import DeepCam
from mlhpc.common.pytorch.devices import oom_as_user_error, pick_device
from mlhpc.common.pytorch.feeds import prepare
from mlhpc.common.pytorch.profile import modules_in_order, profile_training
from mlhpc.common.ranks.world import World
from mlhpc.common.timing.profile import Feed, Profile, Request
from mlhpc.common.training.dataset import open_loader
from mlhpc.deepcam.data.source import DeepCamSource, open_data, zeros_batch
from mlhpc.deepcam.metric import weighted_cross_entropy
from mlhpc.deepcam.model import build_model
from mlhpc.deepcam.optim.optimizer import make_optimizer
from mlhpc.deepcam.train import network


@oom_as_user_error()
def profile(run: DeepCam, request: Request, world: World) -> Profile:
    """Profile the requested steps, which are the steps of ``train`` without compilation. Called by all ranks."""
    training, channels = run.training, run.data.sample_shape[-1]
    device = pick_device(training.device, world.local_rank)
    model = network(run, device, world)
    with torch.device("meta"):
        order = modules_in_order(build_model(run.network, channels), torch.empty(2, channels, 64, 64))
    optimizer = make_optimizer(run.hyperparameters, model.parameters())
    feed, loss_of = _feed(run, request, world, device), weighted_cross_entropy
    return profile_training(training, model, order, loss_of, optimizer, feed, request, world)


def _feed(run: DeepCam, request: Request, world: World, device: torch.device) -> Feed:
    if request.data is None:
        zeros = zeros_batch(request.batch, run.data.sample_shape)
        return Feed(lambda _: repeat(zeros))
    dataset, statistics = open_data(run, request.data, world)
    prepare(run.loading.loader, "mlhpc.deepcam.data.sample")
    source = DeepCamSource.of(run, dataset, statistics, device.type, world)
    loader = open_loader(run, dataset, None, source, request.batch, 1, world)
    return Feed(loader.train_epoch, lambda: loader.bytes_read)
