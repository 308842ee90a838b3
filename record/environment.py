"""``env.json``: the machine, software and command of a run, and the cores of its ranks, for reports and
comparisons."""

import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from socket import gethostname
from typing import Annotated, Any, NamedTuple

from pydantic import Field, ValidationError, ValidatorFunctionWrapHandler, WrapValidator

from mlhpc.benchmarks import registry
from mlhpc.common.host.binding import first_overlap, parse_ranges, ranges
from mlhpc.common.host.provenance import describe_environment
from mlhpc.common.pages.blocks import Table, number, table
from mlhpc.common.ranks.world import World
from mlhpc.errors import few
from mlhpc.quantities import count
from mlhpc.record.fields import MOST_RANKS, Count, Fields, Seconds, Text

Ranges = Annotated[str, Field(pattern=r"^[0-9,-]*$", max_length=1_000)]
"""Numbers in Linux's list format."""


class RankBinding(Fields):
    """The binding of one rank: the cores on which the rank may run, their NUMA nodes, the memory policy, and the
    number of compute threads."""

    rank: Count
    hostname: Text
    local_rank: Count
    cores: Ranges
    numa_nodes: Ranges | None = None
    memory_policy: Text | None = None
    threads: Count | None = None


def _or_empty(value: Any, validate: ValidatorFunctionWrapHandler) -> Any:
    try:
        return validate(value)
    except ValidationError:
        return ()


Bindings = Annotated[tuple[RankBinding, ...], Field(max_length=MOST_RANKS), WrapValidator(_or_empty)]
"""The bindings of all ranks; empty if they are invalid."""


class Machine(Fields):
    """A node of a run. ``cores``: the cores that the ranks of the run could use."""

    hostname: Text | None = None
    cpu: Text | None = None
    cores: Count | None = None
    memory_gib: Seconds | None = None
    accelerators: tuple[Text, ...] = ()
    os: Text | None = None


class Environment(Machine):
    """The environment of a run: the node of rank 0, all ``nodes``, and the software. ``commit``: the commit of the
    checkout; ``dirty``: whether there were uncommitted changes. ``variables``: environment variables of launchers
    and libraries that can change a result. ``bindings``: the bindings of all ranks; empty for a run of an earlier
    version. ``data``: the folder of the data set."""

    commit: Text | None = None
    dirty: bool | None = None
    date: Text | None = None
    binding: Any = None
    job: Any = None
    variables: Any = None
    drivers: Any = None
    python: Text | None = None
    packages: dict[str, Text] = Field(default_factory=dict)
    compiled: Any = None
    nodes: tuple[Machine, ...] = ()
    bindings: Bindings = ()
    command: Text | None = None
    data: Text | None = None

    @property
    def machines(self) -> tuple[Machine, ...]:
        """The known nodes of the run."""
        return self.nodes or ((self,) if self.hostname else ())

    @property
    def cluster(self) -> str | None:
        """The Slurm job's cluster, if it has a name."""
        names = self.variables if isinstance(self.variables, dict) else {}
        cluster = names.get("SLURM_CLUSTER_NAME")
        return cluster if isinstance(cluster, str) and not cluster.startswith("(") else None


_FRAMEWORKS = {"tensorflow": ("tensorflow", "keras", "horovod"), "torch": ("torch", "nvidia-dali")}


def packages_of(benchmark: str | None, framework: str | None, installed: Mapping[str, str]) -> dict[str, str]:
    """Names and versions of those packages in an ``env.json`` that a run of ``benchmark`` with ``framework``
    (None: the default framework) can have used. Packages of the other framework are omitted, unless the benchmark
    is unknown."""
    own = _family(str(benchmark), framework)
    others = tuple(n for key, names in _FRAMEWORKS.items() if own and key != own for n in names)
    return {name: version for name, version in installed.items() if not name.startswith(others)}


def _family(benchmark: str, framework: str | None) -> str | None:
    known = registry.find_logged(benchmark)
    if known is None:
        return None
    used = known.frameworks.get(framework or "", known.frameworks[known.default_framework])
    return next((family for family in _FRAMEWORKS if family in used.packages), None)


def framework_of(benchmark: str | None, framework: str | None, installed: Mapping[str, str]) -> str:
    """The framework of a run and its version, such as ``torch 2.13.0``; empty if unknown."""
    names = tuple(_FRAMEWORKS)
    return ", ".join(
        f"{name} {version}"
        for name, version in packages_of(benchmark, framework, installed).items()
        if name.startswith(names) and "vision" not in name
    )


def without_number(host: str | None) -> str | None:
    """The part of the ``host`` name that the nodes of a system have in common, such as ``nid`` for
    ``nid000042.local``."""
    return re.sub(r"[-_]?\d*$", "", (host or "").partition(".")[0]) or host


def write_environment(path: Path, data: Path, world: World, binding: Mapping[str, Any]) -> None:
    """Write the environment of a run that reads ``data`` to the file ``path``. ``binding``: this rank's binding,
    from ``describe_binding``. Called by all ranks. Raises UserError if the file cannot be written."""
    here = describe_environment() if world.local_rank == 0 else None
    nodes = [facts for facts in world.gather(here) if facts]
    place = {"rank": world.rank, "hostname": gethostname(), "local_rank": world.local_rank}
    bindings = world.gather({**place, **binding})
    if world.rank > 0:
        return
    for node in nodes:  # a node's cores are the union over its ranks
        own = (parse_ranges(each["cores"]) for each in bindings if each["hostname"] == node["hostname"])
        node["cores"] = len({core for cores in own for core in cores})
    environment = Environment(
        **nodes[0],
        nodes=tuple(Machine(**{key: node[key] for key in Machine.model_fields}) for node in nodes),
        bindings=tuple(bindings),
        command=shlex.join(["mlhpc", *sys.argv[1:]]),
        data=str(data.absolute()),
    )
    environment.write(path)


class Row(NamedTuple):
    """A row of the bindings table: a binding shared by the same local ranks on all ``hosts``."""

    hosts: tuple[str, ...]
    local_ranks: str
    binding: RankBinding

    def __str__(self) -> str:
        own = self.binding
        parts = [f"local ranks {self.local_ranks}: cores {own.cores}"]
        parts += [f"NUMA nodes {own.numa_nodes}"] if own.numa_nodes else []
        parts += [f"memory {own.memory_policy}"] if own.memory_policy not in (None, "default") else []
        parts += [count(own.threads, "thread")] if own.threads is not None else []
        return ", ".join(parts)


def binding_rows(bindings: Sequence[RankBinding]) -> list[Row]:
    """The rows with the bindings of all local ranks on all nodes; nodes with identical bindings share rows."""
    of_host: dict[str, dict[tuple[Any, ...], list[RankBinding]]] = {}
    for each in bindings:
        key = (each.cores, each.numa_nodes, each.memory_policy, each.threads)
        of_host.setdefault(each.hostname, {}).setdefault(key, []).append(each)
    hosts: dict[tuple[str, tuple[Any, ...]], list[str]] = {}
    sample: dict[tuple[str, tuple[Any, ...]], RankBinding] = {}
    for host, groups in of_host.items():
        for key, own in groups.items():
            row = ranges(each.local_rank for each in own), key
            hosts.setdefault(row, []).append(host)
            sample.setdefault(row, own[0])
    return [Row(tuple(names), row[0], sample[row]) for row, names in hosts.items()]


def binding_text(bindings: Sequence[RankBinding]) -> str:
    """The bindings of all ranks in one line; empty without bindings."""
    rows = binding_rows(bindings)
    alike = len({row.hosts for row in rows}) == 1
    return "; ".join(f"{row}" if alike else f"{row} on {count(len(row.hosts), 'node')}" for row in rows)


def shared_cores(bindings: Sequence[RankBinding]) -> str:
    """A sentence about the first ranks found to share cores, or about a node on which all ranks share the same
    cores; empty if no ranks share cores."""
    of_host: dict[str, list[RankBinding]] = {}
    for each in bindings:
        of_host.setdefault(each.hostname, []).append(each)
    for host, own in of_host.items():
        cores = [each.cores for each in own]
        if len(own) > 1 and len(set(cores)) == 1:
            return f"The {len(own)} ranks of {host} share all their cores: they are not bound."
        try:
            overlap = first_overlap(cores)
        except ValueError:
            continue
        if overlap:
            one, two, shared = overlap
            return f"Ranks {own[one].rank} and {own[two].rank} of {host} share cores {shared}."
    return ""


def bindings_table(bindings: Sequence[RankBinding]) -> Table:
    """The table of cores, memory and devices of the ranks, with one row for ranks that are bound in the same
    way."""
    return table(
        "bindings",
        binding_rows(bindings),
        {
            "node": lambda row: few(row.hosts, 3),
            "local ranks": lambda row: row.local_ranks,
            "cores": lambda row: row.binding.cores,
            "NUMA nodes": lambda row: row.binding.numa_nodes or "not known",
            "memory policy": lambda row: row.binding.memory_policy or "not known",
            "threads": lambda row: number(row.binding.threads, str, none="not known"),
        },
        text_columns=5,
    )
