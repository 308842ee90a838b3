"""Trains the networks of ResNet-50 with parameter servers or a ring, for ``mlhpc study --vary
parameter_servers=0,1,2,4``.

This is not a benchmark: it writes only ``servers.json`` (read by ``submission/report/servers.py``), and no log or
result; it has no target, and ``mlhpc run`` cannot start it. ``mlhpc study`` starts it as ``python -m
mlhpc.resnet50.parameter_servers``, a single process that starts a rank for every worker and server.
"""

import argparse
import os
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from mlhpc.benchmarks import load
from mlhpc.benchmarks.resnet50 import ResNet50, require_servers
from mlhpc.common.data.loader import Loader
from mlhpc.common.data.sharding import Pool, divide_batch, steps_per_epoch
from mlhpc.common.files import atomic, pagecache
from mlhpc.common.host.provenance import describe_environment
from mlhpc.common.pytorch.devices import mover, pick_device, place
from mlhpc.common.pytorch.loading import TensorPair
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
from mlhpc.common.ranks.local import program, run_local
from mlhpc.common.ranks.torch_world import TorchWorld
from mlhpc.common.ranks.world import Solo, World
from mlhpc.common.timing.data_wait import by_interval, seconds_of
from mlhpc.common.training.dataset import open_dataset
from mlhpc.errors import AlreadyReported, UserError
from mlhpc.record.environment import Environment
from mlhpc.record.series import ServersRecord
from mlhpc.resnet50.data.dataset import assign_samples, select
from mlhpc.resnet50.data.source import ResNet50Source
from mlhpc.resnet50.metric import count_correct, cross_entropy
from mlhpc.resnet50.model import build_model
from mlhpc.resnet50.optim.optimizer import make_optimizer, rate_at


def main(argv: Sequence[str]) -> int:
    """Run one worker or server of the job, as specified by ``argv``. Returns the exit status."""
    options = _options(argv)
    try:
        run = load.load("resnet50", options.preset, options.set)
        assert isinstance(run, ResNet50)
        require_servers(run)
        roles = Roles(options.workers, options.servers)
        if roles.size > 1 and "MLHPC_RANK" not in os.environ:
            options.out.mkdir(parents=True, exist_ok=True)
            return run_local(roles.size, program(argv, __spec__.name))
        # Workers have as many threads with servers as without, since servers mostly wait, on the workers' cores.
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // options.workers))
        with launch.joined("torch") as world:
            if isinstance(world, TorchWorld):
                world.name_places(roles.place)
            if world.rank == 0:
                _write_evidence(run, options)
            record = _take_part(run, options, roles, world)
            if world.rank == 0:
                record.write(options.out / "servers.json")
        if world.size > 1:
            launch.end_with(0)
        return 0
    except UserError as error:
        if not isinstance(error, AlreadyReported):
            sys.stderr.write(f"mlhpc: {error}\n")
        return 2


def _options(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m mlhpc.resnet50.parameter_servers", allow_abbrev=False)
    parser.add_argument("--preset", required=True)
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--servers", type=int, required=True)
    parser.add_argument("--asynchronous", action="store_true")
    parser.add_argument("--evict", action="store_true")
    return parser.parse_args(argv)


def _take_part(run: ResNet50, options: argparse.Namespace, roles: Roles, world: World) -> ServersRecord:
    """Do this rank's work; returns the record of all ranks."""
    hparams = run.hyperparameters
    workers = world.group(range(roles.workers)) if isinstance(world, TorchWorld) else None
    device = pick_device(run.training.device, world.local_rank)
    torch.manual_seed(options.seed)  # all ranks draw the same initial weights, so they need not be sent
    model = build_model(run.network)
    steps = run.study.warmup_steps + run.study.steps
    epoch_steps = run.data.train_samples // hparams.global_batch_size
    rate = partial(_rate, run=run, epoch_steps=epoch_steps)
    own: dict[str, Any]
    if world.rank < roles.workers:
        world.enter("training")
        place(model, device, channels_last=run.training.channels_last)
        worker = Worker(run, roles, world.rank, model, device, workers, rate)
        own = worker.train(_loader(run, options, roles, world.rank, device))
    else:
        world.enter("serving")
        part = parts(sum(w.numel() for w in model.parameters()), roles.servers)[world.rank - roles.workers]
        server = Server(roles, model, make_optimizer(hparams, model, run.training.sgd), part)
        serve = server.serve_asynchronously if options.asynchronous else server.serve_synchronously
        serve(steps, rate)
        stale = server.staleness
        own = {
            "staleness": sum(stale) / len(stale),
            "traffic": [server.traffic.sent, server.traffic.received],
        }
    ranks = world.gather(own)
    return _summary(run, roles, options, ranks, sum(w.nbytes for w in model.parameters()))


def _rate(step: int, run: ResNet50, epoch_steps: int) -> float:
    return rate_at(run.hyperparameters, step, epoch_steps)


@dataclass
class Worker:
    """One worker, with a copy of the network on its device and all weights on the host."""

    run: ResNet50
    roles: Roles
    rank: int
    model: torch.nn.Module
    device: torch.device
    group: dist.ProcessGroup | None
    rate: Callable[[int], float]
    traffic: Traffic = field(default_factory=Traffic)

    def train(self, loader: Loader[TensorPair]) -> dict[str, Any]:
        """Train for all steps, then do this worker's part of the evaluation. Returns its measurements."""
        run, warmup = self.run, self.run.study.warmup_steps
        parameters = list(self.model.parameters())
        weights, move = flat(parameters), mover(self.device)
        optimizer = (
            None if self.roles.servers else make_optimizer(run.hyperparameters, self.model, run.training.sgd)
        )
        batches = iter(loader.train_epoch(0))
        self._meet()
        self.model.train()
        waits: list[float] = []
        computed = 0.0
        to_device = 0
        begin = time.perf_counter()
        for step in range(loader.steps):
            if step == warmup:
                self._meet()
                waits, computed = [], 0.0
                to_device, begin = 0, time.perf_counter()
            before = time.perf_counter()
            x, y = next(batches)
            ready = time.perf_counter()
            x, y = move(x), move(y)
            cross_entropy(self.model(x), y, label_smoothing=run.training.label_smoothing).backward()
            gradient = flat([weight.grad for weight in parameters if weight.grad is not None])
            waits.append(ready - before)
            computed += time.perf_counter() - ready
            if optimizer is not None:
                ring_all_reduce(gradient, self.rank, self.roles.workers, self.traffic)
                unflatten(gradient, [weight.grad for weight in parameters if weight.grad is not None])
                set_rate(optimizer, self.rate(step))
                optimizer.step()
            else:
                push_and_pull(gradient, weights, self.roles, self.traffic)
                unflatten(weights, parameters)
            self.model.zero_grad(set_to_none=True)
            to_device += x.nbytes + y.nbytes + gradient.nbytes
        seconds = time.perf_counter() - begin
        if self.roles.servers:
            pull(weights, self.roles)
            unflatten(weights, parameters)
        right, seen = self._evaluate(loader)
        return {
            "seconds": seconds, "waits_s": waits, "compute_s": computed, "host_to_device": to_device,
            "right": right, "seen": seen, "traffic": [self.traffic.sent, self.traffic.received],
        }  # fmt: skip

    def _evaluate(self, loader: Loader[TensorPair]) -> tuple[float, int]:
        """The number of correct predictions for this worker's evaluation images, and the number of its evaluation
        images. Batch norm's statistics are averaged over the workers."""
        statistics = [buffer for buffer in self.model.buffers() if buffer.is_floating_point()]
        if statistics:
            mean = flat(statistics)
            self._sum(mean)
            unflatten(mean / self.roles.workers, statistics)
        self.model.eval()
        right, seen, move = 0.0, 0, mover(self.device)
        with torch.no_grad():
            for x, y in loader.evaluation():
                right += float(count_correct(self.model(move(x)), move(y)))
                seen += len(y)
        return right, seen

    def _meet(self) -> None:
        self._sum(torch.zeros(1))

    def _sum(self, vector: torch.Tensor) -> None:
        if self.group is not None:
            dist.all_reduce(vector, group=self.group)


def _loader(
    run: ResNet50, options: argparse.Namespace, roles: Roles, rank: int, device: torch.device
) -> Loader[TensorPair]:
    """The loader of one worker, with the same batches as this rank would have in a run with the workers alone."""
    if options.evict and rank == 0:
        pagecache.evict([path for path in options.data.rglob("*") if path.is_file()])
    alone = Solo()
    dataset = open_dataset(run, options.data, alone, select=select)
    samples = assign_samples(
        dataset, None, "replicate", alone,
        classes=run.network.classes, train_samples=run.data.train_samples, eval_samples=run.data.eval_samples,
    )  # fmt: skip
    train = Pool(samples.train_pool.samples, roles.workers)
    samples = replace(
        samples, train_pool=train, eval_pool=Pool(samples.eval_pool.samples, roles.workers), pool_rank=rank
    )
    local_batch_size = divide_batch(run.hyperparameters.global_batch_size, roles.workers)
    return Loader(
        samples,
        ResNet50Source.of(run, device.type, roles.workers),
        local_batch_size=local_batch_size,
        eval_batch_size=run.training.eval_batch_size,
        steps=run.study.cut(steps_per_epoch([train], local_batch_size)),
        seed=options.seed,
    )


def _summary(
    run: ResNet50, roles: Roles, options: argparse.Namespace, ranks: list[dict[str, Any]], model_bytes: int
) -> ServersRecord:
    """The content of ``servers.json``. ``seconds``: time of the slowest worker; ``wait_s``: data wait of all
    workers; ``compute_s``: mean computing time of the workers; ``traffic``: bytes [sent, received] by every rank
    in all steps, including the warm-up."""
    workers, servers = ranks[: roles.workers], ranks[roles.workers :]
    # Workers wait for one another in every step, unless updates are asynchronous.
    passes = None if roles.servers and options.asynchronous else 1
    waits = [by_interval(worker["waits_s"], passes) for worker in workers]
    right, seen = (sum(worker[key] for worker in workers) for key in ("right", "seen"))
    steps = run.study.steps
    return ServersRecord(
        workers=roles.workers,
        threads=torch.get_num_threads(),
        servers=roles.servers,
        updates="asynchronous" if options.asynchronous else "synchronous",
        steps=steps,
        warmup_steps=run.study.warmup_steps,
        samples=steps * run.hyperparameters.global_batch_size,
        seconds=max(worker["seconds"] for worker in workers),
        wait_s=seconds_of(waits),
        compute_s=sum(worker["compute_s"] for worker in workers) / len(workers),
        accuracy=right / seen,
        evaluated=seen,
        staleness=sum(server["staleness"] for server in servers) / len(servers) if servers else 0.0,
        model_bytes=model_bytes,
        host_to_device_bytes=sum(worker["host_to_device"] for worker in workers),
        traffic=tuple(rank["traffic"] for rank in ranks),
    )


def _write_evidence(run: ResNet50, options: argparse.Namespace) -> None:
    words = ["python", "-m", __spec__.name, *sys.argv[1:]]
    environment = Environment(
        **describe_environment(), command=shlex.join(words), data=str(options.data.absolute())
    )
    options.out.mkdir(parents=True, exist_ok=True)
    environment.write(options.out / "env.json")
    _write(options.out / "config.toml", load.dumps(run))


def _write(path: Path, text: str) -> None:
    atomic.write_bytes(path, f"{text.rstrip()}\n".encode())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
