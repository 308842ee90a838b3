"""The interface of the ranks of a run: this process's rank, and collectives."""

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from mlhpc.common.ranks.connection import Proof, Secret

T = TypeVar("T")


@dataclass(frozen=True)
class Loss:
    """A lost rank, which died or raised an error. ``place``: its position in the mesh, if known."""

    rank: int
    hostname: str
    phase: str
    reason: str
    place: str = ""

    def __str__(self) -> str:
        place = f" ({self.place})" if self.place else ""
        return f"rank {self.rank}{place} on {self.hostname} was lost in phase {self.phase!r}: {self.reason}"


_ALONE = Secret("one process", secrets.token_bytes(32))


@dataclass(frozen=True)
class World:
    """The ranks of one run as seen by one of them; this base class: a run of one rank. Created once by
    ``launch.connect`` and passed on.

    Collectives must be called by all ranks in the same order. ``broadcast`` and ``gather`` accept what
    ``wire.encode`` accepts: scalars, containers, paths, arrays, dataclasses and named tuples of this package.
    """

    launcher: str = "none"
    """What started the ranks, such as ``slurm`` or ``mpirun``; ``none`` for one process."""
    rank: int = 0
    """The number of this rank, from 0 to ``size - 1``."""
    size: int = 1
    """The number of ranks."""
    local_rank: int = 0
    """The index of this rank on its node, from 0 to ``local_size - 1``."""
    local_size: int = 1
    """The number of ranks on this node."""
    node: int = 0
    """The number of this node, from 0 to ``nodes - 1``."""
    nodes: int = 1
    """The number of nodes."""
    address: str = "127.0.0.1"
    """The IP address at which other nodes reach this rank; loopback if only its own node can reach it."""
    proof: Proof = _ALONE
    """The proof by which ranks of this launch recognise one another on further connections."""

    def barrier(self) -> None:
        """Return once every rank has called ``barrier``."""

    def sum(self, values: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """The element-wise sum over ranks, in float64 and of the shape of ``values``; every rank gets it."""
        return np.array(values, dtype=np.float64)

    def max(self, values: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """The element-wise maximum over ranks, in float64 and of the shape of ``values``; every rank gets it."""
        return np.array(values, dtype=np.float64)

    def broadcast(self, obj: T) -> T:
        """Rank 0's ``obj``, on every rank."""
        return obj

    def gather(self, obj: T) -> list[T]:
        """Every rank's ``obj`` in order of rank, on every rank."""
        return [obj]

    def enter(self, phase: str) -> None:
        """Report what this rank is doing now, so that its loss can be reported with the phase. Takes little
        time."""

    def on_loss(self, callback: Callable[[Loss], None]) -> None:
        """Run ``callback`` on the lowest surviving rank when another rank is lost, just before this process
        exits with status 1."""

    def before_exit(self, clean_up: Callable[[], object]) -> None:
        """Run ``clean_up`` on this rank when the loss of another rank ends it. This is meant for clean-up that no
        other rank can do, such as removing files on this node, and may take a few seconds."""

    def fail(self, reason: str) -> None:
        """Report to the other ranks why this rank is about to end."""

    def reported_elsewhere(self) -> bool:
        """Return, after ``fail``, whether another rank prints the reason. May take a few seconds."""
        return False

    def close(self) -> None:
        """Leave the world. Afterwards the loss of another rank is not reported."""


class Solo(World):
    """A run of one rank."""


def mean(world: World, values: npt.ArrayLike, weight: float) -> Any:
    """Mean of ``values`` over ranks, weighted by each rank's ``weight`` (its sample count)."""
    local = np.atleast_1d(np.asarray(values, dtype=np.float64)) * weight
    total = world.sum(np.append(local, weight))
    return total[:-1] / total[-1]
