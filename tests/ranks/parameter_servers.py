"""One of four ranks of a test: training with a ring, with one, two or three parameter servers, synchronous and
asynchronous, against one process that computes the gradient of all workers' samples itself; and the bytes that
the ranks send and receive, against the formulas of ``perf``."""

import sys

import torch
from torch.nn.functional import cross_entropy

from mlhpc.benchmarks.resnet50 import Hyperparameters
from mlhpc.common.pytorch.parameter_servers import (
    Roles,
    Server,
    Traffic,
    flat,
    parts,
    pull,
    push_and_pull,
    ring_all_reduce,
    unflatten,
)
from mlhpc.common.pytorch.step import set_rate
from mlhpc.common.ranks import launch
from mlhpc.perf.collectives import ring_bytes, server_bytes
from mlhpc.resnet50.model import lenet
from mlhpc.resnet50.optim.optimizer import make_optimizer

STEPS, BATCH = 4, 3
HYPERPARAMETERS = Hyperparameters(
    global_batch_size=12, sgd_opt_learning_rate_decay_steps=9, lars_opt_learning_rate_decay_steps=9,
    sgd_opt_weight_decay=0.01,
)  # fmt: skip


def rate_at(update):
    return 0.05 / (update + 1)


def batch(step, worker):
    own = torch.Generator().manual_seed(100 * step + worker)
    return torch.randn(BATCH, 3, 32, 32, generator=own), torch.randint(10, (BATCH,), generator=own)


def network():
    torch.manual_seed(3)
    return lenet(10)


def expected(workers, sgd):
    """The weights after every step on all workers' samples at once."""
    model = network()
    optimizer = make_optimizer(HYPERPARAMETERS, model, sgd)
    for step in range(STEPS):
        x, y = (torch.cat(each) for each in zip(*(batch(step, w) for w in range(workers)), strict=True))
        cross_entropy(model(x), y).backward()
        set_rate(optimizer, rate_at(step))
        optimizer.step()
        optimizer.zero_grad()
    return flat(list(model.parameters()))


def work(roles, rank, sgd):
    """A worker's weights at the end, and what it sent and received."""
    model, traffic = network(), Traffic()
    parameters = list(model.parameters())
    weights, optimizer = flat(parameters), make_optimizer(HYPERPARAMETERS, model, sgd)
    for step in range(STEPS):
        x, y = batch(step, rank)
        model.zero_grad()
        cross_entropy(model(x), y).backward()
        gradient = flat([weight.grad for weight in parameters])
        if roles.servers:
            push_and_pull(gradient, weights, roles, traffic)
            unflatten(weights, parameters)
        else:
            ring_all_reduce(gradient, rank, roles.workers, traffic)
            unflatten(gradient, [weight.grad for weight in parameters])
            set_rate(optimizer, rate_at(step))
            optimizer.step()
    if roles.servers:
        pull(weights, roles)
        unflatten(weights, parameters)
    return flat(parameters), traffic


def check(world, roles, sgd, asynchronous):
    model = network()
    size = sum(weight.nbytes for weight in model.parameters())
    if world.rank < roles.workers:
        weights, traffic = work(roles, world.rank, sgd)
        late = 0.0
    else:
        part = parts(size // 4, roles.servers)[world.rank - roles.workers]
        server = Server(roles, model, make_optimizer(HYPERPARAMETERS, model, sgd), part)
        (server.serve_asynchronously if asynchronous else server.serve_synchronously)(STEPS, rate_at)
        weights, traffic, late = None, server.traffic, sum(server.staleness)
        assert len(server.staleness) == STEPS * (roles.workers if asynchronous else 1)
    if weights is not None and (not asynchronous or roles.workers == 1):
        torch.testing.assert_close(weights, expected(roles.workers, sgd), rtol=1e-4, atol=1e-6)
    sums = world.gather(float(weights.double().sum()) if weights is not None else None)
    assert len(set(sums[: roles.workers])) == 1, "workers end with different weights"

    moved = world.gather((traffic.sent, traffic.received, late))
    if roles.servers:
        of_servers = sum(sent + received for sent, received, _ in moved[roles.workers :])
        assert of_servers == STEPS * roles.servers * server_bytes(size, roles.workers, roles.servers)
        assert {(sent, received) for sent, received, _ in moved[: roles.workers]} == {(STEPS * size,) * 2}
    else:
        of_ring = sum(sent for sent, _, _ in moved)
        assert of_ring == STEPS * roles.workers * ring_bytes(size, roles.workers)
    if asynchronous and roles.workers > 1:
        # Between two updates of a worker come all others' at some time: each of its gradients but the last ones.
        assert all(0 < late <= STEPS * roles.workers * STEPS for _, _, late in moved[roles.workers :])
    else:
        assert all(late == 0 for _, _, late in moved)


def main():
    world = launch.connect("torch")
    torch.set_num_threads(1)
    for workers, servers, sgd, asynchronous in (
        (4, 0, "mlperf", False),
        (3, 1, "mlperf", False),
        (2, 2, "pytorch", False),
        (1, 3, "pytorch", False),
        (1, 3, "mlperf", True),
        (2, 2, "pytorch", True),
        (3, 1, "mlperf", True),
    ):
        check(world, Roles(workers, servers), sgd, asynchronous)
        world.barrier()
    world.close()


if __name__ == "__main__":
    sys.exit(main())
