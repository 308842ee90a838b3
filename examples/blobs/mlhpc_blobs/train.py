"""Softmax regression, trained to target. The clock runs inside ``with log.span("run", sync=True)``."""

from contextlib import ExitStack, nullcontext

import numpy as np

from mlhpc.common.data.loader import Source, by_threads
from mlhpc.common.data.sharding import divide_batch
from mlhpc.common.ranks.world import mean
from mlhpc.common.training.dataset import cores_per_rank, open_dataset, open_loader
from mlhpc.common.training.epoch import log_epoch, mark_warm, mean_quality
from mlhpc.common.training.staging import staging
from mlhpc_blobs.data import CLASSES


class Points(Source):
    """Batches of coordinates float32 [b, 16] and classes int64 [b, 1]."""

    def __init__(self, run):
        self.feed = by_threads(run.loading.resolved(gpu=False, cores=cores_per_rank()))
        self.parts = (run.data.sample_shape, "float32"), ((1,), "int64")

    def read(self, path, x, y):
        sample = np.load(path)
        x[:], y[:] = sample[:-1], sample[-1:]
        return path.stat().st_size


def check(run, staged, world):
    run.require_startable(world.size, staged=staged is not None)


def train(run, data, staged, seed, resume, world, log):
    batch_size = divide_batch(run.hyperparameters.global_batch_size, world.size)
    rate = run.hyperparameters.opt_base_learning_rate
    with log.span("init", sync=True):
        weights = np.zeros((run.data.sample_shape[0], CLASSES))
    with log.span("run", sync=True), ExitStack() as beside:
        with log.span("staging", sync=True) if staged else nullcontext():
            dataset = open_dataset(run, data, world)
            beside.enter_context(staging(run, dataset, staged, world, log))
        loader = open_loader(run, dataset, staged, Points(run), batch_size, seed, world)
        accuracy = 0.0  # a study evaluates nothing
        for epoch in range(1, run.training.max_epochs + 1):
            before, losses = loader.bytes_read, []
            with log.span("epoch", epoch=epoch, step=(epoch - 1) * loader.steps) as span:
                with log.span("train", epoch=epoch):
                    for x, y in log.timed(loader.train_epoch(epoch - 1), "data_wait", epoch=epoch):
                        loss, gradient = loss_and_gradient(weights, x, y[:, 0])
                        weights -= rate * mean(world, gradient.ravel(), weight=len(y)).reshape(weights.shape)
                        losses.append(loss)
                        mark_warm(run, losses, log)
                    span["step"] = epoch * loader.steps
                read = loader.bytes_read - before
                if run.study.steps:
                    break
                with log.span("eval", epoch=epoch):
                    right = [((x @ weights).argmax(axis=1) == y[:, 0]) for x, y in loader.evaluation()]
                    accuracy = mean_quality([(batch.sum(), len(batch)) for batch in right], world)
                log.metric(run.target.metric, accuracy, epoch=epoch)
            trained = len(losses) * batch_size * world.size
            log_epoch(run, log, epoch, trained, read, rate=rate, loss=np.mean(losses), quality=accuracy)
            if run.target.met_by(accuracy):
                break
        log.finish("success" if run.target.met_by(accuracy) else "failed")


def loss_and_gradient(weights, x, y):
    p = np.exp(x @ weights)
    p /= p.sum(axis=1, keepdims=True)
    return -np.log(p[range(len(y)), y]).mean(), x.T @ (p - np.eye(CLASSES)[y]) / len(y)
