"""Gradient skipping: stop updating layers that have little effect any more (open division).

Farrell et al. 2021 (paper 001, section 4.2.2) name the technique, GradSkip of Fujitsu, and what it does: the
weights of layers that are found to have little effect are no longer updated. How they are found is not
published. Here, after every epoch, blocks are frozen from the input on, as long as their weights moved by less
than a share of their norm in it. Frozen blocks are always the first ones: the backward pass ends where the
first block begins that is still trained, and only the gradients of the rest are averaged over ranks. The
forward pass is what it was; batch norm in frozen blocks goes on with the statistics of the batch.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from mlhpc.common.ranks.world import World


class Freezer:
    """Watches the blocks of a network over an epoch and freezes those that hardly move."""

    def __init__(self, blocks: Sequence[nn.Module], below: float, world: World) -> None:
        """``blocks`` in order from the input, without the last part, which is always trained; ``below``: the
        share of its norm by which a block's weights must move in an epoch to be updated in the next.
        At 0 nothing is watched and nothing frozen."""
        self._blocks = blocks
        self._below = below
        self._world = world
        self._before: list[list[Tensor]] = []

    @property
    def frozen(self) -> int:
        """How many blocks, from the input on, are not updated any more."""
        trained = [any(p.requires_grad for p in block.parameters()) for block in self._blocks]
        return trained.index(True) if True in trained else len(trained)

    def freeze(self, count: int) -> None:
        """Stop updating the first ``count`` blocks."""
        for block in self._blocks[:count]:
            for parameter in block.parameters():
                parameter.requires_grad_(False)
                parameter.grad = None

    def begin_epoch(self) -> None:
        """Remember the weights."""
        if self._below:
            self._before = [[p.detach().clone() for p in block.parameters()] for block in self._blocks]

    def end_epoch(self) -> bool:
        """Freeze what hardly moved since ``begin_epoch``. Called by all ranks; they freeze alike. Returns
        whether more is frozen than before: the network is then to be shared among ranks anew."""
        if not self._below:
            return False
        before = count = self.frozen
        while count < len(self._blocks) and self._moved(count) < self._below:
            count += 1
        self.freeze(self._world.broadcast(count))
        return self.frozen > before

    @torch.no_grad()
    def _moved(self, number: int) -> float:
        """The change of a block's weights over the epoch, by their norm then."""
        now, before = list(self._blocks[number].parameters()), self._before[number]
        change = torch.stack(
            [(a - b).double().square().sum() for a, b in zip(now, before, strict=True)]
        ).sum()
        norm = torch.stack([b.double().square().sum() for b in before]).sum()
        return float((change / norm).sqrt())
