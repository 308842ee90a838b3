"""``mlhpc run --compute``: determines the duration of emulated steps, and the run with such steps."""

import math
import os
from pathlib import Path
from statistics import median
from typing import Any

from mlhpc.benchmarks import load, registry
from mlhpc.benchmarks.schema import Emulation, Run
from mlhpc.common.ranks.environment import identify
from mlhpc.common.timing.event_files import events_path
from mlhpc.errors import UserError
from mlhpc.record.events import read_events
from mlhpc.record.rank_table import step_times

FORWARD = 1 / 3
"""Time of an evaluation step relative to a training step with the same number of samples: a layer computes three
matrix products of equal size, one in the forward pass and two in the backward pass."""


def emulated(run: Run, compute: str, ranks: int) -> Run:
    """``run``, changed to the open division and to steps that wait instead of computing. ``compute``: seconds per
    training step, the folder of a run that measured them, or a machine known to ``mlhpc predict``. ``ranks``: the
    value of ``--ranks``; if a launcher started the ranks, their number takes precedence.

    Raises UserError if no duration can be derived from ``compute``.
    """
    # Ranks that share a sample (training.spatial) count as one.
    together = run.training.spatial_size
    size = max(identify(os.environ).size, ranks, 1)
    sharing = max(1, size // together) * run.backward_passes
    local_batch_size = max(1, run.hyperparameters.global_batch_size // sharing)
    emulation = _emulation(run, compute, local_batch_size, size)
    return run.model_copy(update={"division": "open", "emulation": emulation})


def require_supported(run: Run) -> None:
    """Raise UserError if ``run`` is emulated but its framework cannot emulate steps."""
    framework = registry.find(run.benchmark).frameworks[run.training.framework]
    if run.emulation.enabled and not framework.emulates:
        raise UserError(f"{run.benchmark} in {run.training.framework} cannot be emulated; omit --compute")


def refuse(run: Run, what: str) -> None:
    """Raise UserError if ``run`` has emulated steps, because ``what`` requires training."""
    if run.emulation.enabled:
        raise UserError(f"{what} requires training, but emulation.step_s replaces it; omit the setting")


def _emulation(run: Run, compute: str, local_batch_size: int, ranks: int) -> Emulation:
    try:
        seconds = float(compute)
    except ValueError:
        if os.path.isdir(compute):
            return _measured(Path(compute), run, local_batch_size)
        seconds = _predicted(compute, run, local_batch_size, ranks)
    if not 0 <= seconds <= 86_400:
        raise UserError(f"--compute {compute} must be from 0 to 86400 seconds")
    return Emulation(step_s=seconds, eval_step_s=_forward(run, local_batch_size) * seconds)


def _forward(run: Run, local_batch_size: int) -> float:
    """Time of an evaluation step of ``run`` relative to a training step, in which every backward pass has
    ``local_batch_size`` samples."""
    return FORWARD * run.training.eval_batch_size / (local_batch_size * run.backward_passes)


def _per_sample(run: Run) -> dict[str, Any]:
    """The settings of ``run`` that determine what is computed for a sample, by dotted name."""
    settings = dict(load.dotted(run.model_dump(mode="json", include={"network", "data", "training"})))
    others = ("data.sample_shape", "training.precision")
    return {key: value for key, value in settings.items() if key.startswith("network.") or key in others}


def _measured(folder: Path, run: Run, local_batch_size: int) -> Emulation:
    """The median durations of training and evaluation steps of the run in ``folder``, over its epochs, on the rank
    where they are shortest; steps of the remaining ranks include more time waiting for data and for each other.
    Evaluation steps are scaled to the samples of those of ``run``."""
    from mlhpc.record.run_directory import read

    measured = read(folder)
    config, result = measured.config, measured.result
    if config is None or result is None:
        raise UserError(f"{folder} is not a complete run; choose another run, or pass --compute SECONDS")
    if config.benchmark != run.benchmark or config.emulation.enabled:
        kind = "an emulated run" if config.emulation.enabled else f"a run of {config.benchmark}"
        raise UserError(
            f"{folder} is {kind}; choose a training run of {run.benchmark}, or pass --compute SECONDS"
        )
    if getattr(config.training, "coarse_epochs", ()):
        raise UserError(f"{folder} trained on coarser samples; choose another run, or pass --compute SECONDS")
    was, now = _per_sample(config), _per_sample(run)
    if other := next((key for key in now if now[key] != was[key]), None):
        raise UserError(
            f"{folder} measured {other}={was[other]}, but this run has {now[other]}; choose another run, or pass "
            "--compute SECONDS"
        )
    together = config.training.spatial_size
    sharing = max(1, result.ranks // together) * config.backward_passes
    batch = config.hyperparameters.global_batch_size // sharing
    if batch != local_batch_size:
        raise UserError(
            f"{folder} measured {batch} samples per rank, but this run has {local_batch_size}; choose another "
            "run, or pass seconds"
        )
    medians: dict[str, list[float]] = {"train": [], "eval": []}
    try:
        for rank in range(result.ranks):
            events = read_events(events_path(folder, rank))
            for name, of_ranks in medians.items():
                if own := [times["p50"] for times in step_times(events, name).values() if "p50" in times]:
                    of_ranks.append(median(own))
    except OSError as error:
        raise UserError(f"{error.filename or folder} cannot be read ({error.strerror})") from None
    if not medians["train"]:
        raise UserError(
            f"{folder} has no step times, which earlier versions did not record; pass --compute SECONDS"
        )
    step_s = min(medians["train"]) * run.backward_passes
    eval_step_s = _forward(run, local_batch_size) * step_s
    if medians["eval"]:
        own_share = math.ceil(result.samples.eval * together / result.ranks)
        evaluated = min(config.training.eval_batch_size, own_share)
        eval_step_s = min(medians["eval"]) * run.training.eval_batch_size / evaluated
    return Emulation(step_s=step_s, eval_step_s=eval_step_s)


def _predicted(name: str, run: Run, local_batch_size: int, ranks: int) -> float:
    """Predicted seconds per step, excluding the wait for input, on ``ranks`` accelerators of the machine ``name``,
    each with ``local_batch_size`` samples per backward pass."""
    from mlhpc.perf.machines import known, machine
    from mlhpc.perf.prediction.model import predict, with_batch

    if name not in known() and not Path(name).is_file():
        raise UserError(
            f"--compute {name} must be a number of seconds, a run or a machine ({', '.join(known())})"
        )
    machine_file = machine(name)
    nodes = -(-ranks // machine_file.per_node)
    together = run.training.spatial_size
    batch = local_batch_size * run.backward_passes * (nodes * machine_file.per_node // together)
    return predict(machine_file, with_batch(run, batch), nodes).step.busy
