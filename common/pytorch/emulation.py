"""The steps of an emulated run in PyTorch."""

from collections.abc import Callable
from typing import Any

import torch

from mlhpc.benchmarks.schema import Run
from mlhpc.common.pytorch.step import Steps
from mlhpc.common.ranks.world import World
from mlhpc.common.training.emulation import WaitingStep


def waiting_steps(run: Run, world: World, measure: Callable[[int], Any]) -> Steps[Any]:
    """Steps that wait for the time of ``run.emulation``: the loss is 0, an evaluation ``measure(samples)``. Ranks
    synchronise in every training step, after ``run.backward_passes`` calls."""
    return Steps(*WaitingStep.pair(run, world, torch.zeros(()), measure))
