"""Loss and evaluation metric, as in ``cosmoflow/tf/step.py``."""

import torch
from torch import Tensor

from mlhpc.cosmoflow.pytorch.model import CosmoFlowNet


def training_loss(predicted: Tensor, y: Tensor, *, model: CosmoFlowNet, weight_decay: float) -> Tensor:
    """The loss, a scalar: the mean square error over batch and targets plus ``weight_decay`` times the sum of the
    squares of the decayed weights (Keras's L2 regulariser, whose gradient is 2 · weight_decay · w). ``predicted``
    and ``y`` are ``[b, targets]``."""
    loss = torch.mean((predicted - y) ** 2)
    if weight_decay:
        loss = loss + weight_decay * torch.stack([(w**2).sum() for w in model.decayed_weights()]).sum()
    return loss


def absolute_error(predicted: Tensor, y: Tensor) -> tuple[Tensor, int]:
    """The sum of absolute errors over batch and targets, a float64 scalar on the device, and the number of values.
    Added up over batches and ranks, the ratio of the two is the exact mean absolute error for any batch sizes.
    ``predicted`` and ``y`` are [b, targets]."""
    return (predicted - y).abs().double().sum(), y.numel()
