"""The loss, and the metric that the target is set for."""

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

FREQUENCIES = (0.986267818390377, 0.0004578708870701058, 0.01327431072255291)
"""Fractions of the data set's pixels: background, tropical cyclone, atmospheric river (class ids 0, 1, 2);
the MLPerf HPC reference, deepcam/src/deepCam/train.py."""

CLASS_WEIGHTS = tuple(share**-0.125 for share in FREQUENCIES)
"""Frequency to the power of -1/8, as in the MLPerf HPC reference."""


def weighted_cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """Mean over all pixels of class weight times cross entropy: a float32 scalar.

    ``logits`` are [b, 3, H, W] in any floating type, ``y`` classes [b, H, W] in any integer type. The mean is
    over the number of pixels, not over the sum of their weights (MLPerf HPC reference, utils/losses.py).
    """
    weights = _class_weights(logits.device)
    return F.cross_entropy(logits.float(), y.long(), weights, reduction="none").mean()


@cache
def _class_weights(device: torch.device) -> Tensor:
    """Cached on the device: copying them in every step would synchronise with the GPU."""
    return torch.tensor(CLASS_WEIGHTS, device=device)


def iou(prediction: Tensor, y: Tensor, classes: int = 3) -> Tensor:
    """Intersection over union of every sample, float64 [b]: the mean over classes of TP / (TP + FP + FN).

    ``prediction`` is [b, H, W] of class ids, or [b, classes, H, W] of logits, whose largest decides (the first
    on ties). ``y`` is [b, H, W]. A class that occurs in neither counts as 1 (MLPerf HPC reference,
    utils/metric.py). The caller sums over samples and ranks and divides by the number of samples.
    """
    if prediction.dim() == 4:
        prediction = prediction.argmax(1)
    shares = []
    for number in range(classes):
        predicted, labelled = prediction == number, y == number
        both = (predicted & labelled).sum((1, 2))
        either = (predicted | labelled).sum((1, 2))
        shares.append(torch.where(either > 0, both.double() / either.clamp(min=1), 1.0))
    return torch.stack(shares).mean(0)


def summed_iou(logits: Tensor, y: Tensor) -> tuple[Tensor, int]:
    """The sum of the samples' IoU, float64 on their device, and the number of samples. ``logits`` are [b,
    classes, h, w], ``y`` [b, h, w]; the sum is a scalar."""
    return iou(logits, y, logits.shape[1]).sum(), len(y)
