"""The learning rate as a function of the epoch."""

from collections.abc import Sequence
from typing import Literal


def learning_rate(
    epoch: int,
    *,
    peak: float,
    warmup_epochs: int = 0,
    warmup_factor: float = 1.0,
    decay_boundary_epochs: Sequence[int] = (),
    decay_factors: Sequence[float] = (),
    schedule: Literal["multistep", "linear"] = "multistep",
    max_epochs: int | None = None,
) -> float:
    """The rate of the whole of ``epoch``, counted from 0.

    Warm-up, both schedules: epoch 0 has ``peak / warmup_factor``, then equal steps up, so that ``peak`` is
    reached in epoch ``warmup_epochs``. No decay applies during warm-up.

    ``multistep`` is the closed division's (mlcommons/hpc, rounds 0.7 to 3.0): a decay factor is a
    share of ``peak``, not of the rate before it, and holds "after" its boundary: in epochs > boundary.
    ``linear`` (open division; Farrell et al. 2021, section 4.2.1) falls in equal steps an epoch from ``peak``
    in epoch ``warmup_epochs`` to zero in epoch ``max_epochs``, which is the first that is not trained.

    Raises ``ValueError`` for a negative epoch, and for ``linear`` without ``max_epochs``.
    """
    if epoch < 0:
        raise ValueError(f"epochs count from 0, got {epoch}")
    if epoch < warmup_epochs:
        start = peak / warmup_factor
        return start + epoch * (peak - start) / warmup_epochs
    if schedule == "linear":
        if max_epochs is None:
            raise ValueError("the linear schedule needs max_epochs, where it reaches zero")
        return peak * max(0.0, (max_epochs - epoch) / max(1, max_epochs - warmup_epochs))
    factor = 1.0
    for boundary, share in zip(decay_boundary_epochs, decay_factors, strict=True):
        if epoch > boundary:
            factor = share
    return peak * factor
