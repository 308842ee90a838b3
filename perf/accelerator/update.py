"""The optimizer's update of the weights: once a step, whatever the batch, in float32."""

from typing import NamedTuple

from mlhpc.perf.accelerator.memory import STATES
from mlhpc.perf.networks.layer import Layer, Network

OPERATIONS = {"none": 0, "sgd": 6, "lars": 10, "adam": 14, "adamw": 15, "lamb": 20}
"""On single elements, of a weight: the formulas of PyTorch's documentation for SGD with momentum and weight decay,
of You et al. 2017 (LARS), Kingma and Ba 2015 (Adam), Loshchilov and Hutter 2019 (AdamW), You et al. 2020 (LAMB).
What is computed once for a layer or for all weights counts nothing."""


class Update(NamedTuple):
    """``operations`` on elements, and the lower limit of ``bytes`` of memory traffic."""

    operations: int
    bytes: int


def update_of(part: Layer | Network, optimizer: str) -> Update:
    """Of the weights of a layer or of all, by one of ``memory.STATES``: weight, gradient and state are read once,
    weight and state written once."""
    if optimizer == "none":
        return Update(0, 0)
    return Update(OPERATIONS[optimizer] * part.parameters, 4 * (3 + 2 * STATES[optimizer]) * part.parameters)
