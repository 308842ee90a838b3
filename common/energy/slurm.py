"""Energy of whole nodes as Slurm samples it from their management controllers.

``scontrol --json show nodes`` shows every user, at any time of a job, a node's joules and when they were sampled
(Slurm 23.02 and later, unless ``PrivateData=nodes`` hides them). Contrary to its manual, scontrol's plain output
has had no joules since 20.02; ``sinfo --json`` of 22.05 has none either. sacct has a step's joules only after the
step has ended, which is too late for a run to record them.

What is counted depends on the plugin that samples, ``AcctGatherEnergyType`` (slurm.conf(5)): ipmi, xcc and
pm_counters count the whole node. The plugin rapl is not used because it counts memory in the unit of packages (on
Xeons, four times too large: Slurm, acct_gather_energy_rapl.c, ``_get_joules_task``; Intel, SDM,
MSR_DRAM_ENERGY_STATUS), nor is gpu, because ``accelerators`` reads the same counters. slurmctld collects the
samples every ``AcctGatherNodeFreq`` seconds.
"""

import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from mlhpc.common.energy.counters import Spent, named_once
from mlhpc.common.host.probe import output
from mlhpc.quantities import duration_text

_WHOLE_NODE = ("ipmi", "xcc", "pm_counters")
MOST_OUTSIDE = 0.05
"""Maximum sum of two gaps, as a share of a run's duration: from its start to the first sample's time, and from its
stop to the last sample's."""


class Sample(NamedTuple):
    """``joules`` since some moment in the past, sampled at ``at`` (seconds since 1970, by the node's clock)."""

    joules: float
    at: float


def plugin() -> str:
    """The plugin that samples the nodes' energy, such as ``ipmi``; empty without Slurm or without a plugin."""
    config = output("scontrol", "show", "config")
    setting = re.search(r"^AcctGatherEnergyType\s*=\s*(?:acct_gather_energy/)?(\S+)", config, re.MULTILINE)
    return setting[1] if setting and setting[1] not in ("none", "(null)") else ""


def counts_nodes(name: str) -> bool:
    """Return whether the plugin ``name`` counts a whole node."""
    return name in _WHOLE_NODE


class SlurmNodes:
    """The energy of the nodes that Slurm calls ``names``; one rank queries all of them at once."""

    def __init__(self, names: Sequence[str], sampled_by: str, clock: Callable[[], float] = time.time) -> None:
        self._names, self._clock = tuple(dict.fromkeys(names)), clock
        self._source = f"Slurm, {sampled_by}"
        self._before: Mapping[str, Sample] = {}
        self._started = 0.0

    def start(self) -> None:
        """Read the samples just before a run starts."""
        self._before = samples(self._names) or {}
        self._started = self._clock()

    def spent(self) -> Spent:
        """Read the samples just after the run has stopped; returns the energy used since ``start``."""
        stopped = self._clock()
        after = samples(self._names)
        if after is None:
            problem = "scontrol cannot print the nodes' energy (its --json requires Slurm 23.02)"
            return Spent("node", self._source, 0.0, 0, 0, [problem], "")
        used = {name: self._used(self._before.get(name), after.get(name), stopped) for name in self._names}
        joules = [counted for counted in used.values() if not isinstance(counted, str)]
        problems = named_once((name, [why]) for name, why in used.items() if isinstance(why, str))
        return Spent("node", self._source, sum(joules), len(joules), len(joules), problems, "", 2,
                     stopped - self._started)  # fmt: skip

    def _used(self, first: Sample | None, last: Sample | None, stopped: float) -> float | str:
        if first is None or last is None:
            return "Slurm has no energy samples (AcctGatherNodeFreq in slurm.conf)"
        outside, ran = abs(self._started - first.at) + abs(stopped - last.at), stopped - self._started
        if outside > MOST_OUTSIDE * ran:
            return f"Slurm's energy samples are too infrequent for a run of {duration_text(round(ran))}"
        if last.joules <= first.joules:
            return "Slurm's counter did not advance, or was reset"
        return last.joules - first.joules


def samples(names: Sequence[str]) -> dict[str, Sample] | None:
    """The latest sample of each node; nodes that Slurm does not show or that have no sample are left out. None if
    scontrol prints no JSON."""
    asked, answer = set(names), output("scontrol", "--json", "show", "nodes", ",".join(names))
    try:
        nodes = json.loads(answer).get("nodes", ())
        by_node = {str(node.get("name")): _sample(node.get("energy")) for node in nodes}
    except (ValueError, AttributeError, TypeError):  # not the output of scontrol
        return None
    return {name: sample for name, sample in by_node.items() if sample and name in asked}


def _sample(energy: Any) -> Sample | None:
    """The sample in a node's ``energy``, or None: values of 0 or 2^64 - 2 mean that there is no sample."""
    if not isinstance(energy, dict):
        return None
    joules, at = _number(energy.get("consumed_energy")), _number(energy.get("last_collected"))
    return Sample(float(joules), float(at)) if 0 < joules < 2**63 and 0 < at < 2**63 else None


def _number(value: Any) -> int:
    """The number ``value``, which may also be written ``{"set": true, "infinite": false, "number": 5}``."""
    if isinstance(value, dict):
        value = value.get("number") if value.get("set") else None
    return value if isinstance(value, int) else 0
