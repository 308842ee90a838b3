"""Epochs read before the measured steps of a study."""

from types import SimpleNamespace

from mlhpc.common.ranks.world import Solo
from mlhpc.common.training.epoch import read_earlier_epochs


def run(earlier_epochs):
    return SimpleNamespace(study=SimpleNamespace(earlier_epochs=earlier_epochs))


class Loader:
    """Counts what is read: (epoch, batch)."""

    def __init__(self, steps):
        self.steps, self.read, self.closed = steps, [], 0

    def train_epoch(self, epoch):
        try:
            for batch in range(self.steps):
                self.read.append((epoch, batch))
                yield batch
        finally:
            self.closed += 1


def test_whole_epochs_are_read_in_the_orders_of_later_ones():
    loader = Loader(steps=2)
    read_earlier_epochs(run(3), loader, loader.train_epoch, 5, Solo())
    assert loader.read == [(epoch, batch) for epoch in (1, 2, 3) for batch in range(5)]
    assert loader.steps == 2 and loader.closed == 3


def test_without_earlier_epochs_nothing_is_read():
    loader = Loader(steps=2)
    read_earlier_epochs(run(0), loader, loader.train_epoch, 5, Solo())
    assert loader.read == [] and loader.steps == 2
