"""Work that every rank does for itself, and whose failure on one must be the failure of all: a rank that
raised alone would leave the others waiting for it."""

from collections.abc import Callable
from typing import TypeVar

from mlhpc.common.ranks.world import World
from mlhpc.errors import AlreadyReported, UserError

T = TypeVar("T")


def attempt(work: Callable[[], T]) -> tuple[T | None, Exception | None]:
    """The result, or what went wrong, to be told to the others by ``gather_or_raise``."""
    try:
        return work(), None
    except Exception as error:
        return None, error


def gather_or_raise(world: World, value: T | None, error: Exception | None) -> list[T]:
    """Every rank's value, in order of rank. Called by all ranks.

    Raises UserError on every rank, with the message of the lowest rank that has an error, if any has; rank 0
    is the one to print it.
    """
    outcomes = world.gather((value, None if error is None else _message(error)))
    for rank, (_, message) in enumerate(outcomes):
        if message is not None:
            alike = UserError if world.rank == 0 else AlreadyReported
            raise alike(message if world.size == 1 else f"rank {rank}: {message}") from error
    return [value for value, _ in outcomes]  # type: ignore[misc]


def on_all_ranks(world: World, work: Callable[[], T]) -> list[T]:
    """``attempt`` and ``gather_or_raise`` in one."""
    return gather_or_raise(world, *attempt(work))


def on_rank0(world: World, work: Callable[[], T]) -> T:
    """The result of ``work`` on rank 0 alone, on every rank; UserError on every rank if it fails."""
    return on_all_ranks(world, lambda: work() if world.rank == 0 else None)[0]  # type: ignore[return-value]


def _message(error: Exception) -> str:
    if isinstance(error, UserError):
        return str(error)
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}"
    return f"{type(error).__name__}: {error}"
