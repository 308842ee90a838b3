"""What ranks train on after an exchange, of files and of archives."""

from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from helpers.thread_world import on_ranks

from mlhpc.common.data.archives import FACT
from mlhpc.common.data.assign import assign_samples
from mlhpc.common.data.manifest import index, take
from mlhpc.common.formats.archive import read, write
from mlhpc.common.ranks.world import Solo
from mlhpc.common.staging.stage import stage
from mlhpc.common.training.staging import exchanging

TRAINED, EVALUATED = 45, 6


class Log:
    """Keeps what a run would record."""

    def __init__(self):
        self.spans, self.metrics = [], []

    @contextmanager
    def span(self, name, *, sync=False, epoch):
        assert sync
        self.spans.append((name, epoch))
        yield {}

    def metric(self, name, value, *, epoch):
        self.metrics.append((name, value, epoch))


def data_set(root: Path, each: int | None):
    """50 training samples whose content is their number, ``each`` to an archive: more than are trained on."""
    facts: dict[str, Any] = {"benchmark": "b", "samples": {"train": 50, "validation": EVALUATED}}
    for folder, count in facts["samples"].items():
        (root / folder).mkdir(parents=True)
        contents = [(f"{i:02d}", f"{folder} {i}".encode()) for i in range(count)]
        if each is None:
            for name, content in contents:
                (root / folder / name).write_bytes(content)
            continue
        for start in range(0, count, each):
            write(root / folder / f"samples-{start // each:06d}.zip", iter(contents[start : start + each]))
    facts |= {FACT: each} if each else {}
    return take(index(root, facts, Solo(), workers=1), train=TRAINED, validation=EVALUATED)


def run(**more):
    staging = SimpleNamespace(**({"mode": "shard", "exchange": True} | more))
    return SimpleNamespace(staging=staging, data=SimpleNamespace(train_samples=TRAINED))


@pytest.mark.parametrize("each", [None, 4, 7])
@pytest.mark.parametrize(("nodes", "local_size"), [(2, 1), (3, 2)])
def test_every_sample_is_trained_on_by_one_node_in_every_epoch(tmp_path, each, nodes, local_size):
    dataset, logs = data_set(tmp_path / "source", each), [Log() for _ in range(nodes * local_size)]

    def work(world):
        staged = tmp_path / f"node{world.node}"
        stage(dataset, staged, world, "shard")
        samples = assign_samples(
            dataset, staged, "shard", world, train_samples=TRAINED, eval_samples=EVALUATED
        )
        renew = exchanging(run(), dataset, staged, range(1, 5), 3, world, logs[world.rank])
        epochs = []
        for epoch in (1, 2, 3):
            samples = renew(epoch, samples)
            assert len(samples.train) == samples.train_pool.samples
            epochs.append([bytes(read(path)) if each else path.read_bytes() for path in samples.train])
            world.barrier()  # as training does before it asks for the next epoch
        return epochs, [str(path) for path in samples.evaluation]

    outcomes = on_ranks(nodes, local_size, work)
    assert all(isinstance(outcome, tuple) for outcome in outcomes), outcomes
    everything = sorted(f"train {i}".encode() for i in range(TRAINED))
    for epoch in range(3):
        of_nodes = [outcomes[node * local_size][0][epoch] for node in range(nodes)]
        assert sorted(content for of_node in of_nodes for content in of_node) == everything
        for rank, (epochs, _) in enumerate(outcomes):
            assert epochs[epoch] == of_nodes[rank // local_size]  # the ranks of a node share its samples
    first = outcomes[0][0]
    assert len({frozenset(share) for share in first}) > 1  # few archives can be divided in few ways
    for log in logs:
        assert log.spans == [("exchange", 2), ("exchange", 3)]
        assert [(name, epoch) for name, _, epoch in log.metrics] == [
            ("exchange_bytes", 2),
            ("exchange_bytes", 3),
        ]
        assert log.metrics == logs[0].metrics and all(value > 0 for _, value, _ in log.metrics)


def test_a_resumed_run_has_the_shares_of_an_undisturbed_one(tmp_path):
    dataset = data_set(tmp_path / "source", None)

    def through(epochs, folder):
        def work(world):
            staged = tmp_path / folder / f"node{world.node}"
            stage(dataset, staged, world, "shard")
            samples = assign_samples(
                dataset, staged, "shard", world, train_samples=TRAINED, eval_samples=EVALUATED
            )
            renew = exchanging(run(), dataset, staged, range(1, 5), 3, world, Log())
            for epoch in epochs:
                samples = renew(epoch, samples)
            return [str(path.relative_to(staged)) for path in samples.train]

        return on_ranks(2, 1, work)

    assert through((1, 2, 3, 4), "whole") == through((4,), "resumed")


@pytest.mark.parametrize(
    ("nodes", "settings", "staged"),
    [(1, run(), True), (2, run(exchange=False), True), (2, run(mode="replicate"), True), (2, run(), False)],
)
def test_nothing_is_exchanged_without_shards_of_several_nodes(tmp_path, nodes, settings, staged):
    dataset, samples = data_set(tmp_path / "source", None), object()
    world = Solo(nodes=nodes)
    folder = tmp_path / "staged" if staged else None
    renew = exchanging(settings, dataset, folder, range(1, 4), 3, world, Log())
    assert all(renew(epoch, samples) is samples for epoch in (1, 2, 3))
