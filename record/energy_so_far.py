"""The energy that a run has used so far, from the ``energy`` events of its ranks (docs/reference/timing.md).

One rank of each node records the energy counted since run_start, about every ten seconds.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from mlhpc.common.energy.counters import stood_still
from mlhpc.record.energy import NAMES, energies_in

OLD_S = 30.0
"""Age in seconds above which a reading is not current: two readings have been missed."""


@dataclass(frozen=True)
class EnergySoFar:
    """The joules of one kind of counters since run_start.

    ``watts``: mean power between the last two readings; None if a node has no current one, and after the run.
    ``nodes``: number of nodes included, of ``of_nodes``. ``at_least``: counters, nodes or recent readings are
    missing.
    """

    joules: float
    watts: float | None
    nodes: int
    of_nodes: int
    at_least: bool


@dataclass
class Readings:
    """Of one node's counters of one kind: times of the first and last reading, on the clock of their rank,
    and the number of ``nodes`` of the run (0: not in older events)."""

    first_t: float
    last_t: float
    joules: float
    watts: float | None = None
    incomplete: bool = False
    nodes: int = 0

    @property
    def seconds(self) -> float:
        """From run_start, the time of the first reading, to the last reading."""
        return self.last_t - self.first_t


def take(event: Mapping[str, Any], readings: dict[str, Readings]) -> None:
    """Add an ``energy`` event of a rank to the ``readings`` of its node, by kind."""
    kind, joules, t = event["name"], event.get("joules"), event.get("t", 0.0)
    if kind not in NAMES or isinstance(joules, bool) or not isinstance(joules, int | float):
        return
    if not 0 <= joules <= 1e18:
        return
    own = readings.setdefault(kind, Readings(t, t, joules))
    if t > own.last_t:
        own.watts = max(0.0, joules - own.joules) / (t - own.last_t)
    own.last_t, own.joules, own.incomplete = t, joules, bool(event.get("incomplete"))
    if isinstance(nodes := event.get("nodes"), int) and not isinstance(nodes, bool) and nodes <= 1e6:
        own.nodes = max(own.nodes, nodes)


def so_far(
    nodes: Iterable[Mapping[str, Readings]], elapsed_s: float | None, running: bool
) -> dict[str, EnergySoFar]:
    """The sums over ``nodes`` by kind, without missing kinds. ``elapsed_s``: since run_start, if known."""
    sums = {}
    everywhere = list(nodes)
    machines = _machines(everywhere)
    for kind in NAMES:
        read = [readings[kind] for readings in everywhere if kind in readings]
        own = [r for r in read if not stood_still(kind, r.joules, r.seconds)]  # also omitted in the result
        of_nodes = max(machines, len(read))
        if own:
            current = running and elapsed_s is not None and all(elapsed_s - r.seconds <= OLD_S for r in own)
            watts = [r.watts for r in own if r.watts is not None]
            sums[kind] = EnergySoFar(
                joules=sum(r.joules for r in own),
                watts=sum(watts) if current and len(watts) == len(own) else None,
                nodes=len(own),
                of_nodes=of_nodes,
                at_least=not current or len(own) < of_nodes or any(r.incomplete for r in own),
            )
    return sums


def at_the_end(nodes: Iterable[Mapping[str, Readings]], note: Mapping[str, Any]) -> dict[str, EnergySoFar]:
    """From the ``note`` of a run that has reached run_stop, whose figures are those of its result."""
    machines = _machines(nodes)
    figures = energies_in({kind: value for kind, value in note.items() if kind in NAMES})
    return {
        kind: EnergySoFar(
            energy.joules,
            None,
            nodes=energy.nodes or 0,
            of_nodes=max(machines, energy.nodes or 0),
            at_least=bool(energy.problems),
        )
        for kind, energy in figures.items()
        if energy.joules is not None
    }


def _machines(nodes: Iterable[Mapping[str, Readings]]) -> int:
    """Number of machines of the run, from any of its nodes; 0 if unknown."""
    return max((own.nodes for readings in nodes for own in readings.values()), default=0)
