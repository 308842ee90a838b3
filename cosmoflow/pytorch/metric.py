"""Loss and evaluation metric, as in ``cosmoflow/tf/step.py``."""

import torch
from torch import Tensor

from mlhpc.cosmoflow.pytorch.model import CosmoFlowNet


def training_loss(predicted: Tensor, y: Tensor, *, model: CosmoFlowNet, weight_decay: float) -> Tensor:
    """The mean square error over batch and targets, ``[b, targets]`` both, plus ``weight_decay`` times the sum of
    squares of the decayed weights (Keras's L2 regulariser, whose gradient is 2 · weight_decay · w)."""
    loss = torch.mean((predicted - y) ** 2)
    if weight_decay:
        loss = loss + weight_decay * torch.stack([(w**2).sum() for w in model.decayed_weights()]).sum()
    return loss


def absolute_error(predicted: Tensor, y: Tensor) -> tuple[Tensor, int]:
    """The sum of absolute errors over batch and targets, in float64 on the device, and the number of values:
    sums over batches and ranks divided by each other are the exact mean absolute error, whatever the batch
    sizes. Both are [b, targets]; the sum is a scalar."""
    return (predicted - y).abs().double().sum(), y.numel()
