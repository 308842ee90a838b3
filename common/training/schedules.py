"""The learning rate as a function of the epoch, or of the step."""

import math
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


def step_learning_rate(
    step: int,
    *,
    base: float,
    warmup_steps: int = 0,
    warmup_factor: float = 1.0,
    schedule: Literal["multistep", "cosine_annealing"] = "multistep",
    milestones: Sequence[int] = (),
    decay_rate: float = 1.0,
    t_max: int = 1,
    eta_min: float = 0.0,
) -> float:
    """The rate of update ``step``, counted from 0, by the schedules of the MLPerf HPC reference that counts
    in steps (mlcommons/hpc, utils/schedulers.py), which give each rate from the one before it.

    Warm-up with a factor of 1 rises from 0 towards ``base``, with a larger one from ``base`` towards
    ``base * warmup_factor``, in ``warmup_steps`` equal steps. What the reference does after it, and so do we:
    the rate of the last step of warm-up is kept, one step short of the top.

    ``multistep``: times ``decay_rate`` from each milestone on; one within warm-up has no effect.
    ``cosine_annealing``: half a cosine from there to ``eta_min`` in ``t_max`` steps after warm-up, and up and
    down again between ``eta_min`` and ``base`` in as many (Loshchilov and Hutter 2017, without restarts).

    Raises ``ValueError`` for a negative step.
    """
    if step < 0:
        raise ValueError(f"steps count from 0, got {step}")
    if warmup_steps:
        share = min(step, warmup_steps - 1) / warmup_steps
        top = base * (share if warmup_factor == 1 else 1 + (warmup_factor - 1) * share)
        if step < warmup_steps:
            return top
    else:
        top = base
    if schedule == "multistep":
        return float(top * decay_rate ** sum(warmup_steps <= milestone <= step for milestone in milestones))
    after = step - warmup_steps
    height = top if after <= t_max else base
    return eta_min + (height - eta_min) * (1 + math.cos(math.pi * after / t_max)) / 2


def polynomial_learning_rate(
    step: int, *, base: float, end: float, warmup_steps: int = 0, decay_steps: int, power: float = 2.0
) -> float:
    """The rate of update ``step``, counted from 0: a straight rise from 0 to ``base`` in update
    ``warmup_steps``, then ``end + (base - end) (1 - k / decay_steps)^power`` in the k-th update after it, and
    ``end`` from ``decay_steps`` on (mlcommons/training, image_classification/tensorflow2/lars_util.py).

    Raises ``ValueError`` for a negative step.
    """
    if step < 0:
        raise ValueError(f"steps count from 0, got {step}")
    if step < warmup_steps:
        return base * step / warmup_steps
    left = max(0.0, 1 - (step - warmup_steps) / decay_steps)
    return float(end + (base - end) * left**power)
