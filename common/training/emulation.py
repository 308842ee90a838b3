"""Steps that wait instead of computing, while everything else in a run is real (``mlhpc run --compute``)."""

from collections.abc import Callable
from typing import Any, Generic, Self, TypeVar

from mlhpc.benchmarks.schema import Run
from mlhpc.common.ranks.world import World
from mlhpc.common.timing.waiting import occupy, sharpen_timers

T = TypeVar("T")


class WaitingStep(Generic[T]):
    """A step ``(x, y) -> answer(number of samples in x)`` that takes ``seconds`` with ``batch`` samples, and with
    fewer in proportion (None: the same with any number). With a ``world``, its ranks synchronise in every
    ``passes``-th call, as they would in the all-reduce of a step."""

    def __init__(
        self,
        seconds: float,
        answer: Callable[[int], T],
        world: World | None = None,
        passes: int = 1,
        batch: int | None = None,
    ) -> None:
        self._seconds, self._answer, self._batch = seconds, answer, batch
        self._world = world if world is not None and world.size > 1 else None
        self._passes, self._calls = passes, 0

    @classmethod
    def pair(cls, run: Run, world: World, loss: Any, measure: Callable[[int], Any]) -> tuple[Self, Self]:
        """A training step that returns ``loss`` and synchronises every ``run.backward_passes`` calls, and an
        evaluation step that returns ``measure(samples)``."""
        assert run.emulation.step_s is not None
        sharpen_timers()
        passes = run.backward_passes
        train = cls(run.emulation.step_s / passes, lambda _: loss, world, passes)
        return train, cls(run.emulation.eval_step_s, measure, batch=run.training.eval_batch_size)

    def __call__(self, x: Any, y: Any) -> T:
        occupy(self._seconds * len(x) / (self._batch or len(x)))
        self._calls += 1
        if self._world and self._calls % self._passes == 0:
            self._world.barrier()
        return self._answer(len(x))
