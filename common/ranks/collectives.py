"""Runs work on each rank and raises a failure of any rank on all ranks, which would otherwise wait for the failed
rank."""

from collections.abc import Callable
from typing import TypeVar, cast

from mlhpc.common.ranks.world import World
from mlhpc.errors import AlreadyReported, UserError

T = TypeVar("T")


def attempt(work: Callable[[], T]) -> tuple[T | None, Exception | None]:
    """The result of ``work``, or the error that it raised, as ``gather_or_raise`` takes them."""
    try:
        return work(), None
    except Exception as error:
        return None, error


def gather_or_raise(world: World, value: T | None, error: Exception | None) -> list[T]:
    """Every rank's value, in order of rank. Called by all ranks.

    If any rank has an error, raises an error on every rank with the message of the lowest such rank: UserError on
    rank 0, which prints it, and AlreadyReported on the others. The message names the rank unless all ranks'
    messages are equal.
    """
    raise_any(world, error)
    return [cast(T, value) for value in world.gather(value)]


def raise_any(world: World, error: Exception | None) -> None:
    """Raise like ``gather_or_raise`` if any rank has an error, without gathering values."""
    if not world.max(error is not None):
        return
    messages = world.gather(None if error is None else _message(error))
    for rank, message in enumerate(messages):
        if message is not None:
            kind = UserError if world.rank == 0 else AlreadyReported
            raise kind(message if set(messages) == {message} else f"rank {rank}: {message}") from error


def on_all_ranks(world: World, work: Callable[[], T]) -> list[T]:
    """``attempt`` and ``gather_or_raise`` in one."""
    return gather_or_raise(world, *attempt(work))


def on_each_rank(world: World, work: Callable[[], T]) -> T:
    """Do ``work`` on each rank and return this rank's result. For results that cannot be sent, such as open files.
    Raises like ``gather_or_raise``."""
    result, error = attempt(work)
    raise_any(world, error)
    return cast(T, result)


def on_rank0(world: World, work: Callable[[], T]) -> T:
    """Do ``work`` on rank 0 only, and return its result on every rank. Raises UserError on every rank if ``work``
    fails."""
    result, error = attempt(work) if world.rank == 0 else (None, None)
    result, message = world.broadcast((result, None if error is None else _message(error)))
    if message is not None:
        raise (UserError if world.rank == 0 else AlreadyReported)(message) from error
    return cast(T, result)


def _message(error: Exception) -> str:
    if isinstance(error, UserError):
        return str(error)
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}"
    return f"{type(error).__name__}: {error}"
