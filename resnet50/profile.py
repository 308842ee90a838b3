"""Profiles ResNet-50's training step, on zeros in memory or on images of a data set."""

from functools import partial
from itertools import repeat

import torch

from mlhpc.benchmarks.resnet50 import ResNet50
from mlhpc.common.pytorch.devices import oom_as_user_error, pick_device, place
from mlhpc.common.pytorch.feeds import prepare
from mlhpc.common.pytorch.profile import modules_in_order, profile_training
from mlhpc.common.ranks.world import World
from mlhpc.common.timing.profile import Feed, Profile, Request
from mlhpc.common.training.dataset import open_loader
from mlhpc.resnet50.data.source import ResNet50Source, open_data, zeros_batch
from mlhpc.resnet50.metric import cross_entropy
from mlhpc.resnet50.model import build_model
from mlhpc.resnet50.optim.optimizer import make_optimizer


@oom_as_user_error()
def profile(run: ResNet50, request: Request, world: World) -> Profile:
    """Profile the requested steps, which are the steps of ``train`` without compilation. Called by all ranks."""
    training, side = run.training, run.data.sample_shape[0]
    device = pick_device(training.device, world.local_rank)
    model = build_model(run.network)
    place(model, device, channels_last=training.channels_last)
    with torch.device("meta"):
        order = modules_in_order(build_model(run.network), torch.empty(2, 3, side, side))
    loss_of = partial(cross_entropy, label_smoothing=training.label_smoothing)
    optimizer = make_optimizer(run.hyperparameters, model, training.sgd)
    feed = _feed(run, request, world, device)
    return profile_training(training, model, order, loss_of, optimizer, feed, request, world)


def _feed(run: ResNet50, request: Request, world: World, device: torch.device) -> Feed:
    if request.data is None:
        zeros = zeros_batch(request.batch, run.data.sample_shape)
        return Feed(lambda _: repeat(zeros))
    dataset = open_data(run, request.data, world)
    prepare(run.loading.loader, "mlhpc.resnet50.data.reader")
    source = ResNet50Source.of(run, device.type, world.local_size)
    loader = open_loader(run, dataset, None, source, request.batch, 1, world)
    return Feed(loader.train_epoch, lambda: loader.bytes_read)
