"""The loaders of the frameworks themselves are measured; their own bounds hold."""

import time

import pytest

from mlhpc.iobench.emulate import loader_cost


@pytest.mark.parametrize("kind", loader_cost.FRAMEWORKS)
def test_every_kind_of_loader_is_measured(monkeypatch, kind):
    for name, value in (("REPEATS", 2), ("STEPS", 3), ("COMPUTATION_S", 0.002)):
        monkeypatch.setattr(loader_cost, name, value)
    costs = loader_cost.measure(kind)
    assert [size for size, _ in costs["steps"]] == [0.004096, 0.262144, 4.194304]
    for low, median, high in ((each.low, each.median, each.high) for _, each in costs["steps"]):
        assert 0 <= low <= median <= high
    assert costs["batch"].median > 0
    used = loader_cost._cost(costs)
    assert used.steps[0] == (0.004096, costs["steps"][0][1].median)


def test_a_worker_that_takes_time_is_seen_by_the_loaders_of_pytorch(monkeypatch):
    steps, ahead = 20, 4  # batches that may be ready when the measured steps begin
    for name, value in (("REPEATS", 2), ("STEPS", steps)):
        monkeypatch.setattr(loader_cost, name, value)

    class Slow(list):
        def __getitem__(self, number):
            time.sleep(0.01)
            return super().__getitem__(number)

    pictures = loader_cost._pictures
    monkeypatch.setattr(loader_cost, "_pictures", lambda count, size: Slow(pictures(count, size)))
    assert min(loader_cost._worker(loader_cost._pytorch(2, 4096))) >= 0.02 * (steps - ahead) / steps
