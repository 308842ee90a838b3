"""Gradient skipping: blocks near the input whose weights hardly change are no longer updated.

This is an open-division technique (Farrell et al. 2021, section 4.2.2, which does not state the criterion). Here,
after each epoch, the blocks whose weights have changed by less than a fraction of their norm, counted from the
input up to the first block that has changed more, are frozen permanently. Their weights take no gradient, their
batch norm keeps its running statistics, and the backward pass ends at them: their gradients are neither computed
nor summed over ranks, and their activations are not kept. The ASPP and the decoder are never frozen.
"""

import torch
from torch import Tensor, nn

from mlhpc.common.pytorch.batchnorm import BatchNorm
from mlhpc.common.ranks.world import World
from mlhpc.common.timing.runlog import RunLog
from mlhpc.deepcam.model import DeepLab

Weights = list[list[Tensor]]
"""Copies of the weights, of any shape, of each block."""


class Freezer:
    """Freezes converged blocks of ``model`` after each epoch. ``below``: a block counts as converged if its
    weights change by less than this fraction of their norm in an epoch; 0: nothing is ever frozen. ``frozen``:
    number of blocks that are frozen from the start."""

    def __init__(self, model: nn.Module, below: float, frozen: int = 0) -> None:
        self._model, self._below = model, below
        freeze(model, frozen)
        self._before = weights_of(model) if below else []

    @property
    def frozen(self) -> int:
        """Number of frozen blocks, counted from the input."""
        return frozen_blocks(self._model)

    def after_epoch(self, world: World, log: RunLog, epoch: int) -> bool:
        """Freeze the blocks that have converged in ``epoch``, and record how many are frozen. Returns whether this
        number has grown; if so, the steps must be rebuilt. Called by all ranks."""
        if not self._below:
            return False
        already = self.frozen
        converged = count_converged_blocks(self._model, self._before, self._below, world)
        if more := converged > already:
            freeze(self._model, converged)
        self._before = weights_of(self._model)
        log.metric("frozen_blocks", self.frozen, epoch=epoch)
        return more


def blocks(model: nn.Module) -> list[nn.Module]:
    """The blocks that may be frozen, from the input on: the stem and the blocks of the encoder."""
    assert isinstance(model, DeepLab)
    return [model.stem, model.entry_block1, *model.encoder]


def weights_of(model: nn.Module) -> Weights:
    """Copies of the current weights of each block that may be frozen."""
    return [[weight.detach().clone() for weight in block.parameters()] for block in blocks(model)]


@torch.no_grad()
def count_converged_blocks(model: nn.Module, before: Weights, below: float, world: World) -> int:
    """Number of blocks, counted from the input, whose weights have changed by less than ``below`` times their norm
    ``before``.

    The norm is the Euclidean norm over all weights of a block. Called by all ranks, which all get rank 0's answer.
    """
    moves = []
    for block, old in zip(blocks(model), before, strict=True):
        new: list[Tensor] = list(block.parameters())
        moved = torch.stack(torch._foreach_norm(torch._foreach_sub(new, old))).norm()
        moves.append(moved / torch.stack(torch._foreach_norm(old)).norm())
    small = (torch.stack(moves) < below).tolist()
    return world.broadcast(small.index(False) if False in small else len(small))


def frozen_blocks(model: nn.Module) -> int:
    """Number of blocks, counted from the input, that are no longer updated."""
    trained = [any(weight.requires_grad for weight in block.parameters()) for block in blocks(model)]
    return trained.index(True) if True in trained else len(trained)


def freeze(model: nn.Module, count: int) -> None:
    """Stop updating the first ``count`` blocks. The training step must be rebuilt afterwards, since it depends on
    which weights take gradients."""
    for block in blocks(model)[:count]:
        for weight in block.parameters():
            weight.requires_grad_(False)
            weight.grad = None
        for module in block.modules():
            if isinstance(module, BatchNorm):
                module.frozen = True
        block.train(False)
