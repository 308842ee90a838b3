"""The energy of a run: what the counters of its nodes count from start to stop, read by one rank per node."""

import os
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from mlhpc.common.energy.accelerators import accelerator_counters, vendor_here
from mlhpc.common.energy.counters import (
    NAMES,
    Counters,
    Measured,
    Spent,
    Sum,
    Usage,
    mean_usage,
    named_once,
)
from mlhpc.common.energy.slurm import SlurmNodes, counts_nodes, plugin
from mlhpc.common.energy.sysfs import cray, rapl
from mlhpc.common.host.accelerators import Vendor
from mlhpc.common.ranks.world import World
from mlhpc.errors import few
from mlhpc.quantities import count, seconds_text

EVERY_S = 0.9
"""Seconds from one reading to the next: at least one reading per second is required (MLPerf Training, Power
Measurement Rules)."""
HALT_S = 5.0
"""Seconds to wait, at the end of a run, for a reading in progress, since a driver may block forever."""
Record = Callable[[str, float, bool], None]
"""Called with the kind of counter, its joules, and whether all counters of the node are included."""


def counters_of_node(vendor: Vendor | None, root: Path = Path("/")) -> list[Counters]:
    """The counters of each kind that this node has, or should have. ``vendor``: that of its accelerators; None if
    they are not counted."""
    own = accelerator_counters(vendor, root)
    kinds = [_either(own, cray("accelerators", root)) if own.problems else own]
    kinds += [_either(rapl(root), cray("processors", root)), cray("node", root)]
    return [counters for counters in kinds if counters.reads or counters.problems]


def _either(first: Counters, second: Counters) -> Counters:
    return second if second.reads and not first.reads else first


def meter_of(world: World, accelerators: bool, root: Path = Path("/")) -> "Meter":
    """The meter for the run of ``world``. Called by all ranks: the first rank of each machine reads its counters,
    whatever the launcher considers a node."""
    # If all eight ranks of a node started the vendor's tool at once, it would take seconds.
    vendor = vendor_here() if accelerators and world.local_rank == 0 else None
    machine = _machine(root)
    vendors = {where: found for where, found in world.gather((machine, vendor)) if found}
    kinds = counters_of_node(vendors.get(machine), root)
    own = next((each.devices for each in kinds if each.measured == "accelerators"), ())
    ranks = world.gather((machine, own))
    machines = [machine for machine, _ in ranks]
    reads = machines.index(machine) == world.rank
    on_machine = {device for where, devices in ranks if where == machine for device in devices}
    kinds = _with_hidden(kinds, set(own), on_machine) if reads else []
    uncounted = reads and not any(counters.measured == "node" for counters in kinds)
    names = world.gather(os.environ.get("SLURMD_NODENAME") if uncounted else None)
    slurm = None
    if world.rank == 0 and any(names) and counts_nodes(sampled_by := plugin()):
        slurm = SlurmNodes([name for name in names if name], sampled_by)
    return Meter(world, kinds, slurm, nodes=len(set(machines)))


def _machine(root: Path) -> str:
    """An identifier shared by all processes of a machine, even in containers: the kernel's boot ID (Linux,
    random(4)), or else the host name."""
    try:
        return (root / "proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return socket.gethostname()


def _with_hidden(kinds: list[Counters], own: set[str], all_devices: set[str]) -> list[Counters]:
    """``kinds``, with a problem added if other ranks of the machine see accelerators that this one does not."""
    if own >= all_devices:
        return kinds
    problem = (
        f"{len(own)} of {len(all_devices)} devices counted: the others are not visible to the rank "
        f"that reads the counters (srun: use --gpus-per-node and --gpu-bind=none)"
    )
    first = next((each for each in kinds if each.measured == "accelerators"), Counters("accelerators"))
    others = [each for each in kinds if each.measured != "accelerators"]
    return [replace(first, problems=(*first.problems, problem)), *others]


class Meter:
    """Reads ``counters`` from the start of a run to its stop. ``nodes``: number of machines of the run."""

    def __init__(
        self,
        world: World,
        counters: Sequence[Counters],
        slurm: SlurmNodes | None = None,
        every_s: float = EVERY_S,
        halt_s: float = HALT_S,
        nodes: int = 1,
    ) -> None:
        self._world, self._slurm, self.nodes = world, slurm, nodes
        self._every_s, self._halt_s = every_s, halt_s
        self._sums = [Sum(each) for each in counters]
        self._record: Record = lambda measured, joules, whole: None
        self._halted = threading.Event()
        self._thread: threading.Thread | None = None
        self._blocked = False

    def start(
        self, record: Record, record_usage: Callable[[str, Usage], None] = lambda kind, usage: None
    ) -> None:
        """Read the counters now, and then about every second in a thread. ``record`` is called with what this
        rank's counters of a kind have counted since this call, and with whether all the expected counters are
        included; ``record_usage`` with how the devices of a kind were used. Called by all ranks. No rank reads its
        counters before Slurm has answered, which takes seconds on many nodes."""
        self._record, self._record_usage = record, record_usage
        if self._slurm:
            self._slurm.start()
        self._world.barrier()
        for each in self._sums:
            each.start()
            self._tell(each)
        if any(each.counters.reads or each.counters.usage for each in self._sums):
            thread = threading.Thread(target=self._run, name="energy", daemon=True)
            thread.start()
            self._thread = thread

    def halt(self) -> None:
        """Stop reading. A reading in progress that does not return within ``HALT_S`` seconds is abandoned."""
        self._halted.set()
        if self._thread:
            self._thread.join(self._halt_s)
            self._blocked = self._thread.is_alive()
            self._thread = None

    def stop(self) -> tuple[dict[Measured, dict[str, Any]], list[str]]:
        """The energy that all nodes have used since ``start``, for each kind of counter (``result.json``,
        docs/reference/record.md), and a line about each figure that is missing or incomplete. Called by all
        ranks."""
        self.halt()
        host = socket.gethostname() if self.nodes > 1 else ""
        if self._blocked:
            problem = f"a counter did not answer within {seconds_text(self._halt_s)}"
            spent = [
                Spent(each.counters.measured, each.counters.source, 0.0, 0, 0, [problem], host)
                for each in self._sums
            ]
        else:
            spent = [each.spent(host) for each in self._sums]
            for each in self._sums:
                self._tell(each)
        spent += [self._slurm.spent()] if self._slurm else []
        energy = figures([one for of_rank in self._world.gather(spent) for one in of_rank], self.nodes)
        return energy, [_warning(kind, figure) for kind, figure in energy.items() if figure["problems"]]

    def _run(self) -> None:
        while not self._halted.wait(self._every_s):
            for each in self._sums:
                each.read()
                self._tell(each)
                if each.usages:
                    self._record_usage(each.counters.measured, each.usages[-1])

    def _tell(self, counted: Sum) -> None:
        if counted.joules is not None:
            whole = not counted.counters.problems and not counted.still
            self._record(counted.counters.measured, counted.joules, whole)


def figures(gathered: Sequence[Spent], nodes: int) -> dict[Measured, dict[str, Any]]:
    """What the counters of each kind counted on all nodes together. Kinds without counters and without problems
    are left out."""
    energy: dict[Measured, dict[str, Any]] = {}
    for measured in get_args(Measured):
        of_kind = [one for one in gathered if one.measured == measured and (one.counters or one.problems)]
        read = [one for one in of_kind if one.counters]
        if of_kind:
            problems = named_once((one.host, one.problems) for one in of_kind)
            counted = sum(one.nodes for one in read)
            if read and counted < nodes and not problems:
                problems = [f"{nodes - counted} of {nodes} nodes have no counter"]
            energy[measured] = {
                "joules": sum(one.joules for one in read) if read else None,
                "source": " and ".join(dict.fromkeys(one.source for one in read or of_kind[:1])),
                "counters": sum(one.counters for one in read),
                "nodes": counted,
                "problems": problems,
                "readings": min((one.readings for one in read), default=0),
                "longest_gap_s": round(max((one.longest_gap_s for one in read), default=0.0), 3),
                "caps_w": sorted({cap for one in of_kind for cap in one.caps_w}),
            }
            if usage := mean_usage([one.usage for one in of_kind if one.usage]):
                energy[measured]["usage"] = usage
    return energy


def _warning(measured: Measured, figure: Mapping[str, Any]) -> str:
    what = f"no energy figure for the {NAMES[measured]}"
    if counters := figure["counters"]:
        what = f"the energy figure for the {NAMES[measured]} covers only {count(counters, 'counter')}"
    return f"{what}: {few(figure['problems'], 3, '; ')}"
