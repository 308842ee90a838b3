"""The loss and the target metric."""

import torch
import torch.nn.functional as F
from torch import Tensor


def cross_entropy(logits: Tensor, y: Tensor, label_smoothing: float = 0.1) -> Tensor:
    """The mean cross entropy of ``logits`` [b, classes] and ``y``, integer [b], with ``label_smoothing`` spread
    over all classes (Szegedy et al. 2016, section 7; 0.1 in the MLPerf reference): a scalar of at least float32
    precision."""
    precise = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return F.cross_entropy(precise, y, label_smoothing=label_smoothing)


def count_correct(logits: Tensor, y: Tensor) -> Tensor:
    """The number of samples whose class, ``y`` [b], has the largest of the ``logits`` [b, classes]: an integer
    scalar on the device of the logits."""
    return torch.eq(logits.argmax(1), y).sum()
