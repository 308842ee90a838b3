"""Checks and records of all training loops."""

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from typing import Any, SupportsFloat

from mlhpc.benchmarks.schema import Run
from mlhpc.common.data.loader import Loader
from mlhpc.common.host.progress import track
from mlhpc.common.ranks.world import World
from mlhpc.common.timing.runlog import RunLog
from mlhpc.errors import UserError
from mlhpc.quantities import digits, duration_text


def read_earlier_epochs(
    run: Run, loader: Loader[Any], read: Callable[[int], Generator[Any, None, None]], steps: int, world: World
) -> None:
    """Read ``run.study.earlier_epochs`` whole epochs of ``steps`` batches without using them. ``read``: the
    function of ``loader`` that yields this rank's batches of an epoch. Afterwards, the page cache or
    ``loading.cache`` has the same content as in a later epoch of training.

    Samples are read in the order of the second and later epochs (1, 2, …, counted from 0), so that the steps
    measured afterwards use the order of the first epoch, however many epochs are read. Called by all ranks, which
    finish together. Raises UserError like the loader.
    """
    if not run.study.earlier_epochs:
        return
    measured, loader.steps = loader.steps, steps
    for epoch in range(1, run.study.earlier_epochs + 1):
        with closing(read(epoch)) as batches:
            for _ in track(batches, steps, f"earlier epoch {epoch}", world):
                pass
    loader.steps = measured
    world.barrier()


def named(run: Run, loader: Loader[Any]) -> Callable[[int, int], list[object]] | None:
    """A function that returns the names of the samples in a training batch, for ``RunLog.finish``. None if it is
    unknown for which batch the loop waited, because samples are exchanged between epochs or DALI reads ahead of
    requests."""
    changing = getattr(run.staging, "exchange", False)
    return None if changing or getattr(run.loading, "loader", "") == "dali" else loader.files_of


def require_parameters(parameters: int, expected: int | None) -> None:
    """Raise UserError if the network that was built does not have the ``expected`` number of parameters."""
    if expected not in (None, parameters):
        raise UserError(
            f"the network has {parameters} parameters, not {expected}; correct network.parameters"
        )


def mark_warm(run: Run, losses: Sequence[SupportsFloat], log: RunLog) -> None:
    """Mark the end of a study's warm-up if ``losses``, which has one loss for each backward pass, ends with the
    last step of the warm-up. Called after every pass."""
    if len(losses) == run.study.warmup_steps * run.backward_passes:
        log.mark("warm", loss=float(losses[-1]))  # float() waits for the device


def mean_quality(
    results: Sequence[tuple[SupportsFloat, SupportsFloat]], world: World, *, counts: bool = True
) -> float:
    """The mean of an evaluation's values over all ranks. ``results``: for each batch of this rank, a sum and the
    number of values in it. Called by all ranks; only ranks with ``counts`` contribute (one per spatial group)."""
    own = [total([result[i] for result in results]) for i in range(2)]
    whole, number = world.sum(own if counts else (0, 0))
    return float(whole / number)


def total(values: Sequence[Any]) -> float:
    """The sum of numbers that may be on a device; waits for the device only once."""
    return float(sum(values))


def log_quality(run: Run, quality: float, log: RunLog, epoch: int) -> None:
    """Record the value of the target's metric after ``epoch``. An emulated run records no value."""
    if not run.emulation.enabled:
        log.metric(run.target.metric, quality, epoch=epoch)


def checkpoint(run: Run, log: RunLog, epoch: int, save: Callable[[], None]) -> None:
    """Call ``save`` if a checkpoint is due after ``epoch`` or, in a study, after the study's steps."""
    every = run.training.checkpoint_epochs
    if every and epoch % every == 0:
        with log.span("checkpoint", epoch=epoch):
            save()


def log_epoch(
    run: Run,
    log: RunLog,
    epoch: int,
    samples: int,
    bytes_read: int,
    *,
    rate: float,
    loss: float,
    quality: float | None,
) -> None:
    """Record what ``epoch`` trained on, and print its line. Called by all ranks.

    ``samples``: number of samples over all ranks; ``bytes_read``: bytes that this rank read; ``rate``: learning
    rate of the last update; ``loss``: mean over steps and ranks; ``quality``: value of the last evaluation, or
    None if there was none. An emulated run has neither loss nor quality, so only samples, bytes and rate are
    recorded.
    """
    log.metric("samples", samples, epoch=epoch)
    log.metric("bytes", int(log.world.sum(bytes_read)), epoch=epoch)
    log.metric("learning_rate", rate, epoch=epoch)
    if run.emulation.enabled:
        log.say(f"epoch {epoch}: {samples:,} samples read; steps were emulated, not computed")
        return
    log.metric("train_loss", loss, epoch=epoch)
    evaluation = "not evaluated" if quality is None else f"{quality:.4f} (target {run.target.value})"
    seconds = log.seconds_of("train", epoch)
    speed = f", {digits(samples / seconds, 4)} samples/s" if seconds > 0 else ""
    took = f"{duration_text(seconds + log.seconds_of('eval', epoch))}{speed}"
    log.say(
        f"epoch {epoch} of {run.training.max_epochs}: loss {loss:.4f}, {run.target.label} {evaluation}, {took}"
    )
