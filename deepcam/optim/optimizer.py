"""The optimizers that the rules allow: Adam, AdamW and LAMB."""

from collections.abc import Iterable
from typing import Any

import torch

from mlhpc.benchmarks.deepcam import Hyperparameters
from mlhpc.common.training.schedules import StepSchedule
from mlhpc.deepcam.optim.lamb import Lamb, Moments


def make_optimizer(
    hyperparameters: Hyperparameters, parameters: Iterable[torch.nn.Parameter], *, compiled: bool = False
) -> torch.optim.Optimizer:
    """The optimizer that ``opt_name`` names, over all ``parameters`` in one group, so that weight decay applies to
    all of them (MLPerf HPC reference, utils/optimizer_helpers.py). Adam's weight decay is L2; that of AdamW and
    LAMB is decoupled.

    The learning rate is a tensor on the parameters' device; set it with ``set_rate``. ``compiled``: compile LAMB's
    update. Adam and AdamW are PyTorch's fused implementations.
    """
    parameters = list(parameters)
    facts = hyperparameters
    rate = torch.tensor(facts.opt_lr, device=parameters[0].device)
    options: dict[str, Any] = {"eps": facts.opt_eps, "weight_decay": facts.opt_weight_decay}
    if facts.opt_name == "LAMB":
        moments = Moments(facts.opt_betas, facts.opt_bias_correction, facts.opt_grad_averaging)
        limit = facts.opt_max_grad_norm
        return Lamb(parameters, rate, moments=moments, **options, max_grad_norm=limit, compiled=compiled)
    kind = torch.optim.Adam if facts.opt_name == "Adam" else torch.optim.AdamW
    return kind(parameters, rate, betas=facts.opt_betas, **options, fused=True)


def rate_at(hyperparameters: Hyperparameters, step: int) -> float:
    """The learning rate in ``step``, counted from 0."""
    schedule = StepSchedule(
        base=hyperparameters.opt_lr,
        warmup_steps=hyperparameters.scheduler_lr_warmup_steps,
        warmup_factor=hyperparameters.scheduler_lr_warmup_factor,
        schedule=hyperparameters.scheduler_type,
        milestones=hyperparameters.scheduler_milestones,
        decay_rate=hyperparameters.scheduler_decay_rate,
        t_max=hyperparameters.scheduler_t_max,
        eta_min=hyperparameters.scheduler_eta_min,
    )
    return schedule.rate(step)
