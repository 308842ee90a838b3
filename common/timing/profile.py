"""What a profiler of a framework measured of some training steps, whichever framework it is."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

Part = Literal["forward", "backward", "optimizer", "communication", "input", "other"]


class Work(NamedTuple):
    """An operation, or a kernel on a GPU: seconds a step of its own, without what it calls. ``module``: the module
    of the network that it belongs to; empty for none. ``calls``: a step."""

    part: Part
    module: str
    name: str
    seconds: float
    calls: float


@dataclass(frozen=True)
class Profile:
    """``work`` of one step and its ``wall`` seconds, means over ``steps``. ``modules``: those with weights, in the
    order in which the network calls them. ``device``: what was measured on."""

    device: str
    batch: int
    steps: int
    wall: float
    modules: tuple[str, ...]
    work: tuple[Work, ...]

    @property
    def busy(self) -> float:
        """Seconds a step in which operations ran; more than ``wall`` where they overlap."""
        return sum(work.seconds for work in self.work)

    @property
    def wait(self) -> float:
        """Seconds a step in which nothing ran: a GPU that waits for the host, or the host between operations."""
        return max(0.0, self.wall - self.busy)
