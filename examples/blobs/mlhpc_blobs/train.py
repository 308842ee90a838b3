"""Softmax regression, trained to target. The clock runs inside ``with log.span("run", sync=True)``."""

from contextlib import nullcontext
from functools import partial

import numpy as np

from mlhpc.common.data.assign import assign_samples
from mlhpc.common.data.manifest import take
from mlhpc.common.data.sharding import divide_batch, eval_batches, steps_per_epoch, train_batches
from mlhpc.common.ranks.world import mean
from mlhpc.common.staging.stage import stage
from mlhpc.common.training.dataset import open_dataset
from mlhpc.common.training.epoch import log_epoch
from mlhpc_blobs.data import CLASSES


def check(run, staged, world):
    run.require_startable(world.size, staged=staged is not None)


def train(run, data, staged, seed, resume, world, log):
    batch_size = divide_batch(run.hyperparameters.global_batch_size, world.size)
    rate, how = run.hyperparameters.opt_base_learning_rate, run.staging
    with log.span("init", sync=True):
        weights = np.zeros((run.data.sample_shape[0], CLASSES))
    with log.span("run", sync=True):
        with log.span("staging", sync=True) if staged else nullcontext():
            select = partial(take, train=run.data.train_samples, validation=run.data.eval_samples)
            dataset = open_dataset(data, "blobs", world, select=select, enforce_rules=lambda facts: None)
            if staged:
                log.note(
                    "staging", **vars(stage(dataset, staged, world, how.mode, how.workers, how.read_once))
                )
        sizes = {"train_samples": run.data.train_samples, "eval_samples": run.data.eval_samples}
        own = assign_samples(dataset, staged, how.mode, world, **sizes)
        steps = run.study.cut(steps_per_epoch(world.gather(own.train_pool), batch_size))
        record = partial(log_epoch, log, world, run.target, run.training.max_epochs)
        for epoch in range(1, run.training.max_epochs + 1):
            with log.span("epoch", epoch=epoch, step=(epoch - 1) * steps) as span:
                with log.span("train", epoch=epoch):
                    indices = train_batches(own.train_pool, own.pool_rank, batch_size, steps, seed, epoch)
                    batches = (read(own.train_files, batch) for batch in indices)
                    losses = []
                    for x, y in log.timed(batches, "data_wait", epoch=epoch):
                        loss, gradient = loss_and_gradient(weights, x, y)
                        weights -= rate * mean(world, gradient.ravel(), weight=len(y)).reshape(weights.shape)
                        losses.append(loss)
                        if len(losses) == run.study.warmup_steps:
                            log.mark("warm")
                    span["step"] = epoch * steps
                if run.study.steps:
                    accuracy = 0.0  # a study evaluates nothing
                    break
                with log.span("eval", epoch=epoch):
                    indices = eval_batches(own.eval_pool, own.pool_rank, 16)
                    results = [read(own.eval_files, batch) for batch in indices]
                    right = sum((np.argmax(x @ weights, axis=1) == y).sum() for x, y in results)
                    accuracy = float(world.sum(right)) / run.data.eval_samples
                log.metric(run.target.metric, accuracy, epoch=epoch)
            facts = {"samples": len(losses) * batch_size * world.size, "rate": rate, "loss": np.mean(losses)}
            record(epoch, bytes_read=0, quality=accuracy, **facts)
            if run.target.met_by(accuracy):
                break
        log.finish("success" if run.target.met_by(accuracy) else "failed")


def read(files, indices):
    samples = np.stack([np.load(files[i]) for i in indices])
    return samples[:, :-1], samples[:, -1].astype(int)  # coordinates [batch, 16], classes [batch]


def loss_and_gradient(weights, x, y):
    p = np.exp(x @ weights)
    p /= p.sum(axis=1, keepdims=True)
    return -np.log(p[range(len(y)), y]).mean(), x.T @ (p - np.eye(CLASSES)[y]) / len(y)
