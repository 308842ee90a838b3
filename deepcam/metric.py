"""The loss, and the metric for which the target is set."""

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

FREQUENCIES = (0.986267818390377, 0.0004578708870701058, 0.01327431072255291)
"""Fractions of the data set's pixels in each class: background, tropical cyclone, atmospheric river (class ids 0,
1, 2); from the MLPerf HPC reference, deepcam/src/deepCam/train.py."""

CLASS_WEIGHTS = tuple(share**-0.125 for share in FREQUENCIES)
"""The frequencies to the power of -1/8, as in the MLPerf HPC reference."""


def weighted_cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """The mean, over all pixels, of class weight times cross entropy: a float32 scalar.

    ``logits`` are [b, 3, H, W] in any floating type, and ``y`` has classes, [b, H, W] in any integer type. The sum
    is divided by the number of pixels, not by the sum of their weights (MLPerf HPC reference, utils/losses.py).
    """
    weights = _class_weights(logits.device)
    return F.cross_entropy(logits.float(), y.long(), weights, reduction="none").mean()


@cache
def _class_weights(device: torch.device) -> Tensor:
    """``CLASS_WEIGHTS`` as a tensor [3], cached on the device because copying it in every step would synchronise
    with the GPU."""
    return torch.tensor(CLASS_WEIGHTS, device=device)


def iou(prediction: Tensor, y: Tensor, classes: int = 3) -> Tensor:
    """The intersection over union of each sample, float64 [b]: the mean over classes of TP / (TP + FP + FN).

    ``prediction`` has class ids [b, H, W], or logits [b, classes, H, W], of which the largest decides (on ties,
    the first). ``y`` is [b, H, W]. A class that occurs in neither counts as 1 (MLPerf HPC reference,
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
    """The sum of the samples' IoU, a float64 scalar on the device of ``logits``, and the number of samples.
    ``logits`` are [b, classes, h, w], ``y`` [b, h, w]."""
    return iou(logits, y, logits.shape[1]).sum(), len(y)
