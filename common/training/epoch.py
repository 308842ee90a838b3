"""Checks and records of all training loops."""

from collections.abc import Callable, Generator
from contextlib import closing
from typing import Any, Protocol

from mlhpc.common.host.progress import track
from mlhpc.common.ranks.world import World
from mlhpc.common.timing.runlog import RunLog
from mlhpc.errors import UserError
from mlhpc.quantities import digits, duration_text


class Target(Protocol):
    """The quality that ends a run."""

    @property
    def label(self) -> str: ...
    @property
    def value(self) -> float: ...


class Loader(Protocol):
    """Reads the batches of a training run."""

    steps: int


def read_earlier_epochs(
    loader: Loader, read: Callable[[int], Generator[Any, None, None]], epochs: int, steps: int, world: World
) -> None:
    """Read ``epochs`` whole epochs of ``steps`` batches without using them. ``read``: the function of
    ``loader`` that yields this rank's batches of an epoch. Afterwards the page cache or ``loading.cache`` has
    the same content as in a later epoch of training.

    The orders are those of the epochs from the second on (1, counted from 0), so that the steps measured
    afterwards use that of the first, regardless of ``epochs``. Called by all ranks, which end together.
    Raises UserError like the loader.
    """
    if not epochs:
        return
    measured, loader.steps = loader.steps, steps
    for epoch in range(1, epochs + 1):
        with closing(read(epoch)) as batches:
            for _ in track(batches, steps, f"earlier epoch {epoch}", world):
                pass
    loader.steps = measured
    world.barrier()


def require_parameters(parameters: int, expected: int | None) -> None:
    """Raise UserError if the network that was built does not have the ``expected`` number of parameters."""
    if expected not in (None, parameters):
        raise UserError(
            f"the network has {parameters} parameters, not {expected}; keep the preset's network settings, or "
            "set network.parameters to match"
        )


def log_epoch(
    log: RunLog,
    world: World,
    target: Target,
    epochs: int,
    epoch: int,
    *,
    samples: int,
    bytes_read: int,
    rate: float,
    loss: float,
    quality: float | None,
    emulated: bool = False,
) -> None:
    """Record what ``epoch`` of at most ``epochs`` trained on, and print its line. Called by all ranks.

    ``samples`` are those of all ranks, ``bytes_read`` this rank's, ``rate`` is the learning rate of the last
    update, ``loss`` the mean over steps and ranks, ``quality`` the last evaluation's value, None without an
    evaluation. An ``emulated`` run has neither loss nor quality: only samples, bytes and rate are recorded.
    """
    log.metric("samples", samples, epoch=epoch)
    log.metric("bytes", int(world.sum(bytes_read)), epoch=epoch)
    log.metric("learning_rate", rate, epoch=epoch)
    if emulated:
        log.say(f"epoch {epoch}: {samples:,} samples read, not computed")
        return
    log.metric("train_loss", loss, epoch=epoch)
    evaluation = "not evaluated" if quality is None else f"{quality:.4f} (target {target.value})"
    seconds = log.seconds_of("train", epoch)
    speed = f", {digits(samples / seconds, 4)} samples/s" if seconds > 0 else ""
    took = f"{duration_text(seconds + log.seconds_of('eval', epoch))}{speed}"
    log.say(f"epoch {epoch} of {epochs}: loss {loss:.4f}, {target.label} {evaluation}, {took}")
