"""Steps that wait instead of computing: everything in a run except its steps is real (``mlhpc run --compute``)."""

from collections.abc import Callable
from typing import Any, Generic, Protocol, Self, TypeVar

from mlhpc.common.ranks.world import World
from mlhpc.common.timing.waiting import occupy, sharpen_timers

T = TypeVar("T")


class Emulation(Protocol):
    """The settings of an emulated run (``emulation`` in its configuration)."""

    @property
    def step_s(self) -> float | None: ...
    @property
    def eval_step_s(self) -> float: ...


class WaitingStep(Generic[T]):
    """``(x, y) -> answer(samples in x)`` after ``seconds``. With a ``world``, its ranks synchronise in every
    ``passes``-th call, as they do in the all-reduce of a step."""

    def __init__(
        self, seconds: float, answer: Callable[[int], T], world: World | None = None, passes: int = 1
    ) -> None:
        self._seconds, self._answer = seconds, answer
        self._world = world if world is not None and world.size > 1 else None
        self._passes, self._calls = passes, 0

    @classmethod
    def pair(
        cls, emulation: Emulation, world: World, passes: int, loss: Any, measure: Callable[[int], Any]
    ) -> tuple[Self, Self]:
        """A training step that returns ``loss`` and updates after ``passes`` calls, and an evaluation step that
        returns ``measure(samples)``."""
        assert emulation.step_s is not None
        sharpen_timers()
        train = cls(emulation.step_s, lambda _: loss, world, passes)
        return train, cls(emulation.eval_step_s, measure)

    def __call__(self, x: Any, y: Any) -> T:
        occupy(self._seconds)
        self._calls += 1
        if self._world and self._calls % self._passes == 0:
            self._world.barrier()
        return self._answer(len(x))
