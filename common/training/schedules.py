"""The learning rate as a function of the epoch, or of the step."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
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
    """The learning rate during ``epoch``, counted from 0.

    Warm-up, in both schedules: the rate is ``peak / warmup_factor`` in epoch 0 and then changes in equal steps, so
    that it reaches ``peak`` in epoch ``warmup_epochs``. No decay applies during warm-up. A factor below 1 starts
    above ``peak``.

    ``multistep`` is the closed division's schedule (mlcommons/hpc, utils/optimizers.py of the benchmark that
    counts in epochs; tests compare it with the rates recorded there): a decay factor is a fraction of ``peak``,
    not of the previous rate, and applies "after" its boundary, that is, in epochs > boundary. ``linear`` (open
    division; Farrell et al. 2021, section 4.2.1) decreases in equal steps per epoch, from ``peak`` in epoch
    ``warmup_epochs`` to zero in epoch ``max_epochs``, the first epoch that is not trained.

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


@dataclass(frozen=True, kw_only=True)
class StepSchedule:
    """The schedules of the MLPerf HPC reference that counts in steps (mlcommons/hpc, utils/schedulers.py as
    train.py uses it, rounds 2.0 and 3.0).

    Every step's rate equals the reference's, which was recorded from a run of it (tests/data/reference).

    Warm-up: after step s, the rate has covered the fraction (s + 1) / ``warmup_steps`` of the way from 0 to
    ``base`` if the factor is 1, or from ``base`` to ``base * warmup_factor`` if it is larger. The last step of
    warm-up repeats the previous rate, so the plateau is one step short of the top. A warm-up of one step has no
    effect.

    ``multistep``: milestones count from the end of warm-up. Milestone m multiplies the rate by ``decay_rate`` from
    step ``warmup_steps`` + m on, or, without warm-up, from step m - 1 on.
    ``cosine_annealing``: half a cosine from the plateau to ``eta_min`` in ``t_max`` steps, then up and down
    between ``eta_min`` and ``base`` (Loshchilov and Hutter 2017, without restarts).
    """

    base: float
    warmup_steps: int = 0
    warmup_factor: float = 1.0
    schedule: Literal["multistep", "cosine_annealing"] = "multistep"
    milestones: Sequence[int] = ()
    decay_rate: float = 1.0
    t_max: int = 1
    eta_min: float = 0.0

    def rate(self, step: int) -> float:
        """The learning rate in step ``step``, counted from 0. Raises ``ValueError`` for a negative step."""
        if step < 0:
            raise ValueError(f"steps count from 0, got {step}")
        # The reference starts its schedulers one step late: step 0 has the rate of step 1. Cosine annealing
        # without warm-up is the exception.
        top, after = self.base, step
        if self.warmup_steps:
            after = step + 1 - self.warmup_steps
            if self.warmup_steps > 1:
                share = min(step + 1, self.warmup_steps - 1) / self.warmup_steps
                top *= share if self.warmup_factor == 1 else 1 + (self.warmup_factor - 1) * share
            if after <= 0:
                return top
        if self.schedule == "multistep":
            since = step - (self.warmup_steps or -1)
            return float(
                top * self.decay_rate ** sum(0 < milestone <= since for milestone in self.milestones)
            )
        height = top if after <= self.t_max else self.base
        return self.eta_min + (height - self.eta_min) * (1 + math.cos(math.pi * after / self.t_max)) / 2


def polynomial_learning_rate(
    step: int, *, base: float, end: float, warmup_steps: int = 0, decay_steps: int, power: float = 2.0
) -> float:
    """The learning rate in step ``step``, counted from 0. It rises linearly from 0 to ``base``, which it reaches
    in step ``warmup_steps``, then is ``end + (base - end) (1 - k / decay_steps)^power`` in the k-th step after
    that, and ``end`` from the ``decay_steps``-th step after that on (mlcommons/training,
    image_classification/tensorflow2/lars_util.py).

    Raises ``ValueError`` for a negative step.
    """
    if step < 0:
        raise ValueError(f"steps count from 0, got {step}")
    if step < warmup_steps:
        return base * step / warmup_steps
    left = max(0.0, 1 - (step - warmup_steps) / decay_steps)
    return float(end + (base - end) * left**power)
