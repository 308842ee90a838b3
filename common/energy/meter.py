"""The energy of a run: what the counters of its nodes count from start to stop, read by one rank of each node."""

import os
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mlhpc.common.energy.accelerators import accelerator_counters
from mlhpc.common.energy.counters import Counters, Measured, Spent, Sum, named_once
from mlhpc.common.energy.slurm import SlurmNodes, counts_nodes, plugin
from mlhpc.common.energy.sysfs import cray, rapl
from mlhpc.common.ranks.world import World
from mlhpc.errors import count

EVERY_S = 10.0
"""Seconds between two readings: a package at 1 kW passes the smallest range of RAPL, 65.5 kJ, in 65 s, and a
reading takes less than a millisecond."""
NAMES: dict[Measured, str] = {
    "accelerators": "accelerators",
    "processors": "processors",
    "node": "whole nodes",
}


def counters_of_node(accelerators: bool, root: Path = Path("/")) -> list[Counters]:
    """Each kind of counter that this node has, or should have. ``accelerators``: whether to look for theirs."""
    found = []
    if accelerators:
        own = accelerator_counters(root=root)
        found.append(_either(own, cray("accelerators", root)) if own.problems else own)
    found += [_either(rapl(root), cray("processors", root)), cray("node", root)]
    return [counters for counters in found if counters.reads or counters.problems]


def _either(first: Counters, second: Counters) -> Counters:
    return second if second.reads and not first.reads else first


def meter_of(world: World, accelerators: bool, root: Path = Path("/")) -> "Meter":
    """What measures the run of ``world``. Called by all ranks."""
    found = counters_of_node(accelerators, root) if world.local_rank == 0 else []
    uncounted = world.local_rank == 0 and not any(counters.measured == "node" for counters in found)
    names = world.gather(os.environ.get("SLURMD_NODENAME") if uncounted else None)
    slurm = None
    if world.rank == 0 and any(names) and counts_nodes(sampled_by := plugin()):
        slurm = SlurmNodes([name for name in names if name], sampled_by)
    return Meter(world, found, slurm)


class Meter:
    """Reads ``counters`` from the start of a run to its stop."""

    def __init__(
        self,
        world: World,
        counters: Sequence[Counters],
        slurm: SlurmNodes | None = None,
        every_s: float = EVERY_S,
    ) -> None:
        self._world, self._slurm, self._every_s = world, slurm, every_s
        self._sums = [Sum(each) for each in counters]
        self._record: Callable[[str, float], None] = lambda measured, joules: None
        self._halted = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, record: Callable[[str, float], None]) -> None:
        """Read the counters, and from now on every ten seconds, from a thread. ``record(measured, joules)`` gets
        what this rank's counters of a kind have counted since."""
        self._record = record
        if self._slurm:
            self._slurm.start()
        for each in self._sums:
            each.start()
            self._tell(each)
        if any(each.counters.reads for each in self._sums):
            self._thread = threading.Thread(target=self._run, name="energy", daemon=True)
            self._thread.start()

    def halt(self) -> None:
        """Read nothing any more."""
        self._halted.set()
        if self._thread:
            self._thread.join()
            self._thread = None

    def stop(self) -> tuple[dict[Measured, dict[str, Any]], list[str]]:
        """What all nodes have used since ``start``, by what was measured (``result.json``, docs/architecture.md),
        and a line on each figure that is missing or incomplete. Called by all ranks."""
        self.halt()
        host = socket.gethostname() if self._world.nodes > 1 else ""
        spent = [each.spent(host) for each in self._sums] + ([self._slurm.spent()] if self._slurm else [])
        for each in self._sums:
            self._tell(each)
        found = figures([one for of_rank in self._world.gather(spent) for one in of_rank], self._world.nodes)
        return found, [line for line in map(_warning, found, found.values()) if line]

    def _run(self) -> None:
        while not self._halted.wait(self._every_s):
            for each in self._sums:
                each.read()
                self._tell(each)

    def _tell(self, counted: Sum) -> None:
        if counted.joules is not None:
            self._record(counted.counters.measured, counted.joules)


def figures(gathered: Sequence[Spent], nodes: int) -> dict[Measured, dict[str, Any]]:
    """What counters of each kind counted on all nodes together; without kinds of which there are none."""
    found: dict[Measured, dict[str, Any]] = {}
    for measured in NAMES:
        of_kind = [one for one in gathered if one.measured == measured and (one.counters or one.problems)]
        read = [one for one in of_kind if one.counters]
        if of_kind:
            problems = named_once((one.host, one.problems) for one in of_kind)
            counted = sum(one.nodes for one in read)
            if read and counted < nodes and not problems:
                problems = [f"{nodes - counted} of {nodes} nodes have none"]
            found[measured] = {
                "joules": sum(one.joules for one in read) if read else None,
                "source": " and ".join(dict.fromkeys(one.source for one in read or of_kind[:1])),
                "counters": sum(one.counters for one in read),
                "nodes": counted,
                "problems": problems,
            }
    return found


def _warning(measured: Measured, figure: Mapping[str, Any]) -> str:
    problems, counters = figure["problems"], figure["counters"]
    if not problems:
        return ""
    more = f" and {len(problems) - 3} more" if len(problems) > 3 else ""
    what = f"no energy figure of the {NAMES[measured]}"
    if counters:
        what = f"the energy figure of the {NAMES[measured]} is of {count(counters, 'counter')} only"
    return f"{what}: {'; '.join(problems[:3])}{more}"
