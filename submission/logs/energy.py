"""The energy of a run by kind of counter, from its ``result.json``, and its formatting.

A node's energy contains that of its processors and accelerators: figures of different kinds are shown side by
side and never added.
"""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, TypeAdapter, ValidationError

from mlhpc.common.files.untrusted import read_object
from mlhpc.common.pages.blocks import Cell, Table, number, table
from mlhpc.quantities import count, joules_text, watts_text
from mlhpc.submission.logs.fields import Count, Fields, Name, Text

NAMES = {"accelerators": "accelerators", "processors": "processors", "node": "whole nodes"}
"""Kinds of energy counters, in display order."""


class Energy(Fields):
    """The joules of one kind of counters between start and stop on the nodes of the run; None if none could
    be read. ``source``: the interface of the ``counters`` on ``nodes`` nodes. ``problems``: missing counters,
    with the reason."""

    joules: Annotated[float, Field(ge=0, le=1e18)] | None
    counters: Count
    source: Text
    nodes: Count | None = None
    problems: tuple[Text, ...] = ()

    @property
    def whole_joules(self) -> float | None:
        """None also if some of the counters are missing: a partial sum would look like a smaller value."""
        return None if self.problems else self.joules


def _by_kind(value: Any) -> Any:
    """Results of the first versions have one figure, that of the accelerators."""
    return {"accelerators": value} if isinstance(value, dict) and "source" in value else value


Energies = Annotated[dict[Name, Energy], BeforeValidator(_by_kind)]
_ENERGIES = TypeAdapter(Energies)


def in_order(energies: Mapping[str, Energy] | None) -> dict[str, Energy]:
    """The figures of known kinds, in the order of ``NAMES``."""
    return {kind: energies[kind] for kind in NAMES if kind in energies} if energies else {}


def energies_in(value: Any) -> dict[str, Energy]:
    """The figures in a ``result.json`` or in a run's note, checked; empty if there are none, or unknown ones."""
    try:
        return in_order(_ENERGIES.validate_python(value)) if value else {}
    except ValidationError:
        return {}


def energies_of(log: Path) -> dict[str, Energy]:
    """The figures of the run whose log is ``log``; empty if it is not one of this suite or has none."""
    if log.name != "run.log":
        return {}
    try:
        return energies_in(read_object(log.with_name("result.json"), os.O_NOFOLLOW).get("energy"))
    except (OSError, ValueError, RecursionError):
        return {}


def joules_of(log: Path) -> dict[str, float | None]:
    """Joules by kind of counter, None if counters are missing, otherwise as in ``energies_of``."""
    return {kind: energy.whole_joules for kind, energy in energies_of(log).items()}


def measured_in(runs: Iterable[Mapping[str, Energy]]) -> list[str]:
    """The kinds for which any of ``runs`` has a figure; the report of a run gives the reasons for missing ones."""
    kinds_of_runs = [
        {kind for kind, energy in energies.items() if energy.joules is not None} for energies in runs
    ]
    return [kind for kind in NAMES if any(kind in kinds for kinds in kinds_of_runs)]


def energy_line(energies: Mapping[str, Energy] | None) -> str:
    """``accelerators 81.23 kJ (NVML), whole nodes incomplete (Slurm, ipmi)``; empty without any figure."""
    figures = energies or {}
    return ", ".join(
        f"{NAMES[kind]} {joules_text(figures[kind].whole_joules)} ({figures[kind].source})"
        for kind in measured_in([figures])
    )


def energy_table(energies: Mapping[str, Energy] | None, seconds: float | None) -> Table:
    """The figures of one run, whose clock ran for ``seconds``."""
    return table(
        "energy",
        in_order(energies).items(),
        {
            "measured": lambda f: Cell(NAMES[f[0]], value=f[0]),
            "read with": lambda f: f[1].source,
            "energy": lambda f: number(f[1].joules, joules_text, none="no figure"),
            "mean power": lambda f: number(_watts(f[1].joules, seconds), watts_text),
            "counters": lambda f: Cell(
                str(f[1].counters), ("" if f[1].nodes is None else f"on {count(f[1].nodes, 'node')}",)
            ),
            "not in it": lambda f: "; ".join(f[1].problems[:8]) + " …" * (len(f[1].problems) > 8),
        },
        text_columns=2,
        prose=(5,),
    )


def _watts(joules: float | None, seconds: float | None) -> float | None:
    return joules / seconds if joules is not None and seconds and seconds > 0 else None
