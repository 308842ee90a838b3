"""The optimizer's update of the weights: once per step, independent of the batch size, in float32."""

from typing import NamedTuple

from mlhpc.perf.accelerator.memory import STATES
from mlhpc.perf.networks.layer import Layer, Network

OPERATIONS = {"none": 0, "sgd": 6, "lars": 10, "adam": 14, "adamw": 15, "lamb": 20}
"""Elementwise operations per weight: the formulas of PyTorch's documentation for SGD with momentum and weight
decay, of You et al. 2017 (LARS), Kingma and Ba 2015 (Adam), Loshchilov and Hutter 2019 (AdamW), You et al.
2020 (LAMB). Operations done once per layer or for all weights are not counted."""


class Update(NamedTuple):
    """``operations`` on elements, and the lower limit of ``bytes`` of memory traffic."""

    operations: int
    bytes: int


def update_of(part: Layer | Network, optimizer: str) -> Update:
    """The update of the weights of a layer or of all, with an optimizer of ``memory.STATES``: weight,
    gradient and state are read once, weight and state written once."""
    if optimizer == "none":
        return Update(0, 0)
    return Update(OPERATIONS[optimizer] * part.parameters, 4 * (3 + 2 * STATES[optimizer]) * part.parameters)
