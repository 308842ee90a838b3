"""The loss, and the Dice coefficient that the target is set for."""

import numpy as np
import torch
from torch import Tensor

from mlhpc.common.ranks.world import World


def voxel_loss(logits: Tensor, y: Tensor) -> Tensor:
    """The mean cross entropy of voxels, of logits ``[b, classes, d, h, w]`` for the classes ``y [b, d, h, w]``."""
    return torch.nn.functional.cross_entropy(logits.float(), y.long())


def counts(logits: Tensor, y: Tensor) -> Tensor:
    """The voxels of each class, ``[3, classes]``: predicted and true, predicted, true. Shapes as above."""
    predicted, true = logits.argmax(1).flatten(), y.long().flatten()
    parts = predicted[predicted == true], predicted, true
    return torch.stack([part.bincount(minlength=logits.shape[1]) for part in parts])


def mean_dice(counted: list[Tensor], classes: int, world: World) -> float:
    """The Dice coefficient 2 |P ∩ T| / (|P| + |T|) of the voxels of all ranks, the mean over classes but 0: equal
    for all batches, ranks and slabs. Called by all ranks; one may have no ``counted``."""
    own = sum((each.cpu().numpy() for each in counted), np.zeros((3, classes)))
    both, predicted, true = world.sum(own.ravel()).reshape(own.shape)[:, 1:]
    return float(np.mean(2 * both / np.maximum(predicted + true, 1)))
