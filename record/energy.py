"""The energy of a run by kind of counter, from ``result.json`` or, during the run, from events; also formats it
for display.

The energy of a node includes that of its processors and accelerators, so values of different kinds are shown side
by side and never added.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, TypeAdapter, ValidationError

from mlhpc.common.energy.counters import NAMES, stood_still
from mlhpc.common.pages.blocks import Cell, Table, number, table
from mlhpc.quantities import bytes_text, count, joules_text, seconds_text, watts_text
from mlhpc.record.fields import Count, Fields, Name, Number, Seconds, Text


class Energy(Fields):
    """The energy that one kind of counter measured on the nodes of a run. ``joules``: between run_start and
    run_stop; None if no counter could be read. ``source``: the interface with which the ``counters`` counters on
    ``nodes`` nodes were read. ``problems``: missing counters, with the reasons. ``readings``: number of readings
    of the counter that was read least often; ``longest_gap_s``: longest time between two consecutive readings;
    ``caps_w``: the distinct power limits; ``usage``: how the devices were used, as means
    (``common/energy/counters.py``)."""

    joules: Annotated[float, Field(ge=0, le=1e18)] | None
    counters: Count
    source: Text
    nodes: Count | None = None
    problems: tuple[Text, ...] = ()
    readings: Count | None = None
    longest_gap_s: Seconds | None = None
    caps_w: tuple[Number, ...] = ()
    usage: dict[Name, Number] = Field(default_factory=dict)

    def short_of_rules(self, kind: str) -> list[str]:
        """Reasons why this measurement does not meet MLPerf Training's Power Measurement Rules. The rules checked
        are "Measure at the PSUs", "Report 1 Measurement per Second", "Measure max(a run, 60 power samples)",
        "Measure or Estimate Interconnects"."""
        gap = self.longest_gap_s or 0.0
        readings = "unknown number of" if self.readings is None else self.readings
        short = {
            f"{NAMES[kind]}: below the measuring point, the power supply": kind != "node",
            f"{readings} readings, not 60": (self.readings or 0) < 60,
            f"a gap of {seconds_text(gap)}": gap > 1.0,
            "without the network": (self.nodes or 1) > 1,
        }
        return [why for why, holds in short.items() if holds]

    @property
    def usage_text(self) -> str:
        """The use of the devices as text, such as ``busy 93%, memory 41%, 12.3 GB in use, PCIe 2.1 GB/s, NVLink 30
        GB/s``, with only the known parts."""
        texts: dict[str, Callable[[float], str]] = {
            "busy": "busy {:.0%}".format,
            "memory_busy": "memory {:.0%}".format,
            "memory_bytes": lambda size: f"{bytes_text(size)} in use",
            "pcie_bytes_per_s": lambda rate: f"PCIe {bytes_text(rate, '/s')}",
            "nvlink_bytes_per_s": lambda rate: f"NVLink {bytes_text(rate, '/s')}",
        }
        return ", ".join(write(self.usage[name]) for name, write in texts.items() if name in self.usage)

    @property
    def whole_joules(self) -> float | None:
        """The joules if no counter is missing, otherwise None, since a partial sum would be too small."""
        return None if self.problems else self.joules


def _by_kind(value: Any) -> Any:
    """The energy by kind of counter, also from results of early versions, which contain only the energy of the
    accelerators, without a kind."""
    return {"accelerators": value} if isinstance(value, dict) and "source" in value else value


Energies = Annotated[dict[Name, Energy], BeforeValidator(_by_kind)]
_ENERGIES = TypeAdapter(Energies)


def in_order(energies: Mapping[str, Energy] | None) -> dict[str, Energy]:
    """The energies of all known kinds, in the order of ``NAMES``."""
    return {kind: energies[kind] for kind in NAMES if kind in energies} if energies else {}


def whole_joules(energies: Mapping[str, Energy] | None) -> dict[str, float]:
    """The joules by kind of counter, without kinds for which a counter is missing."""
    figures = {kind: energy.whole_joules for kind, energy in in_order(energies).items()}
    return {kind: joules for kind, joules in figures.items() if joules is not None}


def energies_in(note: Mapping[str, Any]) -> dict[str, Energy]:
    """The energies of known kinds in the ``note`` event of a run; empty if there are none, or if they are
    invalid."""
    try:
        return in_order(_ENERGIES.validate_python({kind: note[kind] for kind in NAMES if kind in note}))
    except ValidationError:
        return {}


def measured_in(runs: Iterable[Mapping[str, Energy]]) -> list[str]:
    """The kinds of counter for which at least one of ``runs`` has a value. (The report of a run states why values
    are missing.)"""
    energies = [energy for by_kind in runs for energy in by_kind.items()]
    measured = {kind for kind, energy in energies if energy.joules is not None}
    return [kind for kind in NAMES if kind in measured]


def energy_line(energies: Mapping[str, Energy] | None, samples: int = 0) -> str:
    """A line such as ``accelerators 81.23 kJ (NVML), 3.97 J/sample, whole nodes incomplete (Slurm, ipmi)``; empty
    without any value. ``samples``: number of training samples."""
    figures = energies or {}
    return ", ".join(
        f"{NAMES[kind]} {joules_text(figures[kind].whole_joules)} ({figures[kind].source})"
        + (f", {joules_text(each)}/sample" if (each := _per(figures[kind].whole_joules, samples)) else "")
        for kind in measured_in([figures])
    )


def energy_table(energies: Mapping[str, Energy] | None, seconds: float | None, samples: int) -> Table:
    """The table of energies of one run that took ``seconds`` and trained on ``samples`` samples."""
    columns = {
        "measured": lambda f: Cell(NAMES[f[0]], value=f[0]),
        "read with": lambda f: f[1].source,
        "energy": lambda f: number(f[1].joules, joules_text, none="no figure"),
        "mean power": lambda f: number(_per(f[1].joules, seconds), watts_text),
        "per sample": lambda f: number(_per(f[1].whole_joules, samples), joules_text),
        "power limits": lambda f: ", ".join(map(watts_text, f[1].caps_w[:4])),
        "used": lambda f: f[1].usage_text,
        "counters": lambda f: Cell(
            str(f[1].counters), ("" if f[1].nodes is None else f"on {count(f[1].nodes, 'node')}",)
        ),
        "not in it": lambda f: "; ".join(f[1].problems[:8]) + " …" * (len(f[1].problems) > 8),
        "short of MLPerf's power rules": lambda f: "; ".join(f[1].short_of_rules(f[0])),
    }
    return table("energy", in_order(energies).items(), columns, text_columns=2, prose=(6, 8, 9))


def _per(joules: float | None, share: float | None) -> float | None:
    return joules / share if joules is not None and share and share > 0 else None


# The rest of this module is about a run that is still running.

OLD_S = 30.0
"""Age in seconds above which a reading is not current; the limit is this high because file systems show readings
late."""


@dataclass(frozen=True)
class EnergySoFar:
    """The joules of one kind of counter since run_start in a run that is still running. One rank per node records
    them about every second.

    ``watts``: mean power between the last two readings; None if any node has no current reading, or after the run.
    ``nodes``: number of nodes included, out of ``of_nodes``. ``at_least``: whether counters, nodes or recent
    readings are missing.
    """

    joules: float
    watts: float | None
    nodes: int
    of_nodes: int
    at_least: bool


@dataclass
class Readings:
    """Readings of one node's counters of one kind: the times of the first and last reading, on the clock of the
    rank that read them, and the number of ``nodes`` of the run (0 if the events do not state it, as in earlier
    versions)."""

    first_t: float
    last_t: float
    joules: float
    watts: float | None = None
    incomplete: bool = False
    nodes: int = 0

    @property
    def seconds(self) -> float:
        """Seconds from run_start, the time of the first reading, to the last reading."""
        return self.last_t - self.first_t


def take_reading(event: Mapping[str, Any], readings: dict[str, Readings]) -> None:
    """Add an ``energy`` event to the ``readings`` of a node, which are kept by kind of counter."""
    kind, joules, t = event["name"], event.get("joules"), event.get("t", 0.0)
    if kind not in NAMES or joules is None:
        return
    own = readings.setdefault(kind, Readings(t, t, joules))
    if t > own.last_t:
        own.watts = max(0.0, joules - own.joules) / (t - own.last_t)
    own.last_t, own.joules, own.incomplete = t, joules, bool(event.get("incomplete"))
    own.nodes = max(own.nodes, event.get("nodes") or 0)


def energy_so_far(
    nodes: Iterable[Mapping[str, Readings]], note: Mapping[str, Any], elapsed_s: float | None, running: bool
) -> dict[str, EnergySoFar]:
    """The energy so far, summed over ``nodes``, for each kind of counter with readings. ``note``: the event with
    the energy of a run that has reached run_stop, which contains the same values as the result; empty before.
    ``elapsed_s``: seconds since run_start, if known."""
    sums = {}
    everywhere = list(nodes)
    machines = max((own.nodes for readings in everywhere for own in readings.values()), default=0)
    for kind, energy in energies_in(note).items():
        if energy.joules is not None:
            counted, partial = energy.nodes or 0, bool(energy.problems)
            sums[kind] = EnergySoFar(energy.joules, None, counted, max(machines, counted), partial)
    for kind in NAMES if not note else ():
        read = [readings[kind] for readings in everywhere if kind in readings]
        own = [r for r in read if not stood_still(kind, r.joules, r.seconds)]  # also left out of the result
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
