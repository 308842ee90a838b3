"""The steps of an emulated run in PyTorch."""

from collections.abc import Callable
from typing import Any

import torch

from mlhpc.common.pytorch.step import Steps
from mlhpc.common.ranks.world import World
from mlhpc.common.training.emulation import Emulation, WaitingStep


def waiting_steps(
    emulation: Emulation, world: World, accumulate: int, measure: Callable[[int], Any]
) -> Steps[Any]:
    """Steps that wait for the time of ``emulation``: the loss is 0, an evaluation ``measure(samples)``. Ranks
    synchronise in every ``accumulate``-th training step."""
    return Steps(*WaitingStep.pair(emulation, world, accumulate, torch.zeros(()), measure))
